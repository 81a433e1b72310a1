"""One picture: columns over a column, as SVG."""

from __future__ import annotations

import datetime
import decimal
import html
import math
import os
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from ._errors import UsageError

if TYPE_CHECKING:
    import altair

    from . import Batch

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 40
_COLORS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#666666")
_TICKS = 5
# Points and bars of a picture at most: more cannot be told apart.
POINTS_MAX = 10_000
# Columns that are drawn at most.
_SERIES_MAX = len(_COLORS)

_EPOCH = datetime.datetime(1970, 1, 1)


class Plot:
    """A picture of columns of a table. A notebook shows it."""

    def __init__(self, batch: Batch, x: str, y: Sequence[str], kind: str) -> None:
        if kind not in ("line", "bar"):
            raise UsageError(f"there is no plot '{kind}'", "'line' or 'bar'")
        names = list(y) or [name for name in batch.columns if name != x]
        for name in (x, *names):
            if name not in batch.columns:
                known = ", ".join(batch.columns)
                raise UsageError(f"there is no column '{name}'", f"the columns are: {known}")
        if not 1 <= len(names) <= _SERIES_MAX:
            raise UsageError(f"{len(names)} columns cannot be drawn", f"1 to {_SERIES_MAX} can")
        if len(batch) > POINTS_MAX:
            raise UsageError(
                f"{len(batch):,} rows are more than can be told apart in a picture",
                f"group them, or take {POINTS_MAX:,} of them",
            )
        rows = batch.fetchall()
        at = [batch.columns.index(name) for name in names]
        where = batch.columns.index(x)
        self._x, self._names, self._kind = x, names, kind
        self._xs: list[object] = [row[where] for row in rows]
        self._ys = [[_number(row[column], name) for row in rows] for column, name in zip(at, names)]

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the SVG into a file.

        >>> s.sql("SELECT x FROM t").plot("x", "x", kind="bar").save("bars.svg")
        >>> open("bars.svg").read().startswith("<svg")
        True
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._repr_svg_())

    def altair(self) -> altair.Chart:
        """The same values as a chart of Altair, which is not installed with this package.

        Its columns are `x`, `y` and `series`, the name of the column that `y` is of.

        >>> chart = s.sql("SELECT x FROM t").plot("x", "x").altair()
        >>> chart.to_dict()["mark"]["type"]
        'line'
        """
        import altair

        times = any(isinstance(x, datetime.date) for x in self._xs)
        # Bars stand beside each other, also over numbers.
        numbers = self._kind == "line" and all(
            isinstance(x, (int, float, decimal.Decimal, type(None))) and not isinstance(x, bool)
            for x in self._xs
        )
        values = [
            {"x": _plain(x), "y": y, "series": name}
            for name, series in zip(self._names, self._ys)
            for x, y in zip(self._xs, series)
        ]
        of = "temporal" if times else "quantitative" if numbers else "ordinal"
        chart = altair.Chart(altair.Data(values=values))
        chart = chart.mark_line() if self._kind == "line" else chart.mark_bar()
        several = len(self._names) > 1
        encoded = {
            "x": altair.X("x", type=of, title=self._x),
            "y": altair.Y("y", type="quantitative", title=None if several else self._names[0]),
        }
        if several:
            encoded["color"] = altair.Color("series", type="nominal", title=None)
            if self._kind == "bar":
                encoded["xOffset"] = altair.XOffset("series", type="nominal")
        return chart.encode(**encoded)

    def __repr__(self) -> str:
        return f"<millstream.Plot, {', '.join(self._names)} over {self._x}>"

    def _repr_svg_(self) -> str:
        values = [value for series in self._ys for value in series if value is not None]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if self._kind == "bar":
            low, high = min(low, 0.0), max(high, 0.0)
        ticks = _ticks(low, high)
        low, high = min(low, ticks[0]), max(high, ticks[-1])
        y_of = _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
        parts = [_line(_LEFT, y_of(tick), _WIDTH - _RIGHT, y_of(tick), "#ddd") for tick in ticks]
        parts += [_label(_LEFT - 6, y_of(tick) + 4, _short(tick), "end") for tick in ticks]
        parts += self._bars(y_of) if self._kind == "bar" else self._lines(y_of)
        parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, self._x, "middle"))
        parts += [
            _label(_LEFT + 8, _TOP + 14 * (at + 1), name, "start", color)
            for at, (name, color) in enumerate(zip(self._names, _COLORS))
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">'
            f"{''.join(parts)}</svg>"
        )

    def _lines(self, y_of: _Scale) -> list[str]:
        """A line through the points of each column, in the order of `x`; NULL is a gap."""
        numbers = [_position(value) for value in self._xs]
        if any(number is None for value, number in zip(self._xs, numbers) if value is not None):
            # Texts lie side by side.
            numbers = [float(at) for at in range(len(self._xs))]
        known = [number for number in numbers if number is not None]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        x_of = _scale(low, high, _LEFT, _WIDTH - _RIGHT)
        order = sorted(
            (at for at, number in enumerate(numbers) if number is not None),
            key=lambda at: numbers[at] or 0.0,
        )
        made = []
        for series, color in zip(self._ys, _COLORS):
            run: list[str] = []
            for at in [*order, None]:
                number, value = (None, None) if at is None else (numbers[at], series[at])
                if number is not None and value is not None:
                    run.append(f"{x_of(number):.1f},{y_of(value):.1f}")
                elif run:
                    made.append(_points(run, color))
                    run = []
        ends = [order[0], order[len(order) // 2], order[-1]] if len(order) > 2 else order
        made += [
            _label(x_of(numbers[at] or 0.0), _HEIGHT - _BOTTOM + 16, str(self._xs[at]), anchor)
            for at, anchor in zip(ends, ("start", "middle", "end"))
        ]
        return made

    def _bars(self, y_of: _Scale) -> list[str]:
        """A bar for each row, with those of other columns beside it."""
        step = (_WIDTH - _LEFT - _RIGHT) / max(len(self._xs), 1)
        width = 0.8 * step / len(self._ys)
        made = []
        for nth, (series, color) in enumerate(zip(self._ys, _COLORS)):
            for at, value in enumerate(series):
                if value is None:
                    continue
                left = _LEFT + at * step + 0.1 * step + nth * width
                top, bottom = sorted((y_of(value), y_of(0.0)))
                made.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{bottom - top:.1f}" fill="{color}"/>'
                )
        every = max(1, math.ceil(len(self._xs) / 12))
        for at in range(0, len(self._xs), every):
            middle = _LEFT + (at + 0.5) * step
            made.append(_label(middle, _HEIGHT - _BOTTOM + 16, str(self._xs[at]), "middle"))
        return made


class _Scale:
    """The place of a number in a picture."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._begin = low, begin
        self._each = (end - begin) / (high - low) if high > low else 0.0

    def __call__(self, value: float) -> float:
        return self._begin + (value - self._low) * self._each


_scale = _Scale


def _plain(value: object) -> object:
    """A value as JSON has it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, decimal.Decimal)):
        return float(value) if math.isfinite(value) else None
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


def _number(value: object, name: str) -> Optional[float]:
    if value is None:
        return None
    if isinstance(value, (bool, int, float, decimal.Decimal)):
        number = float(value)
        return number if math.isfinite(number) else None
    raise UsageError(f"column '{name}' has no numbers", f"it has {type(value).__name__}")


def _position(value: object) -> Optional[float]:
    """The place of a value of the horizontal column; `None` if it has none."""
    if isinstance(value, (bool, int, float, decimal.Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - _EPOCH).total_seconds()
    if isinstance(value, datetime.date):
        return float(value.toordinal())
    return None


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around a range: 1, 2 or 5 times a power of ten apart."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next((power * of for of in (1, 2, 5) if power * of * _TICKS >= span), power * 10)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [of * step for of in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> str:
    for bound, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= bound:
            scaled = value / (1e3 if unit == "k" else bound)
            return f"{scaled:.4g}{unit}"
    return f"{value:.6g}"


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" stroke="{color}"/>'


def _points(points: Sequence[str], color: str) -> str:
    if len(points) == 1:
        x, y = points[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="2" fill="{color}"/>'
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}"/>'


def _label(x: float, y: float, text: str, anchor: str, color: str = "#333") -> str:
    shown = html.escape(text[:40])
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{shown}</text>'
