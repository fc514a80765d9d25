"""The client for asyncio. What a call asks for is computed by workers; this process waits and checks."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
from redis.asyncio import Redis

from ._formats import Dtype, Floats, checked_queries, decode_rankings, decode_vectors, well_formed
from ._jobs import Delivery, Patience, QueueLine
from ._keys import DEFAULT_PREFIX, SIMILARITY_QUEUE, Keys, check_job_id, embed_queue, rerank_queue
from ._requests import (
    QUERIES_PER_JOB,
    SUBMITTED_TTL_MS,
    Chunk,
    Cutter,
    JobClass,
    Meta,
    Metric,
    ModelName,
    Moment,
    Output,
    Seconds,
    Terms,
    Truncate,
    check_job_texts,
    check_k,
    check_tenant,
    check_texts,
    chunks_of,
    checked_output,
    checked_terms,
    class_for,
    embed_job,
    embed_version,
    rerank_job,
    seconds,
    seconds_left,
    text_of,
    topk_job,
)
from ._results import (
    EmbeddedBlock,
    EmbeddedRow,
    Embeddings,
    JobStatus,
    Ranking,
    Reranked,
    SearchResult,
    SkippedBlock,
    SkippedRow,
)
from ._server import CancelOutcome, NewJob, Worker, open_redis
from ._submitted import Submitted, submit
from ._waiting import Waiting
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


class AsyncShoal:
    """Embeds, reranks and searches through the queue, for asyncio. One for a program: any number of tasks share it.

    >>> async with AsyncShoal("redis://localhost:6379", model="minilm") as shoal:
    ...     vectors = (await shoal.embed(["hello", "world"])).vectors  # 2 × 384 float32

    ``url``: ``redis://``, ``rediss://`` or ``unix://``. ``model``: name in the store, ``ORG/NAME`` of the hub, or
    ``name@revision``; without a revision that of the workers that serve it. Also a reranker's name, where nothing is to
    be embedded. ``tenant``: goes before every job id and into every job. ``job_texts``: texts a job, 1 to 256.
    ``max_in_flight_jobs``: most jobs of one call that are under way; bounds its memory. ``when_full``: what becomes of
    a call for which the queue has no room, ``"wait"`` or ``"fail"`` (ADMISSION_REFUSED with ``retryAfterMs``).
    ``give_up_after``: how long a server that is away or full is waited for, in seconds. ``not_served_after``: how long
    jobs wait in a queue that no worker ever served while others are served.

    Connects when it is entered (``async with``) or first asked. Raises ValueError and TypeError for options that
    cannot be, CONFIG_INVALID for an address that cannot be; calls raise ``ShoalError``.
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
        check_tenant(tenant)
        check_job_texts(job_texts)
        if not isinstance(max_in_flight_jobs, int) or max_in_flight_jobs < 1:
            raise ValueError(f"max_in_flight_jobs is {max_in_flight_jobs!r}; at least 1 is needed")
        if when_full not in ("wait", "fail"):
            raise ValueError(f'when_full is {when_full!r}; there are "wait" and "fail"')
        self._url = url
        self._model = ModelName.of(model)
        self._prefix = prefix
        self._tenant = tenant
        self._job_texts = job_texts
        self._max_in_flight_jobs = max_in_flight_jobs
        self._when_full = when_full
        self._patience = Patience(give_up=give_up_after, not_served=not_served_after)
        self._redis: Redis = open_redis(url)
        self._lines: dict[str, asyncio.Task[QueueLine]] = {}
        self._revisions: dict[str, asyncio.Task[str]] = {}
        self._is_closed = False

    async def __aenter__(self) -> AsyncShoal:
        try:
            await self._line(embed_queue(self._model.name))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives up what is open (INTERRUPTED), acknowledges what was delivered, closes the connections. Safe to call
        twice."""
        self._is_closed = True
        lines = await asyncio.gather(*self._lines.values(), return_exceptions=True)
        await asyncio.gather(*(line.close() for line in lines if isinstance(line, QueueLine)))
        await self._redis.aclose()

    # ---- embedding ------------------------------------------------------------------------------------------------

    async def embed(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        job_id: str | None = None,
    ) -> Embeddings:
        """Vectors of ``texts``, in order: any number of them, also a column of pandas or pyarrow.

        More than ``job_texts`` become several jobs. Survives restarts of workers and server.

        ``prompt``: one of the model's prompts by its name ("query", "passage", …), or "none" where a default one is
        not wanted. ``dtype``: form of the vectors, in which they are kept and given. ``dimensions``: only the first
        so many, of length 1 again. ``normalize``: True for length 1 also from a model whose vectors have lengths of
        their own. ``truncate``: "end" cuts a text with too many tokens, "error" fails with INPUT_TOO_LONG.
        ``class_``: "interactive" or "bulk"; default by size. ``timeout``, seconds or a timedelta: how long the call
        may take. ``deadline``: the same as a moment; jobs that are not begun by then never run. ``result_ttl``: how
        long the result may lie unread. ``meta``: fields of your own in every job, up to 2,048 bytes as JSON, for who
        looks at the queue; needs workers later than 0.1.0. ``job_id``: stable id of this request; asking again with
        the same id and texts never computes twice.

        Raises ``ShoalError``: the failure of a job (INPUT_TOO_LONG, QUARANTINED, …), INPUT_INVALID for what is no
        text, JOB_ID_CONFLICT, JOB_VERSION_UNKNOWN, MODEL_UNKNOWN where no worker tells the revision, NOT_SERVED,
        DEADLINE_PASSED, QUEUE_UNREACHABLE, QUEUE_FULL, QUEUE_REFUSES_WRITES, QUEUE_DAMAGED, ADMISSION_REFUSED,
        RESULT_EXPIRED, RESULT_TAKEN, RESULT_CORRUPT or INTERRUPTED. A cancelled task takes its jobs off the queue.
        """
        check_texts("embed", texts)
        asked = [text_of(text, row) for row, text in enumerate(texts)]
        run = await self._embed_run(
            output=checked_output(prompt, dtype, dimensions, normalize),
            class_=class_ or class_for(len(asked)),
            own_id=job_id,
            id_of=lambda id, first: id if len(asked) <= self._job_texts and first == 0 else f"{id}-{first}",
            truncate=truncate,
            tenant=tenant,
            timeout=timeout,
            deadline=deadline,
            result_ttl=result_ttl,
            meta=meta,
        )
        parts = [run.embeddings(delivery) async for _, delivery in run.deliveries(asked, None, 0)]
        return joined(parts, run.output.dtype, run.model)

    @overload
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail"] = "fail",
        text: Callable[[Item], str] | None = None,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        run_id: str | None = None,
        start_at: int = 0,
    ) -> AsyncIterator[EmbeddedBlock[Item]]: ...
    @overload
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail", "skip"],
        text: Callable[[Item], str] | None = None,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        run_id: str | None = None,
        start_at: int = 0,
    ) -> AsyncIterator[EmbeddedBlock[Item] | SkippedBlock[Item]]: ...
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail", "skip"] = "fail",
        text: Callable[[Item], str] | None = None,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        run_id: str | None = None,
        start_at: int = 0,
    ) -> AsyncIterator[Any]:
        """Vectors of a stream of any length, as blocks in input order without gaps.

        ``texts`` are strings, or anything of which ``text`` makes one; a block has them as ``items``. Memory is bounded
        by ``max_in_flight_jobs`` jobs: neither a slow caller nor a slow queue makes it grow. A block's result is
        acknowledged when the next one is asked for; leaving early takes what still waits off the queue (use
        ``contextlib.aclosing`` where that is to happen at once).

        ``run_id`` names the run: one that died and is started again with the same id, texts and settings finds what was
        computed meanwhile. ``start_at``: index of the first text, what a resumed run has already. ``on_error``: "skip"
        gives the texts of a job that failed as a ``SkippedBlock`` and goes on; a server that is away always ends it.
        Other options and errors are those of ``embed``; the class is "bulk" unless it is named.
        """
        check_texts("embed_stream", texts)
        if on_error not in ("fail", "skip"):
            raise ValueError(f'on_error is {on_error!r}; there are "fail" and "skip"')
        opening = self._embed_run(
            output=checked_output(prompt, dtype, dimensions, normalize),
            class_=class_ or "bulk",
            own_id=run_id,
            id_of=lambda id, first: f"{id}-{first}",
            truncate=truncate,
            tenant=tenant,
            timeout=timeout,
            deadline=deadline,
            result_ttl=result_ttl,
            meta=meta,
        )
        return self._blocks(opening, texts, text, start_at, on_error)

    async def embed_many(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        text: Callable[[Item], str] | None = None,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        run_id: str | None = None,
        start_at: int = 0,
    ) -> AsyncIterator[EmbeddedRow[Item]]:
        """The same, row by row: ``async for row in shoal.embed_many(lines)`` gives ``row.index``, ``row.item``, what
        the input gave, and ``row.vector``. Options and errors are those of ``embed_stream``."""
        blocks = self.embed_stream(
            texts,
            text=text,
            prompt=prompt,
            dtype=dtype,
            dimensions=dimensions,
            normalize=normalize,
            truncate=truncate,
            class_=class_,
            tenant=tenant,
            timeout=timeout,
            deadline=deadline,
            result_ttl=result_ttl,
            meta=meta,
            run_id=run_id,
            start_at=start_at,
        )
        async with contextlib.aclosing(cast(Any, blocks)):
            async for block in blocks:
                for row in block.rows():
                    yield row

    # ---- reranking and searching ----------------------------------------------------------------------------------

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        model: str | None = None,
        top_n: int | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
        job_id: str | None = None,
    ) -> Reranked:
        """How well each of the documents answers the query, by a reranker: scores in their order, and the best by
        index.

        ``model``: the reranker, "name" or "name@revision"; default: the client's model. ``top_n``: how many of the
        best are in ``ranked``. Other options and errors are those of ``embed``.
        """
        check_texts("rerank", documents)
        if not isinstance(query, str):
            raise TypeError(f"rerank needs query, the text that documents are weighed against; found {query!r:.80}")
        if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1):
            raise ValueError(f"top_n is {top_n!r}; it is a whole number from 1")
        name = self._model if model is None else ModelName.of(model)
        asked = [text_of(document, row) for row, document in enumerate(documents)]
        kind = class_ or class_for(len(asked), "documents")
        terms = self._terms(job_id, kind, truncate, tenant, timeout, deadline, result_ttl, meta)
        started = time.monotonic()
        queue = rerank_queue(name.name)
        line = await self._line(queue)
        revision = await self._revision(name, queue, line)
        run = _Run(
            line=line,
            model=name.with_revision(revision),
            terms=terms,
            output=Output(None, "f32", None, None),
            id_of=lambda id, first: id if first == 0 else f"{id}-{first}",
            window=self._max_in_flight_jobs,
            job_texts=self._job_texts,
            started=started,
            query=well_formed(query),
            forget=lambda: self._revisions.pop(queue, None),
        )
        parts = [run.embeddings(delivery) async for _, delivery in run.deliveries(asked, None, 0)]
        found = joined(parts, "f32", run.model)
        if len(asked) > 0 and found.dims != 1:
            raise ShoalError("RESULT_CORRUPT", f"{run.model} gave {found.dims} values for a document; a score is one")
        scores = found.vectors.reshape(-1)
        ranked = np.argsort(-scores, kind="stable")[:top_n]
        return Reranked(scores, ranked, run.model, found.is_truncated, found.is_simulated)

    async def search(
        self,
        collection: str,
        queries: Iterable[str] | npt.ArrayLike,
        *,
        k: int = 10,
        metric: Metric = "cosine",
        names: bool = True,
        class_: JobClass | None = None,
        tenant: str | None = None,
        timeout: Seconds | None = None,
        deadline: Moment | None = None,
        job_id: str | None = None,
    ) -> SearchResult:
        """The k best rows of a collection ("docs@3", or "docs" for its newest version) for each query, best first, by
        exact search.

        ``queries``: texts, which this client's model embeds first (with its prompt "query" where it has one), or
        vectors, rows × dims or a single one. ``metric``: "cosine", "dot", or "l2", of which the smallest is best.
        ``names``: rankings have what their rows are called. Other options are those of ``embed``. Also raises
        COLLECTION_MODEL_MISMATCH where texts and rows come from two models, COLLECTION_UNKNOWN, COLLECTION_GONE,
        COLLECTION_CORRUPT, COLLECTION_EMPTY, DIMENSIONS_MISMATCH, VECTOR_INVALID, RESULT_TOO_LARGE or OUT_OF_VRAM.
        """
        check_texts("search", queries)
        check_k(k)
        if metric not in ("cosine", "dot", "l2"):
            raise ValueError(f'metric is {metric!r}; there are "cosine", "dot" and "l2"')
        terms = self._terms(job_id, class_, "end", tenant, timeout, deadline, None)
        started = time.monotonic()
        texts = texts_in(queries)
        model: str | None = None
        if texts is None:
            matrix = checked_queries(cast(npt.ArrayLike, queries))
        else:
            embedded = await self.embed(
                texts,
                prompt=await self._query_prompt(),
                class_=class_,
                tenant=tenant,
                timeout=seconds_left(terms.timeout_s, None, started),
                deadline=deadline,
            )
            matrix, model = embedded.to_float32(), embedded.model
        line = await self._line(SIMILARITY_QUEUE)
        search = _Search(line, terms, started, k, metric, names)
        return await search.run(collection, matrix, model)

    # ---- jobs that are asked for later ------------------------------------------------------------------------------

    async def submit(
        self,
        texts: Iterable[str],
        *,
        job_id: str | None = None,
        prompt: str | None = None,
        dtype: Dtype = "f32",
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = "end",
        class_: JobClass | None = None,
        tenant: str | None = None,
        deadline: Moment | None = None,
        result_ttl: Seconds | None = None,
        meta: Meta | None = None,
    ) -> AsyncJob:
        """Puts the texts on the queue and returns at once: ``job(id)`` finds them again, also in another process.
        The result is kept for ``result_ttl``, 24 hours unless it is named. The same id with the same texts and
        options is the same request. Options and errors are those of ``embed``."""
        check_texts("submit", texts)
        asked = [text_of(text, row) for row, text in enumerate(texts)]
        if not asked:
            raise ValueError("submit was given no texts")
        run = await self._embed_run(
            output=checked_output(prompt, dtype, dimensions, normalize),
            class_=class_ or "bulk",
            own_id=job_id,
            id_of=lambda id, first: id if len(asked) <= self._job_texts and first == 0 else f"{id}-{first}",
            truncate=truncate,
            tenant=tenant,
            timeout=None,
            deadline=deadline,
            result_ttl=SUBMITTED_TTL_MS / 1_000 if result_ttl is None else result_ttl,
            meta=meta,
        )
        jobs = [run.request(chunk) for chunk in chunks_of(asked, 0, self._job_texts, None)]
        await submit(run.line, run.terms.request_id, run.model, run.output.dtype, jobs, meta)
        return AsyncJob(Submitted(run.line, run.terms.request_id))

    async def job(self, id: str, *, tenant: str | None = None) -> AsyncJob:
        """What was submitted before, by its id, from any process and by any SDK. Raises JOB_INVALID for an id that
        cannot be; whether there is such a request ``status`` tells."""
        owner = self._tenant if tenant is None else tenant
        check_tenant(owner)
        check_job_id(f"{owner}~{id}")
        return AsyncJob(Submitted(await self._line(embed_queue(self._model.name)), f"{owner}~{id}"))

    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> dict[str, CancelOutcome]:
        """Takes requests back, whoever made them: those that wait have failed with CANCELLED when it returns, running
        ones are dropped by their workers in less than a batch. ``ids``: as ``job_id``; of requests that were cut into
        several jobs those of this client are found by cancelling their task alone."""
        if isinstance(ids, str):
            raise TypeError("cancel takes a list of ids and was given one; write [id]")
        owner = self._tenant if tenant is None else tenant
        check_tenant(owner)
        line = await self._line(embed_queue(self._model.name))
        outcomes = await line.cancel([f"{owner}~{id}" for id in ids])
        return dict(zip(ids, outcomes, strict=True))

    async def why_waiting(self) -> Waiting:
        """Why what is asked for has not come yet: one look at the queue of the client's model. Raises
        QUEUE_UNREACHABLE."""
        return await (await self._line(embed_queue(self._model.name))).why_waiting()

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _line(self, queue: str) -> QueueLine:
        if self._is_closed:
            raise ShoalError("INTERRUPTED", "the client was closed")
        opening = self._lines.get(queue)
        if opening is None:
            opening = asyncio.ensure_future(self._open_line(queue))
            self._lines[queue] = opening
        try:
            return await asyncio.shield(opening)
        except ShoalError:
            if self._lines.get(queue) is opening:
                del self._lines[queue]
            raise

    async def _open_line(self, queue: str) -> QueueLine:
        line = QueueLine(
            self._redis, self._url, Keys(self._prefix, queue), patience=self._patience, when_full=self._when_full
        )
        await line.open()
        return line

    def _terms(
        self,
        own_id: str | None,
        class_: JobClass | None,
        truncate: Truncate,
        tenant: str | None,
        timeout: Seconds | None,
        deadline: Moment | None,
        result_ttl: Seconds | None,
        meta: Meta | None = None,
    ) -> Terms:
        return checked_terms(
            tenant=self._tenant if tenant is None else tenant,
            request_id=str(uuid.uuid4()) if own_id is None else own_id,
            has_own_id=own_id is not None,
            class_=class_,
            truncate=truncate,
            deadline=deadline,
            timeout=timeout,
            result_ttl=result_ttl,
            meta=meta,
        )

    async def _embed_run(
        self,
        *,
        output: Output,
        class_: JobClass | None,
        own_id: str | None,
        id_of: Callable[[str, int], str],
        truncate: Truncate,
        tenant: str | None,
        timeout: Seconds | None,
        deadline: Moment | None,
        result_ttl: Seconds | None,
        meta: Meta | None,
    ) -> _Run:
        terms = self._terms(own_id, class_, truncate, tenant, timeout, deadline, result_ttl, meta)
        started = time.monotonic()
        queue = embed_queue(self._model.name)
        line = await self._line(queue)
        revision = await self._revision(self._model, queue, line)
        version = embed_version(terms, output)
        if output.prompt is not None or version == 2:
            _refuse_unserved(await line.server.workers(), output, version, self._model.name, queue)
        return _Run(
            line=line,
            model=self._model.with_revision(revision),
            terms=terms,
            output=output,
            id_of=id_of,
            window=self._max_in_flight_jobs,
            job_texts=self._job_texts,
            started=started,
            query=None,
            forget=lambda: self._revisions.pop(queue, None),
        )

    async def _blocks(
        self,
        opening: Awaitable[_Run],
        texts: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], str] | None,
        start_at: int,
        on_error: Literal["fail", "skip"],
    ) -> AsyncIterator[EmbeddedBlock[Item] | SkippedBlock[Item]]:
        run = await opening
        deliveries = run.deliveries(texts, text, start_at, is_skipping=on_error == "skip")
        async with contextlib.aclosing(cast(Any, deliveries)):
            async for chunk, delivery in deliveries:
                if isinstance(delivery, ShoalError):
                    yield SkippedBlock(chunk.first, chunk.items, delivery)
                else:
                    yield EmbeddedBlock(chunk.first, chunk.items, run.embeddings(delivery))

    async def _revision(self, model: ModelName, queue: str, line: QueueLine) -> str:
        """That of the workers, where none was named. Raises MODEL_UNKNOWN or NOT_SERVED."""
        if model.revision is not None:
            return model.revision
        telling = self._revisions.get(queue)
        if telling is None:
            telling = self._revisions[queue] = asyncio.ensure_future(self._told_revision(model, queue, line))
        try:
            return await asyncio.shield(telling)
        except ShoalError:
            if self._revisions.get(queue) is telling:
                del self._revisions[queue]  # a worker may come
            raise

    async def _told_revision(self, model: ModelName, queue: str, line: QueueLine) -> str:
        told = {str(worker.facts.get("model", "")) for worker in await line.server.workers()}
        if not told:
            told = {await line.server.last_model() or ""}
        start = f"{model.name}@"
        found = sorted(one[len(start) :] for one in told if one.startswith(start))
        if len(found) == 1:
            return found[0]
        waiting = await line.why_waiting()
        if waiting.reason == "not-served":
            raise ShoalError("NOT_SERVED", waiting.message, {"model": model.asked})
        what = f"workers serve {', '.join(found)}" if found else f"no worker serves {queue}, and none has left its name"
        raise ShoalError(
            "MODEL_UNKNOWN",
            f"the model {model.asked!r} is given without its revision, and {what}. Pass model='{model.name}@REVISION'; "
            "shoal model list shows it",
            {"model": model.asked, "revisions": found},
        )

    async def _query_prompt(self) -> str | None:
        """The name of the prompt for the query side of a search, where workers say that the model has one."""
        line = await self._line(embed_queue(self._model.name))
        told = [worker.facts.get("prompts") for worker in await line.server.workers() if not worker.is_drained]
        return "query" if any(isinstance(prompts, list) and "query" in prompts for prompts in told) else None


class AsyncJob:
    """A request that was submitted. ``id`` finds it again (``AsyncShoal.job``), also after a restart."""

    def __init__(self, submitted: Submitted) -> None:
        self._submitted = submitted
        self.tenant, _, self.id = submitted.request_id.partition("~")

    async def status(self) -> JobStatus:
        """One look. Raises QUEUE_UNREACHABLE."""
        return await self._submitted.status()

    async def result(self, *, timeout: Seconds | None = None) -> Embeddings:
        """The vectors, once all are computed. They stay on the queue server for their time to live: another process may
        fetch them as well. Raises the failure of the request, CANCELLED among them, RESULT_EXPIRED, RESULT_TAKEN,
        INPUT_LOST where there is no such request, DEADLINE_PASSED after ``timeout`` (the request goes on)."""
        limit = seconds("timeout", timeout)
        work = self._submitted.deliveries()
        record, found = await within(self._submitted.line, limit, None, time.monotonic(), work)
        return joined([embeddings_of(delivery, record.model) for delivery in found], record.dtype, record.model)

    async def cancel(self) -> CancelOutcome:
        """Takes it back. "asked": workers had jobs of it and were told. "cancelled": all that was left has failed with
        CANCELLED. "finished", "unknown": there is nothing to cancel."""
        return await self._submitted.cancel()

    async def release(self) -> None:
        """The vectors are safe elsewhere: frees their memory on the queue server. The request is unknown afterwards."""
        await self._submitted.release()


@dataclass(frozen=True, slots=True)
class _Run:
    """One call that asks for a row of each of its texts: vectors, or the scores of a query with them."""

    line: QueueLine
    model: str
    terms: Terms
    output: Output
    id_of: Callable[[str, int], str]
    window: int
    job_texts: int
    started: float
    query: str | None
    forget: Callable[[], object]

    @property
    def limits(self) -> tuple[float | None, int | None, float]:
        return self.terms.timeout_s, self.terms.deadline_ms, self.started

    def request(self, chunk: Chunk[Any]) -> NewJob:
        tenant, _, id = self.terms.request_id.partition("~")
        job_id = f"{tenant}~{self.id_of(id, chunk.first)}"
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
    ) -> AsyncIterator[tuple[Chunk[Item], Delivery]]: ...
    @overload
    def deliveries(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], Any] | None,
        first: int,
        *,
        is_skipping: bool,
    ) -> AsyncIterator[tuple[Chunk[Item], Delivery | ShoalError]]: ...
    async def deliveries(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        text: Callable[[Item], Any] | None,
        first: int,
        *,
        is_skipping: bool = False,
    ) -> AsyncIterator[tuple[Chunk[Item], Any]]:
        """Results in input order, and a failure in the place of one where it is to be skipped. At most ``window`` jobs
        are under way; the input is read as far ahead as these need. What is open when the caller leaves is taken back.
        """
        ahead: deque[tuple[Chunk[Item], asyncio.Task[Delivery]]] = deque()
        reader = _Reader(items, Cutter(first, self.job_texts, text))
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

    def __init__(self, items: Iterable[Item] | AsyncIterable[Item], cutter: Cutter[Item]) -> None:
        self._chunks = _chunks(items, cutter)
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


async def _chunks(items: Iterable[Item] | AsyncIterable[Item], cutter: Cutter[Item]) -> Any:
    if isinstance(items, AsyncIterable):
        async for item in items:
            chunk = cutter.add(item)
            if chunk is not None:
                yield chunk
    else:
        for item in items:
            chunk = cutter.add(item)
            if chunk is not None:
                yield chunk
    chunk = cutter.rest()
    if chunk is not None:
        yield chunk


@dataclass(frozen=True, slots=True)
class _Search:
    """One question to a collection, in jobs of 64 queries. Where the newest version is asked for, the first job finds
    out which that is, and the others ask for the same one."""

    line: QueueLine
    terms: Terms
    started: float
    k: int
    metric: Metric
    names: bool

    async def run(self, collection: str, queries: Floats, model: str | None) -> SearchResult:
        is_newest = "@" not in collection
        firsts = list(range(0, len(queries), QUERIES_PER_JOB))
        head = firsts[:1] if is_newest else firsts
        rankings, told = await self._ask(collection, queries, head)
        searched = _searched(collection, told, model)
        if len(head) < len(firsts):
            if "@" not in searched[0]:
                raise ShoalError(
                    "COLLECTION_GONE",
                    f"the first queries were answered and nobody tells any more from which version of {collection}; "
                    "ask again, or for one version",
                )
            more, more_told = await self._ask(searched[0], queries, firsts[1:])
            rankings, told = [*rankings, *more], [*told, *more_told]
            searched = _searched(collection, told, model)
        return SearchResult(tuple(rankings), *searched)

    async def _ask(
        self, collection: str, queries: Floats, firsts: Sequence[int]
    ) -> tuple[list[Ranking], list[Mapping[str, Any]]]:
        id = self.terms.request_id
        jobs = [
            topk_job(
                id if first == 0 else f"{id}-{first}",
                collection,
                queries[first : first + QUERIES_PER_JOB],
                k=self.k,
                metric=self.metric,
                names=self.names,
                terms=self.terms,
                reply=self.line.reply_channel,
            )
            for first in firsts
        ]
        limits = (self.terms.timeout_s, self.terms.deadline_ms, self.started)
        tasks = [asyncio.ensure_future(self.line.ask(job)) for job in jobs]
        try:
            deliveries = await within(self.line, *limits, _all_of(tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        rankings = [
            Ranking(raw.ids, raw.scores, raw.names if not self.names or raw.names is not None else ())
            for delivery in deliveries
            for raw in decode_rankings(delivery.header, delivery.body)
        ]
        job_ids = [job.job_id for job in jobs]
        told: list[Mapping[str, Any]] = [value or {} for value in await self.line.server.return_values(job_ids)]
        self.line.release(job_ids)
        return rankings, told


async def _all_of(tasks: Sequence[asyncio.Task[Value]]) -> list[Value]:
    return list(await asyncio.gather(*tasks))


def _searched(asked: str, told: Sequence[Mapping[str, Any]], model: str | None) -> tuple[str, str | None]:
    """What was searched and what made its rows. Raises COLLECTION_GONE or COLLECTION_MODEL_MISMATCH."""
    collections = sorted({str(one["collection"]) for one in told if "collection" in one})
    if len(collections) > 1:
        raise ShoalError(
            "COLLECTION_GONE",
            f"{asked} became another version while the call went on: its jobs were answered from "
            f"{' and '.join(collections)}; ask again, or for one version",
        )
    collection = collections[0] if collections else asked
    models = [str(one["model"]) for one in told if isinstance(one.get("model"), str)]
    strangers = [one for one in models if not _is_same_model(one, models[0] if model is None else model)]
    if strangers:
        by = f"the texts were embedded by {model}" if model is not None else f"some rows come from {models[0]}"
        raise ShoalError(
            "COLLECTION_MODEL_MISMATCH",
            f"{by}, and rows of {collection} by {strangers[0]}: vectors of two models cannot be compared. Ask with "
            f"{strangers[0]}, or build the collection again; queries that are vectors are compared as they are",
            {"collection": collection, "collectionModel": strangers[0], "model": model},
        )
    return collection, models[0] if models and len(models) == len(told) else None


def _is_same_model(a: str, b: str) -> bool:
    """A name without a revision is the model of any."""
    name_a, _, revision_a = ModelName.of(a).name, "", ModelName.of(a).revision
    name_b, _, revision_b = ModelName.of(b).name, "", ModelName.of(b).revision
    return name_a == name_b and (revision_a is None or revision_b is None or revision_a == revision_b)


def _refuse_unserved(
    workers: Sequence[Worker], output: Output, version: Literal[1, 2], model: str, queue: str
) -> None:
    """What workers would have to refuse is refused before anything is added, as far as they tell."""
    claiming = [worker for worker in workers if not worker.is_drained]
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


def texts_in(queries: object) -> list[str] | None:
    """Queries that are texts; None where they are numbers."""
    if isinstance(queries, np.ndarray) and queries.dtype.kind not in "OUT":
        return None
    given = list(cast(Iterable[Any], queries))
    if given and not isinstance(given[0], str) and not hasattr(given[0], "as_py"):
        return None
    return [text_of(text, row) for row, text in enumerate(given)]
