"""What every peer written in Python does: load rows, run when told, say what came out.

A peer is started as `NAME.py --workload W --rows FILE --threads N`. It prints a JSON line when its rows are in memory,
then one for each line that it reads: seconds, rows of the result, and their sums, which Millstream's bench defines:
`whole` is the sum of (key + 1) * value modulo 2^64, `real` the same of values that are not whole numbers.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lookup:
    """A small table that rows are joined with: it has a key once, and beside it the key of the group."""

    table: str
    key: str
    column: str


@dataclass(frozen=True)
class Workload:
    """A group-by over rows in memory; the columns' names are those of the file."""

    key: str
    aggregate: str  # count, max or mean
    value: str | None = None
    time: str | None = None  # milliseconds
    window: int = 0  # milliseconds
    filter: tuple[str, str] | None = None  # a column and its word
    lookup: Lookup | None = None  # by the key

    @property
    def columns(self):
        filter = self.filter[0] if self.filter else None
        return [name for name in (self.key, self.time, filter, self.value) if name]


WORKLOADS = {
    "ysb": Workload(
        "ad_id", "count", None, "event_time", 10_000, ("event_type", "view"), Lookup("ads", "ad_id", "campaign_id")
    ),
    "ysb-keys": Workload("key", "count", None, "event_time", 600_000, ("event_type", "view")),
    "ro": Workload("key", "count"),
    "cm": Workload("job_id", "mean", "cpu", "event_time", 2_000),
    "nb7": Workload("auction", "max", "price", "date_time", 60_000),
}


def beside(path, table):
    """The file of another table of a workload."""
    path = Path(path)
    return path.with_suffix(f".{table}{path.suffix}")


@dataclass(frozen=True)
class Side:
    """A table that is joined; its other columns are one text."""

    table: str
    key: str
    value: str | None = None


# Joins of two tables by `date_time`, for streaming engines: windows of so many milliseconds, or sessions with such a gap.
JOINS = {
    "nb8": (Side("auctions", "seller", "id"), Side("persons", "id")),
    "nb11": (Side("bids", "bidder", "price"), Side("persons", "id")),
}


def sql(workload, quotient):
    """The query in SQL: sums over the groups, so that no engine has to hand over millions of rows.

    `quotient` says how the engine divides whole numbers, downwards or towards zero: nothing here is negative.
    """
    groups = []
    if workload.time:
        groups.append(quotient.format(workload.time, workload.window) + " AS w")
    lookup = workload.lookup
    groups.append(f"{lookup.table}.{lookup.column} AS k" if lookup else f"{workload.key} AS k")
    join = f"JOIN {lookup.table} ON input.{workload.key} = {lookup.table}.{lookup.key}" if lookup else ""
    value = {
        "count": "count(*)",
        "max": f"max({workload.value})",
        "mean": f"avg({workload.value})",
    }[workload.aggregate]
    where = "WHERE {} = '{}'".format(*workload.filter) if workload.filter else ""
    by = ", ".join(name.split(" AS ")[1] for name in groups)
    inner = f"SELECT {', '.join(groups)}, {value} AS v FROM input {join} {where} GROUP BY {by}"
    return f"SELECT count(*), sum((k + 1) * v) FROM ({inner}) AS t"


def serve(load):
    """Runs a peer. `load(workload, path, threads)` gives its version and a function that runs the query."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    workload = WORKLOADS[arguments.workload]
    version, run = load(workload, arguments.rows, arguments.threads)
    answer({"version": version})
    for _ in sys.stdin:
        begin = time.perf_counter()
        rows, total = run()
        seconds = time.perf_counter() - begin
        result = {"seconds": seconds, "rows": int(rows), "whole": 0, "real": 0.0}
        if workload.aggregate == "mean":
            result["real"] = float(total)
        else:
            result["whole"] = int(total) % 2**64
        answer(result)


def answer(line):
    print(json.dumps(line), flush=True)
