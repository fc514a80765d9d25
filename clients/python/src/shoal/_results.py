"""What calls give: vectors, scores and rankings as NumPy arrays, with what is to be known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ._formats import Dtype, Floats, widen
from .errors import ShoalError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Vectors of texts, a row for each, in order. ``np.asarray(embeddings)`` is ``to_float32()``."""

    vectors: npt.NDArray[Any]
    """In the form that was asked for: rows × dims of float32 (``f32``), float16 (``f16``) or int8 (``i8``); of
    ``binary`` rows × ceil(dims / 8) of uint8, a bit a dimension, most significant first, set above zero."""
    scales: Floats | None
    """Of ``i8``: by what each row is multiplied, one float32 a row. Else None."""
    dims: int
    dtype: Dtype
    model: str
    """name@revision of what made them."""
    is_truncated: bool
    """Whether any text had more tokens than the model takes and was cut there."""
    is_simulated: bool
    """A simulated device gave (some of) the rows, for a trial; they are not those of the model."""

    def __len__(self) -> int:
        return len(self.vectors)

    def to_float32(self) -> Floats:
        """rows × dims of float32: f16 and i8 as they mean, of binary a set bit as 1 and a clear one as -1."""
        return self.vectors if self.dtype == "f32" else widen(self.dtype, self.dims, self.vectors, self.scales)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.to_float32()
        return array.copy() if copy and dtype is None else array.astype(dtype or np.float32, copy=bool(copy))


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedRow(Generic[Item]):
    """One row of ``embed_many``."""

    index: int
    """Of the item, over the whole input."""
    item: Item
    """What the input gave."""
    vector: npt.NDArray[Any]
    """dims values in the form that was asked for (see ``Embeddings.vectors``)."""
    scale: float | None
    """Of ``i8``: by what the values are multiplied."""


@dataclass(frozen=True, slots=True)
class SkippedRow(Generic[Item]):
    """A row whose job failed, where ``embed_many`` goes on after failures (``on_error="skip"``)."""

    index: int
    item: Item
    error: ShoalError


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedBlock(Generic[Item]):
    """Vectors of the texts of one job, in input order."""

    first: int
    """Index of the first row over the whole input."""
    items: Sequence[Item]
    """What the input gave, one a row."""
    embeddings: Embeddings

    def rows(self) -> Iterator[EmbeddedRow[Item]]:
        scales = self.embeddings.scales
        for at, item in enumerate(self.items):
            scale = None if scales is None else float(scales[at])
            yield EmbeddedRow(self.first + at, item, self.embeddings.vectors[at], scale)


@dataclass(frozen=True, slots=True)
class SkippedBlock(Generic[Item]):
    """Texts whose job failed, where the call goes on after failures (``on_error="skip"``)."""

    first: int
    items: Sequence[Item]
    error: ShoalError

    def rows(self) -> Iterator[SkippedRow[Item]]:
        for at, item in enumerate(self.items):
            yield SkippedRow(self.first + at, item, self.error)


JobState = Literal["waiting", "running", "completed", "failed", "cancelled", "expired", "unknown"]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Of a request that was submitted."""

    state: JobState
    """"expired": the result is not kept any more. "unknown": there is no such request."""
    rows: int
    rows_done: int
    """Of them computed."""
    error: ShoalError | None = None
    """Of a request that failed or was cancelled."""
    model: str | None = None
    """name@revision"""
    submitted_at: datetime | None = None
    meta: Mapping[str, Any] | None = None
    """As it was submitted."""


@dataclass(frozen=True, slots=True, eq=False)
class Reranked:
    """How well documents answer a query."""

    scores: Floats
    """One a document, in their order, best is largest. Scores of two models cannot be compared."""
    ranked: npt.NDArray[np.intp]
    """Indices of documents, best first, at most ``top_n`` of them."""
    model: str
    """name@revision"""
    is_truncated: bool
    is_simulated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The best rows of a collection for one query, best first."""

    ids: npt.NDArray[np.uint64]
    scores: Floats
    names: tuple[str, ...] | None
    """What the rows are called, "" where one has no name; None where nobody asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Every score of queries with what they were compared with. ``np.asarray(scores)`` is ``values``."""

    values: Floats
    """queries × rows of the collection, or of the other vectors."""
    collection: str | None
    """name@version that was searched; None where vectors were compared with vectors."""
    collection_model: str | None
    """name@revision of what made its rows, where that is known."""

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.values.astype(dtype or np.float32, copy=bool(copy))


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult(Sequence[Ranking]):
    """A ranking for each query, in order."""

    rankings: tuple[Ranking, ...]
    collection: str
    """name@version that was searched."""
    collection_model: str | None
    """name@revision of what made its rows; None where that is not known, so that nobody compared it with what embedded
    the queries."""

    def __len__(self) -> int:
        return len(self.rankings)

    @overload
    def __getitem__(self, at: int) -> Ranking: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Ranking]: ...
    def __getitem__(self, at: int | slice) -> Ranking | Sequence[Ranking]:
        return self.rankings[at]
