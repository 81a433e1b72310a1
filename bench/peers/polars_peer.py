"""Polars: a frame in memory, its streaming engine."""

import os
import sys

# Polars makes its threads when it is imported.
if "--threads" in sys.argv:
    os.environ["POLARS_MAX_THREADS"] = sys.argv[sys.argv.index("--threads") + 1]

import peer
import polars as pl


def load(workload, path, _threads):
    frame = pl.read_parquet(path, columns=workload.columns)
    if workload.time:
        frame = frame.with_columns(pl.col(workload.time).dt.epoch("ms"))
    if workload.filter:
        frame = frame.with_columns(pl.col(workload.filter[0]).cast(pl.Categorical))
    frame = frame.rechunk()
    rows = frame.lazy()
    if workload.filter:
        column, word = workload.filter
        rows = rows.filter(pl.col(column) == word)
    lookup = workload.lookup
    if lookup:
        table = pl.read_parquet(peer.beside(path, lookup.table))
        rows = rows.join(table.lazy(), left_on=workload.key, right_on=lookup.key)
    by = [pl.col(lookup.column if lookup else workload.key).alias("k")]
    if workload.time:
        by.append((pl.col(workload.time) // workload.window).alias("w"))
    value = {
        "count": lambda: pl.len().cast(pl.Int64),
        "max": lambda: pl.col(workload.value).max(),
        # Of 32-bit numbers the mean is a 32-bit number.
        "mean": lambda: pl.col(workload.value).cast(pl.Float64).mean(),
    }[workload.aggregate]()
    groups = rows.group_by(by).agg(value.alias("v"))
    query = groups.select(pl.len().alias("rows"), ((pl.col("k") + 1) * pl.col("v")).sum().alias("total"))
    return pl.__version__, lambda: query.collect(engine="streaming").row(0)


peer.serve(load)
