"""Requests that somebody comes back for, perhaps in another process or by another SDK: what was asked is kept on the
queue server as a record, the names and fingerprints of its jobs, so that an id alone brings state and vectors back.
Nothing here holds texts: what the queue has lost is asked for again by submitting it again, with the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, TypeVar, cast

from ._formats import Dtype, Header, open_result
from ._jobs import PASSING, Delivery, QueueLine, conflict
from ._results import JobState, JobStatus
from ._server import CancelOutcome, Ending, NewJob
from .errors import ShoalError, parse_failed_reason

Value = TypeVar("Value")

# Longer than any result lives: a queue may be paused for weeks.
_RECORD_TTL_MS: Final = 60 * 86_400_000
_FIRST_LOOK_S, _LAST_LOOK_S = 0.1, 2.0
_RETRY_S: Final = 0.25
_READ_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One job of a request."""

    job_id: str
    rows: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a request, in the words of the SDK."""

    model: str
    rows: int
    dtype: Dtype
    parts: tuple[Part, ...]
    submitted_ms: int
    meta: Mapping[str, Any] | None

    def to_json(self) -> str:
        parts = [{"jobId": part.job_id, "rows": part.rows, "fingerprint": part.fingerprint} for part in self.parts]
        told: dict[str, Any] = {"v": 1, "model": self.model, "rows": self.rows, "dtype": self.dtype, "parts": parts}
        told["submittedMs"] = self.submitted_ms
        if self.meta is not None:
            told["meta"] = self.meta
        return json.dumps(told, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def of(text: str) -> Record:
        """Raises JOB_VERSION_UNKNOWN for one that a later version wrote."""
        told: dict[str, Any] = json.loads(text)
        if told.get("v") != 1:
            raise ShoalError(
                "JOB_VERSION_UNKNOWN",
                f"the request was submitted by a later version (its record has version {told.get('v')}); fetch it with "
                "that one",
            )
        parts = tuple(Part(str(one["jobId"]), int(one["rows"]), str(one["fingerprint"])) for one in told["parts"])
        dtype = cast(Dtype, str(told["dtype"]))
        meta = told.get("meta")
        own = meta if isinstance(meta, dict) else None
        return Record(str(told["model"]), int(told["rows"]), dtype, parts, int(told["submittedMs"]), own)


async def submit(
    line: QueueLine,
    request_id: str,
    model: str,
    dtype: Dtype,
    jobs: Sequence[NewJob],
    meta: Mapping[str, Any] | None,
    cut_as: Callable[[Sequence[Part]], Sequence[NewJob]],
) -> None:
    """Puts all jobs of a request on the queue, waiting for room where it is full, and for the server's disk: whoever
    submits may be gone when the server loses power. May be repeated after any fault."""
    parts = tuple(Part(job.job_id, job.rows, job.fingerprint) for job in jobs)
    record = Record(model, sum(part.rows for part in parts), dtype, parts, time.time_ns() // 1_000_000, meta)
    text = record.to_json()
    found = await patiently(line, lambda: line.server.keep_request(request_id, text, _RECORD_TTL_MS))
    jobs = _cut_as_before(Record.of(found), jobs, cut_as)
    ours: list[str] = []
    tasks = [asyncio.ensure_future(line.submit(job, ours)) for job in jobs]
    try:
        await asyncio.gather(*tasks)
        await patiently(line, line.server.durable)
    except (asyncio.CancelledError, ShoalError) as error:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # what the server did not answer may be asked for again; what is refused, or not wanted, leaves nothing behind
        if not isinstance(error, ShoalError) or error.code in ("ADMISSION_REFUSED", "JOB_ID_CONFLICT"):
            with contextlib.suppress(ShoalError):
                await line.cancel(ours)
                if found == text:
                    await line.server.forget_request(request_id)
        raise


def _cut_as_before(
    record: Record, jobs: Sequence[NewJob], cut_as: Callable[[Sequence[Part]], Sequence[NewJob]]
) -> Sequence[NewJob]:
    """The id has a record already: the same request has the jobs that it had then, however many rows this client, or
    the workers that are there now, would give each. Raises JOB_ID_CONFLICT where it is another."""
    own = [job.rows for job in jobs]
    if own != [part.rows for part in record.parts] and sum(own) == record.rows:
        jobs = cut_as(record.parts)
    _refuse_other(record.parts, jobs)
    return jobs


def _refuse_other(known: Sequence[Part], jobs: Sequence[NewJob]) -> None:
    """The id has a record already: the same request may be made again."""
    for at, job in enumerate(jobs):
        theirs = known[at].fingerprint if at < len(known) else "none"
        if theirs != job.fingerprint:
            raise conflict(job, theirs)
    if len(known) > len(jobs):
        raise conflict(jobs[-1], known[len(jobs)].fingerprint)


@dataclass(eq=False, slots=True)
class Submitted:
    """A request by its id, tenant included."""

    line: QueueLine
    request_id: str
    _record: Record | None = None

    async def status(self) -> JobStatus:
        record = await self._known()
        if record is None:
            return JobStatus("unknown", 0, 0)
        states = await self._look(record.parts)
        state, error = _worst_of(states)
        done = sum(part.rows for part, (one, _) in zip(record.parts, states, strict=True) if _is_done(one))
        submitted = datetime.fromtimestamp(record.submitted_ms / 1_000, tz=timezone.utc)
        return JobStatus(state, record.rows, done, error, record.model, submitted, record.meta)

    async def deliveries(self) -> tuple[Record, list[Delivery]]:
        """Its results, once all are computed; they stay as they are."""
        record = await patiently(self.line, self._known)
        if record is None:
            raise ShoalError(
                "INPUT_LOST",
                f"there is no request {self.request_id!r}: it was never submitted to this queue, was released, or the "
                "server lost it; submit it again with the same id",
                {"id": self.request_id},
            )
        await self._ended(record.parts)
        found: list[Delivery] = []
        for at in range(0, len(record.parts), _READ_AT_ONCE):
            some = record.parts[at : at + _READ_AT_ONCE]
            ids = [part.job_id for part in some]
            bodies = await patiently(self.line, lambda ids=ids: self.line.server.peek(ids))  # type: ignore[misc]
            found += [self._opened(part, data) for part, data in zip(some, bodies, strict=True)]
        return record, found

    async def cancel(self) -> CancelOutcome:
        record = await self._known()
        if record is None:
            return "unknown"
        outcomes = await self.line.cancel([part.job_id for part in record.parts])
        order: tuple[CancelOutcome, ...] = ("asked", "cancelled", "finished")
        return next((outcome for outcome in order if outcome in outcomes), "unknown")

    async def release(self) -> None:
        record = await self._known()
        if record is None:
            return
        await self.line.server.mark_taken([part.job_id for part in record.parts])
        await self.line.server.forget_request(self.request_id)
        self._record = None

    async def _known(self) -> Record | None:
        if self._record is None:
            text = await self.line.server.read_request(self.request_id)
            self._record = None if text is None else Record.of(text)
        return self._record

    async def _ended(self, parts: Sequence[Part]) -> None:
        """Resolves when no job of the request is open any more. Raises the failure of the first that failed."""
        left, pause = list(parts), _FIRST_LOOK_S
        while True:
            states = await patiently(self.line, lambda left=left: self._look(left))  # type: ignore[misc]
            state, error = _worst_of(states)
            if error is not None:
                raise error
            if state == "expired":
                raise self._expired()
            left = [part for part, (one, _) in zip(left, states, strict=True) if not _is_done(one)]
            if not left:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK_S)

    async def _look(self, parts: Sequence[Part]) -> list[tuple[JobState, ShoalError | None]]:
        found = await self.line.server.look([part.job_id for part in parts])
        return [_state_of(part, *one) for part, one in zip(parts, found, strict=True)]

    def _opened(self, part: Part, data: bytes | None) -> Delivery:
        if data is None:
            raise self._expired()
        header, body = open_result(data)
        if header.fingerprint != part.fingerprint:
            raise ShoalError(
                "JOB_ID_CONFLICT",
                f"the result of job {part.job_id!r} belongs to another request (its fingerprint is "
                f"{header.fingerprint}, this one's {part.fingerprint})",
                {"jobId": part.job_id},
            )
        return Delivery(part.job_id, header, body)

    def _expired(self) -> ShoalError:
        return ShoalError(
            "RESULT_EXPIRED",
            f"the result of {self.request_id!r} is not kept any more; submit it again with the same id, and fetch it "
            "within its time to live (result_ttl, a day by default)",
            {"id": self.request_id},
        )


def _state_of(
    part: Part, ending: Ending, is_locked: bool, header: Header | None
) -> tuple[JobState, ShoalError | None]:
    if ending.state == "failed":
        code, message = parse_failed_reason(ending.failed_reason or "")
        state: JobState = "cancelled" if code == "CANCELLED" else "failed"
        return state, ShoalError(code, message, {"jobId": part.job_id})
    if ending.state == "open":
        return ("running" if is_locked else "waiting"), None
    return ("expired" if header is None or header.is_taken else "completed"), None


def _worst_of(states: Sequence[tuple[JobState, ShoalError | None]]) -> tuple[JobState, ShoalError | None]:
    """What all of them together are."""
    for bad in ("failed", "cancelled"):
        for state, error in states:
            if state == bad:
                return state, error
    found = {state for state, _ in states}
    if "running" in found or {"waiting", "completed"} <= found:
        return "running", None
    order: tuple[JobState, ...] = ("waiting", "expired")
    return next((state for state in order if state in found), "completed"), None


def _is_done(state: JobState) -> bool:
    return state in ("completed", "expired")


async def patiently(line: QueueLine, work: Callable[[], Awaitable[Value]]) -> Value:
    """Tries again what the server cannot do for the moment, for as long as it is waited for."""
    since = time.monotonic()
    while True:
        try:
            return await work()
        except ShoalError as error:
            is_over = time.monotonic() - since > line.patience.give_up
            if error.code not in PASSING or error.fields.get("isRefused") is True or is_over:
                raise
            await asyncio.sleep(_RETRY_S)
