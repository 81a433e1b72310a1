"""Each type of Arrow there and back, held against pyarrow's own equality."""

import datetime
import decimal

import duckdb
import numpy
import pandas
import polars
import pyarrow as pa
import pytest

import millstream as ms

TEXT = ["a", None, "", "a text that is longer than twelve bytes"]
NUMBERS = [1, None, 0, 100]

COLUMNS = {
    "bool": pa.array([True, None, False, True]),
    **{
        str(of): pa.array(NUMBERS, of)
        for of in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float16(), pa.float32(), pa.float64()),
            *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
            *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
            *(pa.timestamp("us", zone) for zone in ("UTC", "Europe/Berlin", "+05:30")),
            *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        )
    },
    "date64": pa.array([86_400_000, None, 0, -86_400_000], pa.date64()),
    "month_day_nano": pa.array([(1, 2, 3), None, (0, 0, 0), (1, 0, -5)], pa.month_day_nano_interval()),
    "decimal128": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal(0), decimal.Decimal("-99.99")], pa.decimal128(12, 2)),
    "decimal256": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal(0), decimal.Decimal("-99.99")], pa.decimal256(50, 2)),
    "string": pa.array(TEXT),
    "large_string": pa.array(TEXT, pa.large_string()),
    "string_view": pa.array(TEXT, pa.string_view()),
    "binary": pa.array([b"\x00\xff", None, b"", b"a binary longer than twelve bytes"]),
    "large_binary": pa.array([b"\x00\xff", None, b"", b"x"], pa.large_binary()),
    "binary_view": pa.array([b"\x00\xff", None, b"", b"x" * 30], pa.binary_view()),
    "fixed_binary": pa.array([b"abcd", None, b"\0\0\0\0", b"wxyz"], pa.binary(4)),
    "list": pa.array([[1, None], None, [], [2, 3]]),
    "large_list": pa.array([[1, None], None, [], [2, 3]], pa.large_list(pa.int64())),
    "fixed_list": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}, {"a": 2, "b": None}]),
    "map": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(TEXT).dictionary_encode(),
    "list_of_struct": pa.array([[{"a": [1]}], None, [], [{"a": None}, None]]),
    "null": pa.nulls(4),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_as_it_was(name: str) -> None:
    session = ms.Session(workers=1)
    table = pa.table({"n": [0, 1, 2, 3], "x": COLUMNS[name]})
    for given in (table, table.slice(1, 2), table.slice(0, 0), pa.concat_tables([table, table.slice(3)])):
        session.register("t", given)
        back = session.sql("SELECT n, x FROM t").arrow()
        assert back.schema.field("x").type == table.schema.field("x").type
        assert back == given, "one worker keeps the order"
        back.validate(full=True)


AS_TEXT = {"map", "decimal256", "month_day_nano", *(name for name in COLUMNS if "duration" in name)}


@pytest.mark.parametrize("name", COLUMNS.keys() - AS_TEXT)
def test_python_values_are_those_of_pyarrow(session: ms.Session, name: str) -> None:
    table = pa.table({"x": COLUMNS[name]})
    session.register("t", table)
    expected = [(value,) for value in _plain(table.column("x"))]
    assert sorted(session.sql("SELECT x FROM t").fetchall(), key=repr) == sorted(expected, key=repr)


def _plain(column: pa.ChunkedArray) -> list[object]:
    if pa.types.is_temporal(column.type) and str(column.type).endswith("[ns]"):
        unit = pa.time64("us") if pa.types.is_time(column.type) else pa.timestamp("us")
        column = column.cast(unit, safe=False)
    values: list[object] = column.to_pylist()
    return values


def test_no_columns_and_no_rows(session: ms.Session) -> None:
    session.register("empty", pa.table({"x": pa.array([], pa.int64())}))
    assert session.sql("SELECT * FROM empty").arrow().num_rows == 0
    assert session.sql("SELECT count(*) FROM empty").fetchall() == [(0,)]


def test_every_library_gives_and_takes(session: ms.Session) -> None:
    data = {"k": ["a", "b", None], "v": [1, 2, 3]}
    given = {
        "pyarrow": pa.table(data),
        "polars": polars.DataFrame(data),
        "pandas": pandas.DataFrame(data),
        "duckdb": duckdb.sql("SELECT * FROM (VALUES ('a', 1), ('b', 2), (NULL, 3)) AS t(k, v)"),
        "reader": pa.table(data).to_reader(),
    }
    expected = [("a", 1), ("b", 2), (None, 3)]
    for name, table in given.items():
        session.register(name, table)
        relation = session.sql(f'SELECT * FROM "{name}" ORDER BY v')
        assert relation.fetchall() == expected, name
        assert polars.DataFrame(relation).rows() == expected
        assert relation.arrow().to_pydict() == data
        assert relation.polars().rows() == expected
        assert relation.pandas()["v"].tolist() == [1, 2, 3]
        assert duckdb.sql("SELECT * FROM relation ORDER BY v").fetchall() == expected
        assert pa.RecordBatchReader.from_stream(relation).read_all().to_pydict() == data
    # A relation is a table of another session as well.
    with ms.Session(workers=1) as other:
        other.register("t", session.sql("SELECT sum(v) AS s FROM pyarrow"))
        assert other.sql("SELECT * FROM t").fetchall() == [(6,)]


def test_libraries_share_the_buffers_of_a_batch(session: ms.Session) -> None:
    values = pa.array(range(1000), pa.int64())
    session.register("t", pa.table({"x": values}))
    batch = session.sql("SELECT x FROM t").collect()
    table, frame = batch.arrow(), batch.polars()
    first = table.column("x").chunk(0).buffers()[1].address
    assert pa.table(batch).column("x").chunk(0).buffers()[1].address == first
    assert frame.to_arrow().column("x").chunk(0).buffers()[1].address == first


def test_rows_come_out_in_the_memory_in_which_they_lie() -> None:
    """A batch that is passed on whole is not copied on its way, neither in nor out."""
    values = pa.array(range(10_000), pa.int64())
    with ms.Session(workers=1) as session:
        session.register("t", pa.table({"x": values}))
        [batch] = session.sql("SELECT x FROM t").batches()
        address = batch.arrow().column("x").chunk(0).buffers()[1].address
        assert address == values.buffers()[1].address
    assert batch.arrow().column("x").to_pylist() == list(range(10_000)), "the session is closed"


def test_a_few_rows_do_not_hold_a_large_table() -> None:
    values = pa.array(range(1_000_000), pa.int64())
    with ms.Session(workers=1) as session:
        session.register("t", pa.table({"x": values}))
        batches = list(session.sql("SELECT x FROM t WHERE x < 10").batches())
        assert sum(batch.arrow().get_total_buffer_size() for batch in batches) < 1_000_000
    assert [row for batch in batches for row in batch.fetchall()] == [(x,) for x in range(10)]


def test_dates_of_long_ago(session: ms.Session) -> None:
    rows = session.sql("SELECT DATE '0001-01-01' AS a, TIMESTAMP '1582-10-15 01:02:03' AS b").fetchall()
    assert rows == [(datetime.date(1, 1, 1), datetime.datetime(1582, 10, 15, 1, 2, 3))]


def test_times_that_python_does_not_have_are_text(session: ms.Session) -> None:
    """No value is another one, and a notebook shows them."""
    far = 2**53
    table = pa.table(
        {
            "us": pa.array([-far * 64, 0, None, far * 64], pa.timestamp("us")),
            "s": pa.array([far // 4096, 0, None, 2**60], pa.timestamp("s")),
            "zoned": pa.array([far // 4096, 0, None, -far // 4096], pa.timestamp("s", "Europe/Berlin")),
            "day": pa.array([-800_000, 0, None, 4_000_000], pa.date32()),
        }
    )
    session.register("t", table)
    first, second, third, fourth = session.sql("SELECT us, s, zoned, day FROM t").fetchall()
    epoch = datetime.datetime(1970, 1, 1)
    assert second[:2] == (epoch, epoch) and second[3] == epoch.date()
    assert second[2].timestamp() == 0
    assert third == (None, None, None, None)
    for row in (first, fourth):
        assert all(isinstance(value, str) and "1970" not in value for value in row), row
    assert (first[3], fourth[3], fourth[1]) == ("-0221-09-04", "+12921-08-18", str(2**60))
    assert first[1] == f"+{numpy.datetime64(far // 4096, 's')}"
    session.register("hours", pa.table({"t": pa.array([90_000, -1, 3600], pa.time32("s"))}))
    *others, last = session.sql("SELECT t FROM hours").fetchall()
    assert last == (datetime.time(1),) and others == [("90000",), ("-1",)]
    assert "12921-08-18" in session.sql("SELECT day FROM t")._repr_html_()
