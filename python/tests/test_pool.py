"""Tables of memory servers: `pool=`. The server is a process of its own."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import missing

import millstream as ms

ROWS = 100_000


class Server:
    """A memory server on a port that is free."""

    def __init__(self, command: str) -> None:
        line = [command, "memory", "--bytes", "64MiB", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        # `memory server m0 at 127.0.0.1:7740: 64 MiB, …`
        words = self.process.stdout.readline().split()
        assert words[3:4] == ["at"], words
        self.address = words[4].rstrip(":")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.fixture
def server() -> Iterator[Server]:
    command = os.environ.get("MILLSTREAM", shutil.which("millstream"))
    if not command:
        missing("millstream", "there is no command `millstream`: MILLSTREAM names it")
    made = Server(command)
    try:
        yield made
    finally:
        made.kill()


def load(session: ms.Session) -> None:
    """Makes a table of the pool of one in memory."""
    rows = {"n": list(range(ROWS)), "name": [f"the name of row {n}" for n in range(ROWS)]}
    session.register("t", pa.table(rows))
    session.sql("CREATE TABLE kept WITH ('connector' = 'pool') AS SELECT n, name FROM t").run(120)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_table_of_a_pool_is_loaded_and_read_by_others(server: Server, workers: int) -> None:
    with ms.Session(workers=workers, pool=server.address) as session:
        load(session)
    with ms.Session(workers=workers, pool=[server.address]) as session:
        session.sql("CREATE TABLE kept WITH ('connector' = 'pool')")

        @session.function(int)
        def twice(n: pa.Int64Array) -> pa.Array:
            return pc.multiply(n, 2)

        rows = session.sql("SELECT n % 4, count(*), sum(twice(n)) FROM kept GROUP BY 1 ORDER BY 1")
        expected = [(k, ROWS // 4, 2 * sum(range(k, ROWS, 4))) for k in range(4)]
        assert rows.fetchall() == expected
        session.sql("INSERT INTO kept VALUES (-1, 'one more')").run(120)
        assert session.sql("SELECT count(*), min(n) FROM kept").fetchall() == [(ROWS + 1, -1)]


def test_rows_outlive_the_pool_that_they_came_from(server: Server) -> None:
    """They are copied: the memory of a server is given back when nobody reads it."""
    with ms.Session(workers=2, pool=server.address) as session:
        load(session)
        rows = session.sql("SELECT n, name FROM kept").arrow()
        held: list[pa.Array] = []

        @session.function(int)
        def holds(n: pa.Int64Array) -> pa.Array:
            held.append(n)
            return n

        assert session.sql("SELECT count(holds(n)) FROM kept").fetchall() == [(ROWS,)]
        session.sql("INSERT OVERWRITE kept VALUES (1, 'alone')").run(120)
    server.kill()
    rows = rows.sort_by("n")
    assert rows["n"].to_pylist() == list(range(ROWS))
    assert rows["name"][ROWS - 1].as_py() == f"the name of row {ROWS - 1}"
    arguments = pa.chunked_array(held).to_pylist()
    assert sorted(arguments) == list(range(ROWS)), "arguments too"


def test_a_server_that_dies_is_named(server: Server) -> None:
    with ms.Session(workers=2, pool=server.address) as session:
        load(session)
        relation = session.sql("SELECT sum(n) FROM kept")
        server.kill()
        with pytest.raises(ms.RunError, match="memory server .m0. is gone"):
            relation.fetchall()
        assert session.sql("SELECT 1").fetchall() == [(1,)], "the session goes on"


def test_a_token_is_asked_for(server: Server, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ms.Error, match="missing"):
        with ms.Session(workers=1, pool=server.address, pool_token_file=missing) as session:
            load(session)


def test_ctrl_c_ends_the_wait_for_an_origin(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It takes a connection, and says nothing.
        def interrupt() -> None:
            connection, _ = silent.accept()
            signal.raise_signal(signal.SIGINT)
            stays.append(connection)

        stays: list[socket.socket] = []
        options = {
            "origin": "s3://bucket/*.csv",
            "origin.s3.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "origin.s3.region": "eu-west-1",
            "origin.s3.access_key_id": "key",
            "origin.s3.secret_access_key": "hush",
        }
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        with ms.Session(workers=1, pool=server.address) as session:
            session.sql(f"CREATE TABLE c (n BIGINT) WITH ('connector' = 'pool', {listed})")
            interrupts = threading.Thread(target=interrupt)
            interrupts.start()
            with pytest.raises(KeyboardInterrupt):
                session.sql("SELECT sum(n) FROM c")
                # A signal is handled between two lines of Python.
                interrupts.join()
            interrupts.join()
            # The engine is free again, though the origin has not answered.
            load(session)
            assert session.sql("SELECT count(*) FROM kept").fetchall() == [(ROWS,)]
        stays.clear()
