"""The client for programs without asyncio: the same verbs, which wait. A thread of its own runs the asyncio client, so
any number of threads may share one ``Shoal``; inputs are read in the caller's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

import numpy.typing as npt

from ._formats import ROWS_EVERY_WORKER_TAKES
from ._jobs import Delivery
from ._keys import DEFAULT_PREFIX
from ._options import (
    CosineOptions,
    EmbedOptions,
    RankingOptions,
    RerankOptions,
    SpreadOptions,
    StreamOptions,
    SubmitOptions,
    SubmitRerankOptions,
    refuse_unknown,
)
from ._requests import Chunk, Seconds, check_texts, chunks_of
from ._results import (
    EmbeddedBlock,
    EmbeddedRow,
    Embeddings,
    JobStatus,
    Ranking,
    Reranked,
    Scores,
    SearchResult,
    SkippedBlock,
)
from ._runs import FATAL
from ._server import CancelOutcome
from ._waiting import Waiting
from .aio import AsyncJob, AsyncRerankJob, AsyncShoal
from .errors import ShoalError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Item = TypeVar("Item")
Value = TypeVar("Value")
Asked = TypeVar("Asked", AsyncJob, AsyncRerankJob)

_STOPPED_WITHIN_S: Final = 5.0


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shoal", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Value]) -> concurrent.futures.Future[Value]:
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError("this Shoal was made before the process was forked; make one in each process")
        if self._loop.is_closed():
            work.close()
            raise ShoalError("INTERRUPTED", "the client was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Waits for it. Whoever is interrupted meanwhile (Ctrl-C) takes it back."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOPPED_WITHIN_S)
        if not self._thread.is_alive():
            self._loop.close()


class Shoal:
    """Embeds, reranks and searches through the queue. One for a program: any number of threads share it.

    >>> with Shoal("redis://localhost:6379", model="minilm") as shoal:
    ...     vectors = shoal.embed(["hello", "world"]).vectors  # 2 × 384 float32

    Options are those of ``AsyncShoal``. Connects when it is entered (``with``) or first asked. Make one in each
    process: it does not survive a fork.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        prefix: str = DEFAULT_PREFIX,
        tenant: str = "default",
        job_texts: int = 64,
        max_in_flight_jobs: int = 64,
        when_full: Literal["wait", "fail"] = "wait",
        give_up_after: float = 60.0,
        not_served_after: float = 30.0,
    ) -> None:
        self._client = AsyncShoal(
            url,
            model=model,
            prefix=prefix,
            tenant=tenant,
            job_texts=job_texts,
            max_in_flight_jobs=max_in_flight_jobs,
            when_full=when_full,
            give_up_after=give_up_after,
            not_served_after=not_served_after,
        )
        self._job_texts = job_texts
        self._window = max_in_flight_jobs
        self._thread = _LoopThread()

    def __enter__(self) -> Shoal:
        try:
            self._thread.call(self._client.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As ``AsyncShoal.close``."""
        try:
            self._thread.call(self._client.close())
        except ShoalError:
            return  # it was closed before
        self._thread.stop()

    def embed(self, texts: Iterable[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """As ``AsyncShoal.embed``."""
        check_texts("embed", texts)
        return self._thread.call(self._client.embed(list(texts), **options))

    @overload
    def embed_stream(
        self,
        texts: Iterable[Item],
        *,
        on_error: Literal["fail"] = "fail",
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> Iterator[EmbeddedBlock[Item]]: ...
    @overload
    def embed_stream(
        self,
        texts: Iterable[Item],
        *,
        on_error: Literal["fail", "skip"],
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> Iterator[EmbeddedBlock[Item] | SkippedBlock[Item]]: ...
    def embed_stream(
        self,
        texts: Iterable[Item],
        *,
        on_error: Literal["fail", "skip"] = "fail",
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> Iterator[Any]:
        """As ``AsyncShoal.embed_stream``. The input is read in this thread, as far ahead as ``max_in_flight_jobs``
        jobs, whenever the next block is asked for; leaving the loop takes what still waits off the queue."""
        refuse_unknown("embed_stream", options, StreamOptions)
        check_texts("embed_stream", texts)
        if on_error not in ("fail", "skip"):
            raise ValueError(f'on_error is {on_error!r}; there are "fail" and "skip"')
        opening = self._client._stream_run(options)
        return self._blocks(opening, (texts, options.get("start_at", 0), text), on_error == "skip")

    def embed_many(
        self,
        texts: Iterable[Item],
        *,
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> Iterator[EmbeddedRow[Item]]:
        """As ``AsyncShoal.embed_many``: rows in the order of the input, ``row.item``, ``row.vector``."""
        refuse_unknown("embed_many", options, StreamOptions)
        blocks = self.embed_stream(texts, text=text, **options)
        return (row for block in blocks for row in block.rows())

    def rerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> Reranked:
        """As ``AsyncShoal.rerank``."""
        check_texts("rerank", documents)
        return self._thread.call(self._client.rerank(query, list(documents), **options))

    def submit_rerank(
        self, query: str, documents: Iterable[str], **options: Unpack[SubmitRerankOptions]
    ) -> RerankJob:
        """As ``AsyncShoal.submit_rerank``."""
        check_texts("submit_rerank", documents)
        return RerankJob(self._thread.call(self._client.submit_rerank(query, list(documents), **options)), self._thread)

    def rerank_job(self, id: str, *, model: str | None = None, tenant: str | None = None) -> RerankJob:
        """As ``AsyncShoal.rerank_job``."""
        return RerankJob(self._thread.call(self._client.rerank_job(id, model=model, tenant=tenant)), self._thread)

    def search(
        self, collection: str, queries: Iterable[str] | npt.ArrayLike, **options: Unpack[RankingOptions]
    ) -> SearchResult:
        """As ``AsyncShoal.search``."""
        return self._thread.call(self._client.search(collection, queries, **options))

    def rescore(
        self,
        collection: str,
        queries: Iterable[str] | npt.ArrayLike,
        candidates: Sequence[Iterable[int]],
        **options: Unpack[RankingOptions],
    ) -> SearchResult:
        """As ``AsyncShoal.rescore``."""
        return self._thread.call(self._client.rescore(collection, queries, candidates, **options))

    def cosine(
        self,
        queries: Iterable[str] | npt.ArrayLike,
        others: Iterable[str] | npt.ArrayLike | None = None,
        *,
        collection: str | None = None,
        **options: Unpack[CosineOptions],
    ) -> Scores:
        """As ``AsyncShoal.cosine``."""
        return self._thread.call(self._client.cosine(queries, others, collection=collection, **options))

    def spread(self, graph: str, seeds: Sequence[Iterable[Any]], **options: Unpack[SpreadOptions]) -> list[Ranking]:
        """As ``AsyncShoal.spread``."""
        return self._thread.call(self._client.spread(graph, seeds, **options))

    def submit(self, texts: Iterable[str], **options: Unpack[SubmitOptions]) -> Job:
        """As ``AsyncShoal.submit``."""
        check_texts("submit", texts)
        return Job(self._thread.call(self._client.submit(list(texts), **options)), self._thread)

    def job(self, id: str, *, tenant: str | None = None) -> Job:
        """As ``AsyncShoal.job``."""
        return Job(self._thread.call(self._client.job(id, tenant=tenant)), self._thread)

    def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> dict[str, CancelOutcome]:
        """As ``AsyncShoal.cancel``."""
        return self._thread.call(self._client.cancel(ids, tenant=tenant))

    def why_waiting(self) -> Waiting:
        """As ``AsyncShoal.why_waiting``."""
        return self._thread.call(self._client.why_waiting())

    def _blocks(
        self,
        opening: Coroutine[Any, Any, Any],
        source: tuple[Iterable[Item], int, Callable[[Item], str] | None],
        is_skipping: bool,
    ) -> Iterator[EmbeddedBlock[Item] | SkippedBlock[Item]]:
        run = self._thread.call(opening)
        texts, first, text = source
        is_fixed = self._job_texts <= ROWS_EVERY_WORKER_TAKES
        size = self._job_texts if is_fixed else lambda: int(self._thread.call(run.size(None)))
        chunks = chunks_of(texts, first, size, text)
        ahead: deque[tuple[Chunk[Item], concurrent.futures.Future[Delivery]]] = deque()
        try:
            for chunk in chunks:
                ahead.append((chunk, self._thread.start(run.ask(chunk))))
                while ahead and (len(ahead) >= self._window or ahead[0][1].done()):
                    yield from self._next_block(run, ahead, is_skipping)
            while ahead:
                yield from self._next_block(run, ahead, is_skipping)
        finally:
            for _, future in ahead:
                future.cancel()

    def _next_block(
        self,
        run: Any,
        ahead: deque[tuple[Chunk[Item], concurrent.futures.Future[Delivery]]],
        is_skipping: bool,
    ) -> Iterator[EmbeddedBlock[Item] | SkippedBlock[Item]]:
        """The oldest block, and its acknowledgement once the caller comes back."""
        chunk, future = ahead[0]
        try:
            delivery = future.result()
        except ShoalError as error:
            if not is_skipping or error.code in FATAL:
                raise
            ahead.popleft()
            yield SkippedBlock(chunk.first, chunk.items, error)
            return
        ahead.popleft()
        yield EmbeddedBlock(chunk.first, chunk.items, run.embeddings(delivery))
        self._thread.call(_release(run, delivery.job_id))


async def _release(run: Any, job_id: str) -> None:
    run.line.release([job_id])


class _Handle(Generic[Asked]):
    """What handles of every kind have: state, cancelling, releasing."""

    _job: Asked

    def __init__(self, job: Asked, thread: _LoopThread) -> None:
        self.id = job.id
        self.tenant = job.tenant
        self._job = job
        self._thread = thread

    def status(self) -> JobStatus:
        """As ``AsyncJob.status``."""
        return self._thread.call(self._job.status())

    def release(self) -> None:
        """As ``AsyncJob.release``."""
        self._thread.call(self._job.release())

    def cancel(self) -> CancelOutcome:
        """As ``AsyncJob.cancel``."""
        return self._thread.call(self._job.cancel())


class Job(_Handle[AsyncJob]):
    """A request that was submitted, see ``AsyncJob``."""

    def result(self, *, timeout: Seconds | None = None) -> Embeddings:
        """As ``AsyncJob.result``."""
        return self._thread.call(self._job.result(timeout=timeout))


class RerankJob(_Handle[AsyncRerankJob]):
    """A question to a reranker that was submitted, see ``AsyncRerankJob``."""

    def result(self, *, top_n: int | None = None, timeout: Seconds | None = None) -> Reranked:
        """As ``AsyncRerankJob.result``."""
        return self._thread.call(self._job.result(top_n=top_n, timeout=timeout))
