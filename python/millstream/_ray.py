"""Processes of a Ray cluster as the nodes of jobs."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from typing import Any, Callable, Optional, TypeVar, Union

from ._errors import RunError, UsageError

T = TypeVar("T")

# Variables by which another launcher would be taken for the one that has started a process.
_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def on_ray(
    main: Callable[[], T],
    nodes: int,
    *,
    cpus: float = 1,
    rendezvous: Union[str, os.PathLike[str], None] = None,
    certs: Union[str, os.PathLike[str], None] = None,
    insecure: bool = False,
    timeout: Optional[float] = None,
) -> T:
    """Runs `main` in processes of a Ray cluster, each of which is a node of the jobs in it.

    It is what `mpirun -n nodes python job.py` does: all processes make the same calls, and the rows
    of queries are those of process 0, whose result this gives. Ray is initialised before, or begins
    on this machine. `cpus` are reserved for each process.

    On several machines the processes meet in a directory that all see, `rendezvous`. Nodes know each
    other there by `certs`, or `insecure` says that the network is trusted.

    >>> def main():
    ...     with ms.Session(workers=1) as session:
    ...         return session.nodes, session.sql("SELECT count(*) FROM (VALUES (1))").fetchall()
    >>> ms.on_ray(main, nodes=2)
    (2, [(1,)])
    """
    if nodes < 1:
        raise UsageError(f"{nodes} nodes cannot run", "on_ray(main, nodes=4)")
    try:
        import ray
    except ImportError:
        raise UsageError("ray is not installed", "pip install ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    own = tempfile.mkdtemp(prefix="millstream-ray-")
    place = own if rendezvous is None else os.fspath(rendezvous)
    ranks: list[Any] = []
    try:
        actor = ray.remote(num_cpus=cpus, max_restarts=0)(_Rank)
        ranks = [actor.remote() for _ in range(nodes)]
        addresses = ray.get([rank.address.remote() for rank in ranks], timeout=timeout)
        hosts = len(set(addresses))
        if hosts > 1 and rendezvous is None:
            raise UsageError(
                f"the processes are on {hosts} machines", "name a directory that all see: rendezvous="
            )
        variables = {
            "MILLSTREAM_NODES": str(nodes),
            "MILLSTREAM_JOB": f"ray-{uuid.uuid4().hex}",
            "MILLSTREAM_RENDEZVOUS": place,
        }
        if certs is not None:
            variables["MILLSTREAM_CERTS"] = os.fspath(certs)
        if insecure:
            variables["MILLSTREAM_INSECURE"] = "1"
        calls = []
        for number, (rank, address) in enumerate(zip(ranks, addresses)):
            listen = {"MILLSTREAM_LISTEN": f"{address}:0"} if hosts > 1 else {}
            calls.append(
                rank.run.remote(main, {**variables, **listen, "MILLSTREAM_RANK": str(number)})
            )
        result: T = _result(ray, calls, timeout)
        return result
    finally:
        for rank in ranks:
            ray.kill(rank)
        shutil.rmtree(own, ignore_errors=True)


def _result(ray: Any, calls: list[Any], timeout: Optional[float]) -> Any:
    """The result of process 0, when all have ended. The first that fails ends all."""
    waiting = list(calls)
    while waiting:
        ended, waiting = ray.wait(waiting, num_returns=1, timeout=timeout)
        if not ended:
            raise TimeoutError(f"{len(waiting)} of {len(calls)} nodes still run")
        for call in ended:
            try:
                ray.get(call)
            except ray.exceptions.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, Exception) else error
                raise RunError(
                    f"node {calls.index(call)}: {cause}", details=str(error).splitlines()
                ) from error
            except ray.exceptions.RayError as error:
                raise RunError(f"node {calls.index(call)} has died: {error}") from error
    return ray.get(calls[0])


class _Rank:
    """An actor: a process of the job."""

    def address(self) -> str:
        """The address of its machine in the cluster."""
        import ray

        address: str = ray.util.get_node_ip_address()
        return address

    def run(self, main: Callable[[], T], variables: dict[str, str]) -> T:
        """Runs the program as a node."""
        for name in _LAUNCHERS:
            os.environ.pop(name, None)
        os.environ.update(variables)
        return main()
