// SHL1, the binary form of a result at {shoal}:out:<main queue>:<jobId>: the header of result-header.ts, then the rows.
// f32 and f16: rows × dims values; i8: rows × dims bytes, then one f32 scale per row (value = byte × scale); binary: one
// bit per dimension, most significant first, each row padded to whole bytes. ranking, of a similarity job: per query u32
// n, n × u64 row id, n × f32 score, best first; dims is the k that was asked for.

import { isUtf8 } from 'node:buffer';
import { crc32 } from 'node:zlib';
import { invariant } from './invariant.ts';
import type { OutputDtype } from './embed-job.ts';
import {
  BODY_FLAGS,
  RESULT_DTYPES,
  RESULT_FLAG,
  RESULT_HEADER_BYTES,
  RESULT_MAGIC,
  corruptResult,
  decodeResultHeader,
  type ResultHeader,
} from './result-header.ts';
import { decodePointer, elsewhere, takenResult } from './result-pointer.ts';

/** The best rows for one query, best first. */
export interface Ranking {
  readonly ids: BigUint64Array;
  readonly scores: Float32Array;
  /** What the rows are called, '' where one has no name; absent where nobody asked. */
  readonly names?: readonly string[];
}

/**
 * Whose first bytes nobody else uses: that a body lies behind 32 bytes of its buffer does not say so, another job's
 * scores may lie there.
 */
const withHeaderRoom = new WeakSet<ArrayBufferLike>();

/**
 * Room for a body whose header will be written in front of it, without a copy: 165 µs of CPU a job of 64 × 384 became
 * 112 (2-core Xeon, 2026-11). Its bytes are not set to 0: whoever asks writes all of them.
 */
export function bufferForBody(bytes: number): Uint8Array<ArrayBuffer> {
  const { buffer } = Buffer.allocUnsafeSlow(RESULT_HEADER_BYTES + bytes);
  withHeaderRoom.add(buffer);
  return new Uint8Array(buffer, RESULT_HEADER_BYTES);
}

/** The buffer of a body that lies behind room for a header, up to its end, or a copy of any other. */
function withRoom(body: Uint8Array): Buffer {
  if (body.byteOffset === RESULT_HEADER_BYTES && withHeaderRoom.has(body.buffer))
    return Buffer.from(body.buffer, 0, RESULT_HEADER_BYTES + body.byteLength);
  const out = Buffer.allocUnsafeSlow(RESULT_HEADER_BYTES + body.byteLength);
  out.set(body, RESULT_HEADER_BYTES);
  return out;
}

/**
 * Header and body in one buffer, ready to be committed. `body` must have the length that dtype, rows and dims ask for.
 */
export function encodeResult(
  facts: Pick<ResultHeader, 'dtype' | 'rows' | 'dims' | 'fingerprint' | 'isTruncated'> &
    Partial<Pick<ResultHeader, 'isSimulated'>>,
  body: Uint8Array,
  checksum: (bytes: Uint8Array) => number = crc32,
): Buffer {
  invariant(isBodyOf(facts, body), 'a result body has the size its header announces');
  const out = withRoom(body).fill(0, 0, RESULT_HEADER_BYTES);
  out.writeUInt32LE(RESULT_MAGIC, 0);
  out.writeUInt8(1, 4);
  out.writeUInt8(RESULT_DTYPES.indexOf(facts.dtype), 5);
  const { isTruncated, isSimulated = false } = facts;
  out.writeUInt16LE((isTruncated ? RESULT_FLAG.truncated : 0) | (isSimulated ? RESULT_FLAG.simulated : 0), 6);
  out.writeUInt32LE(facts.rows, 8);
  out.writeUInt32LE(facts.dims, 12);
  out.writeUInt32LE(checksum(body), 16);
  out.write(facts.fingerprint, 20, 8, 'hex');
  return out;
}

/**
 * The body of a whole result after its form and checksum were verified; throws RESULT_TAKEN or RESULT_CORRUPT, and
 * PAYLOAD_ELSEWHERE of a pointer, whose body whoever has the payload servers fetches. A view, not a copy.
 */
export function openResult(bytes: Buffer): { header: ResultHeader; body: Buffer } {
  const header = decodeResultHeader(bytes);
  if (header === undefined) throw corruptResult(`it does not begin with a SHL1 header (${bytes.length} bytes)`);
  if (header.isTaken) throw takenResult();
  if (header.isPointer) throw elsewhere(decodePointer(bytes).store);
  const flags = bytes.readUInt16LE(6);
  if (flags > BODY_FLAGS || bytes.readUInt32LE(28) !== 0)
    throw corruptResult(`bytes that are zero in version 1 are not (flags ${flags})`);
  const body = bytes.subarray(RESULT_HEADER_BYTES);
  if (!isBodyOf(header, body))
    throw corruptResult(
      `its body has ${body.length} bytes, which are not ${header.rows} × ${header.dims} ${header.dtype}`,
    );
  if (crc32(body) !== header.crc32) throw corruptResult('its checksum does not match');
  return { header, body };
}

/** Bytes of the body of a result of vectors. */
export function bodyBytes(dtype: OutputDtype, rows: number, dims: number): number {
  switch (dtype) {
    case 'f32':
      return rows * dims * 4;
    case 'f16':
      return rows * dims * 2;
    case 'i8':
      return rows * dims + rows * 4;
    case 'binary':
      return rows * Math.ceil(dims / 8);
  }
}

/** Bytes of the body of a ranking of so many queries with so many hits in all. */
export function rankingBytes(queries: number, hits: number): number {
  return 4 * queries + 12 * hits;
}

/**
 * Ids and scores of each query. Where names were asked for, behind them the bytes of each name (u32), then the names in
 * UTF-8, in the order of the ids, with zeros up to a multiple of 4.
 */
export function encodeRankings(rankings: readonly Ranking[]): Buffer {
  const numbers = encodeNumbers(rankings);
  if (!rankings.some(({ names, ids }) => names !== undefined && ids.length > 0)) return numbers;
  const names = rankings.flatMap(({ names: given, ids }) => Array.from(ids, (_, i) => Buffer.from(given?.[i] ?? '')));
  const lengths = Uint32Array.from(names, (name) => name.length);
  const text = Buffer.concat(names);
  const padding = Buffer.alloc(-text.length & 3);
  return Buffer.concat([numbers, Buffer.from(lengths.buffer), text, padding]);
}

function encodeNumbers(rankings: readonly Ranking[]): Buffer {
  const body = Buffer.allocUnsafeSlow(
    rankingBytes(
      rankings.length,
      rankings.reduce((sum, { ids }) => sum + ids.length, 0),
    ),
  );
  let at = 0;
  for (const { ids, scores } of rankings) {
    at = body.writeUInt32LE(ids.length, at);
    body.set(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength), at);
    body.set(new Uint8Array(scores.buffer, scores.byteOffset, scores.byteLength), at + ids.byteLength);
    at += 12 * ids.length;
  }
  return body;
}

/**
 * `body`: as `openResult` returned it. Copied, because bodies are not aligned for u64, and all into one buffer: memory
 * for each array takes longer than the rest.
 */
export function decodeRankings({ rows }: Pick<ResultHeader, 'rows'>, body: Buffer): Ranking[] {
  const { buffer, byteOffset } = body.byteOffset % 4 === 0 ? body : Uint8Array.from(body);
  const words = new Uint32Array(buffer, byteOffset, body.length / 4);
  const end = endOfNumbers(words, rows);
  const hits = (end - rows) / 3;
  const copied = new Uint32Array(3 * hits);
  let [at, idsAt, scoresAt] = [0, 0, 2 * hits];
  const names = end === words.length ? undefined : namesIn(words, end, hits);
  return Array.from({ length: rows }, () => {
    const count = words[at++]!;
    const firstHit = idsAt / 2;
    const ranking = {
      ids: new BigUint64Array(copied.buffer, 4 * idsAt, count),
      scores: new Float32Array(copied.buffer, 4 * scoresAt, count),
      ...(names === undefined ? {} : { names: names.slice(firstHit, firstHit + count) }),
    };
    for (let i = 0; i < 2 * count; i++) copied[idsAt++] = words[at++]!;
    for (let i = 0; i < count; i++) copied[scoresAt++] = words[at++]!;
    return ranking;
  });
}

/** The word behind the rankings of so many queries. */
function endOfNumbers(words: Uint32Array, rows: number): number {
  let at = 0;
  for (let query = 0; query < rows; query++) at += 1 + 3 * words[at]!;
  return at;
}

function namesIn(words: Uint32Array, from: number, hits: number): readonly string[] {
  let at = words.byteOffset + 4 * (from + hits);
  return Array.from({ length: hits }, (_, hit) => {
    const bytes = Buffer.from(words.buffer as ArrayBuffer, at, words[from + hit]!);
    at += bytes.length;
    return bytes.toString('utf8');
  });
}

function isBodyOf({ dtype, rows, dims }: Pick<ResultHeader, 'dtype' | 'rows' | 'dims'>, body: Uint8Array): boolean {
  if (dtype !== 'ranking') return body.byteLength === bodyBytes(dtype, rows, dims);
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  let [at, hits] = [0, 0];
  for (let query = 0; query < rows; query++) {
    if (at + 4 > body.byteLength) return false;
    const count = view.getUint32(at, true);
    if (count > dims) return false;
    at += 4 + 12 * count;
    hits += count;
  }
  if (at >= body.byteLength) return at === body.byteLength;
  return areNames(body, at, hits);
}

/** The lengths of so many names, each in UTF-8, and zeros behind them. */
function areNames(body: Uint8Array, at: number, hits: number): boolean {
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  let end = at + 4 * hits;
  if (end > body.byteLength) return false;
  for (let hit = 0; hit < hits; hit++) {
    const length = view.getUint32(at + 4 * hit, true);
    if (end + length > body.byteLength || !isUtf8(body.subarray(end, end + length))) return false;
    end += length;
  }
  return Math.ceil(end / 4) * 4 === body.byteLength && body.subarray(end).every((byte) => byte === 0);
}
