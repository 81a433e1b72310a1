#!/usr/bin/env python3
"""Computes with DuckDB the answers of `millstream bench tpch|ssb|tpcc --check`.

    for suite in tpch ssb tpcc; do for scale in 0.01 0.1 1; do
        millstream bench $suite --scale $scale --write DIR
    done; done
    bench/answers/make.py DIR          writes the answers beside this file
    bench/answers/make.py DIR --slt    writes tests/slt/{tpch,ssb,tpcc}.slt

DuckDB reads the files of the generators and runs the SQL of `bench/sql`. The format of the answers: the head of
`bench/src/analytics/check.rs`. `pip install duckdb`.
"""

import datetime
import decimal
import re
import sys
from pathlib import Path

import duckdb

HERE = Path(__file__).resolve().parent
SQL = HERE.parent / "sql"
SLT = HERE.parent.parent / "tests" / "slt"
SCALES = {"tpch": ["0.01", "0.1", "1"], "ssb": ["0.01", "0.1", "1"], "tpcc": ["0.01", "0.1", "1"]}
SLT_SCALES = {"tpch": "0.01", "ssb": "0.01", "tpcc": "0.1"}
# A longer result is stored as its first rows and sums.
ROWS_KEPT = 200
# Digits behind the point of quotients of decimals in Millstream; in DuckDB they are DOUBLE.
DIGITS = {
    ("tpch", "q1"): {6: 6, 7: 6, 8: 6},
    ("tpch", "q8"): {1: 8},
    ("tpch", "q14"): {0: 14},
    ("tpch", "q17"): {0: 6},
    ("tpcc", "q3"): {4: 6},
}


def queries(suite, scale):
    text = (SQL / f"{suite}.sql").read_text()
    text = text.replace("{fraction}", f"{0.0001 / float(scale):.10f}")
    for part in text.split("-- Query ")[1:]:
        name, sql = part.split("\n", 1)
        yield name.strip(), sql.strip()


def connect(directory, suite, scale):
    connection = duckdb.connect()
    # The quotient of whole numbers is a whole number, as in SQL and in Millstream.
    connection.execute("SET integer_division = true")
    for file in sorted((Path(directory) / f"{suite}-{scale}").glob("*.parquet")):
        connection.execute(f'CREATE VIEW "{file.stem}" AS SELECT * FROM read_parquet(\'{file}\')')
    # The paper writes its timestamps in two ways.
    connection.execute("""CREATE MACRO timestamp(t) AS CASE WHEN t LIKE '____-__-__-%'
        THEN strptime(t, '%Y-%m-%d-%H.%M.%S.%f') ELSE CAST(t AS TIMESTAMP) END""")
    return connection


def run(connection, sql):
    sql = re.sub(r"\btimestamp\(", '"timestamp"(', sql)
    cursor = connection.execute(sql)
    types = [str(column[1]) for column in cursor.description]
    names = [column[0].lower() for column in cursor.description]
    return names, types, cursor.fetchall()


def text(value):
    if value is None:
        return "NULL"
    if isinstance(value, decimal.Decimal):
        plain = format(value, "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds" if value.microsecond else "seconds")
    if isinstance(value, float):
        return repr(value)
    return str(value)


def order(sql, names):
    """The columns of the last ORDER BY, by their numbers."""
    keys = re.split(r"order by", sql, flags=re.I)
    if len(keys) == 1:
        return []
    keys = re.split(r"\blimit\b", keys[-1], flags=re.I)[0].rstrip(";\n ")
    # Listing 1.1 orders by the expression that it names sum_qty.
    keys = keys.replace("sum(ol_quantity)", "sum_qty")
    return [names.index(key.split()[0].lower()) for key in keys.split(",")]


def hashed(value):
    word = 0xCBF29CE484222325
    for byte in value.encode():
        word = (word ^ byte) * 0x100000001B3 % 2**64
    return word


def answer(name, scale, sql, connection):
    names, types, rows = run(connection, sql)
    exact = [kind not in ("DOUBLE", "FLOAT") for kind in types]
    letters = "".join("E" if each else "R" for each in exact)
    keys = ",".join(map(str, order(sql, names)))
    lines = [f"# {name} {scale} {len(rows)} {letters} {keys}".rstrip()]
    texts = [[text(value) for value in row] for row in rows]
    kept = texts if len(texts) <= ROWS_KEPT else texts[: ROWS_KEPT // 4]
    lines += ["\t".join(row) for row in kept]
    if len(kept) < len(texts):
        sums = []
        for at, is_exact in enumerate(exact):
            column = [row[at] for row in texts]
            total = sum(map(hashed, column)) % 2**64 if is_exact else None
            sums.append(f"{total:016x}" if is_exact else repr(sum(float(v) for v in column if v != "NULL")))
        lines.append("= " + "\t".join(sums))
    return lines


def answers(directory):
    for suite, scales in SCALES.items():
        lines = [f"By DuckDB {duckdb.__version__}; see make.py."]
        for scale in scales:
            connection = connect(directory, suite, scale)
            for name, sql in queries(suite, scale):
                lines += answer(name, scale, sql, connection)
        (HERE / f"{suite}.txt").write_text("\n".join(lines) + "\n")


TYPES = [("INT", "I"), ("HUGEINT", "I"), ("DECIMAL", "R"), ("DOUBLE", "R"), ("VARCHAR", "T"), ("DATE", "D"), ("TIMESTAMP", "P")]
HEADS = {
    "tpch": "The 22 queries of TPC-H",
    "ssb": "The 13 queries of the Star Schema Benchmark",
    "tpcc": "The three queries of the paper of the asynchronous shuffle, over TPC-C",
}


def shown(value, digits):
    """A value in the form of the tests."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}f}"
    return text(value)


def slt(directory):
    for suite, scale in SLT_SCALES.items():
        connection = connect(directory, suite, scale)
        lines = [
            f"# {HEADS[suite]}, over the tables of scale {scale}.",
            "# Expected rows by DuckDB: written by bench/answers/make.py.",
            "",
        ]
        for file in sorted((Path(directory) / f"{suite}-{scale}").glob("*.parquet")):
            options = f"'connector' = '{suite}', 'table' = '{file.stem}', 'scale' = '{scale}'"
            lines += ["statement ok", f"CREATE TABLE {file.stem} WITH ({options})", ""]
        for name, sql in queries(suite, scale):
            _, types, rows = run(connection, sql)
            letters = "".join(next(letter for word, letter in TYPES if word in kind) for kind in types)
            digits = DIGITS.get((suite, name), {})
            lines += [f"# {name}", f"query {letters}", sql.rstrip(";"), "----"]
            for row in rows:
                lines.append(" ".join(shown(value, digits.get(at)) for at, value in enumerate(row)))
            lines.append("")
        (SLT / f"{suite}.slt").write_text("\n".join(lines))


if __name__ == "__main__":
    (slt if "--slt" in sys.argv else answers)(sys.argv[1])
