"""Rows that a program appends and that are none of the table."""

import datetime
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import millstream as ms

SCHEMA = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": [1, 2**40], "b": ["x", "y"]}, r"column 'a': '1099511627776' is not a valid Int32 \(row 2 of 2\)"),
        ({"a": ["1", "2", "three"], "b": ["x"] * 3}, r"column 'a': 'three' is not a valid Int32 \(row 3 of 3\)"),
        ({"a": [1, 2], "b": ["x", None]}, r"column 'b': NULL, but it is NOT NULL \(row 2 of 2\)"),
        ({"a": [[1]], "b": ["x"]}, "column 'a' is List.*, and not Int32"),
        ({"a": ["y" * 500], "b": ["x"]}, "column 'a': 'y{100}…' is not"),
    ],
)
def test_a_value_that_a_column_cannot_have_is_an_error(
    session: ms.Session, given: dict[str, list[object]], message: str
) -> None:
    source = session.source("s", SCHEMA)
    with pytest.raises(ms.UsageError, match=message):
        source.append(pa.table(given))
    source.append(pa.table({"a": pa.array([None, 7], pa.int64()), "b": ["x", "y"]}))
    source.close()
    assert session.sql("SELECT a, b FROM s").fetchall() == [(None, "x"), (7, "y")], "nothing of a bad batch"
    assert source.bad_rows == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_are_skipped_are_counted_and_in_a_table(tmp_path: Path, workers: int) -> None:
    session = ms.Session(workers=workers)
    source = session.source("s", SCHEMA, on_bad="skip")
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    job = session.sql(
        f"BEGIN STATEMENT SET; INSERT INTO '{good}' SELECT a, b FROM s;"
        f"INSERT INTO '{bad}' SELECT place, reason, text FROM s__bad; END"
    ).start()
    source.append(pa.table({"a": ["1", "x", "3"], "b": ["p", "q", None]}))
    source.append(pa.table({"a": ["4"], "b": pa.array([None], pa.string())}))
    source.append(pa.table({"a": ["5"], "b": ["r"]}))
    source.close()
    report = job.wait(60)
    assert good.read_text().split() == ["a,b", "1,p", "5,r"]
    assert sorted(bad.read_text().splitlines()[1:]) == [
        """s:2,column 'a': 'x' is not a valid Int32,"x,q\"""",
        """s:3,"column 'b': NULL, but it is NOT NULL","3,\"""",
        """s:4,"column 'b': NULL, but it is NOT NULL","4,\"""",
    ]
    assert source.bad_rows == 3
    assert report["bad_rows"] == 3
    session.close()


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_that_are_left_are_those_that_python_converts(session: ms.Session, seed: int) -> None:
    random_ = random.Random(seed)
    values = [random_.choice([None, "7", "-40", "", "x", "2147483648", "1.5"]) for _ in range(997)]

    def converts(value: object) -> bool:
        try:
            return value is None or abs(int(str(value))) < 2**31
        except ValueError:
            return False

    given = pa.chunked_array([pa.array(values[:500]), pa.array(values[500:])])
    dictionary = pa.chunked_array([chunk.dictionary_encode() for chunk in given.chunks])
    source = session.source("s", {"n": "bigint", "a": "int"}, on_bad="skip")
    for column in (given, dictionary):
        source.append(pa.table({"n": list(range(997)), "a": column}))
    source.close()
    expected = [(n, None if of is None else int(of)) for n, of in enumerate(values) if converts(of)]
    assert sorted(session.sql("SELECT n, a FROM s").fetchall(), key=lambda row: row[0]) == sorted(
        expected * 2, key=lambda row: row[0]
    )
    assert source.bad_rows == 2 * 997 - 2 * len(expected)


def test_nested_values_and_no_rows(session: ms.Session) -> None:
    source = session.source("s", pa.schema({"l": pa.list_(pa.int32())}), on_bad="skip")
    source.append(pa.table({"l": pa.array([], pa.list_(pa.int64()))}))
    source.append(pa.table({"l": [[1, None], [2**40], None]}))
    source.close()
    assert session.sql("SELECT l FROM s").arrow().to_pydict() == {"l": [[1, None], None]}
    assert source.bad_rows == 1


def test_misuse_is_said(session: ms.Session) -> None:
    with pytest.raises(ms.UsageError, match="on_bad cannot be 'maybe'"):
        session.source("s", {"a": "int"}, on_bad="maybe")
    with pytest.raises(ms.UsageError, match="the rows have no column 'a'"):
        session.source("s", {"a": "int"}, on_bad="skip").append(pa.table({"b": [1]}))


def test_types_of_columns_may_be_mixed(session: ms.Session) -> None:
    columns = {"ts": "timestamp(3)", "n": int, "of": pa.int32(), 5: "string"}
    delay = datetime.timedelta(seconds=5)
    source = session.source("s", columns, event_time="ts", delay=delay)
    assert repr(source) == "<millstream.Source s, open>"
    shown = session.sql("DESCRIBE s").fetchall()
    assert [row[:2] for row in shown] == [("ts", "TIMESTAMP(3)"), ("n", "BIGINT"), ("of", "INT"), ("5", "STRING")]
    source.append(pa.table({"ts": [datetime.datetime(2024, 1, 1)], "n": [1], "of": [2], "5": ["x"]}))
    source.close()
    assert repr(source) == "<millstream.Source s, closed>"
    assert session.sql('SELECT n, "of", "5" FROM s').fetchall() == [(1, 2, "x")]


def test_a_closed_session_ends_the_waits_of_those_who_append() -> None:
    session = ms.Session(workers=1)
    source = session.source("s", {"a": "bigint"}, max_bytes=1)
    rows = pa.table({"a": [1, 2, 3]})
    source.append(rows)
    began = threading.Event()

    def append() -> None:
        began.set()
        source.append(rows)

    with ThreadPoolExecutor(1) as threads:
        appended = threads.submit(append)
        began.wait(60)
        session.close()
        with pytest.raises(ms.UsageError, match="the session is closed"):
            appended.result(60)
    with pytest.raises(ms.UsageError, match="the session is closed"):
        session.source("t", {"a": "bigint"})
    with pytest.raises(ms.UsageError, match="the session is closed"):
        source.append(rows, timeout=0.0)
