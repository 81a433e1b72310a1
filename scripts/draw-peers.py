#!/usr/bin/env python3
"""Draws docs/images/peers.svg from the first table of peers in docs/benchmarks.md.

The plot has the medians of that table and nothing else; an engine without a figure has no bar. Run
this after the table has changed.
"""

import math
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/benchmarks.md"
PLOT = ROOT / "docs/images/peers.svg"
HEADING = "### Other engines over the same rows"
WORKLOADS = ["ysb", "ro", "cm", "nb7", "nb8"]
ENGINES = {
    "Millstream": "#b5527a",
    "timely": "#2f7f86",
    "ClickHouse": "#8a6a1f",
    "DuckDB": "#55637a",
    "Flink": "#75808c",
}
LEFT, TOP, WIDTH, BAR, GAP = 70, 64, 760, 15, 18
LEAST, GREATEST = 0.1, 1000.0


def rates():
    """Millions of records a second, by engine and workload."""
    section = PAGE.read_text().split(HEADING, 1)[1].split("\n#", 1)[0]
    found, columns, done = {}, [], set()
    for line in section.splitlines():
        if line.startswith("|---"):
            continue
        if not line.startswith("|"):
            done |= set(columns)
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "engine":
            columns = [cell.strip("`") for cell in cells[1:]]
            continue
        # The second pair of tables is of another machine.
        if not columns or set(columns) & done:
            break
        engine = cells[0].split()[0].rstrip(",")
        for workload, cell in zip(columns, cells[1:]):
            number = re.match(r"[\d.]+", cell)
            if number and (engine, workload) not in found:
                found[engine, workload] = float(number[0])
    return found


def draw(found):
    span = WIDTH / math.log10(GREATEST / LEAST)
    bars = {at: [of for of in ENGINES.items() if (of[0], at) in found] for at in WORKLOADS}
    height = TOP + 8 + sum(len(of) * BAR + GAP for of in bars.values()) + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        "<title>Millions of records a second on one thread, by workload and engine, on a "
        "logarithmic scale</title>",
        "<style>text { fill: #74808e; font-size: 12px } .rate { fill: #fff; font-size: 11px }"
        "</style>",
        f'<text x="{LEFT}" y="22" style="font-size:15px;font-weight:600">Millions of records a '
        "second, one thread, logarithmic</text>",
    ]
    for at, (engine, color) in enumerate(ENGINES.items()):
        x = LEFT + 120 * at
        out.append(f'<rect x="{x}" y="36" width="11" height="11" fill="{color}"/>')
        out.append(f'<text x="{x + 17}" y="46">{engine}</text>')
    x = LEAST
    while x <= GREATEST:
        at = LEFT + span * math.log10(x / LEAST)
        line = f'<line x1="{at:.0f}" x2="{at:.0f}" y1="{TOP}" y2="{height - 26}" '
        out.append(line + 'stroke="#d5dae0"/>')
        out.append(f'<text x="{at:.0f}" y="{height - 10}" text-anchor="middle">{x:g}</text>')
        x *= 10
    y = TOP + 8
    for workload in WORKLOADS:
        middle = y + len(bars[workload]) * BAR / 2 + 3
        out.append(f'<text x="{LEFT - 10}" y="{middle:.0f}" text-anchor="end">{workload}</text>')
        for engine, color in bars[workload]:
            rate = found[engine, workload]
            width = span * math.log10(rate / LEAST)
            bar = f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 1}" '
            out.append(bar + f'fill="{color}"/>')
            # Within the bar no line of the scale crosses the number.
            label = f'<text class="rate" x="{LEFT + width - 5:.0f}" y="{y + 11}" '
            out.append(label + f'text-anchor="end">{rate:g}</text>')
            y += BAR
        y += GAP
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    PLOT.write_text(draw(rates()))
