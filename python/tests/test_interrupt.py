"""Ctrl-C: a process of its own is sent SIGINT while it waits; then its session goes on."""

import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

import millstream as ms

# A second is asked for; the bound is generous, since other tests run beside.
SECONDS_MAX = 10

SETUP = """
import sys, threading, time
import pyarrow as pa
import millstream as ms
s = ms.Session(workers=2)
s.sql("CREATE TABLE ends (n BIGINT) WITH ('connector' = 'generator', 'rows' = '1000000000000')")
s.sql("CREATE TABLE endless (n BIGINT) WITH ('connector' = 'generator', 'rate' = '1000')")
def ready():
    print("ready", flush=True)
"""

WAITS = {
    "a query that ends": """
ready()
s.sql("SELECT sum(n) FROM ends").arrow()
""",
    "batches of a query that ends": """
ready()
for batch in s.sql("SELECT n FROM ends WHERE n < 0").batches():
    pass
""",
    "a query that another library reads": """
ready()
pa.RecordBatchReader.from_stream(s.sql("SELECT n FROM ends WHERE n < 0")).read_all()
""",
    "an INSERT": """
ready()
s.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
s.sql("INSERT INTO nowhere SELECT n FROM ends").run()
""",
    "append": """
source = s.source("rows", {"a": "bigint"}, max_bytes=1)
ready()
while True:
    source.append(pa.table({"a": [1, 2, 3]}))
""",
    "a job": """
s.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
job = s.sql("INSERT INTO nowhere SELECT n FROM endless").start()
ready()
job.wait()
""",
    "a function": """
@s.function(int)
def slow(x: int) -> pa.Array:
    time.sleep(0.2)
    return x
ready()
s.sql("SELECT sum(slow(n)) FROM ends").arrow()
""",
}

AFTER = """
except (KeyboardInterrupt, OSError) as error:
    # pyarrow has an error of its own for a stream that failed.
    print("interrupted", type(error).__name__, flush=True)
else:
    print("no interrupt", flush=True)
print(s.sql("SELECT 1 AS x").fetchall(), flush=True)
"""


def interrupted(code: str) -> tuple[list[str], float]:
    """The output of the code after SIGINT, and the seconds until its first line."""
    run = [sys.executable, "-c", code]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
            assert line == "ready\n", line + process.stderr.read()
            time.sleep(0.5)  # It has begun to wait, most of the time; else it is interrupted before.
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            lines = [process.stdout.readline()]
            took = time.monotonic() - began
            # `communicate` would not see lines that were read ahead.
            lines += process.stdout.readlines()
            err = process.stderr.read()
            assert process.wait() == 0, err
        finally:
            watchdog.cancel()
            process.kill()
        return [line.rstrip("\n") for line in lines], took


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_gives_the_prompt_back(name: str) -> None:
    body = "".join(f"    {line}\n" for line in WAITS[name].strip().splitlines())
    lines, took = interrupted(f"{SETUP}\ntry:\n{body}{AFTER}")
    print(f"{name}: {took:.3f} s")
    assert lines[0].startswith("interrupted"), lines
    assert lines[1] == "[(1,)]"
    assert took < SECONDS_MAX


def test_a_query_that_does_not_end_gives_its_rows() -> None:
    code = f"""{SETUP}
ready()
rows = s.sql("SELECT n FROM endless").arrow()
print(rows.num_rows > 0, flush=True)
print(s.sql("SELECT 1 AS x").fetchall(), flush=True)
"""
    lines, took = interrupted(code)
    print(f"rows so far: {took:.3f} s")
    assert lines == ["True", "[(1,)]"]
    assert took < SECONDS_MAX


def test_a_session_that_is_left_by_ctrl_c_does_not_wait_for_a_function() -> None:
    """The function ends an hour later, and its worker with it."""
    code = f"""{SETUP}
called = []
@s.function(int)
def slow(x: int) -> pa.Array:
    called.append(x)
    if len(called) == 1:
        ready()
    time.sleep(3600)
    return x
try:
    with s:
        s.sql("SELECT slow(n) FROM endless").arrow()
except KeyboardInterrupt as error:
    print("interrupted", type(error).__name__, s.closed, flush=True)
import os
with ms.Session(workers=1) as other:
    print(other.sql("SELECT 1 AS x").fetchall(), flush=True)
os._exit(0)
"""
    lines, took = interrupted(code)
    print(f"a session that is left: {took:.3f} s")
    assert lines[-2:] == ["interrupted Interrupted True", "[(1,)]"]
    assert took < SECONDS_MAX


def test_signals_are_seen_while_rows_become_tuples(session: ms.Session) -> None:
    session.register("t", pa.table({"a": list(range(500_000))}))
    rows = session.sql("SELECT a, a + 1 AS b FROM t").collect()
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(len(seen)))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        made = rows.fetchall()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (len(made), made[-1]) == (500_000, (499_999, 500_000))
    assert len(seen) > 5, "behind the call there would be one or two"


def test_a_process_ends_with_its_jobs() -> None:
    code = f"""{SETUP}
s.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
job = s.sql("INSERT INTO nowhere SELECT n FROM endless").start()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
