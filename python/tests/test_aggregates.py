"""Aggregates of SQL in Python."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream as ms

ROWS = 50_000


def middle(session: ms.Session) -> None:
    @session.aggregate(float, state={"rows": "bigint", "total": "double"})
    class middle:
        def start(self) -> tuple[int, float]:
            return 0, 0.0

        def update(self, state: tuple[int, float], x: pa.DoubleArray) -> tuple[int, float]:
            rows, total = state
            return rows + pc.count(x).as_py(), total + (pc.sum(x).as_py() or 0.0)

        def merge(self, state: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
            return state[0] + other[0], state[1] + other[1]

        def value(self, state: tuple[int, float]) -> float | None:
            return state[1] / state[0] if state[0] else None


def table(rows: int) -> pa.Table:
    x = [None if n % 10 == 0 else float(n % 1000) for n in range(rows)]
    return pa.table({"k": [n % 7 for n in range(rows)], "x": pa.array(x, pa.float64())})


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_groups_are_those_of_the_aggregate_that_is_built_in(workers: int) -> None:
    with ms.Session(workers=workers) as session:
        middle(session)
        session.register("t", table(ROWS))
        rows = session.sql("SELECT k, middle(x), avg(x) FROM t GROUP BY k ORDER BY k").fetchall()
        assert len(rows) == 7
        assert all(math.isclose(ours, theirs) for _, ours, theirs in rows)
        counts = session.functions["middle"]
        assert counts["rows"] >= ROWS
        assert counts["calls"] < ROWS / 100, "the lock is taken once for all groups of a batch"
        assert counts["seconds"] > 0


def test_one_group_no_rows_and_filters(session: ms.Session) -> None:
    middle(session)
    session.register("t", table(100))
    text = "SELECT middle(x), avg(x), middle(x) FILTER (WHERE k = 1), avg(x) FILTER (WHERE k = 1) FROM t"
    [row] = session.sql(text).fetchall()
    assert math.isclose(row[0], row[1]) and math.isclose(row[2], row[3])
    assert session.sql("SELECT middle(x) FROM t WHERE x < 0").fetchall() == [(None,)]
    assert session.sql("SELECT k, middle(x) FROM t WHERE x < 0 GROUP BY k").fetchall() == []
    none = "SELECT k, middle(x) FILTER (WHERE k < 0) FROM t GROUP BY k ORDER BY k"
    assert session.sql(none).fetchall() == [(k, None) for k in range(7)]


def test_windows_of_a_stream(session: ms.Session) -> None:
    middle(session)
    session.sql("""
        CREATE TABLE ticks (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts) WITH (
          'connector' = 'generator', 'rows' = '10000', 'interval' = '10ms',
          'fields.n.kind' = 'sequence')
    """)
    rows = session.sql("""
        SELECT window_start, middle(n), avg(n) FROM TUMBLE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '10' SECOND)
        GROUP BY window_start, window_end ORDER BY window_start
    """).fetchall()
    assert len(rows) == 10
    assert all(math.isclose(ours, theirs) for _, ours, theirs in rows)


def test_running_rows_over_a_window(session: ms.Session) -> None:
    middle(session)
    session.register("t", table(1000))
    text = "SELECT {}(x) OVER (PARTITION BY k ORDER BY x) AS m FROM t WHERE x IS NOT NULL"
    ours = session.sql(f"SELECT m FROM ({text.format('middle')}) ORDER BY m").fetchall()
    theirs = session.sql(f"SELECT m FROM ({text.format('avg')}) ORDER BY m").fetchall()
    assert len(ours) == len(theirs) == 900
    assert all(math.isclose(a, b) for (a,), (b,) in zip(ours, theirs))


def test_groups_that_do_not_fit_memory_are_spilled(tmp_path: Path) -> None:
    settings = {"millstream.state_bytes": "16 MiB"}
    with ms.Session(workers=2, spill_dir=tmp_path, settings=settings) as session:

        @session.aggregate(str, args=[str], state={"longest": str})
        class longest:
            def start(self) -> str | None:
                return None

            def update(self, state: tuple[str | None], x: pa.StringArray) -> str | None:
                return max([*x.to_pylist(), state[0]], key=lambda text: len(text or ""))

            def merge(self, state: tuple[str | None], other: tuple[str | None]) -> str | None:
                return max(state[0], other[0], key=lambda text: len(text or ""))

            def value(self, state: tuple[str | None]) -> str | None:
                return state[0]

        session.register("t", pa.table({"n": list(range(60_000))}))
        rows = session.sql("""
            SELECT sum(length(l)), count(*) FROM (
              SELECT n % 30000 AS k, longest(repeat('x', CAST(n % 500 AS BIGINT))) AS l FROM t GROUP BY n % 30000
            )
        """).fetchall()
        expected = sum(max(n % 500, (n + 30000) % 500) for n in range(30_000))
        assert rows == [(expected, 30_000)]


def test_explain_analyze_shows_calls_and_waits(session: ms.Session) -> None:
    middle(session)
    session.function(float, args=[float], name="half")(lambda x: pc.multiply(x, 0.5))
    session.register("t", table(ROWS))
    text = "EXPLAIN ANALYZE SELECT k, middle(half(x)) FROM t GROUP BY k"
    for _ in range(2):
        lines = [line for (line,) in session.sql(text).fetchall() if line.startswith("  function ")]
        assert len(lines) == 2
        for name, line in zip(("half", "middle"), lines):
            assert line.strip().startswith(f"function {name}: ")
            assert line.endswith("s of waiting for its lock")
        assert f", {ROWS} rows, " in lines[0], "those of this run alone"


def test_misuse_of_aggregates_is_said(session: ms.Session) -> None:
    class Incomplete:
        def start(self) -> int:
            return 0

    with pytest.raises(ms.UsageError, match="Incomplete has no method 'update'"):
        session.aggregate(int, args=[int], state={"n": int})(Incomplete)
    middle(session)
    session.register("t", table(10))
    with pytest.raises(ms.SqlError, match="middle"):
        session.sql("SELECT middle(x, x) FROM t")
    with pytest.raises(ms.SqlError, match="DISTINCT"):
        session.sql("SELECT middle(DISTINCT x) FROM t")
    with pytest.raises(ms.UsageError, match="there is a function 'sum' already"):
        session.aggregate(int, args=[int], state={"n": int}, name="sum")(Whole)
    with pytest.raises(ms.UsageError, match="has no state"):
        session.aggregate(int, args=[int], state={}, name="stateless")(Whole)
    session.aggregate(int, args=[int], state={"a": int, "b": int}, name="whole")(Whole)
    with pytest.raises(ms.RunError, match="a state has 2 values, and not 1") as caught:
        session.sql("SELECT whole(k) FROM t").fetchall()
    assert "aggregate 'whole': TypeError" in str(caught.value)
    assert session.sql("SELECT 1").fetchall() == [(1,)]


class Whole:
    """A sum of whole numbers."""

    def start(self) -> int:
        return 0

    def update(self, state: tuple[int], x: pa.Int64Array) -> int:
        return state[0] + (pc.sum(x).as_py() or 0)

    def merge(self, state: tuple[int], other: tuple[int]) -> int:
        return state[0] + other[0]

    def value(self, state: tuple[int]) -> int:
        return state[0]
