"""Messages of errors that no other test reads."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import millstream as ms


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.sql("SELECT 1").plot("x", kind="pie"), "there is no plot 'pie' .'line' or 'bar'"),
        (lambda s: s.sql("SELECT 1 AS one").plot("x"), "there is no column 'x' .the columns are: one"),
        (lambda s: s.sql("SELECT 1 AS one").plot("one"), "0 columns cannot be drawn .1 to 7 can"),
        (lambda s: s.source("a", {"n": "int"}, delay="5 s"), "a delay needs a column of event time"),
        (lambda s: s.sql("SELECT 1").run(), "this is a query, and nobody would have its rows"),
        (lambda s: s.source("a", pa.int64()), "a schema, and not a single type"),
        (lambda s: s.sql("SELECT 1; SELECT 2"), "the text has 2 queries that give rows"),
        (lambda s: s.sql("SELECT 1", job="j"), "this session keeps no checkpoints"),
        (lambda s: ms.Session(job="j"), "a job has a name where it has a state"),
        (lambda s: ms.Session(workers=-1), "a node cannot have -1 workers .choose 1 to 1024"),
        (lambda s: s.source("a", {}), "a table has a column"),
        (lambda s: s.source("a", {"n": "int"}, max_bytes=-1), "max_bytes cannot be -1"),
        (lambda s: s.source("a", {"n": "int"}, event_time="n", delay=5), "5 is no delay"),
        (lambda s: s.source("a", {"n": list}), "<class 'list'> names no type"),
        (lambda s: s.function(len), "a function needs the type of its result"),
    ],
)
def test_a_call_that_cannot_be_done(
    session: ms.Session, call: Callable[[ms.Session], object], message: str
) -> None:
    with pytest.raises(ms.UsageError, match=message) as caught:
        call(session)
    assert caught.value.hint, "it says what can be done"
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_more_points_than_a_picture_has(session: ms.Session) -> None:
    session.register("t", pa.table({"x": list(range(10_001))}))
    with pytest.raises(ms.UsageError, match="10,001 rows are more than can be told apart"):
        session.sql("SELECT x, x AS y FROM t").plot("x")


def test_a_function_of_any_number_of_arguments(session: ms.Session) -> None:
    def first_of(*x: pa.Int64Array) -> pa.Array:
        return x[0]

    with pytest.raises(ms.UsageError, match="argument 'x' stands for any number .give the types"):
        session.function(int)(first_of)
    session.function(int, args=[int, int])(first_of)
    assert session.sql("SELECT first_of(7, 8)").fetchall() == [(7,)]


def test_waits_that_end(session: ms.Session) -> None:
    session.source("none", {"n": "bigint"})
    with session.sql("SELECT n FROM none").batches() as batches:
        with pytest.raises(TimeoutError, match="no batch has come in time"):
            batches.next_within(0.01)
    source = session.source("full", {"n": "bigint"}, max_bytes=1)
    source.append(pa.table({"n": [1]}))
    with pytest.raises(TimeoutError, match="no query has taken the rows before"):
        source.append(pa.table({"n": [2]}), timeout=0.01)
    with pytest.raises(ValueError, match="timeout = -1: "):
        source.append(pa.table({"n": [2]}), timeout=-1)


def test_a_job_that_goes_on(session: ms.Session, tmp_path: Path) -> None:
    session.source("none", {"n": "bigint"})
    job = session.sql(f"INSERT INTO '{tmp_path}/rows.csv' SELECT n FROM none").start()
    with pytest.raises(TimeoutError, match="the job still runs"):
        job.wait(0.01)
    job.abort()
    with pytest.raises(ms.Aborted):
        job.wait(60.0)


def test_ray_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ms.UsageError, match="ray is not installed .pip install ray"):
        ms.on_ray(lambda: None, nodes=1)


def test_a_call_of_a_function_with_other_arguments(session: ms.Session) -> None:
    session.function(int, args=[int, str], name="f")(lambda x, y: x)
    for arguments in ("", "1", "'a', 'b', 'c'", "'a', true"):
        with pytest.raises(ms.SqlError) as caught:
            session.sql(f"SELECT f({arguments})")
        assert caught.value.hint == "write f(BIGINT, STRING)", arguments


def test_options_of_the_command_have_the_names_of_arguments(session: ms.Session) -> None:
    with pytest.raises(ms.SqlError) as caught:
        session.sql("CREATE TABLE t (n BIGINT) WITH ('connector' = 'pool')")
    assert caught.value.hint and "and name it: pool=;" in caught.value.hint
    assert "--pool" not in str(caught.value)


def failing() -> pa.RecordBatchReader:
    """A stream of another library that fails behind its first batch."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise OSError("the disk is gone")

    return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())


def test_a_table_of_another_library_that_fails(session: ms.Session) -> None:
    with pytest.raises(ms.RunError, match="the disk is gone") as caught:
        session.register("t", failing())
    assert caught.value.hint == "the table could not be read"
    assert "t" not in session.tables
    source = session.source("s", {"n": "bigint"})
    with pytest.raises(ms.RunError, match="the disk is gone") as caught:
        source.append(failing())
    assert caught.value.hint == "it cannot be read"
    source.close()
    assert session.sql("SELECT n FROM s").fetchall() == [(1,)], "what came before"


def test_a_plan_has_three_formats(session: ms.Session) -> None:
    with pytest.raises(ValueError, match="there is no format 'yaml': text, json or dot"):
        session.explain("SELECT 1", "yaml")
    assert session.explain("SELECT 1", "dot").startswith("digraph")
