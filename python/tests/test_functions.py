"""Functions of SQL in Python."""

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream as ms

ROWS = 100_000


def test_a_function_over_batches(session: ms.Session) -> None:
    @session.function(pa.float64())
    def score(x: pa.Int64Array) -> pa.Array:
        return pc.multiply(x, 0.5)

    session.register("t", pa.table({"x": pa.array([*range(ROWS - 1), None], pa.int64())}))
    rows = session.sql("SELECT sum(score(x)), count(score(x)) FROM t WHERE score(x) >= 0").fetchall()
    assert rows == [(sum(range(ROWS - 1)) / 2, ROWS - 1)]
    counts = session.functions["score"]
    assert counts["rows"] >= ROWS
    assert 1 <= counts["calls"] < ROWS / 100, "it is called by batches"
    assert counts["seconds"] > 0


def test_calls_of_two_workers_may_wait_for_each_other() -> None:
    called: set[int] = set()
    both = threading.Event()

    with ms.Session(workers=2) as session:

        @session.function(int)
        def meets(x: pa.Int64Array) -> pa.Array:
            called.add(threading.get_ident())
            if len(called) == 2:
                both.set()
            assert both.wait(60), "the other worker is not let in"
            return x

        session.sql(
            f"CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '{ROWS}', "
            "'fields.n.kind' = 'sequence')"
        )
        assert session.sql("SELECT count(meets(n)) FROM numbers").fetchall() == [(ROWS,)]


def test_a_function_may_wait_for_a_query_that_calls_functions(session: ms.Session) -> None:
    with ms.Session(workers=2) as other:
        other.function(int, args=[int], name="twice")(lambda x: pc.multiply(x, 2))
        other.register("t", pa.table({"x": [1, 2]}))

        @session.function(int)
        def total(x: pa.Int64Array) -> pa.Array:
            [(doubled,)] = other.sql("SELECT sum(twice(x)) FROM t").fetchall()
            return pc.add(x, doubled)

        session.register("t", pa.table({"x": [1, None]}))
        assert session.sql("SELECT total(x) FROM t ORDER BY x").fetchall() == [(7,), (None,)]


def test_types_of_sql_and_of_python(session: ms.Session) -> None:
    @session.function("varchar", args=["timestamp(3)", int], name="shown")
    def show(when: pa.Array, number: pa.Array) -> list[str]:
        return [f"{a.year}/{b}" for a, b in zip(when.to_pylist(), number.to_pylist())]

    rows = session.sql("SELECT shown(TIMESTAMP '2024-05-06 00:00:00', 7) AS x").fetchall()
    assert rows == [("2024/7",)]


def test_arguments_are_converted(session: ms.Session) -> None:
    session.function(pa.int64(), args=[pa.int64()], name="plus_one")(lambda x: pc.add(x, 1))
    session.register("t", pa.table({"x": pa.array([1, 2], pa.int16())}))
    assert session.sql("SELECT plus_one(x) FROM t").fetchall() == [(2,), (3,)]
    with pytest.raises(ms.SqlError, match="plus_one"):
        session.sql("SELECT plus_one(x, x) FROM t")


def test_a_constant_call_of_an_immutable_function_is_made_once(session: ms.Session) -> None:
    calls = {"immutable": 0, "volatile": 0}

    def counting(volatility: str) -> None:
        @session.function(int, args=[int], name=f"f_{volatility}", volatility=volatility)
        def count(x: pa.Array) -> pa.Array:
            calls[volatility] += 1
            return x

    counting("immutable")
    counting("volatile")
    session.register("t", pa.table({"x": list(range(ROWS))}))
    assert session.sql("SELECT sum(x + f_immutable(0)) FROM t").fetchall() == [(sum(range(ROWS)),)]
    immutable = calls["immutable"]
    assert session.sql("SELECT sum(x + f_volatile(0)) FROM t").fetchall() == [(sum(range(ROWS)),)]
    assert immutable < calls["volatile"]


def test_what_is_found_while_a_query_is_planned_stays(session: ms.Session) -> None:
    calls: list[str] = []

    def counting(volatility: str) -> None:
        @session.function(int, args=[int], name=f"f_{volatility}", volatility=volatility)
        def count(x: pa.Array) -> pa.Array:
            calls.append(volatility)
            return pa.array([len(calls)] * len(x))

    counting("stable")
    counting("volatile")
    session.register("t", pa.table({"x": [0]}))
    relation = session.sql("SELECT f_stable(0) FROM t")
    assert calls == ["stable"]
    assert relation.fetchall() == relation.fetchall() == [(1,)]
    relation = session.sql("SELECT f_volatile(0)")
    assert calls == ["stable", "volatile"]
    assert relation.fetchall() == relation.fetchall() == [(2,)]
    relation = session.sql("SELECT f_volatile(0) FROM t")
    assert relation.fetchall() + relation.fetchall() == [(3,), (4,)]


def test_an_exception_ends_the_query(session: ms.Session) -> None:
    @session.function(int)
    def broken(x: int) -> pa.Array:
        raise ValueError("no luck")

    session.register("t", pa.table({"x": [1, 2]}))
    with pytest.raises(ms.RunError) as caught:
        session.sql("SELECT broken(x) FROM t").fetchall()
    said = str(caught.value)
    assert "function 'broken': ValueError: no luck" in said
    assert 'test_functions.py", line' in said
    assert 'raise ValueError("no luck")' in said
    assert session.sql("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: pa.array([1]), "gave 1 values for 2 rows"),
        (lambda x: pa.array(["a", "b"]), "int64"),
        (lambda x: 5, "an array was expected, and not one value of int"),
        (lambda x: pa.scalar(5), "an array was expected"),
    ],
)
def test_a_wrong_result_is_said(session, function, message) -> None:  # type: ignore[no-untyped-def]
    session.function(int, args=[int], name="wrong")(function)
    session.register("t", pa.table({"x": [1, 2]}))
    with pytest.raises(ms.RunError, match=message):
        session.sql("SELECT wrong(x) FROM t").fetchall()


def test_misuse_is_said(session: ms.Session) -> None:
    with pytest.raises(ms.UsageError, match="there is a function 'abs' already"):
        session.function(int, args=[int], name="abs")(lambda x: x)
    with pytest.raises(ms.UsageError, match="'Score' cannot be the name of a function"):
        session.function(int, args=[int], name="Score")(lambda x: x)
    with pytest.raises(ms.UsageError, match="argument 'x' has no type"):
        session.function(int)(lambda x: x)
    with pytest.raises(ms.UsageError, match="no volatility 'often'"):
        session.function(int, args=[int], name="f", volatility="often")(lambda x: x)
    with pytest.raises(ms.UsageError, match="names no type"):
        session.function(7, args=[int], name="f")(lambda x: x)


def test_a_function_is_replaced(session: ms.Session) -> None:
    for number in (1, 2):
        session.function(int, args=[int], name="f")(lambda x, by=number: pc.multiply(x, by))
        assert session.sql("SELECT f(x) FROM (VALUES (10)) AS t (x)").fetchall() == [(10 * number,)]


@pytest.mark.parametrize("every", [1, 2, 7, 4999, 10_000_000])
def test_rows_that_fail_give_null(session: ms.Session, every: int) -> None:
    """The others keep their results and their places, whichever rows fail."""

    @session.function(int, on_error="null")
    def picky(x: pa.Int64Array) -> pa.Array:
        if any(value is not None and value % every == 0 for value in x.to_pylist()):
            raise ValueError("not this one")
        return pc.add(x, 1)

    values = [None if n % 11 == 3 else n for n in range(1, 5001)]
    session.register("t", pa.table({"x": pa.array(values, pa.int64())}))
    rows = session.sql("SELECT x, picky(x) AS y FROM t").fetchall()
    fails = [value is not None and value % every == 0 for value in values]
    expected = [(x, None if x is None or failed else x + 1) for x, failed in zip(values, fails)]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert session.functions["picky"]["failed_rows"] == sum(fails)


def test_a_result_that_does_not_fit_its_type_fails_for_its_row(session: ms.Session) -> None:
    session.function(pa.int8(), args=[int], name="small", on_error="null")(lambda x: x)
    session.register("t", pa.table({"x": [1, 1000, 3]}))
    assert session.sql("SELECT small(x) FROM t").fetchall() == [(1,), (None,), (3,)]
    assert session.sql("SELECT small(x) FROM t WHERE x < 0").fetchall() == []
    assert session.sql("SELECT small(1000)").fetchall() == [(None,)]


def test_a_wrong_length_is_not_the_fault_of_a_row(session: ms.Session) -> None:
    session.register("t", pa.table({"x": [1, 2]}))
    session.function(int, args=[int], name="short", on_error="null")(lambda x: x.slice(1))
    with pytest.raises(ms.RunError, match="the function gave . values for . rows"):
        session.sql("SELECT short(x) FROM t").fetchall()
    session.function(int, args=[], name="none", on_error="null")(lambda: [1, 2, 3])
    with pytest.raises(ms.RunError, match="function 'none'"):
        session.sql("SELECT none() FROM t").fetchall()
    with pytest.raises(ms.UsageError, match="on_error cannot be 'skip'"):
        session.function(int, args=[int], name="f", on_error="skip")(lambda x: x)
    session.function(int, args=[int], name="short")(lambda x: x)
    assert "failed_rows" not in session.functions["short"], "it was replaced"


def test_rows_that_fail_are_in_a_table(session: ms.Session) -> None:
    @session.function(int, args=[int, "varchar"], on_error="bad")
    def picky(x: pa.Array, s: pa.Array) -> pa.Array:
        for value, text in zip(x.to_pylist(), s.to_pylist()):
            if value % 1000 == 7:
                raise ValueError(f"not {text}")
        return x

    assert session.sql("SELECT * FROM picky__bad").fetchall() == []
    values = list(range(10_000))
    texts = [None if n % 2000 == 7 else f"row {n}" for n in values]
    session.register("t", pa.table({"x": values, "s": pa.array(texts, pa.string())}))
    kept = session.sql("SELECT count(*) FROM t WHERE picky(x, s) IS NOT NULL")
    assert kept.fetchall() == [(9_990,)]
    failed = session.sql("SELECT place, reason, text FROM picky__bad")
    expected = [
        ("picky", f"ValueError: not {texts[n]}", f"{n},{texts[n] or ''}") for n in values if n % 1000 == 7
    ]
    assert sorted(failed.fetchall()) == sorted(expected)
    assert sorted(failed.fetchall()) == sorted(expected), "they stay"
    assert session.sql("SELECT count(*), max(text) FROM picky__bad WHERE text LIKE '%,'").fetchall() == [
        (5, "8007,")
    ]
    assert session.functions["picky"]["failed_rows"] == 10
    assert session.sql("SELECT text FROM picky__bad").bounded


def test_the_last_failed_rows_are_kept_and_the_others_are_counted(session: ms.Session) -> None:
    @session.function(int, on_error="bad")
    def never(x: pa.Int64Array) -> pa.Array:
        raise ValueError("x" * 5_000)

    session.register("t", pa.table({"x": list(range(10_500))}))
    assert session.sql("SELECT count(never(x)) FROM t").fetchall() == [(0,)]
    rows = session.sql("SELECT place, reason, text FROM never__bad").fetchall()
    assert len(rows) == 10_001
    assert [row for row in rows if row[0] == ""] == [("", "500 rows before the next were not kept", "")]
    assert {len(row[1]) for row in rows if row[0]} == {1_001}, "a long text is cut"


def test_a_function_that_is_replaced_begins_without_failed_rows(session: ms.Session) -> None:
    def fails(x: object) -> object:
        raise ValueError("no")

    session.register("t", pa.table({"x": [1, 2]}))
    for _ in range(2):
        session.function(int, args=[int], name="f", on_error="bad")(fails)
        assert session.sql("SELECT * FROM f__bad").fetchall() == []
        assert session.sql("SELECT f(x) FROM t").fetchall() == [(None,), (None,)]
        assert session.sql("SELECT text FROM f__bad ORDER BY text").fetchall() == [("1",), ("2",)]
    session.function(int, args=[], name="g", on_error="bad")(lambda: 1 / 0)
    with pytest.raises(ms.RunError, match="ZeroDivisionError"):
        session.sql("SELECT g() FROM t").fetchall()


def test_a_table_of_the_name_of_the_failed_rows_is_not_replaced(session: ms.Session) -> None:
    session.register("f__bad", pa.table({"x": [1, 2]}))
    with pytest.raises(ms.UsageError, match="there is a table 'f__bad' already .give the function"):
        session.function(int, args=[int], name="f", on_error="bad")(lambda x: x)
    assert session.sql("SELECT sum(x) FROM f__bad").fetchall() == [(3,)]
    with pytest.raises(ms.SqlError, match="f"):
        session.sql("SELECT f(1)")
