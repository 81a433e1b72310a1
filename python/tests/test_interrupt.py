"""Ctrl-C: a process of its own is sent SIGINT while it waits; then its session goes on."""

import signal
import subprocess
import sys
import time

import pytest

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
        try:
            line = process.stdout.readline()
            assert line == "ready\n", line + process.stderr.read()
            time.sleep(0.5)  # It has begun to wait, most of the time; else it is interrupted before.
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            lines = [process.stdout.readline()]
            took = time.monotonic() - began
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0, err
        return (lines[0] + out).splitlines(), took


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


def test_a_process_ends_with_its_jobs() -> None:
    code = f"""{SETUP}
s.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
job = s.sql("INSERT INTO nowhere SELECT n FROM endless").start()
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
