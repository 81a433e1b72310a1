"""One program as the processes of a launcher: `mpirun -n 4 python job.py`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import missing

# Each process makes the same table and the same function; process 0 has the rows.
JOB = """
import pathlib, sys
import pyarrow as pa
import pyarrow.compute as pc
import millstream as ms

with ms.Session(workers=1) as s:
    s.register("t", pa.table({"k": [n % 5 for n in range(100_000)], "x": list(range(100_000))}))

    @s.function(int)
    def twice(x: pa.Int64Array) -> pa.Array:
        return pc.multiply(x, 2)

    @s.aggregate(int, args=[int], state={"total": int}, name="total")
    class Total:
        def start(self): return 0
        def update(self, state, x): return state[0] + (pc.sum(x).as_py() or 0)
        def merge(self, state, other): return state[0] + other[0]
        def value(self, state): return state[0]

    r = s.sql("SELECT k, count(*), total(twice(x)) FROM t GROUP BY k ORDER BY k")
    rows = r.fetchall()
    s.sql("CREATE TABLE out (k BIGINT, x BIGINT) WITH ('connector' = 'file', 'path' = 'out/', 'format' = 'csv')")
    report = s.sql("INSERT INTO out SELECT k, x FROM t WHERE x < 50").run()
    again = s.sql("SELECT count(*), now() = now() FROM t").fetchall()
    pathlib.Path(f"rank-{s.rank}").write_text(repr((s.nodes, rows, again, report["rows_in"])))
"""
EXPECTED = [(k, 20_000, 2 * sum(range(k, 100_000, 5))) for k in range(5)]


def check(directory: Path, nodes: int) -> None:
    said = [eval((directory / f"rank-{rank}").read_text()) for rank in range(nodes)]
    assert [of[0] for of in said] == [nodes] * nodes
    assert said[0][1] == EXPECTED
    assert said[0][2] == [(100_000, True)]
    assert all(of[1] == [] and of[2] == [] for of in said[1:]), "the rows are those of process 0"
    parts = [part for part in (directory / "out").iterdir() if not part.name.startswith(".")]
    lines = [line for part in parts for line in part.read_text().split()[1:]]
    assert sorted(lines) == sorted(f"{x % 5},{x}" for x in range(50))


def place(launcher: str, rank: int, nodes: int) -> dict[str, str]:
    """The variables by which a launcher tells a process its place."""
    if launcher == "srun":
        return {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(nodes),
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_JOB_ID": "17",
            "SLURM_STEP_ID": "0",
        }
    return {
        "MILLSTREAM_RANK": str(rank),
        "MILLSTREAM_NODES": str(nodes),
        "MILLSTREAM_JOB": "test",
    }


def ranks(
    directory: Path, codes: list[str], launcher: str = "own"
) -> list[subprocess.CompletedProcess[str]]:
    """Starts a process for each program, as a launcher would, and waits for all."""
    started = []
    for rank, code in enumerate(codes):
        variables = {
            **os.environ,
            **place(launcher, rank, len(codes)),
            "MILLSTREAM_RENDEZVOUS": str(directory),
        }
        command = [sys.executable, "-c", code]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=directory, env=variables, **pipes))  # type: ignore[call-overload]
    ended = []
    try:
        for process in started:
            out, err = process.communicate(timeout=120)
            ended.append(subprocess.CompletedProcess([], process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
    return ended


def mpirun() -> list[str]:
    found = shutil.which("mpirun.openmpi")
    if found is None:
        missing("mpirun", "there is no mpirun.openmpi")
    # It refuses root, and more processes than cores, unless asked.
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [found, "--oversubscribe", "--bind-to", "none", *root]


@pytest.mark.parametrize("nodes", [2, 4])
def test_processes_of_mpirun_are_nodes(tmp_path: Path, nodes: int) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [*mpirun(), "-n", str(nodes), sys.executable, "job.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path, nodes)


@pytest.mark.parametrize("launcher", ["own", "srun"])
def test_processes_that_are_told_their_rank_are_nodes(tmp_path: Path, launcher: str) -> None:
    for ended in ranks(tmp_path, [JOB] * 3, launcher):
        assert ended.returncode == 0, ended.stderr
    check(tmp_path, 3)


def test_a_process_with_another_program_is_named(tmp_path: Path) -> None:
    other = JOB.replace("pc.multiply(x, 2)", "pc.multiply(x, 3)")
    for ended in ranks(tmp_path, [JOB, JOB, other]):
        assert ended.returncode == 1
        assert "node 2 differs from node 0 in function 'twice'" in ended.stderr
    other = JOB.replace("ORDER BY k", "ORDER BY k DESC")
    for ended in ranks(tmp_path, [JOB, other]):
        assert "node 1 differs from node 0 in the text of SQL" in ended.stderr
    other = JOB.replace("100_000)", "100_005)")
    for ended in ranks(tmp_path, [JOB, other]):
        assert "node 1 differs from node 0 in table 't'" in ended.stderr
    other = JOB.replace("workers=1", "workers=2")
    for ended in ranks(tmp_path, [JOB, other]):
        assert "node 1 differs from node 0 in its number of workers" in ended.stderr


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    code = JOB.replace(
        "return pc.multiply(x, 2)",
        "import os\n        os._exit(7) if s.rank == 1 else None\n        return pc.multiply(x, 2)",
    )
    first, second = ranks(tmp_path, [code, code])
    assert second.returncode == 7
    assert first.returncode == 1
    assert "node 1" in first.stderr


def test_a_failure_of_one_process_is_told_by_all(tmp_path: Path) -> None:
    code = JOB.replace(
        "return pc.multiply(x, 2)",
        "if s.rank == 1: raise ValueError('no luck')\n        return pc.multiply(x, 2)",
    )
    for ended in ranks(tmp_path, [code, code]):
        assert ended.returncode == 1
        assert "no luck" in ended.stderr


def test_what_one_process_alone_has_is_refused(tmp_path: Path) -> None:
    code = """
import millstream as ms
s = ms.Session()
s.source("rows", {"n": "bigint"})
"""
    for ended in ranks(tmp_path, [code, code]):
        assert "a table that a program appends to is of one process" in ended.stderr
    code = """
import millstream as ms
s = ms.Session()
s.function(int, args=[int], name="f", on_error="bad")(lambda x: x)
"""
    for ended in ranks(tmp_path, [code, code]):
        assert "the rows for which a function fails are kept by one process" in ended.stderr
