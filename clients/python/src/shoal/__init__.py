"""Embeds texts, reranks documents and searches collections through a Shoal queue, with NumPy arrays as results.

>>> from shoal import Shoal
>>> with Shoal("redis://localhost:6379", model="minilm") as shoal:
...     vectors = shoal.embed(["hello", "world"]).vectors  # 2 × 384 float32
"""

from ._formats import Dtype
from ._requests import JobClass, Meta, Metric, Moment, Seconds, Trace, Truncate
from ._results import (
    EmbeddedBlock,
    EmbeddedRow,
    Embeddings,
    JobState,
    JobStatus,
    Ranking,
    Reranked,
    Scores,
    SearchResult,
    SkippedBlock,
    SkippedRow,
)
from ._server import CancelOutcome
from ._waiting import Waiting
from .aio import AsyncJob, AsyncRerankJob, AsyncShoal
from .errors import ERROR_CODES, ErrorCode, ShoalError
from .sync import Job, RerankJob, Shoal

__version__ = "0.1.0"

__all__ = [
    "ERROR_CODES",
    "AsyncJob",
    "AsyncRerankJob",
    "AsyncShoal",
    "CancelOutcome",
    "Dtype",
    "EmbeddedBlock",
    "EmbeddedRow",
    "Embeddings",
    "ErrorCode",
    "Job",
    "JobClass",
    "JobState",
    "JobStatus",
    "Meta",
    "Metric",
    "Moment",
    "Ranking",
    "RerankJob",
    "Reranked",
    "Scores",
    "SearchResult",
    "Seconds",
    "Shoal",
    "ShoalError",
    "SkippedBlock",
    "SkippedRow",
    "Trace",
    "Truncate",
    "Waiting",
]
