#!/usr/bin/env python3
"""Measures Millstream and its peers over the same rows, in turns, and prints a table of ratios.

    bench/peers/run.py [--workloads ysb,nb7] [--peers duckdb,flink] [--threads 1] [--rows 32000000] [--runs 5]

Every engine holds its rows in memory before the clock starts. Results are compared before times: an engine with another
result than Millstream's sequential reference has no figure. See README.md beside this file.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STREAMING = {"timely", "timely-numbers", "flink", "flink-combine"}
# Workloads that are others with other keys.
NAMED = {"ysb-keys": ["ysb", "--keys", "10000000"], "ro-wide": ["ro", "--keys", "100000000"]}
# What peers call them, where that is another name.
QUERIES = {"ro-wide": "ro"}
# Rows of joins are longer: so many times fewer of them.
FEWER = {"nb8": 8, "nb11": 8}
# Who joins, and who does nothing else.
JOINERS = {"nb8": {"timely", "timely-numbers", "flink"}, "nb11": {"flink"}}
JOINS_ONLY = {"timely-numbers"}


class Peer:
    """A process that holds rows and runs a query when told."""

    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.version = self.answer()["version"]
        self.seconds = []

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: code {self.process.wait()}")
        return json.loads(line)

    def run(self):
        self.process.stdin.write("run\n")
        result = self.answer()
        self.seconds.append(result["seconds"])
        return result

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    arguments = parse()
    peers = arguments.peers.split(",")
    table, refused = [], []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for workload in arguments.workloads.split(","):
            figures, others = compare(arguments, workload, peers, Path(directory))
            table += figures
            refused += others
    report(table, arguments)
    if refused:
        raise SystemExit(f"other results than the reference's: {', '.join(refused)}")


def compare(arguments, workload, peers, directory):
    rows = directory / f"{workload}.parquet"
    ours = [arguments.millstream, "bench", *NAMED.get(workload, [workload]), "--json"]
    count = arguments.rows // FEWER.get(workload, 1)
    ours += ["--rows", str(count // arguments.threads), "--workers", str(arguments.threads)]
    say(f"{workload}: {count:,} rows, {arguments.threads} thread(s)")
    expected = json.loads(subprocess.check_output([*ours, "--write", str(rows)], text=True))
    if expected["rows"] != count:
        raise SystemExit(f"{expected['rows']} rows were written, not {count}")
    peers = [name for name in peers if name in JOINERS.get(workload, set(peers) - JOINS_ONLY)]
    query = QUERIES.get(workload, workload)
    started = [Peer(name, command(arguments, name, query, rows)) for name in peers]
    refused = []
    rates = []
    # The first round warms up: caches of plans, compilers of Java.
    for round_ in range(arguments.runs + 1):
        # Of a process that has just begun the first run waits for memory; the others keep theirs.
        line = subprocess.check_output([*ours, "--runs", "3"], text=True)
        rates.append(json.loads(line)["rows_per_s"]["median"])
        for peer in started:
            if peer in refused:
                continue
            result = peer.run()
            if not same(result, expected):
                refused.append(peer)
                say(f"{peer.name} {peer.version} gives another result: {result}, not {expected}")
    for peer in started:
        peer.close()
    for file in directory.iterdir():
        file.unlink()
    figures = [("millstream", "", rates[1:])]
    for peer in started:
        if peer not in refused:
            figures.append((peer.name, peer.version, [count / seconds for seconds in peer.seconds[1:]]))
    return [(workload, count, *figure) for figure in figures], [f"{peer.name} ({workload})" for peer in refused]


def same(result, expected):
    close = abs(result["real"] - expected["real"]) <= 1e-9 * abs(expected["real"])
    return (result["rows"], result["whole"]) == (expected["result_rows"], expected["whole"]) and close


def command(arguments, name, workload, rows):
    options = ["--workload", workload, "--rows", str(rows), "--threads", str(arguments.threads)]
    if workload in JOINERS:
        options[3] = str(pack(arguments, workload, rows))
    if name in ("timely", "timely-numbers"):
        numbers = ["--numbers"] if name == "timely-numbers" else []
        return [arguments.timely, "--version", arguments.timely_version, *options, *numbers]
    if name in ("flink", "flink-combine"):
        options[3] = str(pack(arguments, workload, rows))
        combine = ["--combine"] if name == "flink-combine" else []
        return [*shlex.split(arguments.flink), "peer.Main", *options, *combine]
    return [arguments.python, str(HERE / f"{name}_peer.py"), *options]


def pack(arguments, workload, rows):
    """Rows as pack.py writes them."""
    packed = rows.with_suffix(".rows")
    if not any(rows.parent.glob("*.rows")):
        subprocess.check_call([arguments.python, str(HERE / "pack.py"), workload, str(rows), str(packed)])
    return packed


def report(table, arguments):
    lines = []
    print(f"\n{'workload':<10}{'engine':<28}{'M records/s':>12}{'least':>9}{'greatest':>9}{'times slower':>14}")
    for workload in dict.fromkeys(row[0] for row in table):
        ours = None
        for _, count, name, version, per_second in [row for row in table if row[0] == workload]:
            rates = sorted(rate / 1e6 for rate in per_second)
            median = statistics.median(rates)
            ours = ours or median
            ratio = "" if name == "millstream" else f"{ours / median:.1f}"
            kind = " (streaming)" if name in STREAMING else " (batch)" if version else ""
            label = f"{name} {version}{kind}"
            print(f"{workload:<10}{label:<28}{median:>12.1f}{rates[0]:>9.1f}{rates[-1]:>9.1f}{ratio:>14}")
            lines.append({
                "workload": workload, "engine": name, "version": version, "threads": arguments.threads,
                "rows": count, "rows_per_s": per_second,
                "times_slower": ours / median,
            })
    if arguments.json:
        Path(arguments.json).write_text("".join(json.dumps(line) + "\n" for line in lines))


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--workloads", default="ysb,ysb-keys,ro,cm,nb7,nb8,nb11")
    add("--peers", default="duckdb,polars,datafusion,clickhouse,timely,timely-numbers,flink,flink-combine")
    add("--threads", type=int, default=1)
    add("--rows", type=int, default=32_000_000)
    add("--runs", type=int, default=5)
    add("--json", help="writes a JSON line for each figure here")
    add("--directory", help="where rows are kept meanwhile; several GiB")
    environment = os.environ.get
    add("--millstream", default=environment("MILLSTREAM", "millstream"))
    add("--python", default=environment("PEERS_PYTHON", sys.executable))
    add("--timely", default=environment("PEERS_TIMELY", ""))
    add("--timely-version", default=environment("PEERS_TIMELY_VERSION", ""))
    add("--flink", default=environment("PEERS_FLINK", ""))
    return parser.parse_args()


if __name__ == "__main__":
    main()
