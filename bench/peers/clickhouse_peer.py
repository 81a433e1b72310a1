"""ClickHouse inside the process (chdb): a table of the engine Memory."""

import json

import chdb
import peer
from chdb import session


def load(workload, path, threads):
    connection = session.Session()
    connection.query(f"SET max_threads = {threads}")
    columns = []
    for name in workload.columns:
        # Columns that may be null cost it twice the time.
        column = f"assumeNotNull({name})"
        if name == workload.time:
            column = f"toUnixTimestamp64Milli({column})"
        elif workload.filter and name == workload.filter[0]:
            column = f"toLowCardinality({column})"
        columns.append(f"{column} AS {name}")
    connection.query("CREATE DATABASE IF NOT EXISTS bench ENGINE = Atomic")
    connection.query("USE bench")
    connection.query(
        f"CREATE TABLE input ENGINE = Memory AS SELECT {', '.join(columns)} FROM file('{path}', Parquet)"
    )
    if workload.lookup:
        table, names = workload.lookup.table, (workload.lookup.key, workload.lookup.column)
        columns = ", ".join(f"assumeNotNull({name}) AS {name}" for name in names)
        file = f"file('{peer.beside(path, table)}', Parquet)"
        connection.query(f"CREATE TABLE {table} ENGINE = Memory AS SELECT {columns} FROM {file}")
    query = peer.sql(workload, "intDiv({0}, {1})") + f" SETTINGS max_threads = {threads}"

    def run():
        line = json.loads(str(connection.query(query, "JSONCompactEachRow")))
        return line[0], line[1]

    return chdb.__version__, run


peer.serve(load)
