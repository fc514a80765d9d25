"""Every job of one queue that this client has asked for, and whatever it takes to get its result exactly once.

The life of a job here, a task each: it is *added* (again), *waited for* by the reply channel and by looking it up after
two seconds of silence, its result is *read*, and it is gone. It goes back to be added when its result is missing, was
taken by somebody else or is damaged, at most three times; when it failed for want of its input, which is still here;
and when the server was away: it may have lost what it acknowledged last, and what it kept is only reported.

A queue that is full holds back every first add of this client, so that none passes an earlier one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from ._address import open_redis, redacted
from ._batch import Batcher
from ._formats import ROWS_EVERY_WORKER_TAKES, Header, decode_header, open_result
from ._keys import Keys
from ._server import Added, Again, CancelOutcome, Ending, NewJob, QueueServer, most_job_rows
from ._waiting import Waiting, why_waiting
from .errors import ErrorCode, ShoalError, parse_failed_reason

log = logging.getLogger("shoal")

ADDED_AT_ONCE: Final = 50
_ENTER_AT_ONCE: Final = 200
_ENTER_WHILE_FULL: Final = 16
_READ_AT_ONCE: Final = 32
_FOREIGN_PATIENCE_S: Final = 0.25
_RETRY_S: Final = 0.25
# What somebody has to put right is told soon; what fails over by itself is waited for longer.
_SHORT_PATIENCE_S: Final = 10.0
_LOOK_STEP: Final = 1 / 8
_MOST_ASKED_AGAIN: Final = 3
_CLEAN_UP_WITHIN_S: Final = 2.0
# When nothing came for so long the queue is asked why, and again.
_WATCH_S: Final = 3.0
# So long it is taken as known what all workers take.
_KNOWN_S: Final = 5.0
PASSING: Final = frozenset({"QUEUE_FULL", "QUEUE_REFUSES_WRITES", "QUEUE_UNREACHABLE", "QUEUE_DAMAGED"})


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds. ``give_up``: of a server that is away or full. ``not_served``: of a queue that no worker serves."""

    ask: float = 2.0
    give_up: float = 60.0
    not_served: float = 30.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A result whose form and checksum were verified."""

    job_id: str
    header: Header
    body: memoryview


@dataclass(eq=False, slots=True)
class _Open:
    job: NewJob
    task: asyncio.Task[Delivery] | None = None
    holders: int = 0
    has_room: bool = False
    adding: asyncio.Future[Added] | None = None
    is_ours: bool = False
    was_let_in: bool = False
    asked_again: int = 0
    fault_since: float | None = None
    told: Literal["completed", "failed", "away"] | None = None
    # Why it was given up, where that is not for its caller's sake.
    verdict: ShoalError | None = None
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, what: Literal["completed", "failed", "away"]) -> None:
        self.told = what
        self.bell.set()


@dataclass(frozen=True, slots=True)
class _Entry:
    job: NewJob
    future: asyncio.Future[None]


class Door:
    """Lets jobs in, in the order in which they came, as the queue has room for them."""

    def __init__(
        self, server: QueueServer, when_full: Literal["wait", "fail"], on_unused: Callable[[str], None]
    ) -> None:
        """``on_unused`` is told of jobs that have room and do not come any more."""
        self._server = server
        self._when_full = when_full
        self._on_unused = on_unused
        self._line: deque[_Entry] = deque()
        self._is_full = False
        self._task: asyncio.Task[None] | None = None

    async def enter(self, job: NewJob) -> None:
        """Resolves once there is room for the job. Raises ADMISSION_REFUSED where it is not to wait."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(_Entry(job, future))
        if self._task is None:
            self._task = asyncio.ensure_future(self._let_in())
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._on_unused(job.job_id)  # it was let in at the very moment
            raise

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _let_in(self) -> None:
        try:
            while self._line:
                await asyncio.sleep(0)  # jobs asked for together ask together
                most = _ENTER_WHILE_FULL if self._is_full else _ENTER_AT_ONCE
                asked = [entry for entry in self._line if not entry.future.done()][:most]
                if not asked:
                    self._line.clear()
                    break
                await self._ask(asked)
        finally:
            self._task = None

    async def _ask(self, asked: list[_Entry]) -> None:
        try:
            answer = await self._server.admit([entry.job for entry in asked], is_forced=False)
        except Exception as error:
            self._leave(asked, error)
            return
        self._leave(asked[: answer.admitted], None)
        refused = asked[answer.admitted :]
        if not refused:
            self._is_full = False
        elif self._when_full == "fail":
            self._leave(refused, _refused(answer.retry_after_ms, answer.reason))
        else:
            if not self._is_full:
                log.info("the queue takes no more for now (%s), going on at the speed of the workers", answer.reason)
            self._is_full = True
            await asyncio.sleep(answer.retry_after_ms / 1_000)

    def _leave(self, entries: Sequence[_Entry], error: Exception | None) -> None:
        gone = {id(entry) for entry in entries}
        self._line = deque(entry for entry in self._line if id(entry) not in gone)
        for entry in entries:
            if error is not None and not entry.future.done():
                entry.future.set_exception(error)
            elif error is None and not entry.future.done():
                entry.future.set_result(None)
            elif error is None:
                self._on_unused(entry.job.job_id)


def _own_version() -> str:
    from . import __version__  # the package is whole by then

    return __version__


class QueueLine:
    """What a client has open towards one queue."""

    def __init__(
        self,
        redis: Redis,
        url: str,
        keys: Keys,
        *,
        patience: Patience,
        when_full: Literal["wait", "fail"],
    ) -> None:
        self.keys = keys
        self.server = QueueServer(redis, keys)
        self.reply_channel = keys.reply(f"python-{uuid.uuid4()}")
        # a connection that listens is busy for good
        self._replies = open_redis(url, keys.prefix)
        self._url = url
        self.patience = patience
        self._door = Door(
            self.server, when_full, lambda job_id: self._start(self.server.release_room([job_id]))
        )
        self._jobs: dict[str, _Open] = {}
        self._ended = 0
        self._entries = Batcher(self._readmit, ADDED_AT_ONCE)
        self._adds = Batcher(self.server.add, ADDED_AT_ONCE)
        self._endings = Batcher(self.server.endings, _READ_AT_ONCE)
        self._results = Batcher(self.server.peek, _READ_AT_ONCE)
        self._taken = Batcher(self._mark_taken, _READ_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ear: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._most_rows: tuple[float, int] | None = None
        self._is_closed = False

    async def most_job_rows(self) -> int:
        """Rows that a job may have so that all workers that claim take it, as of five seconds ago at most; 256 without
        any, and while the server does not tell."""
        now = time.monotonic()
        if self._most_rows is None or now - self._most_rows[0] > _KNOWN_S:
            try:
                rows = most_job_rows(await self.server.workers())
            except ShoalError:
                rows = ROWS_EVERY_WORKER_TAKES
            self._most_rows = (now, rows)
        return self._most_rows[1]

    async def open(self) -> None:
        """Listens from when it resolves. Raises QUEUE_UNREACHABLE."""
        pubsub = self._replies.pubsub(ignore_subscribe_messages=True)
        try:
            await self.server.ping()
            await self.server.enter(_own_version())
            await pubsub.subscribe(self.reply_channel)
        except ShoalError as error:
            await self._replies.aclose()
            raise ShoalError(error.code, f"{redacted(self._url)}: {error.message}", error.fields) from error
        except (RedisError, OSError) as error:
            await self._replies.aclose()
            raise ShoalError("QUEUE_UNREACHABLE", f"{redacted(self._url)} does not answer: {error}") from error
        self._ear = asyncio.ensure_future(self._listen(pubsub))

    # ---- asking ---------------------------------------------------------------------------------------------------

    async def ask(self, job: NewJob) -> Delivery:
        """The job's result, whoever computes it. Call ``release`` once its rows are safe.

        Who is cancelled while waiting takes the job off the queue, unless somebody else waits for it as well.
        """
        held = self._jobs.get(job.job_id)
        if held is None:
            held = self._open(job)
        elif held.job.fingerprint != job.fingerprint:
            raise conflict(job, held.job.fingerprint)
        assert held.task is not None
        held.holders += 1
        try:
            return await asyncio.shield(held.task)
        except asyncio.CancelledError:
            if held.verdict is not None:
                raise held.verdict from None
            if held.holders == 1 and not held.task.done():
                self._abandon(held)
            raise
        finally:
            held.holders -= 1

    async def submit(self, job: NewJob, ours: list[str]) -> None:
        """Resolves once the queue has the job; ``ours`` gets its id where it was not there before. Raises
        JOB_ID_CONFLICT, ADMISSION_REFUSED, QUEUE_UNREACHABLE, …"""
        held = _Open(job)
        again: Again = "when-used-up"
        while True:
            try:
                if (await self._add(held, again)).outcome == "added":
                    ours.append(job.job_id)
                return
            except ShoalError as error:
                await self._bear(held, error)
            except asyncio.CancelledError:
                with contextlib.suppress(ShoalError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._leave_nothing_of(held), _CLEAN_UP_WITHIN_S)
                raise

    def release(self, job_ids: Sequence[str]) -> None:
        """These results are with the caller: they are acknowledged, soon and as well as can be."""
        for job_id in job_ids:
            self._start(self._taken.ask(job_id))

    async def why_waiting(self) -> Waiting:
        return await why_waiting(self.server, self.keys.queue)

    async def cancel(self, job_ids: Sequence[str]) -> list[CancelOutcome]:
        return list(await asyncio.gather(*(self.server.cancel(job_id) for job_id in job_ids)))

    async def close(self) -> None:
        """Gives up what is open, acknowledges what was delivered. Safe to call twice."""
        self._is_closed = True
        error = ShoalError("INTERRUPTED", "the client was closed before the result came")
        for held in list(self._jobs.values()):
            self._abandon(held, error)
        self._door.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._settled(), _CLEAN_UP_WITHIN_S)
        for task in (self._ear, self._watch, self._recovery, *self._tasks):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        await self._replies.aclose()

    async def _settled(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._taken.idle()

    def _open(self, job: NewJob) -> _Open:
        if self._is_closed:
            raise ShoalError("INTERRUPTED", "the client was closed")
        held = _Open(job)
        self._jobs[job.job_id] = held
        held.task = asyncio.ensure_future(self._run(held))
        held.task.add_done_callback(lambda task: self._forget(held, task))
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_over())
        return held

    def _forget(self, held: _Open, task: asyncio.Task[Delivery]) -> None:
        self._ended += 1
        if self._jobs.get(held.job.job_id) is held:
            del self._jobs[held.job.job_id]
        if not task.cancelled():
            task.exception()  # whoever waited has heard it; nobody may be left

    def _abandon(self, held: _Open, verdict: ShoalError | None = None) -> None:
        held.verdict = verdict
        if self._jobs.get(held.job.job_id) is held:
            del self._jobs[held.job.job_id]
        self._start(self._take_off(held))

    async def _take_off(self, held: _Open) -> None:
        """Ends the task of a job that nobody waits for, and takes what we have added off the queue."""
        assert held.task is not None
        held.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await held.task
        with contextlib.suppress(ShoalError, asyncio.TimeoutError):
            await asyncio.wait_for(self._leave_nothing_of(held), _CLEAN_UP_WITHIN_S)

    async def _leave_nothing_of(self, held: _Open) -> None:
        if held.adding is not None:  # what is under way cannot be taken off before it is there
            with contextlib.suppress(ShoalError):
                held.is_ours = (await held.adding).outcome == "added" or held.is_ours
        if held.is_ours:
            await self.server.take_off(held.job.job_id)
        elif held.has_room and held.adding is None:
            await self.server.release_room([held.job.job_id])

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _readmit(self, jobs: Sequence[NewJob]) -> list[None]:
        await self.server.admit(jobs, is_forced=True)
        return [None] * len(jobs)

    async def _mark_taken(self, job_ids: Sequence[str]) -> list[None]:
        await self.server.mark_taken(job_ids)
        return [None] * len(job_ids)

    # ---- the life of a job ----------------------------------------------------------------------------------------

    async def _run(self, held: _Open) -> Delivery:
        again: Again = "when-used-up"
        while True:
            try:
                found = await self._once(held, again)
            except ShoalError as error:
                await self._bear(held, error)
                again = "never" if held.was_let_in else again
                continue
            if isinstance(found, Delivery):
                return found
            again = found

    async def _once(self, held: _Open, again: Again) -> Delivery | Again:
        """From the queue to the result, or how the job is to be added next."""
        job = held.job
        added = await self._add(held, again)
        if added.outcome == "finished":
            if added.failed_reason is None:
                return _ask_again(held, "RESULT_EXPIRED")
            return _after_failure(held, added.failed_reason)
        if added.outcome != "ready":
            ending = await self._ending_of(held)
            if ending is None:
                return "never"
            if ending.state == "failed":
                return _after_failure(held, ending.failed_reason or "")
            if ending.state == "unknown":
                log.warning("the queue lost job %s, adding it again", job.job_id)
                return "when-used-up"
        data = await self._results.ask(job.job_id)
        held.fault_since = None
        return _after_fetch(held, data)

    async def _add(self, held: _Open, again: Again) -> Added:
        job = held.job
        if held.was_let_in:
            await self._entries.ask(job)  # what was taken must be finished
        else:
            await self._door.enter(job)
            held.has_room = True
        held.told = None
        held.bell.clear()
        held.adding = asyncio.ensure_future(self._adds.ask((job, again)))
        added = await asyncio.shield(held.adding)
        held.fault_since = None
        if added.outcome == "conflict":
            raise conflict(job, added.other_fingerprint or "")
        held.was_let_in = True
        held.is_ours = held.is_ours or added.outcome == "added"
        return added

    async def _ending_of(self, held: _Open) -> Ending | None:
        """Waits for a job that the queue has; None: the server was away meanwhile."""
        patience = self.patience.ask if held.is_ours else min(_FOREIGN_PATIENCE_S, self.patience.ask)
        while True:
            told = await self._hear(held, patience)
            if told == "completed":
                return Ending("completed")
            if told == "away":
                return None
            ending = await self._endings.ask(held.job.job_id)
            held.fault_since = None
            if ending.state != "open":
                return ending
            held.told = None if held.told == "failed" else held.told
            patience = min(2 * patience, self.patience.ask)

    async def _hear(self, held: _Open, patience: float) -> Literal["completed", "failed", "away"] | None:
        """What we are told of the job, None after some time of silence. Lookups of one time go together."""
        loop = asyncio.get_running_loop()
        step = patience * _LOOK_STEP
        until = math.ceil((loop.time() + patience) / step) * step
        if held.told is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(held.bell.wait(), until - loop.time())
        held.bell.clear()
        return held.told

    async def _bear(self, held: _Open, error: ShoalError) -> None:
        """Resolves when it is to be tried again. Raises the error where it will not pass, or patience is over."""
        if error.code not in PASSING or error.fields.get("isRefused") is True:
            raise error
        now = asyncio.get_running_loop().time()
        if held.fault_since is None:
            held.fault_since = now
        is_told_soon = error.code == "QUEUE_DAMAGED" or str(error.fields.get("reply", "")).startswith("MISCONF")
        patience = min(self.patience.give_up, _SHORT_PATIENCE_S) if is_told_soon else self.patience.give_up
        left = held.fault_since + patience - now
        if left <= 0:
            raise error
        if error.code != "QUEUE_UNREACHABLE":
            await asyncio.sleep(_RETRY_S)
            return
        try:
            await asyncio.wait_for(self._recovered(), left)
        except asyncio.TimeoutError:
            raise ShoalError(
                "QUEUE_UNREACHABLE",
                f"the queue server has not answered for {patience:.0f} s; jobs that it has go on, ask again with the "
                "same ids to get their results",
                {"jobId": held.job.job_id},
            ) from error

    async def _recovered(self) -> None:
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.ensure_future(self._recover())
        await asyncio.shield(self._recovery)

    async def _recover(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            try:
                await self.server.ping()
                return
            except ShoalError:
                continue

    # ---- listening ------------------------------------------------------------------------------------------------

    async def _listen(self, pubsub: PubSub) -> None:
        """Hears which jobs ended. A connection that was lost is opened again, and then all that waits is looked at."""
        try:
            while True:
                try:
                    message = await pubsub.get_message(timeout=None)
                except (RedisError, OSError):
                    await self._listen_again(pubsub)
                    continue
                if message is not None:
                    self._hear_message(message["data"])
        finally:
            with contextlib.suppress(Exception):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _listen_again(self, pubsub: PubSub) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            with contextlib.suppress(RedisError, OSError, ShoalError):
                await pubsub.connect()  # type: ignore[no-untyped-call]
                await pubsub.ping()
                break
        for held in self._jobs.values():
            if held.was_let_in:
                held.tell("away")

    def _hear_message(self, data: Any) -> None:
        try:
            message = json.loads(data)
        except (ValueError, TypeError):
            return
        if not isinstance(message, dict) or message.get("v") != 1:
            return
        for outcome in ("completed", "failed"):
            ids = message.get(outcome)
            for job_id in ids if isinstance(ids, list) else []:
                held = self._jobs.get(job_id) if isinstance(job_id, str) else None
                if held is not None:
                    held.tell("completed" if outcome == "completed" else "failed")

    # ---- why nothing comes ----------------------------------------------------------------------------------------

    async def _watch_over(self) -> None:
        """While jobs are open and none ends, asks why; gives up where the name of the model is most likely wrong."""
        loop = asyncio.get_running_loop()
        ended, told, unserved_since = self._ended, "", None
        while True:
            await asyncio.sleep(_WATCH_S)
            if not self._jobs or self._ended > ended:
                ended, told, unserved_since = self._ended, "", None
                continue
            try:
                waiting = await self.why_waiting()
            except ShoalError:
                continue
            if waiting.reason != told:
                told = waiting.reason
                log.info("nothing has come for a while: %s", waiting.message)
            if waiting.reason != "not-served":
                unserved_since = None
                continue
            unserved_since = loop.time() if unserved_since is None else unserved_since
            if loop.time() - unserved_since >= self.patience.not_served:
                self._give_up(ShoalError("NOT_SERVED", waiting.message))
                unserved_since = None

    def _give_up(self, error: ShoalError) -> None:
        for held in list(self._jobs.values()):
            self._abandon(held, error)


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except ShoalError as error:
        # what could not be cleaned up ends with its time to live
        log.debug("cleaning up failed: %s", error)


def conflict(job: NewJob, found: str) -> ShoalError:
    """The id belongs to a request with another fingerprint."""
    return ShoalError(
        "JOB_ID_CONFLICT",
        f"job id {job.job_id!r} is in use for another request (its fingerprint is {found}, this one's "
        f"{job.fingerprint}); choose another id",
        {"jobId": job.job_id, "found": found, "asked": job.fingerprint},
    )


def _refused(retry_after_ms: int, reason: str) -> ShoalError:
    why = {
        "rows": "as many rows wait as the queue takes (maxQueuedRows)",
        "bytes": "inputs and results fill their share of the server (maxQueuedBytes)",
        "tenant": "this tenant fills its share of the queue (maxTenantShare)",
    }.get(reason, "others wait for room in the queue as well")
    return ShoalError(
        "ADMISSION_REFUSED",
        f"{why}; try again in {retry_after_ms / 1_000:.1f} s",
        {"retryAfterMs": retry_after_ms, "reason": reason},
    )


def _after_failure(held: _Open, reason: str) -> Again:
    code, message = parse_failed_reason(reason)
    if code == "INPUT_LOST":
        return _ask_again(held, code)  # the input is still here
    raise ShoalError(code, message, {"jobId": held.job.job_id})


def _after_fetch(held: _Open, data: bytes | None) -> Delivery | Again:
    if data is None:
        return _ask_again(held, "RESULT_EXPIRED")
    header = decode_header(data)
    if header is not None and header.fingerprint != held.job.fingerprint:
        raise conflict(held.job, header.fingerprint)
    try:
        header, body = open_result(data)
    except ShoalError as error:
        return _ask_again(held, error.code)
    return Delivery(held.job.job_id, header, body)


def _ask_again(held: _Open, code: ErrorCode) -> Again:
    if held.asked_again >= _MOST_ASKED_AGAIN:
        raise ShoalError(
            code,
            f"job {held.job.job_id!r} ended {held.asked_again + 1} times without a result that could be read ({code}); "
            "does another client take its results?",
            {"jobId": held.job.job_id},
        )
    held.asked_again += 1
    log.warning("the result of job %s cannot be had (%s), asking for it again", held.job.job_id, code)
    return "always" if code == "RESULT_CORRUPT" else "when-used-up"
