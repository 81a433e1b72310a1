"""`ms.on_ray`: the processes of a Ray cluster as nodes. Ray begins on this machine here."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from conftest import needed

import millstream as ms

ray = needed("ray")
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def grouped() -> Callable[[], tuple[int, int, pa.Table]]:
    """A program. Ray's processes get its code, since they do not have this file."""

    def main() -> tuple[int, int, pa.Table]:
        import pyarrow as pa

        import millstream as ms

        with ms.Session(workers=1) as session:
            session.register("t", pa.table({"k": [n % 5 for n in range(100_000)]}))
            rows = session.sql("SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY k").arrow()
            return session.rank, session.nodes, rows

    return main


def test_processes_of_ray_are_nodes(grouped: Callable[[], tuple[int, int, pa.Table]]) -> None:
    rank, nodes, rows = ms.on_ray(grouped, nodes=3)
    assert (rank, nodes) == (0, 3)
    assert rows.to_pydict() == {"k": list(range(5)), "n": [20_000] * 5}


def test_the_error_of_a_process_is_told() -> None:
    def fails() -> None:
        import millstream as ms

        with ms.Session(workers=1) as session:
            if session.rank == 1:
                raise ValueError("no luck")
            session.sql("SELECT 1").fetchall()

    with pytest.raises(ms.RunError, match="node 1: .*no luck"):
        ms.on_ray(fails, nodes=2)


def test_a_process_that_dies_is_told() -> None:
    def dies() -> None:
        import os

        import millstream as ms

        with ms.Session(workers=1) as session:
            if session.rank == 1:
                os._exit(7)
            session.sql("SELECT 1").fetchall()

    with pytest.raises(ms.RunError, match="node [01]"):
        ms.on_ray(dies, nodes=2)


def test_misuse_is_said(grouped: Callable[[], tuple[int, int, pa.Table]]) -> None:
    with pytest.raises(ms.UsageError, match="0 nodes cannot run"):
        ms.on_ray(grouped, nodes=0)
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ms.on_ray(grouped, nodes=9, timeout=1.0)
