"""Streams of libraries that do not keep to Arrow's C interface, and ours as others read them."""

import ctypes
import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Optional

import duckdb
import polars
import pyarrow as pa
import pytest

import millstream as ms


class CArray(ctypes.Structure):
    pass


CArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(CArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
GET_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class CStream(ctypes.Structure):
    _fields_ = [
        ("get_schema", GET),
        ("get_next", GET),
        ("get_last_error", GET_ERROR),
        ("release", RELEASE),
        ("private_data", ctypes.c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Stream:
    """A stream of one batch; `change` changes its structure. It fails where a status is given."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        change: Callable[[CArray], None] = lambda _: None,
        schema_status: int = 0,
        next_status: int = 0,
        error: Optional[bytes] = None,
    ) -> None:
        batches = [batch]
        self.releases = 0
        text = ctypes.create_string_buffer(error) if error is not None else None

        def get_schema(_: int, out: int) -> int:
            if not schema_status:
                batch.schema._export_to_c(out)
            return schema_status

        def get_next(_: int, out: int) -> int:
            array = CArray.from_address(out)
            if not next_status and batches:
                batches.pop()._export_to_c(out)
                change(array)
            else:
                array.release = None
            return next_status

        def get_last_error(_: int) -> Optional[int]:
            return None if text is None else ctypes.addressof(text)

        def release(at: int) -> None:
            self.releases += 1
            ctypes.c_void_p.from_address(at + CStream.release.offset).value = None

        self.c = CStream(
            GET(get_schema), GET(get_next), GET_ERROR(get_last_error), RELEASE(release), None
        )
        # The callbacks live as long as this object, also when the structure is moved away.
        self.callbacks = [getattr(self.c, name) for name, _ in CStream._fields_[:4]]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return new_capsule(ctypes.addressof(self.c), b"arrow_array_stream", None)


def batch() -> pa.RecordBatch:
    # A text that has its place in the view itself needs no buffer.
    views = pa.array(["a text of some length"] * 3, pa.string_view())
    return pa.record_batch({"x": pa.array([1, None, 3]), "s": ["a", None, "b"], "v": views})


def child(array: CArray, at: int) -> CArray:
    made: CArray = array.children[at].contents
    return made


def test_an_object_whose_argument_has_no_default_is_read(session: ms.Session) -> None:
    """As in Polars 1.3."""

    class Positional:
        def __arrow_c_stream__(self, requested_schema: object) -> object:
            return batch().__arrow_c_stream__(requested_schema)

    session.register("t", Positional())
    assert session.sql("SELECT count(*) FROM t").fetchall() == [(3,)]


def test_a_stream_that_keeps_to_the_interface_is_read_and_released(session: ms.Session) -> None:
    stream = Stream(batch())
    session.register("t", stream)
    assert stream.releases == 1
    assert session.sql("SELECT x, s, v FROM t").arrow().to_pydict() == batch().to_pydict()
    with pytest.raises(ValueError, match="the stream was read before"):
        session.register("t", stream)


def changed(at: Optional[int], **fields: int) -> Callable[[CArray], None]:
    def change(array: CArray) -> None:
        for name, value in fields.items():
            setattr(array if at is None else child(array, at), name, value)

    return change


def offset_behind_the_values(array: CArray) -> None:
    offsets = ctypes.cast(child(array, 1).buffers[1], ctypes.POINTER(ctypes.c_int32))
    offsets[0] = 100


def buffer_is_null(at: int, buffer: int) -> Callable[[CArray], None]:
    def change(array: CArray) -> None:
        child(array, at).buffers[buffer] = None

    return change


def last_offset_is_negative(array: CArray) -> None:
    offsets = ctypes.cast(child(array, 1).buffers[1], ctypes.POINTER(ctypes.c_int32))
    offsets[3] = -5


def column_was_taken(array: CArray) -> None:
    """As another consumer does it, which then releases the column."""
    child(array, 0).release = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(None, length=-1), "negative length"),
        (changed(1, length=-1), "negative length"),
        (changed(1, offset=-1), "negative length"),
        (changed(1, length=2**62 - 1), "too long"),
        (changed(0, length=2**62, offset=2**62), "too long"),
        (changed(0, length=2), "length smaller than expected"),
        (changed(0, n_buffers=1), "fewer buffers"),
        (changed(0, n_buffers=-1), "fewer buffers"),
        (changed(None, n_children=1), "has 1 children"),
        (changed(None, n_children=-1), "has -1 children"),
        (changed(0, null_count=3), "number of NULLs"),
        (offset_behind_the_values, "First offset 100"),
        (buffer_is_null(0, 1), "buffer at position 1 is null"),
        (buffer_is_null(1, 1), "offsets or lengths is null"),
        (buffer_is_null(1, 2), "buffer at position 2 is null"),
        (buffer_is_null(2, 3), "offsets or lengths is null"),
        (last_offset_is_negative, "offset"),
        (column_was_taken, "released before it was read"),
    ],
)
def test_wrong_numbers_are_refused(session, change, message) -> None:  # type: ignore[no-untyped-def]
    stream = Stream(batch(), change)
    with pytest.raises(ms.RunError, match=message):
        session.register("t", stream)
    assert stream.releases == 1
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def ints(*values: int) -> pa.Buffer:
    return pa.py_buffer(struct.pack(f"{len(values)}i", *values))


def columns_with_wrong_places() -> dict[str, tuple[pa.Array, str]]:
    """Columns of three rows that pyarrow makes without a look at where their values lie."""
    numbers = pa.array(range(6))
    falling = [None, ints(0, 100, 2, 3)]
    text = [*falling, pa.py_buffer(b"abcdef")]
    entries = pa.StructArray.from_arrays(
        [pa.array(list("abcdef")), numbers],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())],
    )
    numbers_of = pa.list_(pa.int64())
    lists = pa.Array.from_buffers(numbers_of, 3, falling, children=[numbers])
    view = struct.pack("i4sii", 20, b"abcd", 0, 10) * 3
    smaller = "smaller than the one before"
    return {
        "text": (pa.Array.from_buffers(pa.string(), 3, text), smaller),
        "bytes": (pa.Array.from_buffers(pa.binary(), 3, text), smaller),
        "list": (lists, smaller),
        "map": (
            pa.Array.from_buffers(
                pa.map_(pa.string(), pa.int64()), 3, falling, children=[entries]
            ),
            smaller,
        ),
        "list in a struct": (pa.StructArray.from_arrays([lists], names=["x"]), smaller),
        "list in a list": (
            pa.Array.from_buffers(
                pa.list_(numbers_of), 3, [None, ints(0, 1, 2, 3)], children=[lists]
            ),
            smaller,
        ),
        "view": (
            pa.Array.from_buffers(
                pa.string_view(), 3, [None, pa.py_buffer(view), pa.py_buffer(b"abcdefgh" * 3)]
            ),
            "behind the end of its buffer",
        ),
        "text that is none": (
            pa.Array.from_buffers(
                pa.string(), 3, [None, ints(0, 2, 4, 6), pa.py_buffer(b"ab\xff\xfecd")]
            ),
            "not UTF-8",
        ),
        "text that is cut": (
            pa.Array.from_buffers(
                pa.string(), 3, [None, ints(0, 1, 3, 4), pa.py_buffer("aéb".encode()[1:] + b"c")]
            ),
            "not UTF-8",
        ),
        "view of no text": (
            pa.Array.from_buffers(
                pa.string_view(), 3, [None, pa.py_buffer(struct.pack("i12s", 2, b"a\xff") * 3)]
            ),
            "not UTF-8",
        ),
        "dictionary": (
            pa.DictionaryArray.from_arrays(
                pa.array([0, 5, 1], pa.int32()), pa.array(["a", "b"]), safe=False
            ),
            "out of bounds: 5",
        ),
    }


@pytest.mark.parametrize("name", columns_with_wrong_places())
def test_values_lie_within_their_buffers(session: ms.Session, name: str) -> None:
    column, message = columns_with_wrong_places()[name]
    with pytest.raises(ms.RunError, match=f"column 'x': .*{message}"):
        session.register("t", pa.table({"x": column}))
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_what_a_null_says_of_its_place_is_not_looked_at(session: ms.Session) -> None:
    keys = pa.Array.from_buffers(pa.int32(), 3, [pa.py_buffer(b"\x05"), ints(0, 100, 1)])
    of_dictionary = pa.DictionaryArray.from_arrays(keys, pa.array(["a", "b"]), safe=False)
    views = struct.pack("i12si4sii", 1, b"a", 20, b"abcd", 7, 10) + struct.pack("i12s", 2, "é".encode())
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(views)]
    of_views = pa.Array.from_buffers(pa.string_view(), 3, buffers)
    texts = [pa.py_buffer(b"\x05"), ints(0, 2, 3, 4), pa.py_buffer("é".encode() + b"\xffz")]
    of_texts = pa.Array.from_buffers(pa.string(), 3, texts)
    session.register("t", pa.table({"x": of_dictionary, "y": of_views, "z": of_texts}))
    rows = session.sql("SELECT x, y, z FROM t").fetchall()
    assert rows == [("a", "a", "é"), (None, None, None), ("b", "é", "z")]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"schema_status": 5, "error": b"no columns today"}, ValueError, "no columns today"),
        ({"schema_status": 5}, ValueError, "says nothing about it"),
        ({"next_status": 5, "error": b"no rows today \xff"}, ms.RunError, "no rows today"),
        ({"next_status": 5}, ms.RunError, "says nothing about it"),
    ],
)
def test_the_error_of_a_stream_is_said(session, given, error, message) -> None:  # type: ignore[no-untyped-def]
    stream = Stream(batch(), **given)
    with pytest.raises(error, match=message):
        session.register("t", stream)
    assert stream.releases == 1


def test_a_row_that_is_null_as_a_whole_is_refused(session: ms.Session) -> None:
    rows = pa.StructArray.from_arrays(
        [pa.array([1, 2])], names=["x"], mask=pa.array([False, True])
    )
    with pytest.raises(ms.RunError, match="a row as a whole is NULL"):
        session.register("t", pa.chunked_array([rows]))
    session.register("t", pa.chunked_array([rows.slice(0, 1)]))
    assert session.sql("SELECT x FROM t").fetchall() == [(1,)]


def test_single_values_are_no_table(session: ms.Session) -> None:
    with pytest.raises(ValueError, match="single values of Int64"):
        session.register("t", pa.chunked_array([[1, 2]]))


def test_types_are_nested_so_deep(session: ms.Session) -> None:
    nested = pa.int64()
    for _ in range(60):
        nested = pa.list_(nested)
    session.source("shallow", pa.schema({"x": nested}))
    for _ in range(10):
        nested = pa.list_(nested)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        session.source("deep", pa.schema({"x": nested}))
    with pytest.raises(ValueError, match="nested deeper than 64"):
        session.register("deep", pa.table({"x": pa.array([], nested)}))


def test_no_rows_behind_others(session: ms.Session) -> None:
    """Offsets of a slice without rows lie behind its values."""
    session.register("t", pa.table({"s": ["a", "b"], "l": [[1], [2, 3]]}).slice(2))
    assert session.sql("SELECT s, l FROM t").arrow().num_rows == 0


def test_the_text_of_an_error_goes_to_other_libraries(session: ms.Session) -> None:
    @session.function(int)
    def broken(x: int) -> pa.Array:
        raise ValueError("behind\0the zero")

    session.register("t", pa.table({"x": [1]}))
    relation = session.sql("SELECT broken(x) FROM t")
    with pytest.raises(OSError, match="behind the zero"):
        pa.RecordBatchReader.from_stream(relation).read_all()


def test_a_dropped_stream_ends_its_query(session: ms.Session) -> None:
    source = session.source("s", {"a": "bigint"})
    relation = session.sql("SELECT a FROM s")
    reader = pa.RecordBatchReader.from_stream(relation)
    with pytest.raises(ms.UsageError, match="is being read"):
        relation.batches()
    reader.close()
    del reader
    source.close()
    assert relation.fetchall() == []


def test_an_old_data_frame_is_told_what_it_needs(
    session: ms.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
    monkeypatch.setattr("pandas.__version__", "1.5.3")
    message = (
        "pandas 1.5.3 has no __arrow_c_stream__: needs 2.2, or pass pyarrow.Table.from_pandas(df)"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        session.register("t", frame)
    other = type("Frame", (), {"__module__": "elsewhere"})()
    with pytest.raises(TypeError, match="^Frame has no __arrow_c_stream__: pass a table of Polars"):
        session.register("t", other)


def test_a_lazy_frame_is_told_to_be_collected(session: ms.Session) -> None:
    lazy = polars.LazyFrame({"x": [1, 2]})
    message = "LazyFrame has no __arrow_c_stream__: pass what its collect() gives"
    with pytest.raises(TypeError, match=re.escape(message)):
        session.register("t", lazy)
    session.register("t", lazy.collect())
    assert session.sql("SELECT sum(x) FROM t").fetchall() == [(3,)]


def test_a_thread_that_hears_of_no_signals_gets_batches_without_rows(session: ms.Session) -> None:
    """The main thread may wait for it in C: so it may ask for signals between two batches."""
    source = session.source("s", {"a": "bigint"})
    relation = session.sql("SELECT a FROM s")
    batches: list[pa.RecordBatch] = []
    is_empty = threading.Event()

    def read() -> None:
        for batch in pa.RecordBatchReader.from_stream(relation):
            batches.append(batch)
            is_empty.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert is_empty.wait(60) and batches[0].num_rows == 0
    source.append(pa.table({"a": [1, 2, 3]}))
    source.close()
    reader.join(60)
    assert pa.Table.from_batches(batches)["a"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("library", ["duckdb", "polars", "pyarrow"])
@pytest.mark.parametrize("is_main", [True, False])
def test_libraries_wait_for_rows_on_any_thread(
    session: ms.Session, library: str, is_main: bool
) -> None:
    source = session.source("s", {"a": "bigint", "b": "string"})
    relation = session.sql("SELECT a, b FROM s")

    def read() -> int:
        if library == "duckdb":
            rows = duckdb.connect().sql("SELECT sum(a) FROM relation").fetchall()
            return int(rows[0][0])
        table = polars.DataFrame(relation) if library == "polars" else pa.table(relation)
        return sum(table["a"].to_list() if library == "polars" else table["a"].to_pylist())

    def append() -> None:
        for n in range(3):
            threading.Event().wait(0.15)
            source.append(pa.table({"a": [n, 10], "b": ["x", None]}))
        source.close()

    with ThreadPoolExecutor(2) as threads:
        appended = threads.submit(append)
        total = read() if is_main else threads.submit(read).result(60)
        appended.result(60)
    assert total == 33
