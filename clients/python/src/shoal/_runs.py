"""A call under way: its texts in chunks, the results in their order, and how long that may take."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from ._formats import ROWS_EVERY_WORKER_TAKES, Dtype, decode_vectors
from ._jobs import Delivery, QueueLine
from ._requests import Chunk, Cutter, Output, Terms, embed_job, rerank_job, seconds_left
from ._results import Embeddings
from ._server import NewJob, Worker, claiming_of
from ._submitted import Part
from .errors import ErrorCode, ShoalError

Item = TypeVar("Item")
Value = TypeVar("Value")

# Failures that are not about one job: the next job would meet them too, so they are never skipped.
FATAL: Final[frozenset[ErrorCode]] = frozenset(
    {
        "QUEUE_UNREACHABLE",
        "QUEUE_FULL",
        "QUEUE_REFUSES_WRITES",
        "QUEUE_DAMAGED",
        "ADMISSION_REFUSED",
        "QUEUE_UNSAFE",
        "INTERRUPTED",
        "TOKENIZER_MISMATCH",
        "FINGERPRINT_MISMATCH",
        "NOT_SERVED",
        "DEADLINE_PASSED",
    }
)
_EXPLAINED_WITHIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """One call that asks for a row of each of its texts: vectors, or the scores of a query with them."""

    line: QueueLine
    model: str
    terms: Terms
    output: Output
    # Of the id of the request, the first row of a chunk, and the texts it could have.
    id_of: Callable[[str, int, int], str]
    window: int
    job_texts: int
    started: float
    query: str | None
    forget: Callable[[], object]

    @property
    def limits(self) -> tuple[float | None, int | None, float]:
        return self.terms.timeout_s, self.terms.deadline_ms, self.started

    async def size(self, texts: int | None) -> int:
        """Texts that the next job may have; ``texts``: of the whole call, None where nobody knows."""
        if self.job_texts <= ROWS_EVERY_WORKER_TAKES:
            return self.job_texts
        if texts is not None and texts <= ROWS_EVERY_WORKER_TAKES:
            return ROWS_EVERY_WORKER_TAKES
        return min(self.job_texts, await self.line.most_job_rows())

    async def requests(self, texts: Sequence[str]) -> list[NewJob]:
        """The jobs of texts that are all there."""
        cutter: Cutter[str] = Cutter(0, self.job_texts, None)
        return [self.request(chunk) async for chunk in _chunks(texts, cutter, lambda: self.size(len(texts)))]

    def cut_as(self, texts: Sequence[str], parts: Sequence[Part]) -> list[NewJob]:
        """The same rows as jobs of these names and sizes, as they were submitted before."""
        jobs: list[NewJob] = []
        first = 0
        for part in parts:
            some = tuple(texts[first : first + part.rows])
            jobs.append(self.request(Chunk(first, some, some, part.rows), part.job_id))
            first += part.rows
        return jobs

    def request(self, chunk: Chunk[Any], job_id: str | None = None) -> NewJob:
        if job_id is None:
            tenant, _, id = self.terms.request_id.partition("~")
            job_id = f"{tenant}~{self.id_of(id, chunk.first, chunk.most)}"
        reply = self.line.reply_channel
        if self.query is not None:
            return rerank_job(job_id, self.query, chunk.texts, model=self.model, terms=self.terms, reply=reply)
        return embed_job(job_id, chunk.texts, model=self.model, terms=self.terms, output=self.output, reply=reply)

    async def ask(self, chunk: Chunk[Any]) -> Delivery:
        """The result of one chunk. Raises as ``AsyncShoal.embed``."""
        try:
            return await within(self.line, *self.limits, self.line.ask(self.request(chunk)))
        except ShoalError as error:
            if error.code == "FINGERPRINT_MISMATCH":
                self.forget()  # workers serve another revision by now: the next call asks them again
            raise

    def embeddings(self, delivery: Delivery) -> Embeddings:
        return embeddings_of(delivery, self.model)

    @overload
    def deliveries(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], Any] | None,
        first: int,
        *,
        count: int | None = None,
    ) -> AsyncIterator[tuple[Chunk[Item], Delivery]]: ...
    @overload
    def deliveries(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], Any] | None,
        first: int,
        *,
        is_skipping: bool,
        count: int | None = None,
    ) -> AsyncIterator[tuple[Chunk[Item], Delivery | ShoalError]]: ...
    async def deliveries(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], Any] | None,
        first: int,
        *,
        is_skipping: bool = False,
        count: int | None = None,
    ) -> AsyncIterator[tuple[Chunk[Item], Any]]:
        """Results in input order, and a failure in the place of one where it is to be skipped. At most ``window`` jobs
        are under way; the input is read as far ahead as these need. What is open when the caller leaves is taken back.
        ``count``: texts of the whole input, where that is known.
        """
        ahead: deque[tuple[Chunk[Item], asyncio.Task[Delivery]]] = deque()
        reader = _Reader(items, Cutter(first, self.job_texts, text), lambda: self.size(count))
        try:
            while True:
                reader.go_on(is_wanted=len(ahead) < self.window)
                waits: list[asyncio.Future[Any]] = [ahead[0][1]] if ahead else []
                if reader.task is not None:
                    waits.append(reader.task)
                if not waits:
                    reader.raise_fault()
                    return
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                chunk = reader.take()
                if chunk is not None:
                    ahead.append((chunk, asyncio.ensure_future(self.ask(chunk))))
                if ahead and ahead[0][1].done():
                    done, task = ahead.popleft()
                    delivery = _outcome_of(task, is_skipping)
                    yield done, delivery
                    if isinstance(delivery, Delivery):
                        self.line.release([delivery.job_id])
        finally:
            await reader.stop()
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


def _outcome_of(task: asyncio.Task[Delivery], is_skipping: bool) -> Delivery | ShoalError:
    error = task.exception()
    if error is None:
        return task.result()
    if is_skipping and isinstance(error, ShoalError) and error.code not in FATAL:
        return error
    raise error


class _Reader(Generic[Item]):
    """Reads one chunk at a time from an input of either kind. What reading raises comes behind the chunks before it."""

    def __init__(
        self, items: Iterable[Item] | AsyncIterable[Item], cutter: Cutter[Item], size: Callable[[], Awaitable[int]]
    ) -> None:
        self._chunks = _chunks(items, cutter, size)
        self._has_ended = False
        self._fault: BaseException | None = None
        self.task: asyncio.Task[Chunk[Item] | None] | None = None

    def go_on(self, is_wanted: bool) -> None:
        if self.task is None and is_wanted and not self._has_ended:
            self.task = asyncio.ensure_future(self._next())

    def take(self) -> Chunk[Item] | None:
        """The chunk that was read, if one was."""
        if self.task is None or not self.task.done():
            return None
        task, self.task = self.task, None
        self._fault = task.exception()
        chunk = None if self._fault is not None else task.result()
        self._has_ended = chunk is None
        return chunk

    def raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self._chunks.aclose()

    async def _next(self) -> Chunk[Item] | None:
        return await anext(self._chunks, None)


async def _each(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _chunks(
    items: Iterable[Item] | AsyncIterable[Item], cutter: Cutter[Item], size: Callable[[], Awaitable[int]]
) -> Any:
    is_begun = False
    async for item in _each(items):
        if not is_begun:
            cutter.most, is_begun = await size(), True
        chunk = cutter.add(item)
        if chunk is not None:
            cutter.most = await size()
            yield chunk
    chunk = cutter.rest()
    if chunk is not None:
        yield chunk


async def within(
    line: QueueLine, timeout_s: float | None, deadline_ms: int | None, started: float, work: Awaitable[Value]
) -> Value:
    """What ``work`` gives, or DEADLINE_PASSED with the reason, as far as the queue server tells it soon."""
    left = seconds_left(timeout_s, deadline_ms, started)
    if left is None:
        return await work
    try:
        return await asyncio.wait_for(work, max(left, 0))
    except asyncio.TimeoutError:
        why = ""
        with contextlib.suppress(ShoalError, asyncio.TimeoutError):
            why = f": {(await asyncio.wait_for(line.why_waiting(), _EXPLAINED_WITHIN_S)).message}"
        passed = time.monotonic() - started
        raise ShoalError("DEADLINE_PASSED", f"the result had not come within {passed:.1f} s{why}") from None


def embeddings_of(delivery: Delivery, model: str) -> Embeddings:
    """A copy: what the caller gets is theirs."""
    header = delivery.header
    values, scales = decode_vectors(header, delivery.body)
    return Embeddings(
        vectors=values.copy(),
        scales=None if scales is None else scales.copy(),
        dims=header.dims,
        dtype=cast(Dtype, header.dtype),
        model=model,
        is_truncated=header.is_truncated,
        is_simulated=header.is_simulated,
    )


def joined(parts: Sequence[Embeddings], dtype: Dtype, model: str) -> Embeddings:
    if len(parts) == 1:
        return parts[0]
    kinds: dict[Dtype, npt.DTypeLike] = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "binary": np.uint8}
    scales = [part.scales for part in parts if part.scales is not None]
    return Embeddings(
        vectors=np.concatenate([part.vectors for part in parts]) if parts else np.empty((0, 0), kinds[dtype]),
        scales=None if dtype != "i8" else np.concatenate(scales) if scales else np.empty(0, np.float32),
        dims=parts[0].dims if parts else 0,
        dtype=dtype,
        model=model,
        is_truncated=any(part.is_truncated for part in parts),
        is_simulated=any(part.is_simulated for part in parts),
    )


def readable(terms: Terms, workers: Sequence[Worker]) -> Terms:
    """Without the trace where a worker that claims does not read it, or none is alive: no job waits for its logs."""
    claiming = claiming_of(workers)
    if claiming and all(int(worker.facts.get("jobVersion") or 1) >= 2 for worker in claiming):
        return terms
    return replace(terms, trace=None)


def refuse_unserved(
    workers: Sequence[Worker], output: Output, version: Literal[1, 2], model: str, queue: str
) -> None:
    """What workers would have to refuse is refused before anything is added, as far as they tell."""
    claiming = claiming_of(workers)
    older = [worker for worker in claiming if int(worker.facts.get("jobVersion") or 1) < version]
    if older:
        named = ", ".join(f'"{one.worker_id}" of Shoal {one.facts.get("version", "0.1.0 or older")}' for one in older)
        raise ShoalError(
            "JOB_VERSION_UNKNOWN",
            f"what was asked for needs workers that read jobs of version {version}, and {queue} is served by "
            f"{named}: update or drain them, or ask without",
            {"model": model, "version": version},
        )
    for worker in claiming:
        prompts = worker.facts.get("prompts")
        if output.prompt is not None and isinstance(prompts, list) and output.prompt not in prompts:
            names = ", ".join(f'"{name}"' for name in prompts if name != "none")
            has = f'has {names}: ask for one of them, or for "none"' if names else "has no prompts: leave it out"
            raise ShoalError(
                "JOB_INVALID",
                f'the prompt "{output.prompt}" was asked for, and {model} {has}',
                {"model": model, "prompt": output.prompt, "prompts": prompts},
            )
        if output.normalize is False and worker.facts.get("isNormalized") is True:
            raise ShoalError(
                "JOB_INVALID",
                f"normalize=False was asked for, and the vectors of {model} have length 1 and cannot be had otherwise: "
                "leave it out",
                {"model": model},
            )
