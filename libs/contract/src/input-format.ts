// SHI1, the binary form of a job's input at {shoal}:in:<main queue>:<jobId>. Little-endian throughout:
//   "SHI1" | version u8 = 1 | form u8 | flags u16 = 0 | rows u32 | u32 offsets[rows + 1] | elements
// form 0: UTF-8 texts, offsets count bytes; 1: token ids u16; 2: token ids u32, offsets count ids. Ids are exactly what
// the model takes: special tokens in, truncated. Of rerank jobs, whose rows are pairs, in pairs-format.ts: 3: a query and
// texts; 4, 5: token ids of pairs. Decoding never trusts a length it has not checked.

import { ShoalError } from './errors.ts';
import { MAX_ROWS_PER_JOB } from './job-terms.ts';

const MAGIC = 0x3149_4853; // "SHI1" read as a little-endian u32
export const HEADER_BYTES = 12;
export const FORM = { texts: 0, u16: 1, u32: 2, queryTexts: 3, pairs16: 4, pairs32: 5 } as const;

export type TokenIds = Uint16Array | Uint32Array;

export type DecodedInput =
  | { readonly form: 'texts'; readonly texts: readonly string[] }
  /** `ids`: of all rows, one after the other. */
  | { readonly form: 'tokens'; readonly rows: readonly TokenIds[]; readonly ids: TokenIds };

/** `texts`: 1 to 1,024 strings. Lone surrogates become U+FFFD, as in every UTF-8 encoder. */
export function encodeTexts(texts: readonly string[]): Buffer<ArrayBuffer> {
  const lengths = texts.map((text) => Buffer.byteLength(text));
  const { buffer, at } = allocate({ form: FORM.texts, rows: texts.length, lengths, elementBytes: 1 });
  let position = at;
  for (const text of texts) position += buffer.write(text, position);
  return buffer;
}

/**
 * `rows`: token ids per text, special tokens included, already truncated. Stored as u16 when every id fits. Throws
 * RangeError for what is no whole number from 0 to 2³² - 1.
 */
export function encodeTokens(rows: readonly ArrayLike<number>[]): Buffer<ArrayBuffer> {
  const isNarrow = !rows.some((row) => hasAtLeast(0x1_0000, row));
  const elementBytes = isNarrow ? 2 : 4;
  const { buffer, at } = allocate({
    form: isNarrow ? FORM.u16 : FORM.u32,
    rows: rows.length,
    lengths: rows.map((row) => row.length),
    elementBytes,
  });
  putRows(buffer.subarray(at), elementBytes, rows);
  return buffer;
}

/** `to`: whole words from the beginning of a buffer, so that ids are aligned in it. */
export function putRows(to: Uint8Array, elementBytes: number, rows: readonly ArrayLike<number>[]): void {
  const ids = idsOver(to, elementBytes);
  let position = 0;
  for (const row of rows) position = putIds(ids, position, row);
}

function idsOver({ buffer, byteOffset, byteLength }: Uint8Array, elementBytes: number): TokenIds {
  const count = byteLength / elementBytes;
  return elementBytes === 2 ? new Uint16Array(buffer, byteOffset, count) : new Uint32Array(buffer, byteOffset, count);
}

function putIds(to: TokenIds, at: number, row: ArrayLike<number>): number {
  for (let i = 0; i < row.length; i++) {
    to[at + i] = row[i]!;
    if (to[at + i] !== row[i])
      throw new RangeError(`a token id is ${String(row[i])}: it must be a whole number from 0 to ${2 ** 32 - 1}`);
  }
  return at + row.length;
}

/**
 * Decodes an input key. Throws INPUT_CORRUPT with what was found. The ids are views where alignment allows, copies
 * where not.
 */
export function decodeInput(bytes: Buffer): DecodedInput {
  const { form, rows } = readHead(bytes);
  if (form !== FORM.texts && form !== FORM.u16 && form !== FORM.u32)
    throw corrupt(
      Object.values<number>(FORM).includes(form)
        ? `its form is ${form}, pairs, which only rerank jobs have`
        : `its form is ${form}; known are 0, 1 and 2`,
    );
  const elementBytes = form === FORM.texts ? 1 : form === FORM.u16 ? 2 : 4;
  const offsets = readOffsets(bytes, { count: rows, wordsBehind: 0, elementBytes });
  const at = HEADER_BYTES + 4 * (rows + 1);
  if (form === FORM.texts) return { form: 'texts', texts: readTexts(bytes, offsets, at) };
  const ids = readIds(bytes, at, elementBytes);
  return { form: 'tokens', rows: rowsOf(ids, offsets), ids };
}

/** What SHI1 of every form begins with; INPUT_CORRUPT where it does not. */
export function readHead(bytes: Buffer): { readonly form: number; readonly rows: number } {
  if (bytes.length < HEADER_BYTES || bytes.readUInt32LE(0) !== MAGIC)
    throw corrupt(`it does not begin with a SHI1 header (${bytes.length} bytes)`);
  if (bytes.readUInt8(4) !== 1) throw corrupt(`its version is ${bytes.readUInt8(4)}, this worker reads version 1`);
  const form = bytes.readUInt8(5);
  if (bytes.readUInt16LE(6) !== 0) throw corrupt(`its flags are ${bytes.readUInt16LE(6)}, version 1 has none`);
  const rows = bytes.readUInt32LE(8);
  if (rows < 1 || rows > MAX_ROWS_PER_JOB) throw corrupt(`it says ${rows} rows; a job has 1 to ${MAX_ROWS_PER_JOB}`);
  return { form, rows };
}

interface Layout {
  readonly form: number;
  readonly rows: number;
  /** Of each element list that has an offset. */
  readonly lengths: readonly number[];
  readonly elementBytes: number;
  /** Numbers of 4 bytes between the offsets and the elements. */
  readonly words?: readonly number[];
}

/** Everything but the elements, which begin at `at`. */
export function allocate({ form, rows, lengths, elementBytes, words = [] }: Layout): {
  buffer: Buffer<ArrayBuffer>;
  at: number;
} {
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const wordsAt = HEADER_BYTES + 4 * (lengths.length + 1);
  const at = wordsAt + 4 * words.length;
  const buffer = Buffer.allocUnsafeSlow(at + total * elementBytes).fill(0, 0, at);
  buffer.writeUInt32LE(MAGIC, 0);
  buffer.writeUInt8(1, 4);
  buffer.writeUInt8(form, 5);
  buffer.writeUInt32LE(rows, 8);
  let offset = 0;
  for (const [row, length] of lengths.entries()) buffer.writeUInt32LE((offset += length), HEADER_BYTES + 4 * (row + 1));
  for (const [row, word] of words.entries()) buffer.writeUInt32LE(word, wordsAt + 4 * row);
  return { buffer, at };
}

/**
 * Whether an id is not below `limit`, of whole numbers below 2³². Looks at every token that passes: by the sign of what
 * is left to the last id, or of an id from 2³¹ on, and eight at a time.
 */
export function hasAtLeast(limit: number, ids: ArrayLike<number>): boolean {
  const last = limit - 1;
  const wholeEights = ids.length & ~7;
  let excess = 0;
  for (let i = 0; i < wholeEights; i += 8) {
    excess |=
      (last - ids[i]!) |
      ids[i]! |
      (last - ids[i + 1]!) |
      ids[i + 1]! |
      (last - ids[i + 2]!) |
      ids[i + 2]! |
      (last - ids[i + 3]!) |
      ids[i + 3]! |
      (last - ids[i + 4]!) |
      ids[i + 4]! |
      (last - ids[i + 5]!) |
      ids[i + 5]! |
      (last - ids[i + 6]!) |
      ids[i + 6]! |
      (last - ids[i + 7]!) |
      ids[i + 7]!;
  }
  for (let i = wholeEights; i < ids.length; i++) excess |= (last - ids[i]!) | ids[i]!;
  return excess < 0;
}

interface OffsetTable {
  /** Element lists that have an offset. */
  readonly count: number;
  /** Numbers of 4 bytes between the offsets and the elements. */
  readonly wordsBehind: number;
  readonly elementBytes: number;
}

/** Checked against each other and against all that the bytes hold. */
export function readOffsets(bytes: Buffer, { count, wordsBehind, elementBytes }: OffsetTable): Uint32Array {
  const at = HEADER_BYTES + 4 * (count + 1 + wordsBehind);
  if (bytes.length < at) throw corrupt(`it ends inside its offsets (${bytes.length} of at least ${at} bytes)`);
  const offsets = new Uint32Array(count + 1);
  for (let row = 0; row <= count; row++) {
    const offset = bytes.readUInt32LE(HEADER_BYTES + 4 * row);
    if (row === 0 && offset !== 0) throw corrupt(`offset 0 is ${offset}, not 0`);
    if (row > 0 && offset < offsets[row - 1]!) throw corrupt(`offset ${row} is ${offset}, less than the one before`);
    offsets[row] = offset;
  }
  const expected = at + offsets[count]! * elementBytes;
  if (bytes.length !== expected) throw corrupt(`it has ${bytes.length} bytes where its offsets ask for ${expected}`);
  return offsets;
}

export function readTexts(bytes: Buffer, offsets: Uint32Array, at: number): string[] {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  return Array.from({ length: offsets.length - 1 }, (_, row) => {
    try {
      return decoder.decode(bytes.subarray(at + offsets[row]!, at + offsets[row + 1]!));
    } catch {
      throw corrupt(`text ${row} is not valid UTF-8`);
    }
  });
}

export function readIds(bytes: Buffer, at: number, elementBytes: number): TokenIds {
  const isAligned = (bytes.byteOffset + at) % elementBytes === 0;
  const body = isAligned ? bytes.subarray(at) : Uint8Array.prototype.slice.call(bytes, at);
  return idsOver(body, elementBytes);
}

export function rowsOf(ids: TokenIds, offsets: Uint32Array): TokenIds[] {
  return Array.from({ length: offsets.length - 1 }, (_, row) => {
    if (offsets[row] === offsets[row + 1])
      throw corrupt(`row ${row} has no token ids; even an empty text has its special tokens`);
    return ids.subarray(offsets[row]!, offsets[row + 1]!);
  });
}

export function corrupt(found: string): ShoalError<'INPUT_CORRUPT'> {
  return new ShoalError('INPUT_CORRUPT', `the input key is not a well-formed SHI1 input: ${found}`);
}
