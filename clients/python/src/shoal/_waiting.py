"""Why nothing comes: one look at a queue, and one sentence for whoever waits for it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._server import QueueServer

Reason = Literal["paused", "drained", "no-worker", "not-served", "busy"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """``not-served``: no worker is there and none ever was, while workers serve other queues; most likely the name of
    the model is wrong. ``busy``: workers are there, and take the jobs as they can."""

    reason: Reason
    message: str
    """What is found and what to do, for a person."""
    waiting: int
    """Jobs that wait."""
    active: int
    """Jobs that run."""
    workers: int
    """Live workers that claim."""


async def why_waiting(server: QueueServer, queue: str) -> Waiting:
    """Raises QUEUE_UNREACHABLE."""
    waiting, active, ever_completed, is_paused = await server.backlog()
    alive = await server.workers()
    claiming = [worker for worker in alive if not worker.is_drained]
    backlog = f"{_counted(waiting, 'job waits', 'jobs wait')} and {_counted(active, 'runs', 'run')}"
    reason: Reason
    if is_paused:
        reason, message = "paused", f"the queue {queue} is paused, {backlog}; shoal queue resume lets it go on"
    elif claiming:
        reason, message = "busy", f"{_counted(len(claiming), 'worker serves', 'workers serve')} {queue}, {backlog}"
    elif alive:
        reason = "drained"
        message = f"all workers of {queue} are drained, {backlog}; shoal fleet resume all lets them claim again"
    else:
        reason, message = "no-worker", f"no worker serves {queue}, {backlog}; start one with shoal worker or shoal up"
        served = [] if ever_completed else await server.served_queues()
        if served:
            reason = "not-served"
            message = (
                f"no worker serves {queue}, and none ever did; served now: {', '.join(served)}. Is the name of the "
                "model right? If it is, start a worker for it"
            )
    return Waiting(reason, message, waiting, active, len(claiming))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
