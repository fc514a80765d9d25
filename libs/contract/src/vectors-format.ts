// SHQ1, the binary form of what a similarity job compares, at {shoal}:in:similarity:<jobId> or hashed for its
// fingerprint. Little-endian throughout, a 24-byte header and a body:
//   "SHQ1" | version u8 = 1 | 3 zero | rows u32 | dims u32 | crc32 u32 of the body | 4 zero
//   rows × dims f32: the queries, then the vectors they are compared with when the job brings these itself
//   for each query its candidates, when the job has some: u32 n, n × u64 row ids
// How many of the rows are queries, and whether there are candidates, the job says. Decoding trusts no length it has
// not checked, and refuses values that are no numbers: a NaN would win or lose every comparison, depending on who
// compares.

import { crc32 } from 'node:zlib';
import { ShoalError } from './errors.ts';

/** Row-major, rows × dims values. */
export interface Matrix {
  readonly values: Float32Array;
  readonly rows: number;
  readonly dims: number;
}

/** What a similarity job compares. `candidates`: row ids for each query. */
export interface Comparands {
  readonly queries: Matrix;
  readonly against?: Matrix | undefined;
  readonly candidates?: readonly BigUint64Array[] | undefined;
}

const MAGIC = 0x3151_4853; // "SHQ1" read as a little-endian u32
const HEADER_BYTES = 24;

export function encodeComparands({ queries, against, candidates = [] }: Comparands): Buffer {
  const matrices = against === undefined ? [queries] : [queries, against];
  const lists = candidates.map((ids) => ids.length);
  const bodyBytes =
    4 * matrices.reduce((sum, { values }) => sum + values.length, 0) +
    lists.reduce((sum, length) => sum + 4 + 8 * length, 0);
  const out = Buffer.allocUnsafeSlow(HEADER_BYTES + bodyBytes).fill(0, 0, HEADER_BYTES);
  let at = HEADER_BYTES;
  for (const { values } of matrices) {
    out.set(bytesOf(values), at);
    at += values.byteLength;
  }
  for (const ids of candidates) {
    at = out.writeUInt32LE(ids.length, at);
    out.set(bytesOf(ids), at);
    at += ids.byteLength;
  }
  out.writeUInt32LE(MAGIC, 0);
  out.writeUInt8(1, 4);
  out.writeUInt32LE(
    matrices.reduce((sum, { rows }) => sum + rows, 0),
    8,
  );
  out.writeUInt32LE(queries.dims, 12);
  out.writeUInt32LE(crc32(out.subarray(HEADER_BYTES)), 16);
  return out;
}

export interface ExpectedComparands {
  readonly queries: number;
  readonly against: number;
  readonly dims: number;
  readonly hasCandidates: boolean;
}

/**
 * Decodes an input key that must hold what its job says. Throws INPUT_CORRUPT with what was found. Vectors lie in
 * `bytes` where they are aligned there; else they are copied, as candidates always are.
 */
export function decodeComparands(
  bytes: Buffer,
  { queries, against, dims, hasCandidates }: ExpectedComparands,
): Comparands {
  if (bytes.length < HEADER_BYTES || bytes.readUInt32LE(0) !== MAGIC)
    throw corrupt(`it does not begin with a SHQ1 header (${bytes.length} bytes)`);
  if (bytes.readUInt8(4) !== 1) throw corrupt(`its version is ${bytes.readUInt8(4)}, this worker reads version 1`);
  if (bytes.readUIntLE(5, 3) !== 0 || bytes.readUInt32LE(20) !== 0)
    throw corrupt('bytes that are zero in version 1 are not'); // or one request had two fingerprints
  const found = { rows: bytes.readUInt32LE(8), dims: bytes.readUInt32LE(12) };
  if (found.rows !== queries + against || found.dims !== dims)
    throw corrupt(`it holds ${found.rows} × ${found.dims} values where the job says ${queries + against} × ${dims}`);
  const body = bytes.subarray(HEADER_BYTES);
  if (crc32(body) !== bytes.readUInt32LE(16)) throw corrupt('its checksum does not match');
  const vectorBytes = 4 * found.rows * dims;
  if (body.length < vectorBytes)
    throw corrupt(`its body has ${body.length} bytes, its vectors alone need ${vectorBytes}`);
  const vectors = body.byteOffset % 4 === 0 ? body : Uint8Array.from(body.subarray(0, vectorBytes));
  const values = new Float32Array(vectors.buffer, vectors.byteOffset, found.rows * dims);
  const { lists, end } = hasCandidates ? readLists(body, vectorBytes, queries) : { lists: undefined, end: vectorBytes };
  if (end !== body.length) throw corrupt(`${body.length - end} bytes follow what the job says is there`);
  return {
    queries: { values: values.subarray(0, queries * dims), rows: queries, dims },
    against: against === 0 ? undefined : { values: values.subarray(queries * dims), rows: against, dims },
    candidates: lists,
  };
}

/**
 * Sums of products of larger values would leave fp32; the kernels refuse them for a whole call (libs/similarity,
 * vectors.ts).
 */
export const MAX_VALUE = 1e16;

/**
 * The bits of the largest fp32 that is at most MAX_VALUE; without their sign those of larger numbers, of infinity and
 * of NaN are more.
 */
const MAX_BITS = new Int32Array(Float32Array.of(MAX_VALUE).buffer)[0]! - (Math.fround(MAX_VALUE) > MAX_VALUE ? 1 : 0);
const NO_SIGN = 0x7fffffff;

/**
 * The index of the first value that cannot be compared, NaN among them, or undefined. Looks at every value that passes,
 * so it does that by whole numbers, eight at a time: 0.5 ns each, where one by one as numbers took 0.8, and 2.3 in a
 * function that was given several kinds of arrays.
 */
export function firstIncomparable(values: Float32Array): number | undefined {
  const bits = new Int32Array(values.buffer, values.byteOffset, values.length);
  const wholeEights = bits.length & ~7;
  let excess = 0; // negative where one is too large
  for (let i = 0; i < wholeEights; i += 8) {
    excess |=
      (MAX_BITS - (bits[i]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 1]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 2]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 3]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 4]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 5]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 6]! & NO_SIGN)) |
      (MAX_BITS - (bits[i + 7]! & NO_SIGN));
  }
  for (let i = wholeEights; i < bits.length; i++) excess |= MAX_BITS - (bits[i]! & NO_SIGN);
  return excess < 0 ? values.findIndex((value) => !(Math.abs(value) <= MAX_VALUE)) : undefined;
}

function readLists(body: Buffer, from: number, count: number): { lists: BigUint64Array[]; end: number } {
  let at = from;
  const lists = Array.from({ length: count }, (_, query) => {
    const length = at + 4 <= body.length ? body.readUInt32LE(at) : undefined;
    if (length === undefined || at + 4 + 8 * length > body.length)
      throw corrupt(`it ends inside the candidates of query ${query}`);
    const ids = new BigUint64Array(Uint8Array.from(body.subarray(at + 4, at + 4 + 8 * length)).buffer);
    at += 4 + 8 * length;
    return ids;
  });
  return { lists, end: at };
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array | BigUint64Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

function corrupt(found: string): ShoalError<'INPUT_CORRUPT'> {
  return new ShoalError('INPUT_CORRUPT', `the input key is not a well-formed SHQ1 input: ${found}`);
}
