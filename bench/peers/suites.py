#!/usr/bin/env python3
"""Measures Millstream and other engines over the tables of a suite, query by query in turns.

    bench/peers/suites.py [--suites ssb,tpch] [--peers duckdb,clickhouse] [--scale 1] [--threads 1] [--runs 3]
                          [--from memory|file]

Every engine loads the same Parquet files, written by Millstream, before the clock starts, and runs the same SQL; with
`--from file` it reads them in each query instead.
Results are checked first: Millstream's against answers, and a peer whose rows or sums differ from DuckDB's has no figure.
A query that an engine refuses has no figure either, and is named. See README.md beside this file.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SQL = HERE.parent / "sql"


class Peer:
    """A process that has the tables in memory and runs queries on request."""

    def __init__(self, name, arguments, suite, directory):
        self.name = name
        command = [arguments.python, str(HERE / "suite_peer.py"), name, "--directory", str(directory)]
        command += ["--sql", str(SQL / f"{suite}.sql"), "--scale", str(arguments.scale), "--threads", str(arguments.threads)]
        command += ["--from", arguments.source]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.version = self.answer()["version"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: code {self.process.wait()}")
        return json.loads(line)

    def run(self, query):
        self.process.stdin.write(query + "\n")
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    arguments = parse()
    lines = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for suite in arguments.suites.split(","):
            lines += compare(arguments, suite, Path(directory))
    if arguments.json:
        Path(arguments.json).write_text("".join(json.dumps(line) + "\n" for line in lines))


def compare(arguments, suite, directory):
    ours = [arguments.millstream, "bench", suite, "--scale", str(arguments.scale)]
    subprocess.check_output([*ours, "--write", str(directory)], text=True)
    (files,) = directory.glob(f"{suite}-*")
    ours += ["--workers", str(arguments.threads), "--from", arguments.source, "--json"]
    if arguments.source == "file":
        ours += ["--directory", str(directory)]
    say(f"{suite}, scale {arguments.scale}, {arguments.threads} thread(s), from {arguments.source}")
    subprocess.check_output([*ours, "--repeat", "1", "--check"], text=True)
    peers = [Peer(name, arguments, suite, files) for name in arguments.peers.split(",")]
    names = [line.split()[2] for line in (SQL / f"{suite}.sql").read_text().splitlines() if line.startswith("-- Query ")]
    seconds, refused = {}, {}
    # The first round warms up, and its results are compared.
    for round_ in range(arguments.runs + 1):
        # Millstream runs each query three times in a process, of which the median counts.
        for line in subprocess.check_output([*ours, "--repeat", "3"], text=True).splitlines():
            figures = json.loads(line)
            if "query" in figures:
                seconds.setdefault(("millstream", figures["query"]), []).append(figures["seconds"]["median"])
        for query in names:
            right = None
            for peer in peers:
                if (peer.name, query) in refused:
                    continue
                result = peer.run(query)
                why = result.get("refused")
                if why is None:
                    right = right or result
                    why = None if same(result, right) else f"another result: {result}, not {right}"
                if why is not None:
                    refused[peer.name, query] = why
                    say(f"{peer.name} {peer.version}, {query}: {why}")
                    continue
                seconds.setdefault((peer.name, query), []).append(result["seconds"])
    for peer in peers:
        peer.close()
    return report(suite, arguments, names, peers, seconds)


def same(result, right):
    close = (math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-3) for a, b in zip(result["sums"], right["sums"]))
    return result["rows"] == right["rows"] and all(close)


def report(suite, arguments, names, peers, seconds):
    engines = ["millstream", *(peer.name for peer in peers)]
    versions = {peer.name: peer.version for peer in peers}
    title = f"{suite} from {arguments.source}, milliseconds"
    print(f"\n{title:<40}" + "".join(f"{name + ' ' + versions.get(name, ''):>20}" for name in engines))
    medians, lines = {}, []
    for query in names:
        row = f"{query:<40}"
        for name in engines:
            runs = seconds.get((name, query), [])[1:]
            if runs:
                medians[name, query] = statistics.median(runs)
                lines.append({
                    "suite": suite, "scale": arguments.scale, "threads": arguments.threads, "from": arguments.source,
                    "query": query, "engine": name, "version": versions.get(name, ""), "seconds": runs,
                })
            row += f"{medians[name, query] * 1e3:>20.2f}" if runs else f"{'-':>20}"
        print(row)
    # Sums are over the queries that all engines run.
    common = [query for query in names if all((name, query) in medians for name in engines)]
    for label, of in [("sum", math.fsum), ("geometric mean", statistics.geometric_mean)]:
        row = f"{label:<40}"
        for name in engines:
            values = [medians[name, query] for query in common]
            row += f"{of(values) * 1e3:>20.2f}" if values else f"{'-':>20}"
        print(row)
    print(f"sums are over the {len(common)} of {len(names)} queries that every engine runs")
    return lines


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--suites", default="ssb,tpch")
    add("--peers", default="duckdb,datafusion,clickhouse,polars")
    add("--scale", type=float, default=1)
    add("--threads", type=int, default=1)
    add("--runs", type=int, default=3)
    add("--from", dest="source", choices=["memory", "file"], default="memory", help="where the rows are when a query begins")
    add("--json", help="writes a JSON line for each query and engine here")
    add("--directory", help="where the files are kept meanwhile; a gigabyte")
    environment = os.environ.get
    add("--millstream", default=environment("MILLSTREAM", "millstream"))
    add("--python", default=environment("PEERS_PYTHON", sys.executable))
    return parser.parse_args()


if __name__ == "__main__":
    main()
