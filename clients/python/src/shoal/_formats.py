"""The binary forms of inputs (SHI1, SHQ1) and results (SHL1), and fingerprints, as docs/jobs.md has them.

Nothing here speaks to a server, and no length is trusted that was not checked.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from .errors import ShoalError

Dtype = Literal["f32", "f16", "i8", "binary"]
ResultDtype = Literal["f32", "f16", "i8", "binary", "ranking"]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]

HEADER_BYTES: Final = 32
MAX_ROWS_PER_JOB: Final = 1_024
# A worker that does not say more takes so many, and similarity jobs have no more.
ROWS_EVERY_WORKER_TAKES: Final = 256
_DTYPES: Final[tuple[ResultDtype, ...]] = ("f32", "f16", "i8", "binary", "ranking")
_FORM_TEXTS, _FORM_QUERY_TEXTS = 0, 3
_TAKEN, _TRUNCATED, _SIMULATED, _POINTER = 1, 2, 4, 8
# Sums of products of larger values would leave fp32.
_MAX_VALUE: Final = 1e16


def well_formed(text: str) -> str:
    """Halves of surrogate pairs become U+FFFD, as in every UTF-8 encoder and in the SDK."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_texts(texts: Sequence[str]) -> bytes:
    """SHI1 of 1 to 1,024 well-formed texts: form 0."""
    return _shi1(_FORM_TEXTS, len(texts), [text.encode() for text in texts])


def encode_query_texts(query: str, texts: Sequence[str]) -> bytes:
    """SHI1 of a rerank job with 1 to 1,024 texts: form 3."""
    return _shi1(_FORM_QUERY_TEXTS, len(texts), [query.encode(), *(text.encode() for text in texts)])


def _shi1(form: int, rows: int, parts: list[bytes]) -> bytes:
    offsets = np.zeros(len(parts) + 1, dtype="<u4")
    ends = np.cumsum([len(part) for part in parts], dtype=np.uint64)
    if ends[-1] > 0xFFFF_FFFF:
        raise ShoalError("JOB_INVALID", f"the texts of one job have {ends[-1]} bytes, above the 4 GiB of an input")
    offsets[1:] = ends
    return b"".join([b"SHI1", struct.pack("<BBHI", 1, form, 0, rows), offsets.tobytes(), *parts])


def encode_compared(
    queries: Floats, against: Floats | None = None, candidates: Sequence[Ids] | None = None
) -> bytes:
    """SHQ1 of queries, rows × dims, of the vectors that they are compared with, and of the row ids of each query."""
    matrices = [queries] if against is None else [queries, against]
    parts = [np.ascontiguousarray(matrix, dtype="<f4").tobytes() for matrix in matrices]
    for ids in candidates or ():
        parts += [struct.pack("<I", len(ids)), np.ascontiguousarray(ids, dtype="<u8").tobytes()]
    body = b"".join(parts)
    rows = sum(len(matrix) for matrix in matrices)
    return b"".join([b"SHQ1", struct.pack("<B3xIII4x", 1, rows, queries.shape[1], zlib.crc32(body)), body])


def fingerprint_of(head: Sequence[Any] | str, payload: bytes) -> str:
    """First 16 hex digits of sha256 over one line of JSON and the bytes of the input."""
    line = head if isinstance(head, str) else json.dumps(head, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(line.encode() + b"\n" + payload).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Header:
    dtype: ResultDtype
    rows: int
    dims: int
    crc32: int
    fingerprint: str
    flags: int

    @property
    def is_taken(self) -> bool:
        return bool(self.flags & _TAKEN)

    @property
    def is_truncated(self) -> bool:
        return bool(self.flags & _TRUNCATED)

    @property
    def is_simulated(self) -> bool:
        return bool(self.flags & _SIMULATED)


def decode_header(data: bytes) -> Header | None:
    """None where the bytes are no SHL1 header of version 1."""
    if len(data) < HEADER_BYTES or data[:4] != b"SHL1":
        return None
    version, dtype, flags, rows, dims, crc32 = struct.unpack_from("<BBHIII", data, 4)
    if version != 1 or dtype >= len(_DTYPES):
        return None
    return Header(_DTYPES[dtype], rows, dims, crc32, data[20:28].hex(), flags)


def open_result(data: bytes) -> tuple[Header, memoryview]:
    """Header and body of a whole result, form and checksum verified. Raises RESULT_TAKEN or RESULT_CORRUPT,
    and PAYLOAD_ELSEWHERE where the body lies on a payload server."""
    header = decode_header(data)
    if header is None:
        raise _corrupt(f"it does not begin with a SHL1 header ({len(data)} bytes)")
    if header.is_taken:
        raise ShoalError("RESULT_TAKEN", "the result was acknowledged before; ask for the job again to have it anew")
    if header.flags & _POINTER and header.flags <= (_TAKEN | _TRUNCATED | _SIMULATED | _POINTER):
        store = _pointed_store(data)
        raise ShoalError(
            "PAYLOAD_ELSEWHERE",
            f"the result lies on payload server {store}, which this client cannot ask; fetch it with the SDK or the "
            "command, with the setting payloadServers, or ask under another id",
            {"store": store},
        )
    if header.flags > (_TAKEN | _TRUNCATED | _SIMULATED) or any(data[28:HEADER_BYTES]):
        raise _corrupt(f"bytes that are zero in version 1 are not (flags {header.flags})")
    body = memoryview(data)[HEADER_BYTES:]
    if header.dtype != "ranking" and len(body) != body_bytes(header.dtype, header.rows, header.dims):
        raise _corrupt(f"its body has {len(body)} bytes, which are not {header.rows} × {header.dims} {header.dtype}")
    if zlib.crc32(body) != header.crc32:
        raise _corrupt("its checksum does not match")
    return header, body


def _pointed_store(data: bytes) -> str:
    """The name of the payload server that a pointer leads to. Raises RESULT_CORRUPT."""
    at = HEADER_BYTES + 12
    if len(data) < at or any(data[28:HEADER_BYTES]) or zlib.crc32(data[40:]) != struct.unpack_from("<I", data, 36)[0]:
        raise _corrupt("its pointer to a payload server is damaged")
    store_bytes, key_bytes = struct.unpack_from("<HH", data, 40)
    if store_bytes == 0 or key_bytes == 0 or len(data) != at + store_bytes + key_bytes:
        raise _corrupt("its pointer does not say where the body lies")
    return data[at : at + store_bytes].decode(errors="replace")


def body_bytes(dtype: Dtype, rows: int, dims: int) -> int:
    """Of the body of a result of vectors."""
    if dtype == "f32":
        return rows * dims * 4
    if dtype == "f16":
        return rows * dims * 2
    if dtype == "i8":
        return rows * dims + rows * 4
    return rows * -(-dims // 8)


def decode_vectors(header: Header, body: memoryview) -> tuple[npt.NDArray[Any], Floats | None]:
    """Rows as they are stored, read-only views of ``body``, and of i8 the number by which each row is multiplied.

    f32, f16, i8: rows × dims; binary: rows × ceil(dims / 8) bytes, most significant bit first.
    """
    rows, dims = header.rows, header.dims
    if header.dtype == "f32":
        return np.frombuffer(body, dtype="<f4").reshape(rows, dims), None
    if header.dtype == "f16":
        return np.frombuffer(body, dtype="<f2").reshape(rows, dims), None
    if header.dtype == "i8":
        values = np.frombuffer(body, dtype=np.int8, count=rows * dims).reshape(rows, dims)
        return values, np.frombuffer(body, dtype="<f4", offset=rows * dims)
    if header.dtype == "binary":
        return np.frombuffer(body, dtype=np.uint8).reshape(rows, -(-dims // 8)), None
    raise _corrupt("it holds a ranking where vectors were asked for")


def widen(dtype: Dtype, dims: int, values: npt.NDArray[Any], scales: Floats | None) -> Floats:
    """rows × dims as f32: f16 and i8 as they mean, of binary a set bit as 1 and a clear one as -1."""
    if dtype == "i8":
        assert scales is not None
        # in fp64 and rounded once, as the SDK does
        return (values.astype(np.float64) * scales.astype(np.float64)[:, None]).astype(np.float32)
    if dtype == "binary":
        bits = np.unpackbits(values, axis=1, count=dims)
        return bits.astype(np.float32) * 2 - 1
    return values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class RawRanking:
    ids: npt.NDArray[np.uint64]
    scores: Floats
    names: tuple[str, ...] | None


def decode_rankings(header: Header, body: memoryview) -> list[RawRanking]:
    """The best rows for each query, best first. Raises RESULT_CORRUPT."""
    if header.dtype != "ranking":
        raise _corrupt("it holds vectors where a ranking was asked for")
    at = 0
    lists: list[tuple[npt.NDArray[np.uint64], Floats]] = []
    for _ in range(header.rows):
        count = struct.unpack_from("<I", body, at)[0] if at + 4 <= len(body) else -1
        at += 4
        if not 0 <= count <= header.dims or at + 12 * count > len(body):
            raise _corrupt("it ends inside a ranking")
        ids = np.frombuffer(body, dtype="<u8", count=count, offset=at).astype(np.uint64)
        scores = np.frombuffer(body, dtype="<f4", count=count, offset=at + 8 * count).astype(np.float32)
        lists.append((ids, scores))
        at += 12 * count
    names = _names_in(body, at, sum(len(ids) for ids, _ in lists)) if at < len(body) else None
    rankings: list[RawRanking] = []
    first = 0
    for ids, scores in lists:
        own = None if names is None else tuple(names[first : first + len(ids)])
        rankings.append(RawRanking(ids, scores, own))
        first += len(ids)
    return rankings


def _names_in(body: memoryview, at: int, hits: int) -> list[str]:
    end = at + 4 * hits
    if end > len(body):
        raise _corrupt("it ends inside the names of rows")
    names: list[str] = []
    for length in struct.unpack_from(f"<{hits}I", body, at):
        try:
            names.append(bytes(body[end : end + length]).decode())
        except UnicodeDecodeError:
            raise _corrupt("the name of a row is not UTF-8") from None
        end += length
    if len(body) != (end + 3) // 4 * 4 or any(body[end:]):
        raise _corrupt("its names do not end where it ends")
    return names


def checked_queries(values: npt.ArrayLike) -> Floats:
    """Rows × dims of finite f32; one vector is one row. Raises VECTOR_INVALID or DIMENSIONS_MISMATCH."""
    try:
        matrix = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ShoalError("VECTOR_INVALID", f"queries are no matrix of numbers: {error}") from error
    if matrix.ndim == 1:
        matrix = matrix[None, :]
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise ShoalError(
            "DIMENSIONS_MISMATCH", f"queries have the shape {matrix.shape}; pass texts, one vector, or rows × dims"
        )
    wrong = np.argwhere(~(np.abs(matrix) <= _MAX_VALUE))
    if len(wrong) > 0:
        row, dim = wrong[0]
        raise ShoalError(
            "VECTOR_INVALID",
            f"row {row} of queries holds {matrix[row, dim]} at dimension {dim}; only numbers between ±1e16 can be "
            "compared",
        )
    return matrix


def _corrupt(found: str) -> ShoalError:
    return ShoalError("RESULT_CORRUPT", f"the result key is not a well-formed SHL1 result: {found}")
