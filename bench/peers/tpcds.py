#!/usr/bin/env python3
"""Runs the 99 queries of TPC-DS and compares each result with DuckDB's.

    bench/peers/tpcds.py --millstream PROGRAM --directory DIR [--scale 0.01] [--queries 4,14] [--layouts 1x1,2x2:tcp]

Tables and queries are those of DuckDB's extension `tpcds`, which its own package brings; neither is part of this
repository. Millstream reads the tables as Parquet files. A layout is NODESxWORKERS, with the transport behind a colon.

A result is right if it has the columns and the number of rows that DuckDB gives, if each of its rows is one of
DuckDB's rows without the last LIMIT (as often at most as there), and if the columns of ORDER BY are those of DuckDB's
row by row. So rows that are equal by ORDER BY may come in any order, and any of them may be cut by LIMIT. Numbers that
are not whole may differ by a millionth, since quotients of decimals are DOUBLE in DuckDB.
"""

import argparse
import collections
import datetime
import decimal
import glob
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import duckdb_extension_tpcds

# Relative difference of two numbers that count as equal.
CLOSE = 1e-6
# Absolute difference: one in the last digit of an average of DECIMAL(7, 2), which has six.
NEAR = 2e-6


def main():
    arguments = parse()
    connection = connect(arguments.threads)
    directory = Path(arguments.directory) / f"tpcds-{arguments.scale}"
    tables = generate(connection, arguments.scale, directory)
    views = "".join(f"CREATE VIEW {table} AS SELECT * FROM '{directory}/{table}.parquet';\n" for table in tables)
    queries = dict(connection.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall())
    chosen = [int(number) for number in arguments.queries.split(",")] if arguments.queries else sorted(queries)
    counts, lines = collections.Counter(), []
    for number in chosen:
        answer = Answer(connection, queries[number])
        text = f"{views}{answer.query};\n"
        verdicts = {layout: run(arguments, directory, number, layout, text, answer) for layout in arguments.layouts}
        wrong = {layout: verdict for layout, verdict in verdicts.items() if verdict[0] != "right"}
        state = "right" if not wrong else sorted(verdict[0] for verdict in wrong.values())[-1]
        counts[state] += 1
        seconds = max(verdict[2] for verdict in verdicts.values())
        print(f"q{number:<3} {state:<8} {answer.rows_asked():>6} rows {seconds:8.2f} s", flush=True)
        for layout, (_, why, _) in wrong.items():
            print(f"     {layout}: {why}", flush=True)
        lines.append({"query": number, "state": state, "layouts": verdicts, "rows": answer.rows_asked()})
    if arguments.json:
        Path(arguments.json).write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(", ".join(f"{count} {state}" for state, count in sorted(counts.items())), f"of {len(chosen)} queries")
    return 0 if counts["right"] >= min(arguments.least, len(chosen)) and not counts["wrong"] else 1


def connect(threads):
    (extension,) = glob.glob(f"{os.path.dirname(duckdb_extension_tpcds.__file__)}/extensions/*/tpcds.duckdb_extension")
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"SET threads = {threads}")
    # NULL is the greatest value, and whole numbers divide into whole numbers, as in PostgreSQL and in Millstream.
    connection.execute("SET default_null_order = 'NULLS_LAST_ON_ASC_FIRST_ON_DESC'")
    connection.execute("SET integer_division = true")
    return connection


def generate(connection, scale, directory):
    """Makes the tables and their files, and gives their names."""
    connection.execute(f"CALL dsdgen(sf = {scale})")
    tables = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
    directory.mkdir(parents=True, exist_ok=True)
    for table in tables:
        file = directory / f"{table}.parquet"
        if not file.exists():
            connection.execute(f"COPY {table} TO '{file}.part' (FORMAT parquet)")
            os.replace(f"{file}.part", file)
    return tables


class Answer:
    """DuckDB's rows of a query, with all rows that its last LIMIT may have cut."""

    def __init__(self, connection, query):
        self.query = query.strip().rstrip(";").strip()
        limit = re.search(r"\sLIMIT\s+(\d+)$", self.query, re.IGNORECASE)
        self.limit = int(limit.group(1)) if limit else None
        whole = self.query[: limit.start()] if limit else self.query
        result = connection.execute(whole)
        self.columns = [column[0].lower() for column in result.description]
        self.rows = [tuple(plain(value) for value in row) for row in result.fetchall()]
        self.keys = order_columns(whole, self.columns)

    def rows_asked(self):
        return len(self.rows) if self.limit is None else min(self.limit, len(self.rows))

    def differs(self, rows):
        """Says how these rows differ from what was asked for, or gives None."""
        if len(rows) != self.rows_asked():
            return f"{len(rows)} rows in place of {self.rows_asked()}"
        if rows and len(rows[0]) != len(self.columns):
            return f"{len(rows[0])} columns in place of {len(self.columns)}"
        for number, (mine, right) in enumerate(zip(rows, self.rows)):
            if not all(equal(mine[key], right[key]) for key in self.keys):
                return f"row {number + 1} is {mine}, by ORDER BY it is {right}"
        rest = collections.defaultdict(list)
        for row in self.rows:
            rest[exact(row)].append(row)
        for number, row in enumerate(rows):
            candidates = rest[exact(row)]
            found = next((i for i, other in enumerate(candidates) if all(map(equal, row, other))), None)
            if found is None:
                return f"row {number + 1}, {row}, is none of DuckDB's; as {candidates[:2] or self.rows[number]}"
            candidates.pop(found)
        return None


def order_columns(query, columns):
    """The positions of the leading columns of the last ORDER BY, as far as they are columns of the result."""
    if not re.search(r"\bORDER\s+BY\b", query, re.IGNORECASE):
        return []
    tail = re.split(r"\bORDER\s+BY\b", query, flags=re.IGNORECASE)[-1]
    if tail.count("(") != tail.count(")"):
        return []
    keys = []
    for item in re.split(r",(?![^(]*\))", tail):
        word = re.sub(r"\s+(ASC|DESC)?\s*(NULLS\s+(FIRST|LAST))?$", "", item.strip(), flags=re.IGNORECASE).strip()
        name = word.split(".")[-1].strip('"').lower()
        if word.isdigit():
            keys.append(int(word) - 1)
        elif columns.count(name) == 1:
            keys.append(columns.index(name))
        else:
            break
    return keys


def plain(value):
    """A value in the form in which both engines' are compared."""
    match value:
        case bool() | None:
            return value
        case int() | float() | decimal.Decimal():
            number = float(value)
            return int(number) if number.is_integer() and abs(number) < 2**53 else number
        case datetime.datetime():
            return str(value.date() if value.time() == datetime.time() else value)
        case _:
            return str(value)


def exact(row):
    """The part of a row that must be equal without a tolerance."""
    return tuple(value if isinstance(value, str) or value is None else "number" for value in row)


def equal(a, b):
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a == b
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=NEAR)


def run(arguments, directory, number, layout, text, answer):
    """Runs a query in a layout: its state, why it is so, and the seconds that it took."""
    shape, _, fabric = layout.partition(":")
    nodes, workers = shape.split("x")
    file, output = directory / f"q{number}.sql", directory / f"q{number}-result.parquet"
    file.write_text(text)
    output.unlink(missing_ok=True)
    command = [arguments.millstream, "run", file, "--quiet", "--nodes", nodes, "--workers", workers]
    command += ["--fabric", fabric or "auto", "--output", output]
    for option in arguments.set:
        command += ["--set", option]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout, check=False)
    except subprocess.TimeoutExpired:
        return "hangs", f"not done in {arguments.timeout} s", arguments.timeout
    seconds = time.monotonic() - began
    if done.returncode != 0:
        state = "panics" if "panic" in done.stderr else {2: "refused"}.get(done.returncode, "fails")
        return state, f"code {done.returncode}: {done.stderr.strip()[:600]}", seconds
    rows = duckdb.execute(f"SELECT * FROM '{output}'").fetchall()
    why = answer.differs([tuple(plain(value) for value in row) for row in rows])
    return ("right" if why is None else "wrong"), why, seconds


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millstream", required=True, help="the program")
    parser.add_argument("--directory", required=True, help="where the tables and results lie")
    parser.add_argument("--scale", type=float, default=0.01, help="the scale factor")
    parser.add_argument("--queries", help="numbers of queries behind commas; all by default")
    parser.add_argument(
        "--layouts", type=lambda text: text.split(","), default="1x1,2x2:shm,2x2:tcp,4x1:shm,4x1:tcp".split(",")
    )
    parser.add_argument("--set", action="append", default=[], help="an option of Millstream, KEY=VALUE")
    parser.add_argument("--threads", type=int, default=1, help="threads of DuckDB")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a query hangs")
    parser.add_argument("--least", type=int, default=93, help="how many must be right, and none wrong, for code 0")
    parser.add_argument("--json", help="a file for a JSON object of each query")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
