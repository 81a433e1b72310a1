#!/usr/bin/env python3
"""Measures the Python package: `bench-python.py [--rows N] [--gigabytes N] [--wheel FILE]`, with the interpreter of
an environment that has it, Polars, pyarrow and DuckDB: scripts/bench-python.sh makes one.

Each line is a measurement, the greatest or least value that is aimed at, and whether it is reached. Times are
the least of several runs. The functions and groups are over rows in memory. Where a value is not reached the
status is 1.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import millstream as ms

RUNS = 5
# The names of what was not reached.
missed: list[str] = []


def least(run: Callable[[], object], runs: int = RUNS) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def told(name: str, value: str, aim: str, reached: bool) -> None:
    if not reached:
        missed.append(name)
    print(f"{name:<44} {value:>12}   {aim:<22} {'reached' if reached else 'NOT reached'}", flush=True)


def imported() -> None:
    """In a process of its own, beside an interpreter that imports nothing."""

    def run(code: str) -> float:
        return least(lambda: subprocess.run([sys.executable, "-c", code], check=True), 10)

    took = 1000 * (run("import millstream") - run("pass"))
    told("import millstream", f"{took:.1f} ms", "at most 100 ms", took <= 100)


def selected(session: ms.Session) -> None:
    took = []
    for _ in range(200):
        began = time.perf_counter()
        session.sql("SELECT 1").fetchall()
        took.append(1000 * (time.perf_counter() - began))
    median = statistics.median(took)
    told("SELECT 1, median of 200", f"{median:.2f} ms", "at most 15 ms", median <= 15)


def multiplied(session: ms.Session, rows: int) -> None:
    session.sql(
        f"CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '{rows}', "
        "'fields.n.kind' = 'sequence')"
    )
    measure_multiply(session, "of a generator")


def multiplied_in_long_batches(session: ms.Session, workers: int) -> None:
    """The same rows in one chunk, so that a batch has as many as the setting says."""
    rows = pa.table(session.sql("SELECT n FROM numbers")).combine_chunks()
    with ms.Session(workers=workers) as other:
        other.register("numbers", rows)
        measure_multiply(other, "in memory")
    with ms.Session(workers=workers) as other:
        other.register("numbers", rows)
        other.sql("SET 'millstream.batch_rows' = '262144'")
        measure_multiply(other, "in memory, in batches of 262,144")


def measure_multiply(session: ms.Session, rows: str) -> None:
    @session.function(pa.float64())
    def half(x: pa.Int64Array) -> pa.Array:
        return pc.multiply(x, 0.5)

    text = "SELECT max({}) FROM numbers"
    built_in = least(lambda: session.sql(text.format("n * CAST(0.5 AS DOUBLE)")).fetchall(), 3)
    ours = least(lambda: session.sql(text.format("half(n)")).fetchall(), 3)
    what = f"pc.multiply / the built-in operator, rows {rows}"
    told(what, f"{ours / built_in:.2f}", "at most 1.3", ours <= 1.3 * built_in)
    counts = session.functions["half"]
    each = 1e6 * counts["seconds"] / counts["calls"]
    waited = counts["gil_wait_seconds"] / (counts["seconds"] + counts["gil_wait_seconds"])
    print(f"  {counts['calls']} calls of {each:.1f} µs, {100 * waited:.0f} % of their time waiting for the lock")
    print(f"  the operator {built_in:.2f} s, the function {ours:.2f} s")


def called(session: ms.Session) -> None:
    """A function that does nothing: what is left is the way to Python and back.

    It reads the table that `multiplied` has made.
    """

    @session.function(pa.int64())
    def same(x: pa.Int64Array) -> pa.Array:
        return x

    session.sql("SELECT max(same(n)) FROM numbers").fetchall()
    counts = session.functions["same"]
    each = 1e6 * counts["seconds"] / counts["calls"]
    told("a call of a function that does nothing", f"{each:.1f} µs", "at most 8 µs", each <= 8)


def counted_beside() -> None:
    """Another thread of Python, while a query runs on one worker: alone it needs the interpreter's lock."""
    if (os.cpu_count() or 1) < 2:
        print("with one processor nothing is counted beside a query")
        return

    def counts() -> float:
        def count() -> None:
            for _ in range(10_000_000):
                pass

        def run() -> None:
            thread = threading.Thread(target=count)
            thread.start()
            thread.join()

        return least(run)

    with ms.Session(workers=1) as session:
        session.sql(
            "CREATE TABLE long (n BIGINT) WITH ('connector' = 'generator', 'rows' = '1000000000000');"
            "CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')"
        )
        alone = counts()
        job = session.sql("INSERT INTO nowhere SELECT n FROM long WHERE n % 7 = 1").start()
        while not (job.progress and job.progress["rows_in"]):
            time.sleep(0.01)
        beside = counts()
        assert not job.done
        job.abort()
    share = alone / beside
    told("a thread of Python beside a query", f"{100 * share:.0f} %", "at least 90 %", share >= 0.9)


def sized(wheel: Path) -> None:
    size = wheel.stat().st_size / 1e6
    told("the wheel", f"{size:.1f} MB", "at most 60 MB", size <= 60)


def grouped(session: ms.Session, rows: int) -> None:
    duck = duckdb.connect()
    frame = pl.DataFrame({"k": pl.arange(0, rows, eager=True) % 1000, "x": pl.arange(0, rows, eager=True)})
    text = "SELECT k, count(*) AS n, sum(x) AS s FROM frame GROUP BY k"

    def ours() -> pl.DataFrame:
        session.register("frame", frame)
        return session.sql(text).polars()

    def theirs() -> pl.DataFrame:
        duck.register("frame", frame)
        return duck.sql(text).pl()

    assert ours().sort("k").equals(theirs().cast({"s": pl.Int64}).sort("k")), "the rows differ"
    mine, duckdbs = least(ours, 3), least(theirs, 3)
    told("Polars to Polars by groups, DuckDB / ours", f"{duckdbs / mine:.2f}", "at least 1", mine <= duckdbs)
    print(f"  {mine:.2f} s, DuckDB {duckdbs:.2f} s, {rows / mine / 1e6:.0f} million rows/s")


def streamed(session: ms.Session, gigabytes: int) -> None:
    """In this process, which has held the rows of the measurement before: the increase counts."""
    rows = gigabytes * 10**9 // 8
    session.sql(f"CREATE TABLE many (n BIGINT) WITH ('connector' = 'generator', 'rows' = '{rows}')")
    began, count = time.perf_counter(), 0
    for batch in session.sql("SELECT n FROM many").batches():
        count += batch.num_rows
    took = time.perf_counter() - began
    assert count == rows, f"{count} rows, and not {rows}"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told(f"{gigabytes} GB through batches()", f"{most:.0f} MiB", "at most 400 MiB", most <= 400)
    print(f"  {took:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--gigabytes", type=int, default=10)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--wheel", type=Path)
    args = parser.parse_args()
    with ms.Session(workers=args.workers) as session:
        print(f"{session!r}, {args.rows:,} rows")
        imported()
        selected(session)
        # Before anything large is held, since the greatest resident size is told.
        streamed(session, args.gigabytes)
        multiplied(session, args.rows)
        multiplied_in_long_batches(session, args.workers)
        called(session)
        grouped(session, args.rows)
    counted_beside()
    if args.wheel:
        sized(args.wheel)
    if missed:
        sys.exit(f"not reached: {', '.join(missed)}")


main()
