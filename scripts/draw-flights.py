#!/usr/bin/env python3
"""Draws the result of examples/flights.sql as an SVG picture, with the standard library alone.

Usage: scripts/draw-flights.py RESULT.csv PICTURE.svg [--note TEXT]

Two line charts over the year (departures per day and mean delay, as means over seven days) and, per
airport, the mean delay by month and hour of the day.
"""

import argparse
import csv
import math
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from xml.sax.saxutils import escape

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
COLORS = {"EWR": "#0b6fa4", "JFK": "#d1495b", "LGA": "#5a8f29"}
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# Mean delay in minutes, from early to very late: light to dark, so that grey print keeps the order.
RAMP = ["#eef6fb", "#fde8c8", "#fbbf77", "#f08a4b", "#d14b3a", "#8c1d3f", "#4a1136"]
RAMP_MINUTES = 60.0
WIDTH, LEFT, RIGHT = 1200, 76, 116
HOURS = range(5, 24)
DAYS_SMOOTHED = 7
SMALLEST_GROUP = 20


class Totals:
    """Departures and the sum of their delays."""

    def __init__(self):
        self.departures = 0
        self.minutes = 0.0

    def add(self, departures, mean):
        self.departures += departures
        self.minutes += departures * mean

    def mean(self):
        return self.minutes / self.departures if self.departures else None


def read(path):
    """Totals per (airport, day) and per (airport, month, hour), and the number of rows and flights."""
    days, cells = defaultdict(Totals), defaultdict(Totals)
    rows = flights = 0
    with open(path, newline="") as source:
        for row in csv.DictReader(source):
            rows += 1
            departures = int(row["departures"])
            flights += departures + int(row["cancelled"])
            if departures == 0:
                continue
            window, origin, mean = row["window_start"], row["origin"], float(row["mean_delay"])
            day, hour = date.fromisoformat(window[:10]), int(window[11:13])
            days[origin, day].add(departures, mean)
            cells[origin, day.month, hour].add(departures, mean)
    return days, cells, rows, flights


def text(x, y, words, size=13, anchor="start", fill="#333", weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{fill}" font-weight="{weight}">{escape(words)}</text>'
    )


def line(x1, y1, x2, y2, stroke="#ddd", width=1):
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{stroke}" stroke-width="{width}"/>'
    )


def step_of(span):
    """A round distance of grid lines, for about five of them."""
    rough = span / 5
    magnitude = 10 ** math.floor(math.log10(rough))
    return next(m * magnitude for m in (1, 2, 5, 10) if rough <= m * magnitude)


def smooth(values):
    """Means of DAYS_SMOOTHED neighbours; None where nothing departed."""
    half = DAYS_SMOOTHED // 2
    result = []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - half) : i + half + 1] if v is not None]
        result.append(sum(near) / len(near) if near else None)
    return result


def labels_apart(ends, distance=17):
    """Moves labels at (y, name) down until none covers another."""
    placed = []
    for y, name in sorted(ends):
        placed.append((max(y, placed[-1][0] + distance) if placed else y, name))
    return placed


def chart(out, top, height, title, series, calendar):
    """One line per airport over the days of `calendar`."""
    values = [v for line_values in series.values() for v in line_values if v is not None]
    step = step_of(max(values) - min(0, min(values)))
    low = math.floor(min(0, min(values)) / step) * step
    high = math.ceil(max(values) / step) * step
    across = (WIDTH - LEFT - RIGHT) / max(1, len(calendar) - 1)

    def x_of(i):
        return LEFT + across * i

    def y_of(value):
        return top + height - (value - low) / (high - low) * height

    out.append(text(LEFT, top - 14, title, 15, weight="600"))
    for k in range(round((high - low) / step) + 1):
        tick = low + k * step
        out.append(
            line(LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick), "#999" if tick == 0 else "#e4e4e4")
        )
        out.append(text(LEFT - 10, y_of(tick) + 4, f"{tick:g}", 12, "end", "#555"))
    for i, day in enumerate(calendar):
        if day.day == 1:
            out.append(line(x_of(i), top + height, x_of(i), top + height + 5, "#999"))
        if day.day == 15:
            out.append(
                text(x_of(i), top + height + 19, MONTHS[day.month - 1], 12, "middle", "#555")
            )
    ends = []
    for origin, line_values in series.items():
        points = [(x_of(i), y_of(v)) for i, v in enumerate(line_values) if v is not None]
        if not points:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{COLORS[origin]}" '
            'stroke-width="2" stroke-linejoin="round"/>'
        )
        ends.append((points[-1][1], origin))
    for y, origin in labels_apart(ends):
        name = AIRPORTS[origin]
        out.append(text(WIDTH - RIGHT + 9, y + 4, name, 13, fill=COLORS[origin], weight="600"))


def color_of(minutes):
    """The ramp at a mean delay, blended between its two neighbours."""
    place = min(max(minutes, 0.0), RAMP_MINUTES) / RAMP_MINUTES * (len(RAMP) - 1)
    i = min(int(place), len(RAMP) - 2)
    pair = [[int(RAMP[i + k][c : c + 2], 16) for c in (1, 3, 5)] for k in (0, 1)]
    mixed = (round(a + (b - a) * (place - i)) for a, b in zip(*pair))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def heat_maps(out, top, cells):
    """Month by hour, one map per airport; returns where it ends."""
    gap, row = 34, 17
    wide = (WIDTH - LEFT - 40 - gap * (len(AIRPORTS) - 1)) / len(AIRPORTS)
    cell = wide / len(HOURS)
    out.append(
        text(
            LEFT,
            top - 36,
            "Mean departure delay by month and hour of scheduled departure",
            15,
            weight="600",
        )
    )
    for n, (origin, name) in enumerate(AIRPORTS.items()):
        left = LEFT + n * (wide + gap)
        out.append(
            text(left, top - 10, f"{name} ({origin})", 13, fill=COLORS[origin], weight="600")
        )
        for month in range(1, 13):
            y = top + (month - 1) * row
            if n == 0:
                out.append(text(left - 10, y + 13, MONTHS[month - 1], 12, "end", "#555"))
            for i, hour in enumerate(HOURS):
                totals = cells.get((origin, month, hour))
                few = totals is None or totals.departures < SMALLEST_GROUP
                fill = "#f4f4f4" if few else color_of(totals.mean())
                out.append(
                    f'<rect x="{left + i * cell:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" '
                    f'height="{row - 1}" fill="{fill}"/>'
                )
        for i, hour in enumerate(HOURS):
            if hour % 3 == 0:
                middle = left + (i + 0.5) * cell
                out.append(text(middle, top + 12 * row + 15, f"{hour}:00", 12, "middle", "#555"))
    return top + 12 * row + 15


def legend(out, y):
    """The colour ramp in minutes."""
    wide, tall = 260, 12
    out.append('<defs><linearGradient id="ramp">')
    for i, color in enumerate(RAMP):
        out.append(f'<stop offset="{i / (len(RAMP) - 1):.3f}" stop-color="{color}"/>')
    out.append("</linearGradient></defs>")
    out.append(f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{tall}" fill="url(#ramp)"/>')
    for minutes in (0, 15, 30, 45, 60):
        words = f"{minutes}" if minutes < RAMP_MINUTES else f"{minutes} min and more"
        anchor = "middle" if minutes < RAMP_MINUTES else "start"
        shift = 0 if minutes < RAMP_MINUTES else -8
        x = LEFT + wide * minutes / RAMP_MINUTES + shift
        out.append(text(x, y + tall + 15, words, 12, anchor, "#555"))
    few = LEFT + wide + 150
    out.append(f'<rect x="{few}" y="{y}" width="14" height="{tall}" fill="#f4f4f4" stroke="#ddd"/>')
    out.append(text(few + 21, y + 11, f"fewer than {SMALLEST_GROUP} departures", 12, fill="#555"))


def picture(days, cells, rows, flights, note):
    calendar = sorted({day for _, day in days})
    first, last = calendar[0], calendar[-1]
    calendar = [first + timedelta(n) for n in range((last - first).days + 1)]
    departures, delays = {}, {}
    for origin in AIRPORTS:
        of_day = [days.get((origin, day)) for day in calendar]
        departures[origin] = smooth([t.departures if t else None for t in of_day])
        delays[origin] = smooth([t.mean() if t else None for t in of_day])

    body = []
    body.append(text(LEFT, 44, "Flights out of New York, 2013", 24, fill="#111", weight="700"))
    summary = f"{flights:,} flights in {rows:,} windows of one hour and airport"
    body.append(text(LEFT, 68, f"{summary}. {note}" if note else f"{summary}.", 14, fill="#555"))
    week = f"mean over {DAYS_SMOOTHED} days"
    chart(body, 128, 170, f"Departures per day, {week}", departures, calendar)
    chart(body, 374, 190, f"Mean departure delay in minutes, {week}", delays, calendar)
    end = heat_maps(body, 676, cells)
    legend(body, end + 22)
    height = end + 70
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">'
    )
    title = "<title>Departures and delays of New York's airports in 2013</title>"
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, title, ground, *body, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--note", default="", help="a sentence for the line below the title")
    args = parser.parse_args()
    days, cells, rows, flights = read(args.result)
    if not days:
        parser.error(f"{args.result} has no departures")
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    args.picture.write_text(picture(days, cells, rows, flights, args.note), encoding="utf-8")


if __name__ == "__main__":
    main()
