"""The options of calls, once for both clients: what may be given by keyword, and its types. What each means is said where
the call is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from ._formats import Dtype
    from ._requests import JobClass, Meta, Metric, Moment, Seconds, Trace, Truncate


class Terms(TypedDict, total=False):
    """Of every call."""

    class_: JobClass | None
    tenant: str | None
    deadline: Moment | None
    meta: Meta | None
    trace: Trace | None


class RequestTerms(Terms, total=False):
    """Of calls that a model answers."""

    truncate: Truncate
    result_ttl: Seconds | None


class VectorTerms(RequestTerms, total=False):
    """Of calls for vectors."""

    prompt: str | None
    dtype: Dtype
    dimensions: int | None
    normalize: bool | None


class SubmitOptions(VectorTerms, total=False):
    job_id: str | None


class EmbedOptions(SubmitOptions, total=False):
    timeout: Seconds | None


class StreamOptions(VectorTerms, total=False):
    timeout: Seconds | None
    run_id: str | None
    start_at: int


class RerankOptions(RequestTerms, total=False):
    timeout: Seconds | None
    job_id: str | None
    model: str | None
    top_n: int | None


class SubmitRerankOptions(RequestTerms, total=False):
    job_id: str | None
    model: str | None


class QuestionOptions(Terms, total=False):
    """Of questions about similarity."""

    timeout: Seconds | None
    job_id: str | None


class CosineOptions(QuestionOptions, total=False):
    metric: Metric


class RankingOptions(CosineOptions, total=False):
    k: int
    names: bool


class SpreadOptions(QuestionOptions, total=False):
    k: int
    steps: int
    decay: float
    threshold: float


def refuse_unknown(call: str, options: Mapping[str, Any], known: Any) -> None:
    """Raises TypeError for an option that there is not, as a call does. ``known``: one of the classes above."""
    names = known.__optional_keys__
    for name in options:
        if name not in names:
            there = ", ".join(sorted(names))
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}; there are {there}")
