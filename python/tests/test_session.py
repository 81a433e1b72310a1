"""Relations, errors, sources and jobs."""

import asyncio
import datetime
import gc
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import millstream as ms

ENDLESS = """
CREATE TABLE ticks (n BIGINT) WITH (
  'connector' = 'generator', 'rate' = '1000', 'fields.n.max' = '9'
)
"""


def test_select(session: ms.Session) -> None:
    relation = session.sql("SELECT 1 AS one, 'x' AS two")
    assert relation.columns == ["one", "two"]
    assert relation.bounded
    assert relation.fetchall() == [(1, "x")]
    assert relation.fetchall() == [(1, "x")], "a relation runs each time that it is read"


def test_files_are_tables(session: ms.Session, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("k,v\na,1\nb,2\na,3\n")
    rows = session.sql(f"SELECT k, sum(v) AS s FROM '{path}' GROUP BY k ORDER BY k").fetchall()
    assert rows == [("a", 4), ("b", 2)]
    out = tmp_path / "out.parquet"
    report = session.sql(f"INSERT INTO '{out}' SELECT * FROM '{path}' WHERE v > 1").run()
    assert report["rows_in"] == 3
    assert session.sql(f"SELECT count(*) FROM '{out}'").fetchall() == [(2,)]


def test_definitions_are_in_force_at_once(session: ms.Session) -> None:
    session.sql("CREATE VIEW v AS SELECT 7 AS x")
    assert session.tables == ["v"]
    assert session.sql("SELECT x FROM v").fetchall() == [(7,)]


def test_explain(session: ms.Session) -> None:
    session.register("t", pa.table({"x": [1]}))
    text = session.explain("SELECT count(*) FROM t")
    assert "rows in memory" in text
    lines = [line for (line,) in session.sql("EXPLAIN SELECT count(*) FROM t").fetchall()]
    assert lines == text.splitlines()
    assert session.explain("SELECT 1", format="json").startswith("{")
    with pytest.raises(ValueError, match="no format 'xml'"):
        session.explain("SELECT 1", format="xml")


def test_errors_have_places(session: ms.Session) -> None:
    session.register("t", pa.table({"origin": ["a"]}))
    with pytest.raises(ms.SqlError) as caught:
        session.sql("SELECT\n  orign, origin FROM t")
    (error,) = caught.value.diagnostics
    assert (error.line, error.column, error.length) == (2, 3, 5)
    assert error.message == "unknown column 'orign'"
    assert error.hint == "did you mean 'origin'?"
    assert "2 |   orign, origin FROM t\n  |   ^^^^^" in str(caught.value)


def test_errors_of_a_run(session: ms.Session) -> None:
    session.register("t", pa.table({"x": [1, 0]}))
    relation = session.sql("SELECT 10 / x AS y FROM t")
    with pytest.raises(ms.RunError) as caught:
        relation.fetchall()
    assert caught.value.statement == "SELECT 10 / x AS y FROM t"
    with pytest.raises(OSError, match=caught.value.message):
        pa.RecordBatchReader.from_stream(relation).read_all()
    assert session.sql("SELECT 1").fetchall() == [(1,)], "the session goes on"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.register("x", 5), TypeError, "^int has no __arrow_c_stream__"),
        (lambda s: s.sql("SELECT 1; SELECT 2"), ms.UsageError, "has 2 queries that give rows"),
        (lambda s: s.sql("SELECT 1").run(), ms.UsageError, "this is a query"),
        (lambda s: s.sql("CREATE VIEW v AS SELECT 1 AS x").arrow(), ms.UsageError, "gives no rows"),
        (lambda s: s.set("millstream.nonsense", 1), ms.UsageError, "millstream.nonsense"),
        (lambda s: s.source("s", ["a"]), ms.UsageError, "a mapping from names to types"),
        (lambda s: s.source("s", {"a": "int"}, delay="5 s"), ms.UsageError, "column of event time"),
        (lambda s: s.source("s", {"a": "int"}, event_time="a", delay="soon"), ms.UsageError, "'soon' is no delay"),
        (lambda s: s.source("s", {"a": "int"}, event_time="b"), ms.UsageError, "b"),
        (lambda s: s.source("s", {"a": "strin"}), ms.SqlError, "strin"),
        (lambda _: ms.Session(workers=0), ms.UsageError, "cannot have 0 workers"),
        (lambda _: ms.Session(settings={"no.such": 1}), ms.UsageError, "no.such"),
    ],
)
def test_misuse_is_said(session, call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call(session)


def test_a_failed_stream_of_another_library_is_said(session: ms.Session) -> None:
    def batches():  # type: ignore[no-untyped-def]
        yield pa.record_batch({"x": [1]})
        raise ValueError("the disk is gone")

    schema = pa.schema({"x": pa.int64()})
    with pytest.raises(ms.RunError, match="the disk is gone"):
        session.register("t", pa.RecordBatchReader.from_batches(schema, batches()))


def test_batches_come_while_the_query_runs(session: ms.Session) -> None:
    session.sql(ENDLESS)
    seen = 0
    with session.sql("SELECT n FROM ticks").batches() as batches:
        for batch in batches:
            seen += batch.num_rows
            if seen > 100:
                break
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_a_relation_is_read_once_at_a_time(session: ms.Session) -> None:
    session.sql(ENDLESS)
    relation = session.sql("SELECT n FROM ticks")
    with relation.batches() as batches:
        next(batches)
        with pytest.raises(ms.UsageError, match="is being read"):
            relation.batches()
    with relation.batches() as batches:
        assert next(batches).num_rows > 0, "it runs anew when the run before has ended"


def test_a_slow_reader_holds_the_query_back(session: ms.Session) -> None:
    """Far fewer rows are made than there would be: 160 GB."""
    session.sql(
        "CREATE TABLE many (n BIGINT, m BIGINT) WITH ('connector' = 'generator', 'rows' = '10000000000')"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with session.sql("SELECT n, m FROM many").batches() as batches:
        for _ in range(20):
            next(batches)
            threading.Event().wait(0.05)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20, f"{grown} KiB"


def test_batches_are_of_one_thread_at_a_time(session: ms.Session) -> None:
    session.source("none", {"a": "bigint"})
    batches = session.sql("SELECT a FROM none").batches()
    said: list[BaseException] = []
    waits = threading.Event()

    def read() -> None:
        waits.set()
        while not said:
            try:
                next(batches)
            except ms.UsageError:
                pass  # The look of the other thread was first.
            except ms.Error as error:
                said.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    waits.wait(60)
    while True:
        try:
            batches.next_within(0.001)
        except TimeoutError:
            continue  # The thread does not wait yet.
        except ms.UsageError as error:
            assert "another thread waits for a batch of this query" in str(error)
            break
    batches.close()
    reader.join(60)
    assert len(said) == 1 and isinstance(said[0], ms.Aborted), said
    assert list(batches) == []


def test_a_source_without_an_end(session: ms.Session, tmp_path: Path) -> None:
    clicks = session.source(
        "clicks", {"ts": "timestamp(3)", "who": "bigint"}, event_time="ts", delay="5 s"
    )
    out = tmp_path / "out.csv"
    job = session.sql(
        f"INSERT INTO '{out}' SELECT window_start, who, count(*) AS n "
        "FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '10' SECOND) "
        "GROUP BY window_start, window_end, who"
    ).start()
    start = datetime.datetime(2024, 1, 1)
    for second in range(40):
        clicks.append(pa.table({"who": [second % 2], "ts": [start + datetime.timedelta(seconds=second)]}))
    assert not job.done
    clicks.close()
    report = job.wait(60)
    assert (report["rows_in"], report["late_rows"], report["stopped"]) == (40, 0, False)
    lines = sorted(out.read_text().splitlines()[1:])
    assert len(lines) == 8
    assert all(line.endswith(",5") for line in lines)
    with pytest.raises(ms.UsageError, match="the source is closed"):
        clicks.append(pa.table({"who": [1], "ts": [start]}))


def test_a_source_fits_columns_by_name(session: ms.Session) -> None:
    source = session.source("s", pa.schema({"a": pa.int32(), "b": pa.string()}))
    with pytest.raises(ms.UsageError, match="no column 'b'"):
        source.append(pa.table({"a": [1]}))
    with pytest.raises(ms.UsageError, match="column 'a'"):
        source.append(pa.table({"a": [[1]], "b": ["x"]}))
    source.append(pa.table({"b": ["x"], "a": [1]}))
    source.close()
    assert session.sql("SELECT a, b FROM s").fetchall() == [(1, "x")]


def test_append_waits_while_nobody_reads(session: ms.Session) -> None:
    source = session.source("s", {"a": "bigint"}, max_bytes=1000)
    table = pa.table({"a": list(range(200))})
    source.append(table)
    assert source.waiting_bytes >= 1000
    with pytest.raises(TimeoutError):
        source.append(table, timeout=0.2)
    appended = threading.Thread(target=lambda: (source.append(table), source.close()))
    appended.start()
    assert session.sql("SELECT a FROM s").collect().num_rows == 400
    appended.join(60)
    assert not appended.is_alive()
    assert source.waiting_bytes == 0


def test_two_scans_of_a_source_each_get_all(session: ms.Session) -> None:
    source = session.source("s", {"a": "bigint"})
    source.append(pa.table({"a": [1, 2, 3]}))
    source.close()
    rows = session.sql("SELECT a FROM s UNION ALL SELECT 10 * a FROM s").fetchall()
    assert sorted(rows) == [(1,), (2,), (3,), (10,), (20,), (30,)]


def test_jobs_stop_and_are_awaited(session: ms.Session, tmp_path: Path) -> None:
    session.sql(ENDLESS)
    out = tmp_path / "out.csv"

    async def main() -> dict[str, object]:
        job = session.sql(f"INSERT INTO '{out}' SELECT n FROM ticks").start()
        while not (job.progress and job.progress["rows_in"]):
            await asyncio.sleep(0.01)
        assert repr(job) == "<millstream.Job, running>"
        with pytest.raises(TimeoutError):
            job.wait(0.01)
        job.stop()
        return await job

    report = asyncio.run(main())
    assert report["stopped"]
    assert len(out.read_text().splitlines()) == report["rows_out"] + 1


def test_an_aborted_job_publishes_nothing(session: ms.Session, tmp_path: Path) -> None:
    session.sql(ENDLESS)
    out = tmp_path / "out.csv"
    job = session.sql(f"INSERT INTO '{out}' SELECT n FROM ticks").start()
    job.abort()
    with pytest.raises(ms.Aborted):
        job.wait(60)
    assert not out.exists()


@pytest.mark.parametrize("how", ["abort", "close"])
def test_an_event_loop_outlives_a_job_that_is_dropped(tmp_path: Path, how: str) -> None:
    """A `KeyboardInterrupt` in a task would end it."""

    async def main() -> list[object]:
        session = ms.Session(workers=1)
        session.sql(ENDLESS)
        job = session.sql(f"INSERT INTO '{tmp_path / 'x.csv'}' SELECT n FROM ticks").start()

        async def wait() -> object:
            return await job

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        (job.abort if how == "abort" else session.close)()
        made = await asyncio.gather(task, return_exceptions=True)
        session.close()
        return made

    (error,) = asyncio.run(main())
    assert isinstance(error, ms.Aborted) and not isinstance(error, KeyboardInterrupt)
    assert str(error) == "it was dropped by abort(), or with its session"


def test_statements_run_once_at_a_time(session: ms.Session, tmp_path: Path) -> None:
    session.sql(ENDLESS)
    statements = session.sql(f"INSERT INTO '{tmp_path / 'x.csv'}' SELECT n FROM ticks")
    job = statements.start()
    with pytest.raises(ms.UsageError, match="these statements are running .wait for their job"):
        statements.start()
    job.stop()
    assert job.wait(60)["stopped"]


def test_a_closed_session_ends_its_jobs(tmp_path: Path) -> None:
    with ms.Session(workers=1) as session:
        session.sql(ENDLESS)
        job = session.sql(f"INSERT INTO '{tmp_path / 'x.csv'}' SELECT n FROM ticks").start()
        relation = session.sql("SELECT 1")
    assert job.done
    assert session.closed
    with pytest.raises(ms.UsageError, match="the session is closed"):
        session.sql("SELECT 1")
    assert relation.columns == ["Int64(1)"] or len(relation.columns) == 1


def test_a_fork_is_refused(session: ms.Session) -> None:
    session.sql(ENDLESS)
    session.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
    batches = session.sql("SELECT n FROM ticks").batches()
    next(batches)
    job = session.sql("INSERT INTO nowhere SELECT n FROM ticks").start()
    calls: list[Callable[[], object]] = [
        lambda: session.sql("SELECT 1"),
        lambda: next(batches),
        lambda: job.done,
        lambda: job.progress,
        lambda: job.wait(1.0),
        job.stop,
        job.abort,
    ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                said = f"nothing but {call()}"
            except BaseException as error:
                said = str(error)
            os.write(writer, f"{said.splitlines()[0]}\n".encode())
        os.write(writer, f"{session}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        *said, shown = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert said == ["this session was made by another process, before a fork"] * len(calls)
    assert shown.endswith(", closed>")
    assert next(batches).num_rows > 0 and not job.done, "the process before the fork goes on"
    batches.close()
    job.abort()
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_the_lock_is_free_while_a_query_runs(session: ms.Session) -> None:
    """Another thread counts while the main thread waits for rows that never come."""
    source = session.source("s", {"a": "bigint"})
    counted = 0

    def count() -> None:
        nonlocal counted
        for _ in range(100_000):
            counted += 1
        source.close()

    thread = threading.Thread(target=count)
    thread.start()
    assert session.sql("SELECT a FROM s").fetchall() == []
    thread.join()
    assert counted == 100_000


def test_threads_share_a_session(session: ms.Session) -> None:
    session.register("t", pa.table({"x": list(range(1000))}))
    sums: list[object] = []

    def run() -> None:
        sums.append(session.sql("SELECT sum(x) FROM t").fetchall())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [[(499_500,)]] * 8


def test_a_thousand_sessions_leave_nothing() -> None:
    def open_close(times: int) -> None:
        for _ in range(times):
            with ms.Session(workers=1) as session:
                assert session.sql("SELECT 1").fetchall() == [(1,)]
        gc.collect()

    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    open_close(100)
    before, bytes_before = counts(), resident()
    open_close(1000)
    assert counts()[0] <= before[0] + 2
    assert counts()[1] <= before[1] + 2
    assert resident() - bytes_before < 64 << 20, f"{resident() - bytes_before} bytes more"


def test_sessions_with_more_workers_than_processors_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ms, "_warned", False)
    monkeypatch.setattr(ms, "_processors", 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ms.Session(workers=3):
            assert caught == [], "one session has what it was given"
        with ms.Session(workers=1), ms.Session(workers=1):
            assert caught == []
            with ms.Session(workers=1), ms.Session(workers=1):
                pass
    [warning] = caught
    assert "3 sessions have 3 workers, and there are 2 processors" in str(warning.message)


def test_sessions_share_a_directory_for_rows_that_do_not_fit(tmp_path: Path) -> None:
    settings = {"millstream.state_bytes": "16 MiB"}
    text = """
        SELECT count(*), sum(length(t)) FROM (
          SELECT n % 40000, max(repeat('x', CAST(n % 500 AS BIGINT))) AS t FROM t GROUP BY n % 40000
        )
    """

    def run(made: list[object]) -> None:
        with ms.Session(workers=1, spill_dir=tmp_path, settings=settings) as session:
            session.register("t", pa.table({"n": list(range(80_000))}))
            made.append(session.sql(text).fetchall())

    made: list[object] = []
    threads = [threading.Thread(target=run, args=(made,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sum(max(n % 500, (n + 40_000) % 500) for n in range(40_000))
    assert made == [[(40_000, expected)]] * 2


def test_batches_do_not_come_in_time(session: ms.Session) -> None:
    source = session.source("s", {"a": "bigint"})
    with session.sql("SELECT a FROM s").batches() as batches:
        with pytest.raises(TimeoutError):
            batches.next_within(0.01)
        source.append(pa.table({"a": [1]}))
        batch = batches.next_within(60)
        assert batch is not None and batch.fetchall() == [(1,)]
        source.close()
        assert batches.next_within(60) is None


def test_threads_that_read_a_relation_get_all_of_its_rows(session: ms.Session) -> None:
    """Or an error, but never some of the rows."""
    session.register("t", pa.table({"x": list(range(10_000))}))
    relation = session.sql("SELECT x FROM t")
    begin, counts, errors = threading.Barrier(4), [], []

    def run() -> None:
        for _ in range(50):
            begin.wait(60)
            try:
                counts.append(relation.collect().num_rows)
            except ms.UsageError as error:
                if "is being read" not in str(error):
                    errors.append(error)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert counts and set(counts) == {10_000}


def test_a_session_closes_while_a_function_keeps_its_plan(session: ms.Session) -> None:
    """A call of constants is made by the plan, and may never return."""
    called, returns = threading.Event(), threading.Event()

    @session.function(int, args=[int], name="waits")
    def waits(n: pa.Array) -> pa.Array:
        called.set()
        returns.wait(60)
        return n

    errors: list[BaseException] = []

    def plan() -> None:
        try:
            session.sql("SELECT waits(1)")
        except ms.Error as error:
            errors.append(error)

    thread = threading.Thread(target=plan)
    thread.start()
    assert called.wait(60)
    session.close()
    assert thread.is_alive() and session.closed and "closed" in repr(session)
    with pytest.raises(ms.UsageError, match="closed"):
        returns.set()
        session.sql("SELECT 1")
    thread.join(60)
    assert not thread.is_alive()


def test_ctrl_c_ends_the_reading_of_a_stream_without_an_end(session: ms.Session) -> None:
    ended = threading.Event()
    batch = pa.record_batch({"x": [1]})

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for at in range(1 << 40):
                if at == 10:
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        session.register("t", pa.RecordBatchReader.from_batches(batch.schema, batches()))
    assert ended.wait(30), "it was released"
    assert "t" not in session.tables
