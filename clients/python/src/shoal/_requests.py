"""Options of calls, checked, and the jobs that are made of them. Nothing here speaks to a server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

from ._formats import (
    MAX_ROWS_PER_JOB,
    ROWS_EVERY_WORKER_TAKES,
    Dtype,
    encode_query_texts,
    encode_texts,
    fingerprint_of,
    well_formed,
)
from ._keys import check_job_id, stored_name, utf16_length
from ._server import NewJob
from .errors import ShoalError

Item = TypeVar("Item")
JobClass = Literal["interactive", "bulk"]
Truncate = Literal["end", "error"]
Metric = Literal["cosine", "dot", "l2"]
Meta = Mapping[str, Any]
Trace = Mapping[Literal["requestId", "traceparent", "tracestate"], str]
Seconds = float | timedelta
Moment = datetime | float

SUBMITTED_TTL_MS: Final = 86_400_000
_INTERACTIVE_TEXTS: Final = 8
_INTERACTIVE_DOCUMENTS: Final = 64
_MOST_INLINE_BYTES: Final = 4_096
# UTF-16 units: a job is closed early rather than grow beyond them; one longer text makes a job of its own.
_MOST_JOB_UNITS: Final = 1 << 20
_DIMENSION_BYTES: Final[dict[str, float]] = {"f32": 4, "f16": 2, "i8": 1, "binary": 0.125}
_MOST_META_BYTES: Final = 2_048
_TRACE: Final = {
    "requestId": r"[A-Za-z0-9_.:@/+=-]{1,128}",
    "traceparent": r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}",
    "tracestate": r"[ -~]{1,512}",
}
_LONGEST_TTL_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class ModelName:
    """As it was asked for, and as the store calls it."""

    asked: str
    name: str
    revision: str | None

    @staticmethod
    def of(text: object) -> ModelName:
        if not isinstance(text, str) or text == "" or text.count("@") > 1 or text.startswith("@") or text.endswith("@"):
            raise TypeError(f"model is {text!r}; it is a name, 'minilm', or name and revision, 'minilm@53aa51172d14'")
        name, _, revision = text.partition("@")
        if "/" in name and revision:
            raise TypeError(
                f"model is {text!r}, with a revision of the hub, which workers do not know; pass {name!r} alone"
            )
        return ModelName(name, stored_name(name), revision or None)

    def with_revision(self, revision: str) -> str:
        return f"{self.name}@{revision}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What all jobs of one call have in common."""

    tenant: str
    request_id: str
    has_own_id: bool
    class_: JobClass | None
    truncate: Truncate
    deadline_ms: int | None
    timeout_s: float | None
    result_ttl_ms: int | None
    meta: Meta | None
    trace: Trace | None


@dataclass(frozen=True, slots=True)
class Output:
    """Which vectors a call asks for."""

    prompt: str | None
    dtype: Dtype
    dimensions: int | None
    normalize: bool | None

    @property
    def version(self) -> Literal[1, 2]:
        """Of jobs; 2 for what workers of 0.1.0 do not know."""
        return 2 if self.prompt not in (None, "query", "passage") or self.normalize is not None else 1


def checked_terms(
    *,
    tenant: str,
    request_id: str,
    has_own_id: bool,
    class_: JobClass | None,
    truncate: Truncate,
    deadline: Moment | None,
    timeout: Seconds | None,
    result_ttl: Seconds | None,
    meta: Meta | None,
    trace: Trace | None = None,
) -> Terms:
    """Raises ValueError for a value that cannot be."""
    check_tenant(tenant)
    _one_of("class_", class_, (None, "interactive", "bulk"))
    _one_of("truncate", truncate, ("end", "error"))
    ttl = seconds("result_ttl", result_ttl)
    if ttl is not None and not 1 <= ttl <= _LONGEST_TTL_S:
        raise ValueError(f"result_ttl is {result_ttl!r}; a result is kept for 1 second to 30 days")
    return Terms(
        tenant=tenant,
        request_id=f"{tenant}~{request_id}",
        has_own_id=has_own_id,
        class_=class_,
        truncate=truncate,
        deadline_ms=None if deadline is None else _epoch_ms(deadline),
        timeout_s=seconds("timeout", timeout),
        result_ttl_ms=None if ttl is None else round(ttl * 1_000),
        meta=_checked_meta(meta),
        trace=_checked_trace(trace),
    )


def checked_output(options: Mapping[str, Any]) -> Output:
    """Of the options of a call for vectors. Raises ValueError for a value that cannot be."""
    prompt, dimensions = options.get("prompt"), options.get("dimensions")
    dtype, normalize = options.get("dtype", "f32"), options.get("normalize")
    _one_of("dtype", dtype, ("f32", "f16", "i8", "binary"))
    _one_of("normalize", normalize, (None, True, False))
    if prompt is not None and not (isinstance(prompt, str) and 1 <= len(prompt) <= 128):
        raise ValueError(f"prompt is {prompt!r}; it is the name of one of the model's prompts, or 'none'")
    if dimensions is not None and not (isinstance(dimensions, int) and 1 <= dimensions <= 65_536):
        raise ValueError(f"dimensions is {dimensions!r}; it is a whole number from 1 to 65536")
    return Output(prompt, dtype, dimensions, normalize)


def _checked_meta(meta: Meta | None) -> Meta | None:
    if meta is None:
        return None
    try:
        found = len(json.dumps(meta, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"meta has what JSON cannot carry: {error}") from None
    if not isinstance(meta, Mapping) or found > _MOST_META_BYTES:
        raise ValueError(f"meta has {found} bytes as JSON; it is a mapping of at most {_MOST_META_BYTES}")
    return dict(meta)


def _checked_trace(trace: Trace | None) -> Trace | None:
    if trace is None:
        return None
    for name, value in trace.items():
        if name not in _TRACE or not isinstance(value, str) or re.fullmatch(_TRACE[name], value) is None:
            raise ValueError(
                f"trace has {name!r}: {value!r:.80}; it has requestId, up to 128 of A-Z a-z 0-9 _ . : @ / + = -, and W3C's "
                "traceparent and tracestate"
            )
    return dict(trace)


def check_tenant(tenant: object) -> None:
    if not isinstance(tenant, str) or not 1 <= len(tenant) <= 128 or ":" in tenant or "~" in tenant:
        raise ValueError(
            f"tenant is {tenant!r}; it is part of every job id, so it has 1 to 128 characters without ':' and '~'"
        )


def _one_of(name: str, value: object, known: Sequence[object]) -> None:
    if not any(value is one or (isinstance(value, str) and value == one) for one in known):
        raise ValueError(f"{name} is {value!r}; there are {', '.join(map(repr, known))}")


def seconds(name: str, value: Seconds | None) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"{name} is {value!r}; it is a number of seconds above 0, or a timedelta")
    return float(seconds)


def _epoch_ms(moment: Moment) -> int:
    epoch = moment.timestamp() if isinstance(moment, datetime) else moment
    if isinstance(epoch, bool) or not isinstance(epoch, (int, float)) or not 0 < epoch < 1e11:
        raise ValueError(f"deadline is {moment!r}; it is a datetime, or seconds since 1970 as time.time() gives them")
    return int(epoch * 1_000)


# ---- texts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Item]):
    """Texts of one job, and what they were taken from."""

    first: int
    items: tuple[Item, ...]
    texts: tuple[str, ...]
    # So many texts it could have.
    most: int


class Cutter(Generic[Item]):
    """Cuts items into chunks. Where it cuts depends on texts and settings alone, never on time, so that a run that is
    started again asks for the very same jobs. Chunks of more than 256 texts depend on what workers take as well
    (``most`` is set before each), and their jobs have other names than smaller ones."""

    def __init__(self, first: int, job_texts: int, text: Callable[[Item], Any] | None) -> None:
        self.most = job_texts
        self._first = first
        self._text = text
        self._items: list[Item] = []
        self._texts: list[str] = []
        self._units = 0

    def add(self, item: Item) -> Chunk[Item] | None:
        """The chunk that this item is behind, if it closes one. Raises INPUT_INVALID for what is no text."""
        text = text_of(item if self._text is None else self._text(item), self._first + len(self._items))
        units = utf16_length(text)
        is_full = len(self._items) >= self.most or self._units + units > _MOST_JOB_UNITS
        closed = self.rest() if self._items and is_full else None
        self._items.append(item)
        self._texts.append(text)
        self._units += units
        return closed

    def rest(self) -> Chunk[Item] | None:
        """What has not been handed out."""
        if not self._items:
            return None
        chunk = Chunk(self._first, tuple(self._items), tuple(self._texts), self.most)
        self._first += len(self._items)
        self._items, self._texts, self._units = [], [], 0
        return chunk


def chunks_of(
    items: Iterable[Item], first: int, size: int | Callable[[], int], text: Callable[[Item], Any] | None
) -> Iterator[Chunk[Item]]:
    """``size``: texts of each chunk, or what is asked before each."""
    cutter: Cutter[Item] | None = None
    for item in items:
        if cutter is None:
            cutter = Cutter(first, size if isinstance(size, int) else size(), text)
        chunk = cutter.add(item)
        if chunk is not None:
            cutter.most = size if isinstance(size, int) else size()
            yield chunk
    if cutter is None:
        return
    chunk = cutter.rest()
    if chunk is not None:
        yield chunk


def piece_name(first: int, most: int) -> str:
    """What a chunk adds to the name of its call. Larger ones are called otherwise: the same call may be cut smaller
    another time, and one name must not stand for two inputs."""
    return f"{first}" if most <= ROWS_EVERY_WORKER_TAKES else f"{first}x{most}"


def text_of(value: Any, row: int) -> str:
    """A string, or a scalar of pyarrow that holds one; halves of surrogate pairs become U+FFFD."""
    if not isinstance(value, str) and hasattr(value, "as_py"):
        value = value.as_py()
    if isinstance(value, str):
        return well_formed(str(value))
    raise ShoalError("INPUT_INVALID", f"row {row} has no text: expected a string, found {value!r:.80}", {"row": row})


def check_texts(call: str, texts: object) -> None:
    """A string is iterable as well: its letters would be embedded one by one."""
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{call} takes a list or another iterable of texts and was given one text; write [text]")


# ---- jobs ---------------------------------------------------------------------------------------------------------


def class_for(texts: int, kind: Literal["texts", "documents"] = "texts") -> JobClass:
    """Whoever asks for so few waits for them, unless they say otherwise."""
    return "interactive" if texts <= (_INTERACTIVE_TEXTS if kind == "texts" else _INTERACTIVE_DOCUMENTS) else "bulk"


def terms_version(terms: Terms) -> Literal[1, 2]:
    """Of jobs; 2 for fields that workers of 0.1.0 do not know."""
    return 1 if terms.meta is None and terms.trace is None else 2


def embed_version(terms: Terms, output: Output, rows: int = 1) -> Literal[1, 2]:
    return max(terms_version(terms), output.version, 1 if rows <= ROWS_EVERY_WORKER_TAKES else 2)


def embed_job(
    job_id: str, texts: Sequence[str], *, model: str, terms: Terms, output: Output, reply: str
) -> NewJob:
    """``texts``: 1 to 1,024, well-formed. ``model``: name@revision. Raises JOB_INVALID for an id that cannot be."""
    check_job_id(job_id)
    payload = encode_texts(texts)
    head: list[Any] = [model, output.prompt, terms.truncate, output.dtype, output.dimensions]
    fingerprint = fingerprint_of([*head, "normalize"] if output.normalize else head, payload)
    data = common_fields(terms, embed_version(terms, output, len(texts)), fingerprint, reply)
    if output.prompt is not None:
        data["prompt"] = output.prompt
    wanted: dict[str, Any] = {} if output.dtype == "f32" else {"dtype": output.dtype}
    if output.dimensions is not None:
        wanted["dimensions"] = output.dimensions
    if output.normalize is not None:
        wanted["normalize"] = output.normalize
    if wanted:
        data["output"] = wanted
    is_inline = len(payload) <= _MOST_INLINE_BYTES
    data.update({"texts": list(texts)} if is_inline else {"input": {"form": "texts", "rows": len(texts)}})
    return NewJob(
        job_id=job_id,
        name="embed",
        data=data,
        input=None if is_inline else payload,
        fingerprint=fingerprint,
        tenant=terms.tenant,
        is_interactive=(terms.class_ or class_for(len(texts))) == "interactive",
        rows=len(texts),
        payload_bytes=len(payload),
        dimension_bytes=_DIMENSION_BYTES[output.dtype],
        dimensions=output.dimensions or 0,
    )


def rerank_job(
    job_id: str, query: str, texts: Sequence[str], *, model: str, terms: Terms, reply: str
) -> NewJob:
    """As ``embed_job``, of pairs of the query with each text."""
    check_job_id(job_id)
    payload = encode_query_texts(query, texts)
    fingerprint = fingerprint_of(["rerank", model, terms.truncate], payload)
    data = common_fields(terms, 2, fingerprint, reply)
    is_inline = len(payload) <= _MOST_INLINE_BYTES
    if is_inline:
        data.update({"query": query, "texts": list(texts)})
    else:
        data["input"] = {"form": "texts", "rows": len(texts)}
    return NewJob(
        job_id=job_id,
        name="rerank",
        data=data,
        input=None if is_inline else payload,
        fingerprint=fingerprint,
        tenant=terms.tenant,
        is_interactive=(terms.class_ or class_for(len(texts))) == "interactive",
        rows=len(texts),
        payload_bytes=len(payload),
        dimension_bytes=4,
        dimensions=1,
    )


def common_fields(terms: Terms, version: int, fingerprint: str, reply: str) -> dict[str, Any]:
    data: dict[str, Any] = {"v": version, "fingerprint": fingerprint, "tenant": terms.tenant, "reply": reply}
    if terms.class_ is not None:
        data["class"] = terms.class_
    if terms.deadline_ms is not None:
        data["deadline"] = terms.deadline_ms
    if terms.result_ttl_ms is not None:
        data["resultTtlMs"] = terms.result_ttl_ms
    if terms.meta is not None:
        data["meta"] = terms.meta
    if terms.trace is not None:
        data["trace"] = terms.trace
    if terms.truncate == "error":
        data["truncate"] = "error"
    return data


def check_job_texts(job_texts: object) -> None:
    if not isinstance(job_texts, int) or not 1 <= job_texts <= MAX_ROWS_PER_JOB:
        raise ValueError(f"job_texts is {job_texts!r}; a job has 1 to {MAX_ROWS_PER_JOB} texts")


def seconds_left(timeout_s: float | None, deadline_ms: int | None, started: float) -> float | None:
    """Until a call is too late, by this machine's clock; None: never. ``started``: by ``time.monotonic``."""
    limits: list[float] = []
    if timeout_s is not None:
        limits.append(started + timeout_s - time.monotonic())
    if deadline_ms is not None:
        limits.append(deadline_ms / 1_000 - time.time())
    return min(limits, default=None)
