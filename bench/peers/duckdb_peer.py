"""DuckDB: a table in memory."""

import duckdb
import peer


def load(workload, path, threads):
    connection = duckdb.connect()
    connection.execute(f"SET threads = {threads}")
    columns = []
    for name in workload.columns:
        if name == workload.time:
            columns.append(f"epoch_ms({name}) AS {name}")
        elif workload.filter and name == workload.filter[0]:
            connection.execute(
                f"CREATE TYPE words AS ENUM (SELECT DISTINCT {name} FROM read_parquet('{path}'))"
            )
            columns.append(f"{name}::words AS {name}")
        else:
            columns.append(name)
    connection.execute(f"CREATE TABLE input AS SELECT {', '.join(columns)} FROM read_parquet('{path}')")
    if workload.lookup:
        table = workload.lookup.table
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{peer.beside(path, table)}')")
    query = peer.sql(workload, "{0} // {1}")
    return duckdb.__version__, lambda: connection.execute(query).fetchone()


peer.serve(load)
