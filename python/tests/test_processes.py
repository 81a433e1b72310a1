"""Interpreters and processes: which run the package, and sessions of processes that a program starts."""

import multiprocessing
import subprocess
import sys
from typing import Any

import pytest

import millstream as ms


def test_a_free_threaded_interpreter_is_refused() -> None:
    """Its name is what tells it: the flags of its binary interface have a `t`."""
    code = "import sys; sys.abiflags = 't'; import millstream"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ImportError: Millstream does not run in a free-threaded Python" in done.stderr
    assert "3.10 or newer with the global interpreter lock" in done.stderr


def rows(text: str) -> list[Any]:
    with ms.Session(workers=1) as session:
        return session.sql(text).fetchall()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_process_of_a_program_makes_a_session_of_its_own(session: ms.Session, method: str) -> None:
    """Also one that is forked from a process with a session."""
    assert session.sql("SELECT 0").fetchall() == [(0,)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        made = pool.map_async(rows, [f"SELECT {n}" for n in range(4)]).get(timeout=120)
    assert made == [[(n,)] for n in range(4)]
    assert session.sql("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kafka", "'topic' = 'x', 'format' = 'json', 'properties.bootstrap.servers' = '127.0.0.1:1'"),
        ("postgres", "'url' = 'postgresql://127.0.0.1:1/x', 'table-name' = 't', 'username' = 'u'"),
    ],
)
def test_the_connectors_of_the_command_are_there(session: ms.Session, name: str, options: str) -> None:
    """They try to reach the server, which is not there."""
    session.sql(
        f"CREATE TABLE t (n BIGINT) WITH ('connector' = '{name}', {options}, 'retry.timeout' = '100 ms')"
    )
    with pytest.raises(ms.Error, match="127.0.0.1:1"):
        session.sql("SELECT n FROM t").fetchall()
