"""Every name that Shoal gives to something on the queue server, as docs/jobs.md has it, and which job ids are free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .errors import ShoalError

DEFAULT_PREFIX: Final = "{shoal}"
SIMILARITY_QUEUE: Final = "similarity"

_RESERVED: Final = frozenset(
    "wait paused active prioritized delayed completed failed waiting-children stalled stalled-check marker meta events "
    "limiter id pc repeat de metrics priority relay".split()
)
_MOST_ID_CHARACTERS: Final = 256


def stored_name(name: str) -> str:
    """What the store and the workers call a model: of ``ORG/NAME`` ``org--name``, of any other name the same."""
    return slug(name) if "/" in name and "@" not in name else name


def slug(name: str) -> str:
    """A model's name as it stands in the name of its queue; no revision."""
    bare = name.split("@", 1)[0].lower().replace("/", "--")
    return re.sub(r"[^a-z0-9-]", "-", bare)


def embed_queue(name: str) -> str:
    return f"embed-{slug(name)}"


def rerank_queue(name: str) -> str:
    return f"rerank-{slug(name)}"


def cpu_lane_of(queue: str) -> str:
    return f"{queue}-cpu"


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one main lane."""

    prefix: str
    queue: str

    def job(self, job_id: str, lane: str | None = None) -> str:
        return f"{self.prefix}:{lane or self.queue}:{job_id}"

    def input(self, job_id: str) -> str:
        return f"{self.prefix}:in:{self.queue}:{job_id}"

    def output(self, job_id: str) -> str:
        return f"{self.prefix}:out:{self.queue}:{job_id}"

    def staged(self, job_id: str, token: str) -> str:
        return f"{self.prefix}:staged:{self.queue}:{job_id}:{token}"

    def of_lane(self, kind: str, lane: str | None = None) -> str:
        """``kind``: workers, facts, drained, cancelled, cancelled-jobs, cancels, admitted, drain, door."""
        return f"{self.prefix}:{kind}:{lane or self.queue}"

    def request(self, request_id: str) -> str:
        return f"{self.prefix}:request:{self.queue}:{request_id}"

    @property
    def load(self) -> str:
        return f"{self.prefix}:load"

    def reply(self, name: str) -> str:
        return f"{self.prefix}:reply:{name}"


def check_job_id(job_id: str) -> None:
    """Raises JOB_INVALID for an id that BullMQ or the names of keys cannot carry."""
    is_free = job_id not in _RESERVED and ":" not in job_id and re.fullmatch(r"-?\d+", job_id) is None
    try:
        job_id.encode()
        is_text = True
    except UnicodeEncodeError:
        is_text = False
    if is_text and is_free and 1 <= utf16_length(job_id) <= _MOST_ID_CHARACTERS:
        return
    raise ShoalError(
        "JOB_INVALID",
        f"job id {job_id[:80]!r} cannot be used: choose 1 to 256 characters without ':' and without halves of "
        "surrogate pairs that are not a whole number or a name the queue keeps for itself, for example "
        "'docs-2026-11-21-0001'",
        {"jobId": job_id},
    )


def utf16_length(text: str) -> int:
    """Length as the SDK counts, so that both cut the same texts into the same jobs."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
