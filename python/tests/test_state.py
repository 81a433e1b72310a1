"""Jobs that go on where they were: `state=` and `job=`."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream as ms
from millstream import _fingerprint

ROWS = 30_000
NUMBERS = f"""
CREATE TABLE numbers (n BIGINT) WITH (
  'connector' = 'generator', 'rows' = '{ROWS}', 'rate' = '10000', 'fields.n.kind' = 'sequence'
);
CREATE TABLE out (n BIGINT) WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv');
"""
ENDLESS = """
CREATE TABLE ticks (n BIGINT) WITH ('connector' = 'generator', 'rate' = '1000');
CREATE TABLE kept (n BIGINT) WITH ('connector' = 'file', 'path' = 'kept/', 'format' = 'csv');
"""
OFTEN = {"millstream.checkpoint": "100 ms"}

# A program that is run twice. The first one is killed.
PROGRAM = f"""
import sys, time
import pyarrow.compute as pc
import millstream as ms

s = ms.Session(workers=2, state="state", job="numbers", settings={OFTEN!r})

@s.function(int)
def next(n: int):
    return pc.add(n, 1)

s.sql('''{NUMBERS}''')
job = s.sql("INSERT INTO out SELECT next(n) FROM numbers").start()
while not job.done:
    progress = job.progress
    if progress and progress["checkpoint"]:
        print("checkpoint", progress["checkpoint"], flush=True)
        break
    time.sleep(0.01)
print(job.wait()["messages"], flush=True)
"""


def numbers(directory: Path) -> list[int]:
    """The rows of all parts that are visible."""
    parts = [part for part in directory.iterdir() if not part.name.startswith(".")]
    lines = [line for part in parts for line in part.read_text().split()[1:]]
    return sorted(int(line) for line in lines)


def test_a_job_goes_on_when_its_process_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    line = first.stdout.readline()
    first.kill()
    first.wait()
    first.stdout.close()
    assert line.startswith("checkpoint "), line
    assert numbers(tmp_path / "out") != list(range(1, ROWS + 1)), "it was killed before its end"
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    assert "goes on from checkpoint" in second.stdout
    assert numbers(tmp_path / "out") == list(range(1, ROWS + 1)), "each row is there once"
    third = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "job 'numbers' has ended: resume='none' begins it anew" in third.stdout, third.stderr


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes sessions that keep checkpoints in one directory."""
    monkeypatch.chdir(tmp_path)

    def make(**more: Any) -> ms.Session:
        settings = {**OFTEN, **more.pop("settings", {})}
        return ms.Session(workers=1, state=tmp_path / "state", settings=settings, **more)

    return make


def first_checkpoint(job: ms.Job) -> None:
    """Waits for a checkpoint, however long that takes."""
    while not (job.progress and job.progress["checkpoint"]):
        if job.done:
            job.wait()
        try:
            job.wait(0.01)
        except TimeoutError:
            pass


def test_a_stopped_job_goes_on(kept: Any, tmp_path: Path) -> None:
    counts = []
    for again in (False, True):
        with kept() as session:
            session.sql(ENDLESS)
            job = session.sql("INSERT INTO kept SELECT n FROM ticks", job="ticks").start()
            first_checkpoint(job)
            job.stop()
            report = job.wait(60)
            assert report["stopped"] and report["checkpoint"] > 0
            assert again == any("goes on from checkpoint" in line for line in report["messages"])
            counts.append(len(numbers(tmp_path / "kept")))
    assert counts[0] < counts[1]


def test_a_function_that_has_changed_is_refused(kept: Any) -> None:
    for by in (1, 1, 2):
        with kept(job="ticks") as session:
            session.sql(ENDLESS)
            session.function(int, args=[int], name="add")(lambda n, by=by: pc.add(n, by))
            text = "INSERT INTO kept SELECT add(n) FROM ticks"
            if by == 2:
                message = "function 'add' is another than that with which job 'ticks' has begun"
                with pytest.raises(ms.UsageError, match=message) as caught:
                    session.sql(text).run(60)
                assert "evolve=True" in str(caught.value)
                session.close()
                continue
            job = session.sql(text).start()
            first_checkpoint(job)
            job.stop()
            job.wait(60)


def test_a_changed_function_goes_on_where_that_is_asked(kept: Any) -> None:
    for by in (1, 2):
        with kept(job="ticks") as session:
            session.sql(ENDLESS)
            session.function(int, args=[int], name="add")(lambda n, by=by: pc.add(n, by))
            job = session.sql("INSERT INTO kept SELECT add(n) FROM ticks", evolve=True).start()
            first_checkpoint(job)
            job.stop()
            assert job.wait(60)["stopped"]


def test_a_volatile_function_is_refused_where_each_row_is_exact(kept: Any) -> None:
    guarantee = {"millstream.guarantee": "exactly-once"}
    with kept(job="ticks", settings=guarantee) as session:
        session.sql(ENDLESS)
        session.function(int, args=[int], name="any", volatility="volatile")(lambda n: n)
        relation = session.sql("INSERT INTO kept SELECT any(n) FROM ticks")
        with pytest.raises(ms.UsageError, match="function 'any' is volatile"):
            relation.run(60)
        shown = session.sql("EXPLAIN INSERT INTO kept SELECT any(n) FROM ticks").fetchall()
        assert any("function 'any' is volatile" in line for (line,) in shown)


def test_rows_that_a_program_appends_cannot_be_kept(kept: Any) -> None:
    with kept(job="rows") as session:
        session.sql(ENDLESS)
        session.source("rows", {"n": "bigint"})
        with pytest.raises(ms.UsageError, match="is not read on from a position") as caught:
            session.sql("INSERT INTO kept SELECT n FROM rows").run(60)
        assert "run it without state=" in str(caught.value)
        shown = session.sql("EXPLAIN (RECOVERY) INSERT INTO kept SELECT n FROM rows").fetchall()
        assert any("what was read is lost" in line for (line,) in shown)


def test_definitions_and_queries_of_a_session_are_no_other_text(kept: Any) -> None:
    with kept(job="ticks") as session:
        session.sql(ENDLESS)
        job = session.sql("INSERT INTO kept SELECT n FROM ticks").start()
        session.sql("CREATE VIEW twice AS SELECT 2 * n AS n FROM ticks")
        query = "-- of no job\n/* at all */ (SELECT 1 AS one)"
        assert session.sql(query).fetchall() == [(1,)]
        job.abort()


def test_the_state_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is that of the directory in which the session was made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with ms.Session(workers=1, state="state", settings=OFTEN) as session:
        session.sql(ENDLESS.replace("kept/", f"{tmp_path}/kept/"))
        os.chdir("other")
        job = session.sql("INSERT INTO kept SELECT n FROM ticks", job="ticks").start()
        first_checkpoint(job)
        job.stop()
        job.wait(60)
    assert (tmp_path / "state").is_dir() and not list(Path.cwd().iterdir())


def helped(by: int) -> Any:
    """Classes that are the same but for a method that is no plain function."""

    class Base:
        def update(self, state: Any, x: Any) -> Any:
            return state[0] + by, state[1]

    class Static:
        @staticmethod
        def add(n: Any) -> Any:
            return n + by

    class OfClass:
        @classmethod
        def add(cls, n: Any) -> Any:
            return n + by

    class Property:
        @property
        def by(self) -> int:
            return by

    class Derived(Base):
        pass

    @functools.lru_cache
    def cached(n: Any) -> Any:
        return n + by

    return [Static, OfClass, Property, Derived, cached]


@pytest.mark.parametrize("at", range(5))
def test_a_fingerprint_is_of_methods_of_all_kinds(at: int) -> None:
    first, same, other = (_fingerprint.of(helped(by)[at]) for by in (1, 1, 2))
    assert first == same
    assert first != other


def test_each_text_has_a_name_of_its_own(kept: Any) -> None:
    with kept(job="ticks") as session:
        session.sql(ENDLESS)
        relation = session.sql("INSERT INTO kept SELECT n FROM ticks")
        job = relation.start()
        with pytest.raises(ms.UsageError, match="job 'ticks' is another text of this session"):
            session.sql("INSERT INTO kept SELECT n + 1 FROM ticks")
        with kept(job="ticks") as other:
            other.sql(ENDLESS)
            with pytest.raises(ms.UsageError, match="job 'ticks' runs already in this process"):
                other.sql("INSERT INTO kept SELECT n FROM ticks").start()
        job.stop()
        job.wait(60)
        assert session.sql("SELECT 1").fetchall() == [(1,)], "a query has no job"


def test_misuse_of_state_is_said(kept: Any, session: ms.Session) -> None:
    with pytest.raises(ms.UsageError, match="a job has a name where it has a state"):
        ms.Session(job="x")
    with pytest.raises(ms.UsageError, match="this session keeps no checkpoints"):
        session.sql("SELECT 1", job="x")
    with pytest.raises(ms.UsageError, match="cannot name a job"):
        kept(job="a/b")
    with kept() as other, pytest.raises(ms.UsageError, match="read here keeps no checkpoints"):
        other.sql("SELECT 1", job="x")
    with kept() as other:
        assert other.sql("SELECT 1").fetchall() == [(1,)]


def test_a_pool_that_is_not_there_is_said() -> None:
    with ms.Session(workers=1, pool="127.0.0.1:1") as session:
        with pytest.raises(ms.Error, match="127.0.0.1:1"):
            session.sql("CREATE TABLE t WITH ('connector' = 'pool'); SELECT * FROM t").fetchall()
        assert session.sql("SELECT 1").fetchall() == [(1,)]
