"""The page of counters for Prometheus."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import millstream as ms
from millstream._metrics import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def counts(function: str) -> dict[str, float]:
    """The counters of a function, by their names."""
    series = rf'^millstream_python_(\w+)_total{{function="{re.escape(function)}"}} (\S+)$'
    return {name: float(value) for name, value in re.findall(series, ms.metrics(), re.M)}


def test_counters_are_of_all_sessions_and_only_grow() -> None:
    assert counts("counted_here") == {}
    table = pa.table({"x": list(range(1_000))})
    for run in (1, 2):
        with ms.Session(workers=2) as session:
            session.function(int, args=[int], name="counted_here")(lambda x: pc.add(x, 1))
            session.register("t", table)
            session.sql("SELECT sum(counted_here(x)) FROM t").fetchall()
        found = counts("counted_here")
        assert found["rows"] == 1_000 * run
        assert found["calls"] >= run and found["seconds"] > 0 and found["gil_wait_seconds"] >= 0
        assert found["failed_rows"] == 0


def test_rows_that_fail_are_counted(session: ms.Session) -> None:
    @session.function(int, on_error="null", name="fails_here")
    def fails(x: pa.Int64Array) -> pa.Array:
        if 7 in x.to_pylist():
            raise ValueError("no")
        return x

    session.register("t", pa.table({"x": list(range(20))}))
    session.sql("SELECT fails_here(x) FROM t").fetchall()
    assert counts("fails_here")["failed_rows"] == 1


def test_a_function_that_is_refused_has_no_counters(session: ms.Session) -> None:
    try:
        session.function(int, args=[int], name='No "name"')(lambda x: x)
    except ms.UsageError:
        pass
    assert "No" not in ms.metrics().replace("NULL", "")


def test_the_page_is_open_metrics_and_is_documented() -> None:
    lines = ms.metrics().splitlines()
    assert lines[-1] == "# EOF" and ms.metrics().endswith("\n")
    families: list[str] = []
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
            assert line.endswith(" counter")
        elif not line.startswith("# HELP "):
            assert re.fullmatch(rf'{families[-1]}_total{{function="[a-z0-9_]+"}} [0-9.e-]+', line), line
    assert families == [f"millstream_python_{name}" for name, _, _ in METRICS]
    for name, _, help_ in METRICS:
        assert f"| `millstream_python_{name}_total` | counter | {help_} |" in PAGE


def test_the_number_of_series_is_bounded() -> None:
    """In a process of its own: counters never go."""
    code = """
import millstream as ms
from millstream import _millstream
for at in range(1_005):
    _millstream.count_failed_rows(f"f{at}", 1)
series = [line for line in ms.metrics().splitlines() if "failed_rows_total" in line]
assert len(series) == 1_001, len(series)
assert 'millstream_python_failed_rows_total{function="(others)"} 5' in series
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
