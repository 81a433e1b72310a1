"""A peer for the suites: an engine that loads the tables of a directory, and runs queries by their names.

    suite_peer.py ENGINE --directory DIR --sql FILE --threads N [--scale SF] [--from memory|file]

It prints a JSON line when the tables are in memory (or, with `--from file`, known), then one for each name that it
reads: seconds and a digest of the rows, or why the engine refuses the query.
"""

import argparse
import decimal
import json
import math
import os
import sys
import time
from pathlib import Path


def queries(path, scale):
    """The queries of a file of SQL by their names."""
    text = Path(path).read_text().replace("{fraction}", f"{0.0001 / scale:.10f}")
    parts = (part.split("\n", 1) for part in text.split("-- Query ")[1:])
    return {name.strip(): sql.strip().rstrip(";") for name, sql in parts}


def tables(directory):
    return {file.stem: file for file in sorted(Path(directory).glob("*.parquet"))}


def duckdb_engine(files, threads, in_memory):
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    connection.execute("SET integer_division = true")
    kind = "TABLE" if in_memory else "VIEW"
    for name, file in files.items():
        connection.execute(f"CREATE {kind} {name} AS SELECT * FROM read_parquet('{file}')")
    return duckdb.__version__, lambda sql: connection.execute(sql).fetchall()


def polars_engine(files, threads, in_memory):
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    table = (lambda file: pl.read_parquet(file).lazy()) if in_memory else pl.scan_parquet
    context = pl.SQLContext({name: table(file) for name, file in files.items()})
    return pl.__version__, lambda sql: context.execute(sql).collect(engine="streaming").rows()


def datafusion_engine(files, threads, in_memory):
    import datafusion
    import pyarrow.parquet as pq

    config = datafusion.SessionConfig().with_target_partitions(threads)
    context = datafusion.SessionContext(config.set("datafusion.sql_parser.parse_float_as_decimal", "true"))
    for name, file in files.items():
        if not in_memory:
            context.register_parquet(name, str(file))
            continue
        batches = pq.read_table(file).combine_chunks().to_batches(max_chunksize=8192)
        context.register_record_batches(name, [batches[part::threads] for part in range(threads)])

    def run(sql):
        rows = []
        for batch in context.sql(sql).collect():
            rows += zip(*(column.to_pylist() for column in batch.columns))
        return rows

    return datafusion.__version__, run


def clickhouse_engine(files, threads, in_memory):
    import chdb
    from chdb import session

    connection = session.Session()
    connection.query("CREATE DATABASE IF NOT EXISTS bench ENGINE = Atomic")
    connection.query("USE bench")
    table = "TABLE `{}` ENGINE = Memory" if in_memory else "VIEW `{}`"
    for name, file in files.items():
        connection.query(
            f"CREATE {table.format(name)} AS SELECT * FROM file('{file}', Parquet)"
            " SETTINGS schema_inference_make_columns_nullable = 0"
        )

    def run(sql):
        # Rows without a partner get NULLs, as in the standard.
        text = str(connection.query(f"{sql} SETTINGS max_threads = {threads}, join_use_nulls = 1", "JSONCompactEachRow"))
        return [json.loads(line) for line in text.splitlines()]

    return chdb.__version__, run


ENGINES = {
    "duckdb": duckdb_engine,
    "polars": polars_engine,
    "datafusion": datafusion_engine,
    "clickhouse": clickhouse_engine,
}


def digest(rows):
    """The number of rows, and a sum for each column of numbers, independent of the order of rows."""
    sums = []
    for column in zip(*rows):
        numbers = [number(value) for value in column]
        sums.append(math.fsum(value for value in numbers if value is not None))
    return {"rows": len(rows), "sums": sums}


def number(value):
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float, decimal.Decimal)):
        return float(value)
    # Some engines return decimals and large numbers as texts.
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--sql", required=True)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--from", dest="source", choices=["memory", "file"], default="memory")
    arguments = parser.parse_args()
    texts = queries(arguments.sql, arguments.scale)
    version, run = ENGINES[arguments.engine](tables(arguments.directory), arguments.threads, arguments.source == "memory")
    answer({"version": version})
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            rows = run(texts[line.strip()])
            answer({"seconds": time.perf_counter() - begin, **digest(rows)})
        except Exception as error:
            answer({"refused": str(error).splitlines()[0][:200]})


def answer(line):
    print(json.dumps(line), flush=True)


main()
