"""The counters of functions in Python, for Prometheus."""

from __future__ import annotations

from . import _millstream

# Name, field of the counts, and meaning.
METRICS = (
    ("calls", "calls", "Calls of a function or an aggregate in Python, each with a batch."),
    ("rows", "rows", "Rows of these calls."),
    ("seconds", "seconds", "Time of these calls, in which they held the interpreter's lock."),
    ("gil_wait_seconds", "gil_wait_seconds", "Time in which workers waited for that lock."),
    ("failed_rows", "failed_rows", "Rows for which a function raised an exception and gave NULL."),
)


def page() -> str:
    """All of them, in the format OpenMetrics."""
    counts = _millstream.function_counts()
    lines = []
    for name, field, help_ in METRICS:
        series = f"millstream_python_{name}"
        lines += [f"# HELP {series} {help_}", f"# TYPE {series} counter"]
        # A name has small letters, digits and '_' alone.
        lines += [f'{series}_total{{function="{of}"}} {counts[of][field]}' for of in counts]
    return "\n".join([*lines, "# EOF", ""])
