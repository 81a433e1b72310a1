"""`await job`: the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._millstream import Job

_FIRST_SLEEP = 0.001
_SLEEP_MAX = 0.05


async def awaited(job: Job) -> dict[str, Any]:
    sleep = _FIRST_SLEEP
    while not job.done:
        await asyncio.sleep(sleep)
        sleep = min(2 * sleep, _SLEEP_MAX)
    return job.wait()
