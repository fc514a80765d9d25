"""The queue server: connections, Shoal's scripts on it, and its errors in our words.

A job and its input are added by one script, that of the SDK (libs/queue): it says what was under the id before, so that
an id which is in use for something else is seen, and what is there already is not added twice. PyPI's ``bullmq`` keeps
the same record of a job, but its ``add`` has no place for an input, and says the same of a new id and of a known one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    ConnectionError as RedisConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
    WatchError,
)

from . import _scripts
from ._formats import HEADER_BYTES, MAX_ROWS_PER_JOB, ROWS_EVERY_WORKER_TAKES, Header, decode_header
from ._keys import Keys, cpu_lane_of
from ._scripts import Script
from .errors import ShoalError

Value = TypeVar("Value")
Again = Literal["when-used-up", "always", "never"]
CancelOutcome = Literal["cancelled", "asked", "finished", "unknown"]

# Larger inputs do not pass through a script: they are staged, and renamed by it (libs/queue, staging.ts).
_STAGED_FROM_BYTES: Final = 16 * 1024
_STAGED_TTL_MS: Final = 60_000
_NOT_STAGED: Final = b"not-staged"
_MOST_ROUNDS: Final = 5
# Longest that workers look for marks of cancelled jobs (libs/queue, cancel.ts).
_LOOK_FOR_MS: Final = 86_400_000
_DISK_WITHIN_MS: Final = 5_000
_LOOKED_UP_AT_ONCE: Final = 32
_KEPT_FAILED: Final = 5_000
_ALL_WORKERS: Final = b"*"
# Room on the queue, as the SDK asks for it (libs/queue, admission.ts).
_MOST_QUEUED_ROWS: Final = 4_000_000
_BYTES_SHARE, _MACHINE_SHARE, _FULL_SHARE = 0.6, 0.5, 0.75
_TENANT_SHARE, _INTERACTIVE_RESERVE = 0.8, 0.1
_UNKNOWN_DIMS: Final = 1_024
_MEMORY_KNOWN_S: Final = 0.5
# The version of what Shoal keeps under a prefix (libs/queue, schema.ts), and the oldest that is read here.
_STRUCTURES: Final = 1
_OLDEST_STRUCTURES: Final = 1

_PASSING = re.compile(r"(LOADING|READONLY|MASTERDOWN|MISCONF|BUSY|TRYAGAIN|CLUSTERDOWN|NOREPLICAS|UNBLOCKED)\b")
# Replies whose first word redis-py takes off.
_PASSING_CLASSES: Final = ("ClusterDownError", "MasterDownError", "TryAgainError", "BusyLoadingError")
_REFUSES_WRITES = re.compile(r"(MISCONF|READONLY|NOREPLICAS)\b")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job on its way to the queue."""

    job_id: str
    name: str
    data: dict[str, Any]
    input: bytes | None
    fingerprint: str
    tenant: str
    is_interactive: bool
    rows: int
    # Bytes of its texts or vectors, wherever they travel.
    payload_bytes: int
    # Bytes of one dimension of a row of its result, and the dimensions that were asked for; 0: those of the model.
    dimension_bytes: float
    dimensions: int


@dataclass(frozen=True, slots=True)
class Added:
    """``added``: it waits now. ``known``: the same request waits or runs. ``ready``: its result is there. ``finished``:
    it ended and left nothing, and was not to be added again. ``conflict``: the id belongs to another request."""

    outcome: Literal["added", "known", "ready", "finished", "conflict"]
    failed_reason: str | None = None
    other_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What was under an id before a job was added there."""

    data: bytes | None
    is_finished: bool
    failed_reason: str | None
    result: Header | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """How many jobs have room, and until when the next one has to wait."""

    admitted: int
    retry_after_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    state: Literal["open", "completed", "failed", "unknown"]
    failed_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A live worker, and what it tells of itself."""

    worker_id: str
    facts: dict[str, Any]
    is_drained: bool


def claiming_of(workers: Sequence[Worker]) -> list[Worker]:
    """Those that claim: one that is drained takes nothing."""
    return [worker for worker in workers if not worker.is_drained]


def most_job_rows(workers: Sequence[Worker]) -> int:
    """Rows of a job that each of those that claim takes; where nobody claims, what every worker does."""
    taken = [worker.facts.get("maxJobRows") for worker in claiming_of(workers)]
    told = [rows if isinstance(rows, int) and rows > 0 else ROWS_EVERY_WORKER_TAKES for rows in taken]
    return min(MAX_ROWS_PER_JOB, *told) if told else ROWS_EVERY_WORKER_TAKES


async def translated(work: Callable[[], Awaitable[Value]]) -> Value:
    """The errors of redis-py in our words, where we have some."""
    try:
        return await work()
    except (RedisError, OSError, asyncio.TimeoutError) as error:
        raise _translate(error) from error


def _translate(error: Exception) -> Exception:
    # redis-py takes the first word off some replies and makes a class of it
    text = str(error)
    if isinstance(error, AuthenticationError) or text.startswith(("NOPERM", "NOAUTH", "WRONGPASS")):
        return ShoalError(
            "QUEUE_UNREACHABLE",
            f"the queue server refuses the user that it knows us by ({text}); give it the rights that docs/security.md "
            "lists, or name another in the URL",
            {"reply": text, "isRefused": True},
        )
    if text.startswith("OOM") or "command not allowed when used memory" in text:
        why = "the queue server refused the jobs because its memory is full"
        return ShoalError("QUEUE_FULL", why, {"reply": text})
    if isinstance(error, ResponseError) and "WRONGTYPE" in text:
        return ShoalError(
            "QUEUE_DAMAGED",
            f'a key of the queue is of another type than it should be ({text[:120]}): "shoal queue repair" names it',
        )
    if _REFUSES_WRITES.match(text) is not None or type(error).__name__ == "ReadOnlyError":
        return ShoalError("QUEUE_REFUSES_WRITES", f"the queue server takes no writes ({text})", {"reply": text})
    is_passing = _PASSING.match(text) is not None or type(error).__name__ in _PASSING_CLASSES
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)) or is_passing:
        what = text or type(error).__name__
        return ShoalError("QUEUE_UNREACHABLE", f"the queue server did not take the call ({what})")
    return error


def _refuse_other_structures(
    prefix: str, version: str | None, least_reader: str | None = None, writer: str | None = None
) -> None:
    if version is None:
        return
    least = version if least_reader is None else least_reader
    if not (version.isdigit() and least.isdigit()):
        raise ShoalError(
            "QUEUE_DAMAGED",
            f"the hash {prefix}:schema should say of which version Shoal's structures are, and says {version[:40]!r} and "
            f"{least[:40]!r}. Delete it (DEL '{prefix}:schema'): the next worker writes it anew",
        )
    what = (
        f"what is under the prefix {prefix} was written by Shoal {writer or '(unknown)'} in structures of version {version}"
    )
    fields = {"prefix": prefix, "version": int(version), "minReader": int(least), "knows": _STRUCTURES}
    if int(least) > _STRUCTURES:
        raise ShoalError(
            "QUEUE_UNSAFE",
            f"{what}, which only processes can read that know version {least}; this client knows {_STRUCTURES}. Update the "
            "package shoal (pip install -U shoal), or give it a prefix of its own (prefix=)",
            fields,
        )
    if int(version) < _OLDEST_STRUCTURES:
        raise ShoalError(
            "QUEUE_UNSAFE",
            f"{what}, and this client reads none older than {_OLDEST_STRUCTURES}. Let workers of that version empty the "
            "queues first, or take a prefix of its own (prefix=)",
            fields,
        )


def main_tenant(tenant: str) -> str:
    """The tenant whose room a user of it shares: what is before the first "/"."""
    return tenant.partition("/")[0] or tenant


class QueueServer:
    """What a producer and reader of one queue asks of its server. Every call may be repeated."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._caller = str(uuid.uuid4())
        self._memory: tuple[float, int, bool] | None = None

    async def enter(self, writer: str) -> None:
        """Before anything else: whether what is under the prefix can be read here (libs/queue, schema.ts), and the queue's
        name among those that people list. Raises QUEUE_UNSAFE, QUEUE_DAMAGED."""
        await translated(lambda: self._enter(writer))

    async def _enter(self, writer: str) -> None:
        key = f"{self._keys.prefix}:schema"
        found = await cast(Awaitable[list[Any]], self._redis.hmget(key, ["version", "minReader", "writer"]))
        _refuse_other_structures(self._keys.prefix, *(None if value is None else _text(value) for value in found))
        own = {"version": _STRUCTURES, "minReader": _STRUCTURES, "maxReader": _STRUCTURES, "writer": writer}
        # a server that takes no writes just now is left as it is, and lists alone depend on the names
        with contextlib.suppress(RedisError):
            async with self._redis.pipeline(transaction=False) as pipe:
                if found[0] is None:
                    for field, value in own.items():
                        pipe.hsetnx(key, field, cast(Any, value))
                pipe.sadd(f"{self._keys.prefix}:queues", self._keys.queue)
                await pipe.execute()

    # ---- room -----------------------------------------------------------------------------------------------------

    async def admit(self, jobs: Sequence[NewJob], is_forced: bool) -> Refusal:
        """Reserves room for as many of the jobs as there is, in order. Raises QUEUE_FULL."""
        return await translated(lambda: self._admit(jobs, is_forced))

    async def _admit(self, jobs: Sequence[NewJob], is_forced: bool) -> Refusal:
        limit_bytes, is_full = await self._room()
        if is_full and not is_forced:
            raise ShoalError(
                "QUEUE_FULL",
                f"the memory of the queue server is more than {_FULL_SHARE:.0%} full; let workers and readers catch up "
                "and repeat the call, or raise maxmemory",
            )
        lane = self._keys.of_lane
        keys = [lane("admitted"), self._keys.load, lane("drain"), lane("door")]
        head = [self._keys.queue, self._caller, _MOST_QUEUED_ROWS, limit_bytes, _TENANT_SHARE, _INTERACTIVE_RESERVE]
        wanted: list[Any] = []
        for job in jobs:
            kind = "i" if job.is_interactive else "b"
            wanted += [job.job_id, main_tenant(job.tenant), kind, job.rows, job.payload_bytes + 1_024]
            wanted += [job.dimension_bytes, job.dimensions]
        reply = await self._run(_scripts.ADMIT_JOBS, keys, [*head, _UNKNOWN_DIMS, int(is_forced), *wanted])
        return Refusal(int(reply[0]), int(reply[1]), _text(reply[2]))

    async def _room(self) -> tuple[int, bool]:
        """Bytes that inputs and results may have, and whether the server is almost full."""
        now = time.monotonic()
        if self._memory is None or self._memory[2] or now - self._memory[0] > _MEMORY_KNOWN_S:
            info = await self._redis.info("memory")
            used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
            most = int(info.get("maxmemory", 0)) or int(info.get("total_system_memory", 0)) * _MACHINE_SHARE
            self._memory = (now, int(most * _BYTES_SHARE), used > most * _FULL_SHARE)
        return self._memory[1], self._memory[2]

    async def release_room(self, job_ids: Sequence[str]) -> None:
        lane = self._keys.of_lane
        keys = [lane("admitted"), self._keys.load, lane("drain")]
        await translated(lambda: self._run(_scripts.RELEASE_ROOM, keys, [self._keys.queue, 1, *job_ids]))

    # ---- adding ---------------------------------------------------------------------------------------------------

    async def add(self, jobs: Sequence[tuple[NewJob, Again]]) -> list[Added]:
        """Adds jobs with their inputs, up to 50 a call; one answer per job, in order. May be repeated as a whole."""
        found = await translated(lambda: self._add_and_look([job for job, _ in jobs]))
        answers: list[Added] = []
        for (job, again), there in zip(jobs, found, strict=True):
            verdict = _judge(job, there, again)
            if verdict is None:
                verdict = await self._replace(job, again)
            elif verdict.outcome == "conflict" and there.data is None:
                await self.take_off(job.job_id)  # it was added beside a result that is somebody else's
            answers.append(verdict)
        return answers

    async def _add_and_look(self, jobs: Sequence[NewJob]) -> list[Found]:
        found: dict[int, Found] = {}
        for _ in range(_MOST_ROUNDS):
            open_jobs = [at for at in range(len(jobs)) if at not in found]
            if not open_jobs:
                break
            for at, there in zip(open_jobs, await self._add_once([jobs[at] for at in open_jobs]), strict=True):
                if there is not None:
                    found[at] = there
        else:
            raise ShoalError("QUEUE_UNREACHABLE", "the queue server lost large inputs before it added their jobs")
        return [found[at] for at in range(len(jobs))]

    async def _add_once(self, jobs: Sequence[NewJob]) -> list[Found | None]:
        """None for a job whose large input was not there any more."""
        token = str(uuid.uuid4())
        staged: dict[int, str] = {}
        for at, job in enumerate(jobs):
            if job.input is not None and len(job.input) >= _STAGED_FROM_BYTES:
                staged[at] = self._keys.staged(job.job_id, f"{token}-{at}")
                await self._redis.set(staged[at], job.input, px=_STAGED_TTL_MS)
        keys, head = self._add_head(len(jobs))
        values: list[Any] = []
        for at, job in enumerate(jobs):
            values += _add_arguments(job, staged.get(at))
        replies = await self._run(_scripts.ADD_JOBS, keys, [*head, *values])
        return [_answer_of(reply) for reply in replies]

    def _add_head(self, count: int) -> tuple[list[str], list[Any]]:
        job = self._keys.job
        keys = [job(name) for name in ("wait", "meta", "id", "active", "events", "marker")]
        return keys, [job(""), self._keys.input(""), self._keys.output(""), count]

    async def _replace(self, job: NewJob, again: Again) -> Added:
        """Removes the finished job of that id with its result and adds it anew, in one transaction.

        Who changes either meanwhile wins: then it is looked at again.
        """
        return await translated(lambda: self._replace_watched(job, again))

    async def _replace_watched(self, job: NewJob, again: Again) -> Added:
        watched = [self._keys.job(job.job_id), self._keys.output(job.job_id)]
        for _ in range(_MOST_ROUNDS):
            async with self._redis.pipeline(transaction=True) as pipe:
                await pipe.watch(*watched)
                fields = await cast(
                    Awaitable[list[bytes | None]], pipe.hmget(watched[0], ["data", "finishedOn", "failedReason"])
                )
                head = cast(bytes, await cast(Awaitable[Any], pipe.getrange(watched[1], 0, HEADER_BYTES - 1)))
                verdict = _judge(job, _found([*fields, head]), again)
                if verdict is not None and verdict.outcome != "added":
                    return verdict
                pipe.multi()  # type: ignore[no-untyped-call]
                self._append_replacement(pipe, job)
                try:
                    replies = await pipe.execute(raise_on_error=False)
                except WatchError:
                    continue
            fault = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if isinstance(fault, NoScriptError):
                await self._redis.script_load(_scripts.ADD_JOBS.lua)
                continue
            if fault is not None:
                raise fault
            return Added("added")
        return Added("known")

    def _append_replacement(self, pipe: Any, job: NewJob) -> None:
        record = self._keys.job(job.job_id)
        parts = ("logs", "dependencies", "processed", "failed", "unsuccessful")
        pipe.unlink(record, *(f"{record}:{part}" for part in parts), self._keys.output(job.job_id))
        for ended in ("completed", "failed"):
            pipe.zrem(self._keys.job(ended), job.job_id)
        keys, head = self._add_head(1)
        values = [*keys, *head, *_add_arguments(job, None)]
        pipe.evalsha(_scripts.ADD_JOBS.sha, len(keys), *values)

    # ---- endings and results --------------------------------------------------------------------------------------

    async def endings(self, job_ids: Sequence[str]) -> list[Ending]:
        """Whether jobs ended, in order; up to 32 a call."""
        keys = [self._keys.job(job_id) for job_id in job_ids]
        replies = await translated(lambda: self._run(_scripts.READ_ENDINGS, keys, []))
        return [
            Ending(cast(Any, _text(reply[0])), _text(reply[1]) if len(reply) > 1 else None) if reply else Ending("open")
            for reply in replies
        ]

    async def peek(self, job_ids: Sequence[str]) -> list[bytes | None]:
        """Results as they are stored, in order, None where there is none. They stay as they are."""

        async def read() -> list[bytes | None]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.get(self._keys.output(job_id))
                return cast(list[bytes | None], await pipe.execute())

        return await translated(read)

    async def mark_taken(self, job_ids: Sequence[str]) -> None:
        """Acknowledges results: their headers stay, their bodies go, and the room that was reserved for them."""
        keys = [self._keys.output(job_id) for job_id in job_ids]
        await translated(lambda: self._run(_scripts.MARK_TAKEN, keys, []))
        await self.release_room(job_ids)

    async def return_values(self, job_ids: Sequence[str]) -> list[dict[str, Any] | None]:
        """What completed jobs returned; None where there is nothing, or nothing any more."""

        async def read() -> list[Any]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.hget(self._keys.job(job_id), "returnvalue")
                return await pipe.execute()

        return [_object_in(value) for value in await translated(read)]

    async def look(self, job_ids: Sequence[str]) -> list[tuple[Ending, bool, Header | None]]:
        """Of each job how it ended, whether a worker has it, and the header of its result; in order."""
        endings = [
            ending
            for at in range(0, len(job_ids), _LOOKED_UP_AT_ONCE)
            for ending in await self.endings(job_ids[at : at + _LOOKED_UP_AT_ONCE])
        ]

        async def read() -> list[Any]:
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.exists(f"{self._keys.job(job_id)}:lock")
                    pipe.getrange(self._keys.output(job_id), 0, HEADER_BYTES - 1)
                return await pipe.execute()

        found = await translated(read)
        return [
            (ending, bool(found[2 * at]), decode_header(found[2 * at + 1])) for at, ending in enumerate(endings)
        ]

    async def keep_request(self, request_id: str, record: str, ttl_ms: int) -> str:
        """The record of a request that is there afterwards: this one, or an earlier one, which stays as it is."""

        async def keep() -> str:
            key = self._keys.request(request_id)
            if await self._redis.set(key, record, px=ttl_ms, nx=True):
                return record
            there = await self._redis.get(key)
            return record if there is None else _text(there)

        return await translated(keep)

    async def durable(self) -> None:
        """Resolves when all that the server has acknowledged so far is in its append-only file, as far as it keeps one
        and can be asked. A disk that is slower than 5 s is left alone."""

        async def wait() -> None:
            async with self._redis.client() as connection:
                # it waits for what this very connection wrote last, and for all that was written before
                await connection.set(f"{self._keys.prefix}:write-probe", "", px=1_000)
                with contextlib.suppress(ResponseError):
                    await connection.execute_command("WAITAOF", 1, 0, _DISK_WITHIN_MS)  # type: ignore[no-untyped-call]

        await translated(wait)

    async def read_request(self, request_id: str) -> str | None:
        there = await translated(lambda: self._redis.get(self._keys.request(request_id)))
        return None if there is None else _text(there)

    async def forget_request(self, request_id: str) -> None:
        await translated(lambda: self._redis.delete(self._keys.request(request_id)))

    # ---- taking jobs back -----------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> CancelOutcome:
        """Fails a job that waits; tells the worker of one that runs."""
        return await translated(lambda: self._cancel(job_id))

    async def _cancel(self, job_id: str) -> CancelOutcome:
        job, lane = self._keys.job, self._keys.of_lane
        names = ("wait", "prioritized", "delayed", "waiting-children", "failed", "events")
        keys = [job(job_id), *(job(name) for name in names), lane("cancelled-jobs")]
        reason = "CANCELLED: the job was cancelled before a worker had claimed it"
        reply = await self._run(_scripts.FAIL_WAITING_JOB, keys, [job_id, reason, job(""), _KEPT_FAILED])
        state = _text(reply[0])
        if state == "failed":
            await self._announce_failed(job_id, _object_in(reply[1]) or {})
            return "cancelled"
        if state in ("finished", "unknown"):
            return cast(CancelOutcome, state)
        marked = await self._mark(job_id, self._keys.queue) if state == "active" else "moved"
        if marked == "moved":
            marked = await self._mark(job_id, cpu_lane_of(self._keys.queue))
        return "asked" if marked == "marked" else "finished"

    async def take_off(self, job_id: str) -> None:
        """Cancels a job, and where it waited leaves nothing of it: another may ask for the same id."""
        if await self.cancel(job_id) == "cancelled":
            await translated(lambda: self._forget(job_id))

    async def _forget(self, job_id: str) -> None:
        record = self._keys.job(job_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(record)
            reason = await cast(Awaitable[bytes | None], pipe.hget(record, "failedReason"))
            if reason is None or not reason.startswith(b"CANCELLED:"):
                return  # somebody asked for it again meanwhile
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.unlink(record)
            pipe.zrem(self._keys.job("failed"), job_id)
            pipe.zrem(self._keys.of_lane("cancelled-jobs"), job_id)
            try:
                await pipe.execute()
            except WatchError:
                return

    async def _mark(self, job_id: str, lane: str) -> str:
        keys = [self._keys.job(job_id, lane), self._keys.of_lane("cancelled", lane)]
        keys.append(self._keys.job("waiting-children", lane))
        message = json.dumps({"v": 1, "jobIds": [job_id]}, separators=(",", ":"))
        values = [self._keys.of_lane("cancels", lane), message, _LOOK_FOR_MS, job_id, "shoalCancelled"]
        return _text(await self._run(_scripts.CANCEL_CLAIMED_JOB, keys, values))

    async def _announce_failed(self, job_id: str, data: dict[str, Any]) -> None:
        keys = [self._keys.job(job_id), self._keys.input(job_id), self._keys.output(job_id)]
        reply = data.get("reply")
        channel = reply if isinstance(reply, str) else ""
        await self._run(_scripts.ANNOUNCE_JOBS, keys, [self._keys.queue, 1, "failed", job_id, channel, 0])
        await self.release_room([job_id])

    # ---- who serves the queue -------------------------------------------------------------------------------------

    async def workers(self) -> list[Worker]:
        """Live workers of both lanes."""
        return await translated(self._workers)

    async def _workers(self) -> list[Worker]:
        drained = await cast(Awaitable[set[bytes]], self._redis.smembers(self._keys.of_lane("drained")))
        found: dict[bytes, dict[str, Any]] = {}
        for lane in (self._keys.queue, cpu_lane_of(self._keys.queue)):
            alive = await self._run(_scripts.LIST_WORKERS, [self._keys.of_lane("workers", lane)], [])
            told = await cast(Awaitable[dict[bytes, bytes]], self._redis.hgetall(self._keys.of_lane("facts", lane)))
            for worker_id in alive:
                found[worker_id] = _object_in(told.get(worker_id)) or {}
        return [
            Worker(_text(worker_id), facts, _ALL_WORKERS in drained or worker_id in drained)
            for worker_id, facts in found.items()
        ]

    async def last_model(self) -> str | None:
        """name@revision of the model that the queue was served with last, where no worker is alive: as one that left
        without a word told it, or the job that completed last."""

        async def read() -> str | None:
            told = await cast(Awaitable[list[bytes]], self._redis.hvals(self._keys.of_lane("facts")))
            last = await self._redis.zrevrange(self._keys.job("completed"), 0, 0)
            texts: list[Any] = list(told)
            if last:
                record = self._keys.job(_text(last[0]))
                texts.append(await cast(Awaitable[bytes | None], self._redis.hget(record, "returnvalue")))
            models = [(_object_in(text) or {}).get("model") for text in texts]
            return next((model for model in models if isinstance(model, str)), None)

        return await translated(read)

    async def backlog(self) -> tuple[int, int, bool, bool]:
        """Jobs that wait, jobs that run, whether any ever completed, and whether the queue is paused."""

        async def read() -> list[Any]:
            job = self._keys.job
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.llen(job("wait"))
                for name in ("prioritized", "delayed", "completed"):
                    pipe.zcard(job(name))
                pipe.llen(job("active"))
                pipe.hexists(job("meta"), "paused")
                return await pipe.execute()

        wait, prioritized, delayed, completed, active, paused = await translated(read)
        return wait + prioritized + delayed, active, completed > 0, bool(paused)

    async def served_queues(self) -> list[str]:
        """Queues that live workers serve now. Reads every key name of the server: for messages alone."""

        async def read() -> list[str]:
            start = f"{self._keys.prefix}:workers:"
            pattern = re.sub(r"([\[\]*?\\])", r"\\\1", start) + "*"
            served = []
            async for key in cast(AsyncIterator[bytes], self._redis.scan_iter(match=pattern, count=5_000)):
                if await self._run(_scripts.LIST_WORKERS, [_text(key)], []):
                    served.append(_text(key)[len(start) :])
            return sorted(served)

        return await translated(read)

    async def ping(self) -> None:
        await translated(self._redis.ping)

    async def _run(self, script: Script, keys: Sequence[str], values: Sequence[Any]) -> Any:
        """A script by its hash, loaded again whenever the server does not know it."""
        while True:
            try:
                return await self._redis.evalsha(script.sha, len(keys), *keys, *values)
            except NoScriptError:
                await self._redis.script_load(script.lua)


def _add_arguments(job: NewJob, staged: str | None) -> list[Any]:
    data = json.dumps(job.data, separators=(",", ":"), ensure_ascii=False)
    options = json.dumps({"attempts": 0, "jobId": job.job_id}, separators=(",", ":"), ensure_ascii=False)
    fields: list[Any] = [job.job_id, job.name, data, options, time.time_ns() // 1_000_000]
    if staged is not None:
        return [*fields, "l", staged]
    return [*fields, "-"] if job.input is None else [*fields, "s", job.input]


def _answer_of(reply: Any) -> Found | None:
    if not reply:
        return _found([None, None, None, b""])
    fault = reply[4] if len(reply) > 4 else None
    if fault == _NOT_STAGED:
        return None
    if fault:
        raise ResponseError(_text(fault))
    return _found(reply)


def _found(fields: Sequence[Any]) -> Found:
    data, finished, reason, head = fields[:4]
    return Found(data or None, bool(finished), _text(reason) if reason else None, decode_header(head or b""))


def _judge(job: NewJob, found: Found, again: Again) -> Added | None:
    """What becomes of a job by what was under its id (libs/queue, job-verdict.ts); None: it is to be replaced."""
    result = found.result
    is_unread = result is not None and not result.is_taken
    if result is not None and is_unread and result.fingerprint != job.fingerprint:
        return Added("conflict", other_fingerprint=result.fingerprint)
    may_fetch = is_unread and again != "always"
    if found.data is None:
        return Added("ready" if may_fetch else "added")
    theirs = (_object_in(found.data) or {}).get("fingerprint")
    if not isinstance(theirs, str):
        theirs = result.fingerprint if found.is_finished and result is not None else job.fingerprint
    if theirs != job.fingerprint and not (found.is_finished and again == "always"):
        return Added("conflict", other_fingerprint=theirs)
    if not found.is_finished:
        return Added("known")
    if may_fetch:
        return Added("ready")
    return Added("finished", failed_reason=found.failed_reason) if again == "never" else None


def _object_in(value: Any) -> dict[str, Any] | None:
    try:
        parsed = json.loads(value) if value is not None else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
