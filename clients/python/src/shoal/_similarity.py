"""Questions about similarity: the jobs that ask them, and what comes back, read and put together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ._formats import (
    ROWS_EVERY_WORKER_TAKES,
    Floats,
    Ids,
    decode_rankings,
    decode_vectors,
    encode_compared,
    fingerprint_of,
)
from ._jobs import Delivery, QueueLine
from ._keys import check_job_id
from ._requests import Metric, ModelName, Terms, class_for, common_fields, terms_version, text_of
from ._results import Ranking
from ._runs import within
from ._server import NewJob
from .errors import ShoalError

Value = TypeVar("Value")
Answer = TypeVar("Answer")
Seed = int | tuple[int, float]

QUERIES_PER_JOB: Final = 64
# Columns that a matrix of scores is expected to have while nobody here knows its collection.
_UNKNOWN_COLUMNS: Final = 16_384
_MOST_K: Final = 1_000_000
_MOST_STEPS: Final = 64


@dataclass(frozen=True, slots=True)
class Question:
    """What all jobs of one call ask alike. ``collection``: None where vectors are compared with vectors."""

    kind: Literal["topk", "rescore", "cosine"]
    metric: Metric
    k: int | None = None
    names: bool = False
    candidates: Sequence[Ids] | None = None
    against: Floats | None = None

    def job(
        self, job_id: str, collection: str | None, queries: Floats, first: int, *, terms: Terms, reply: str
    ) -> NewJob:
        """``queries``: those of this job, the first of which is number ``first`` of the call."""
        rows, dims = queries.shape
        lists = None if self.candidates is None else self.candidates[first : first + rows]
        compared = encode_compared(queries, self.against, lists)
        size = rows if self.k is None else self.k
        head = [self.kind, collection, self.metric, size, *(["names"] if self.names else [])]
        data: dict[str, Any] = {"metric": self.metric, "queries": {"key": {"rows": rows, "dims": dims}}}
        if collection is not None:
            data["collection"] = collection
        if self.k is not None:
            data["k"] = self.k
        if self.names:
            data["names"] = True
        if self.against is not None:
            data["against"] = {"key": {"rows": len(self.against), "dims": dims}}
        if lists is not None:
            data["candidates"] = "key"
        columns = _UNKNOWN_COLUMNS if self.against is None else len(self.against)
        return _job(
            job_id,
            self.kind,
            data,
            fingerprint_of(head, compared),
            compared,
            rows=rows,
            values=columns if self.k is None else 1 + 3 * self.k,
            terms=terms,
            reply=reply,
        )


def spread_job(
    job_id: str, graph: str, seeds: Sequence[Sequence[Seed]], options: Mapping[str, Any], *, terms: Terms, reply: str
) -> NewJob:
    """``options``: k, steps, decay, threshold, all of them given."""
    sets = [[seed if isinstance(seed, int) else list(seed) for seed in one] for one in seeds]
    order = ("steps", "decay", "threshold", "k")
    line = _as_the_sdk_writes(["spread", graph, *(options[name] for name in order), sets])
    data = {"graph": graph, "seeds": sets, **options}
    return _job(
        job_id,
        "spread",
        data,
        fingerprint_of(line, b""),
        None,
        rows=len(sets),
        values=1 + 3 * int(options["k"]),
        terms=terms,
        reply=reply,
    )


def _job(
    job_id: str,
    name: str,
    own: Mapping[str, Any],
    fingerprint: str,
    compared: bytes | None,
    *,
    rows: int,
    values: int,
    terms: Terms,
    reply: str,
) -> NewJob:
    check_job_id(job_id)
    is_interactive = (terms.class_ or class_for(rows)) == "interactive"
    data = common_fields(terms, terms_version(terms), fingerprint, reply)
    data.update({"class": "interactive" if is_interactive else "bulk", **own})
    return NewJob(
        job_id=job_id,
        name=name,
        data=data,
        input=compared,
        fingerprint=fingerprint,
        tenant=terms.tenant,
        is_interactive=is_interactive,
        rows=rows,
        payload_bytes=len(json.dumps(data)) if compared is None else len(compared),
        dimension_bytes=4,
        dimensions=values,
    )


def _as_the_sdk_writes(value: Any) -> str:
    """JSON with numbers as JavaScript has them: 3.0 is 3, 1e-07 is 1e-7."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_as_the_sdk_writes(one) for one in value)}]"
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    digits, _, exponent = repr(value).partition("e")
    if exponent == "":
        return digits
    power = int(exponent)
    if -7 < power < 21:
        return format(Decimal(repr(value)), "f")
    return f"{digits}e{'+' if power > 0 else '-'}{abs(power)}"


# ---- asking -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asking(Generic[Answer]):
    """The jobs of one call, 64 rows each, and their answers in order."""

    line: QueueLine
    terms: Terms
    started: float
    read: Callable[[Delivery], Answer]

    async def of_collection(
        self, question: Question, collection: str, queries: Floats, model: str | None
    ) -> tuple[list[Answer], str, str | None]:
        """Answers, which version was searched and what made its rows. Where the newest version is asked for, the first
        job finds out which that is, and the others ask for the same one. ``model``: of texts among the queries."""
        firsts = list(range(0, len(queries), QUERIES_PER_JOB))
        head = firsts[:1] if "@" not in collection else firsts
        answers, told = await self._ask(question, collection, queries, head)
        searched = _searched(collection, told, model)
        if len(head) < len(firsts):
            if "@" not in searched[0]:
                raise ShoalError(
                    "COLLECTION_GONE",
                    f"the first queries were answered and nobody tells any more from which version of {collection}; "
                    "ask again, or for one version",
                )
            more, more_told = await self._ask(question, searched[0], queries, firsts[1:])
            answers, told = [*answers, *more], [*told, *more_told]
            searched = _searched(collection, told, model)
        return answers, *searched

    async def of_vectors(self, question: Question, queries: Floats) -> list[Answer]:
        firsts = list(range(0, len(queries), QUERIES_PER_JOB))
        return (await self._ask(question, None, queries, firsts))[0]

    async def of_graph(
        self, graph: str, seeds: Sequence[Sequence[Seed]], options: Mapping[str, Any]
    ) -> list[Answer]:
        jobs = [
            spread_job(
                self._id(first),
                graph,
                seeds[first : first + QUERIES_PER_JOB],
                options,
                terms=self.terms,
                reply=self.line.reply_channel,
            )
            for first in range(0, len(seeds), QUERIES_PER_JOB)
        ]
        return (await self._answers(jobs))[0]

    async def _ask(
        self, question: Question, collection: str | None, queries: Floats, firsts: Sequence[int]
    ) -> tuple[list[Answer], list[Mapping[str, Any]]]:
        reply = self.line.reply_channel
        return await self._answers(
            [
                question.job(
                    self._id(first),
                    collection,
                    queries[first : first + QUERIES_PER_JOB],
                    first,
                    terms=self.terms,
                    reply=reply,
                )
                for first in firsts
            ]
        )

    def _id(self, first: int) -> str:
        return self.terms.request_id if first == 0 else f"{self.terms.request_id}-{first}"

    async def _answers(self, jobs: Sequence[NewJob]) -> tuple[list[Answer], list[Mapping[str, Any]]]:
        limits = (self.terms.timeout_s, self.terms.deadline_ms, self.started)
        tasks = [asyncio.ensure_future(self.line.ask(job)) for job in jobs]
        try:
            deliveries = await within(self.line, *limits, _all_of(tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = [self.read(delivery) for delivery in deliveries]
        job_ids = [job.job_id for job in jobs]
        told: list[Mapping[str, Any]] = [value or {} for value in await self.line.server.return_values(job_ids)]
        self.line.release(job_ids)
        return answers, told


async def _all_of(tasks: Sequence[asyncio.Task[Value]]) -> list[Value]:
    return list(await asyncio.gather(*tasks))


def read_rankings(names: bool) -> Callable[[Delivery], list[Ranking]]:
    """``names``: whether they were asked for."""
    return lambda delivery: [
        Ranking(raw.ids, raw.scores, raw.names if not names or raw.names is not None else ())
        for raw in decode_rankings(delivery.header, delivery.body)
    ]


def read_scores(delivery: Delivery) -> Floats:
    """A copy: what the caller gets is theirs."""
    values, _ = decode_vectors(delivery.header, delivery.body)
    return values.astype(np.float32)


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
    one, other = ModelName.of(a), ModelName.of(b)
    return one.name == other.name and (
        one.revision is None or other.revision is None or one.revision == other.revision
    )


# ---- what is asked, checked ---------------------------------------------------------------------------------------


def checked_metric(metric: object) -> Metric:
    if metric not in ("cosine", "dot", "l2"):
        raise ValueError(f'metric is {metric!r}; there are "cosine", "dot" and "l2"')
    return metric


def check_k(k: object) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= _MOST_K:
        raise ValueError(f"k is {k!r}; it is a whole number from 1 to {_MOST_K}")


def checked_candidates(candidates: Sequence[Iterable[int]], queries: int) -> list[Ids]:
    """A list of row ids for each query. Raises SEARCH_INVALID."""
    lists: list[Ids] = []
    for at, ids in enumerate(candidates):
        try:
            values = [int(id) for id in ids]
            lists.append(np.array(values, dtype=np.uint64))
        except (TypeError, ValueError, OverflowError) as error:
            raise ShoalError("SEARCH_INVALID", f"candidates of query {at} are no row ids: {error}") from error
    if len(lists) != queries:
        raise ShoalError(
            "SEARCH_INVALID",
            f"there are {len(lists)} lists of candidates for {queries} queries; pass one for each query",
            {"candidates": len(lists), "queries": queries},
        )
    return lists


def checked_seeds(seeds: Sequence[Sequence[Any]]) -> list[list[Seed]]:
    """Sets of nodes, or of nodes with their activations. Raises ValueError."""
    sets: list[list[Seed]] = []
    for at, given in enumerate(seeds):
        if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
            raise ValueError(f"seeds[{at}] is {given!r}; it is a set of nodes, such as [7] or [(7, 0.5)]")
        sets.append([_seed(seed, f"seeds[{at}]") for seed in given])
    if not sets or any(not one for one in sets):
        raise ValueError("spread needs at least one set of seeds, and each at least one node")
    return sets


def _seed(seed: Any, place: str) -> Seed:
    node, activation = (seed, None) if isinstance(seed, (int, np.integer)) else (tuple(seed) + (None, None))[:2]
    if isinstance(node, bool) or not isinstance(node, (int, np.integer)) or node < 0:
        raise ValueError(f"{place} has {seed!r}; a seed is the number of a node, or (number, activation)")
    return int(node) if activation is None else (int(node), float(activation))


def checked_spread(k: int, steps: int, decay: float, threshold: float) -> dict[str, Any]:
    check_k(k)
    if not isinstance(steps, int) or not 1 <= steps <= _MOST_STEPS:
        raise ValueError(f"steps is {steps!r}; it is a whole number from 1 to {_MOST_STEPS}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay!r}; it is above 0 and at most 1")
    if not threshold >= 0:
        raise ValueError(f"threshold is {threshold!r}; it is 0 or more")
    return {"k": k, "steps": steps, "decay": float(decay), "threshold": float(threshold)}


def texts_in(queries: object) -> list[str] | None:
    """Queries that are texts; None where they are numbers."""
    if isinstance(queries, np.ndarray) and queries.dtype.kind not in "OUT":
        return None
    given = list(cast(Iterable[Any], queries))
    if given and not isinstance(given[0], str) and not hasattr(given[0], "as_py"):
        return None
    return [text_of(text, row) for row, text in enumerate(given)]
