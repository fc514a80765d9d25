"""The client for asyncio. What a call asks for is computed by workers; this process waits and checks."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt
from redis.asyncio import Redis

from ._address import open_redis
from ._formats import Floats, checked_queries, well_formed
from ._jobs import Delivery, Patience, QueueLine
from ._keys import DEFAULT_PREFIX, SIMILARITY_QUEUE, Keys, check_job_id, embed_queue, rerank_queue
from ._options import (
    CosineOptions,
    EmbedOptions,
    RankingOptions,
    RerankOptions,
    SpreadOptions,
    StreamOptions,
    SubmitOptions,
    SubmitRerankOptions,
    VectorTerms,
    refuse_unknown,
)
from ._requests import (
    SUBMITTED_TTL_MS,
    JobClass,
    ModelName,
    Output,
    Seconds,
    Terms,
    check_job_texts,
    check_tenant,
    check_texts,
    checked_output,
    checked_terms,
    class_for,
    embed_version,
    seconds,
    seconds_left,
    piece_name,
    text_of,
)
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
from ._runs import Run, embeddings_of, joined, readable, refuse_unserved, within
from ._server import CancelOutcome
from ._similarity import (
    Asking,
    Question,
    check_k,
    checked_candidates,
    checked_metric,
    checked_seeds,
    checked_spread,
    read_rankings,
    read_scores,
    texts_in,
)
from ._submitted import Submitted, submit
from ._waiting import Waiting
from .errors import ShoalError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Item = TypeVar("Item")
Answer = TypeVar("Answer")

DEFAULT_K: Final = 10


class AsyncShoal:
    """Embeds, reranks and searches through the queue, for asyncio. One for a program: any number of tasks share it.

    >>> async with AsyncShoal("redis://localhost:6379", model="minilm") as shoal:
    ...     vectors = (await shoal.embed(["hello", "world"])).vectors  # 2 × 384 float32

    ``url``: ``redis://``, ``rediss://`` or ``unix://``, ``redis+sentinel://host:port,host:port/master`` or
    ``redis+cluster://host:port,host:port``. ``model``: name in the store, ``ORG/NAME`` of the hub, or
    ``name@revision``; without a revision that of the workers that serve it. Also a reranker's name, where nothing is to
    be embedded. ``tenant``: goes before every job id and into every job. ``job_texts``: texts a job, 1 to 1,024;
    more than 256 only while all workers of the model take them, else 256.
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
        self._redis: Redis = open_redis(url, prefix)
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
        **options: Unpack[EmbedOptions],
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
        looks at the queue; needs workers later than 0.1.0. ``trace``: the request that the call is a part of
        (``requestId``, W3C's ``traceparent`` and ``tracestate``), which workers name where they log that a job failed;
        left out of jobs for older workers. ``job_id``: stable id of this request; asking again with the same id and
        texts never computes twice.

        Raises ``ShoalError``: the failure of a job (INPUT_TOO_LONG, QUARANTINED, …), INPUT_INVALID for what is no
        text, JOB_ID_CONFLICT, JOB_VERSION_UNKNOWN, MODEL_UNKNOWN where no worker tells the revision, NOT_SERVED,
        DEADLINE_PASSED, QUEUE_UNREACHABLE, QUEUE_FULL, QUEUE_REFUSES_WRITES, QUEUE_DAMAGED, ADMISSION_REFUSED,
        RESULT_EXPIRED, RESULT_TAKEN, RESULT_CORRUPT or INTERRUPTED. A cancelled task takes its jobs off the queue.
        """
        refuse_unknown("embed", options, EmbedOptions)
        check_texts("embed", texts)
        asked = [text_of(text, row) for row, text in enumerate(texts)]
        run = await self._embed_run(
            options,
            class_for(len(asked)),
            own_id=options.get("job_id"),
            id_of=_names(len(asked)),
        )
        parts = [run.embeddings(delivery) async for _, delivery in run.deliveries(asked, None, 0, count=len(asked))]
        return joined(parts, run.output.dtype, run.model)

    @overload
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail"] = "fail",
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncIterator[EmbeddedBlock[Item]]: ...
    @overload
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail", "skip"],
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncIterator[EmbeddedBlock[Item] | SkippedBlock[Item]]: ...
    def embed_stream(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        on_error: Literal["fail", "skip"] = "fail",
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
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
        refuse_unknown("embed_stream", options, StreamOptions)
        check_texts("embed_stream", texts)
        if on_error not in ("fail", "skip"):
            raise ValueError(f'on_error is {on_error!r}; there are "fail" and "skip"')
        opening = self._stream_run(options)
        return self._blocks(opening, texts, text, options.get("start_at", 0), on_error)

    def embed_many(
        self,
        texts: Iterable[Item] | AsyncIterable[Item],
        *,
        text: Callable[[Item], str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> AsyncIterator[EmbeddedRow[Item]]:
        """The same, row by row: ``async for row in shoal.embed_many(lines)`` gives ``row.index``, ``row.item``, what
        the input gave, and ``row.vector``. Options and errors are those of ``embed_stream``."""
        refuse_unknown("embed_many", options, StreamOptions)
        check_texts("embed_many", texts)
        return _rows_of(self.embed_stream(texts, text=text, **options))

    # ---- reranking and searching ----------------------------------------------------------------------------------

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        **options: Unpack[RerankOptions],
    ) -> Reranked:
        """How well each of the documents answers the query, by a reranker: scores in their order, and the best by
        index.

        ``model``: the reranker, "name" or "name@revision"; default: the client's model. ``top_n``: how many of the
        best are in ``ranked``. Other options and errors are those of ``embed``.
        """
        refuse_unknown("rerank", options, RerankOptions)
        top_n = _checked_top_n(options.get("top_n"))
        asked = _checked_documents("rerank", query, documents)
        terms = self._terms(options, class_for(len(asked), "documents"), options.get("job_id"))
        run = await self._rerank_run(
            query, options.get("model"), terms, id_of=lambda id, first, most: id if piece_name(first, most) == "0" else f"{id}-{piece_name(first, most)}"
        )
        parts = [run.embeddings(delivery) async for _, delivery in run.deliveries(asked, None, 0, count=len(asked))]
        return _reranked(joined(parts, "f32", run.model), top_n)

    async def submit_rerank(
        self,
        query: str,
        documents: Iterable[str],
        **options: Unpack[SubmitRerankOptions],
    ) -> AsyncRerankJob:
        """Puts the question on the queue of the reranker and returns at once, as ``submit`` does for texts:
        ``rerank_job(id)`` finds it again. ``model``: the reranker; default: the client's model. Options and errors are
        those of ``submit``."""
        refuse_unknown("submit_rerank", options, SubmitRerankOptions)
        asked = _checked_documents("submit_rerank", query, documents)
        if not asked:
            raise ValueError("submit_rerank was given no documents")
        kept: SubmitRerankOptions = {**options}
        if kept.get("result_ttl") is None:
            kept["result_ttl"] = SUBMITTED_TTL_MS / 1_000
        run = await self._rerank_run(
            query,
            options.get("model"),
            self._terms(kept, "bulk", options.get("job_id")),
            id_of=_names(len(asked)),
        )
        jobs = await run.requests(asked)
        await submit(
            run.line,
            run.terms.request_id,
            run.model,
            "f32",
            jobs,
            options.get("meta"),
            lambda parts: run.cut_as(asked, parts),
        )
        return AsyncRerankJob(Submitted(run.line, run.terms.request_id))

    async def rerank_job(self, id: str, *, model: str | None = None, tenant: str | None = None) -> AsyncRerankJob:
        """What was submitted to a reranker before, by its id, from any process and by any SDK. ``model``: the reranker;
        default: the client's model. Raises JOB_INVALID for an id that cannot be."""
        owner = self._tenant if tenant is None else tenant
        check_tenant(owner)
        check_job_id(f"{owner}~{id}")
        name = self._model if model is None else ModelName.of(model)
        return AsyncRerankJob(Submitted(await self._line(rerank_queue(name.name)), f"{owner}~{id}"))

    async def search(
        self,
        collection: str,
        queries: Iterable[str] | npt.ArrayLike,
        **options: Unpack[RankingOptions],
    ) -> SearchResult:
        """The k best rows of a collection ("docs@3", or "docs" for its newest version) for each query, best first, by
        exact search.

        ``queries``: texts, which this client's model embeds first (with its prompt "query" where it has one), or
        vectors, rows × dims or a single one. ``k``: 10 unless it is named. ``metric``: "cosine", "dot", or "l2", of
        which the smallest is best. ``names``: rankings have what their rows are called, as they do unless it is False.
        Other options are those of ``embed``. Also raises COLLECTION_MODEL_MISMATCH where texts and rows come from two
        models, COLLECTION_UNKNOWN, COLLECTION_GONE, COLLECTION_CORRUPT, COLLECTION_EMPTY, DIMENSIONS_MISMATCH,
        VECTOR_INVALID, RESULT_TOO_LARGE or OUT_OF_VRAM.
        """
        refuse_unknown("search", options, RankingOptions)
        return await self._rankings("search", collection, queries, None, options)

    async def rescore(
        self,
        collection: str,
        queries: Iterable[str] | npt.ArrayLike,
        candidates: Sequence[Iterable[int]],
        **options: Unpack[RankingOptions],
    ) -> SearchResult:
        """The same among chosen rows: ``candidates`` has a list of row ids for each query. Options and errors are those
        of ``search``, and SEARCH_INVALID for an id that is no row."""
        refuse_unknown("rescore", options, RankingOptions)
        return await self._rankings("rescore", collection, queries, candidates, options)

    async def cosine(
        self,
        queries: Iterable[str] | npt.ArrayLike,
        others: Iterable[str] | npt.ArrayLike | None = None,
        *,
        collection: str | None = None,
        **options: Unpack[CosineOptions],
    ) -> Scores:
        """Every score of the queries, against other texts or vectors, or against a ``collection``: queries × rows of
        float32. Options and errors are those of ``search``."""
        refuse_unknown("cosine", options, CosineOptions)
        if (others is None) == (collection is None):
            raise TypeError("cosine compares queries with others, texts or vectors, or with collection=NAME; give one")
        check_texts("cosine", queries)
        check_texts("cosine", others)
        metric = checked_metric(options.get("metric", "cosine"))
        terms, started = self._terms(options, None, options.get("job_id")), time.monotonic()
        matrix, model = await self._matrix(queries, terms, started)
        against = None if others is None else (await self._matrix(others, terms, started))[0]
        if against is not None and against.shape[1] != matrix.shape[1]:
            raise ShoalError(
                "DIMENSIONS_MISMATCH",
                f"queries have {matrix.shape[1]} dimensions, what they are compared with has {against.shape[1]}",
            )
        asking = await self._asking(terms, started, read_scores)
        question = Question("cosine", metric, against=against)
        if collection is None:
            return Scores(np.concatenate(await asking.of_vectors(question, matrix)), None, None)
        parts, searched, by = await asking.of_collection(question, collection, matrix, model)
        return Scores(np.concatenate(parts), searched, by)

    async def spread(
        self, graph: str, seeds: Sequence[Iterable[Any]], **options: Unpack[SpreadOptions]
    ) -> list[Ranking]:
        """The k nodes of a graph ("links") that activation spreading from each set of seeds reaches most, one ranking
        for each set. A seed is a node, or ``(node, activation)``.

        ``k``: 10 unless it is named. ``steps``: edges that activation goes along, 3. ``decay``: what is left of it
        after each edge of weight 1, 0.5. ``threshold``: nodes with less give nothing on, 0. Other options and errors
        are those of ``search``, and GRAPH_INVALID.
        """
        refuse_unknown("spread", options, SpreadOptions)
        sets = checked_seeds([list(one) for one in seeds])
        wanted = checked_spread(
            options.get("k", DEFAULT_K),
            options.get("steps", 3),
            options.get("decay", 0.5),
            options.get("threshold", 0.0),
        )
        terms, started = self._terms(options, None, options.get("job_id")), time.monotonic()
        asking = await self._asking(terms, started, read_rankings(False))
        return [ranking for part in await asking.of_graph(graph, sets, wanted) for ranking in part]

    # ---- jobs that are asked for later ------------------------------------------------------------------------------

    async def submit(
        self,
        texts: Iterable[str],
        **options: Unpack[SubmitOptions],
    ) -> AsyncJob:
        """Puts the texts on the queue and returns at once: ``job(id)`` finds them again, also in another process.
        The result is kept for ``result_ttl``, 24 hours unless it is named. The same id with the same texts and
        options is the same request. Options and errors are those of ``embed``."""
        refuse_unknown("submit", options, SubmitOptions)
        check_texts("submit", texts)
        asked = [text_of(text, row) for row, text in enumerate(texts)]
        if not asked:
            raise ValueError("submit was given no texts")
        kept: SubmitOptions = {**options}
        if kept.get("result_ttl") is None:
            kept["result_ttl"] = SUBMITTED_TTL_MS / 1_000
        run = await self._embed_run(
            kept,
            "bulk",
            own_id=options.get("job_id"),
            id_of=_names(len(asked)),
        )
        jobs = await run.requests(asked)
        await submit(
            run.line,
            run.terms.request_id,
            run.model,
            run.output.dtype,
            jobs,
            options.get("meta"),
            lambda parts: run.cut_as(asked, parts),
        )
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

    def _terms(self, options: Mapping[str, Any], kind: JobClass | None, own_id: str | None) -> Terms:
        """``kind``: the class where the options name none."""
        tenant = options.get("tenant")
        return checked_terms(
            tenant=self._tenant if tenant is None else tenant,
            request_id=str(uuid.uuid4()) if own_id is None else own_id,
            has_own_id=own_id is not None,
            class_=options.get("class_") or kind,
            truncate=options.get("truncate", "end"),
            deadline=options.get("deadline"),
            timeout=options.get("timeout"),
            result_ttl=options.get("result_ttl"),
            meta=options.get("meta"),
            trace=options.get("trace"),
        )

    def _stream_run(self, options: StreamOptions) -> Coroutine[Any, Any, Run]:
        """What cannot be is refused when it is called, and not when it is waited for."""
        checked_output(options)
        return self._embed_run(
            options, "bulk", own_id=options.get("run_id"), id_of=lambda id, first, most: f"{id}-{piece_name(first, most)}"
        )

    async def _embed_run(
        self,
        options: VectorTerms,
        kind: JobClass,
        *,
        own_id: str | None,
        id_of: Callable[[str, int, int], str],
    ) -> Run:
        output = checked_output(options)
        terms = self._terms(options, kind, own_id)
        started = time.monotonic()
        queue = embed_queue(self._model.name)
        line = await self._line(queue)
        revision = await self._revision(self._model, queue, line)
        if terms.trace is not None:
            terms = readable(terms, await line.server.workers())
        version = embed_version(terms, output)
        if output.prompt is not None or version == 2:
            refuse_unserved(await line.server.workers(), output, version, self._model.name, queue)
        return Run(
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

    async def _rerank_run(
        self, query: str, model: str | None, terms: Terms, *, id_of: Callable[[str, int, int], str]
    ) -> Run:
        name = self._model if model is None else ModelName.of(model)
        started = time.monotonic()
        queue = rerank_queue(name.name)
        line = await self._line(queue)
        revision = await self._revision(name, queue, line)
        return Run(
            line=line,
            model=name.with_revision(revision),
            terms=terms,
            output=Output(None, "f32", None, None),
            id_of=id_of,
            window=self._max_in_flight_jobs,
            job_texts=self._job_texts,
            started=started,
            query=well_formed(query),
            forget=lambda: self._revisions.pop(queue, None),
        )

    async def _rankings(
        self,
        call: str,
        collection: str,
        queries: Iterable[str] | npt.ArrayLike,
        candidates: Sequence[Iterable[int]] | None,
        options: RankingOptions,
    ) -> SearchResult:
        check_texts(call, queries)
        k, names = options.get("k", DEFAULT_K), options.get("names", True)
        check_k(k)
        metric = checked_metric(options.get("metric", "cosine"))
        terms, started = self._terms(options, None, options.get("job_id")), time.monotonic()
        matrix, model = await self._matrix(queries, terms, started)
        lists = None if candidates is None else checked_candidates(candidates, len(matrix))
        asking = await self._asking(terms, started, read_rankings(names))
        question = Question("topk" if lists is None else "rescore", metric, k=k, names=names, candidates=lists)
        parts, searched, by = await asking.of_collection(question, collection, matrix, model)
        return SearchResult(tuple(ranking for part in parts for ranking in part), searched, by)

    async def _asking(self, terms: Terms, started: float, read: Callable[[Delivery], Answer]) -> Asking[Answer]:
        """Raises JOB_VERSION_UNKNOWN where a worker is older than fields of one's own."""
        line = await self._line(SIMILARITY_QUEUE)
        if terms.meta is not None or terms.trace is not None:
            workers = await line.server.workers()
            if terms.meta is None:
                terms = readable(terms, workers)
            else:
                refuse_unserved(workers, Output(None, "f32", None, None), 2, SIMILARITY_QUEUE, SIMILARITY_QUEUE)
        return Asking(line, terms, started, read)

    async def _matrix(
        self, queries: Iterable[str] | npt.ArrayLike, terms: Terms, started: float
    ) -> tuple[Floats, str | None]:
        """Vectors as they are, or those of texts and the model that made them."""
        texts = texts_in(queries)
        if texts is None:
            return checked_queries(cast(npt.ArrayLike, queries)), None
        embedded = await self.embed(
            texts,
            prompt=await self._query_prompt(),
            class_=terms.class_,
            tenant=terms.tenant,
            timeout=seconds_left(terms.timeout_s, None, started),
            deadline=None if terms.deadline_ms is None else terms.deadline_ms / 1_000,
            meta=terms.meta,
            trace=terms.trace,
        )
        return embedded.to_float32(), embedded.model

    async def _blocks(
        self,
        opening: Awaitable[Run],
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


class _AsyncHandle:
    """What handles of every kind have: state, cancelling, releasing."""

    def __init__(self, submitted: Submitted) -> None:
        self._submitted = submitted
        self.tenant, _, self.id = submitted.request_id.partition("~")

    async def status(self) -> JobStatus:
        """One look. Raises QUEUE_UNREACHABLE."""
        return await self._submitted.status()

    async def _vectors(self, timeout: Seconds | None) -> Embeddings:
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


class AsyncJob(_AsyncHandle):
    """A request that was submitted. ``id`` finds it again (``AsyncShoal.job``), also after a restart."""

    async def result(self, *, timeout: Seconds | None = None) -> Embeddings:
        """The vectors, once all are computed. They stay on the queue server for their time to live: another process may
        fetch them as well. Raises the failure of the request, CANCELLED among them, RESULT_EXPIRED, RESULT_TAKEN,
        INPUT_LOST where there is no such request, DEADLINE_PASSED after ``timeout`` (the request goes on)."""
        return await self._vectors(timeout)


class AsyncRerankJob(_AsyncHandle):
    """A question to a reranker that was submitted. ``id`` finds it again (``AsyncShoal.rerank_job``)."""

    async def result(self, *, top_n: int | None = None, timeout: Seconds | None = None) -> Reranked:
        """The scores, once all are computed, and the best ``top_n`` by index. As ``AsyncJob.result`` otherwise."""
        return _reranked(await self._vectors(timeout), _checked_top_n(top_n))


def _names(texts: int) -> Callable[[str, int, int], str]:
    """Of the jobs of texts that are all there: few texts, but long ones, are several jobs as well."""
    return lambda id, first, most: id if first == 0 and texts <= most else f"{id}-{piece_name(first, most)}"


def _checked_documents(call: str, query: str, documents: Iterable[str]) -> list[str]:
    check_texts(call, documents)
    if not isinstance(query, str):
        raise TypeError(f"{call} needs query, the text that documents are weighed against; found {query!r:.80}")
    return [text_of(document, row) for row, document in enumerate(documents)]


def _checked_top_n(top_n: int | None) -> int | None:
    if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1):
        raise ValueError(f"top_n is {top_n!r}; it is a whole number from 1")
    return top_n


def _reranked(found: Embeddings, top_n: int | None) -> Reranked:
    if len(found) > 0 and found.dims != 1:
        raise ShoalError("RESULT_CORRUPT", f"{found.model} gave {found.dims} values for a document; a score is one")
    scores = found.vectors.reshape(-1)
    ranked = np.argsort(-scores, kind="stable")[:top_n]
    return Reranked(scores, ranked, found.model, found.is_truncated, found.is_simulated)


async def _rows_of(blocks: AsyncIterator[EmbeddedBlock[Item]]) -> AsyncIterator[EmbeddedRow[Item]]:
    async with contextlib.aclosing(cast(Any, blocks)):
        async for block in blocks:
            for row in block.rows():
                yield row
