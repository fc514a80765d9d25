"""The one exception of Shoal, with the codes that workers, the SDK, the command and HTTP share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

ErrorCode = Literal[
    # verdicts about a job's input: asking again gives the same answer
    "JOB_INVALID",
    "JOB_VERSION_UNKNOWN",
    "JOB_ID_CONFLICT",
    "FINGERPRINT_MISMATCH",
    "TOKENIZER_MISMATCH",
    "INPUT_CORRUPT",
    "INPUT_TOO_LONG",
    "INPUT_LOST",
    "SOURCE_CHANGED",
    "RESULT_TOO_LARGE",
    "TEXTS_NOT_EMBEDDED",
    "DEADLINE_PASSED",
    "CANCELLED",
    "QUARANTINED",
    # the result
    "RESULT_EXPIRED",
    "RESULT_TAKEN",
    "RESULT_CORRUPT",
    "PAYLOAD_ELSEWHERE",
    "PAYLOAD_LOST",
    # the device and its process
    "OUT_OF_VRAM",
    "DEVICE_LOST",
    "EXECUTOR_LOST",
    "INFERENCE_FAILED",
    # the queue
    "LEASE_LOST",
    "QUEUE_UNREACHABLE",
    "CELL_UNKNOWN",
    "NOT_SERVED",
    "QUEUE_STUCK",
    "QUEUE_DAMAGED",
    "QUEUE_UNSAFE",
    "ADMISSION_REFUSED",
    "QUEUE_FULL",
    "QUEUE_REFUSES_WRITES",
    # similarity
    "COLLECTION_UNKNOWN",
    "COLLECTION_GONE",
    "COLLECTION_CORRUPT",
    "COLLECTION_EMPTY",
    "COLLECTION_MODEL_MISMATCH",
    "DIMENSIONS_MISMATCH",
    "VECTOR_INVALID",
    "SEARCH_INVALID",
    "GRAPH_INVALID",
    # models and set-up
    "MODEL_UNKNOWN",
    "MODEL_UNAVAILABLE",
    "MODEL_CORRUPT",
    "CANARY_FAILED",
    "SETUP_FAILED",
    "CONFIG_INVALID",
    # what a person handed over
    "USAGE",
    "FILE_UNREADABLE",
    "FILE_UNWRITABLE",
    "INPUT_INVALID",
    "INTERRUPTED",
]

ERROR_CODES: Final[frozenset[str]] = frozenset(get_args(ErrorCode))


class ShoalError(Exception):
    """What Shoal could not do. ``code`` is one of ``ErrorCode``; the message says what was asked, what was found and
    what to do; ``fields`` are the facts a program needs, by name (``jobId``, ``retryAfterMs``, …)."""

    code: ErrorCode
    fields: Mapping[str, Any]

    def __init__(self, code: ErrorCode, message: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.fields = dict(fields or {})

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __repr__(self) -> str:
        return f"ShoalError({self.code!r}, {self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShoalError, (self.code, self.message, dict(self.fields)))


def parse_failed_reason(reason: str) -> tuple[ErrorCode, str]:
    """Code and message of a failed job; what somebody else wrote there is INFERENCE_FAILED with its own text."""
    match = re.fullmatch(r"([A-Z_]+): (.*)", reason, re.DOTALL)
    if match is not None and match[1] in ERROR_CODES:
        return match[1], match[2]  # type: ignore[return-value]
    return "INFERENCE_FAILED", reason
