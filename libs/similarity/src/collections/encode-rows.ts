// Rows of fp32 into what a collection stores, with their scales and lengths. Refuses what cannot be compared
// (VECTOR_INVALID).

import { ShoalError, toHalves } from '@shoal/contract';
import { strideOf } from './collection-file.ts';
import { checkValues, lengthOf, rowReader, type Matrix, type RowType, type RowValues } from '../engines/vectors.ts';

export interface EncodedRows {
  readonly data: Uint8Array;
  readonly scales: Float32Array;
  readonly lengths: Float32Array;
  /** Rows, by their number here, that would be others when they are stored so. */
  readonly lost: readonly number[];
  /** The least cosine of a row with what is stored of it. */
  readonly least: number;
}

/** The largest half is 65,504. */
const MAX_HALF = 65_504;
/**
 * The least cosine of a row with what is stored of it. Halves of normal size keep 1 − 4e-8; rows of 1e-5 end at 1 −
 * 1.4e-6, of 1e-6 at 1 − 1.5e-4, where one in ten of the ten nearest is another (2026-11-26). Whole numbers from −127 to
 * 127 keep 1 − 3e-5 of rows as models make them; below 0.99 a few values outweigh all others by so much that these are
 * gone.
 */
const LEAST_LIKENESS: Readonly<Record<RowType, number>> = { f32: 0, f16: 0.999_99, i8: 0.99 };
const SHOWN_ROWS = 5;

/**
 * `first`: the number of the first row in its collection. VECTOR_INVALID names the first that holds what cannot be
 * compared. Rows that are lost are counted, see `refuseLost`.
 */
export function encodeRows(matrix: Matrix, dtype: RowType, first = 0): EncodedRows {
  checkValues(matrix, 'row', first);
  const { values, rows, dims } = matrix;
  const strideBytes = strideOf(dtype, dims);
  const data = new Uint8Array(rows * strideBytes);
  const scales = new Float32Array(dtype === 'i8' ? rows : 0);
  const read = rowReader({ dtype, data, rows, dims, strideBytes, scales });
  const lengths = new Float32Array(rows);
  const lost: number[] = [];
  let least = 1;
  for (let row = 0; row < rows; row++) {
    const from = values.subarray(row * dims, (row + 1) * dims);
    if (dtype === 'f32') new Float32Array(data.buffer, row * strideBytes, dims).set(from);
    else if (dtype === 'f16') toHalves(from, new Uint16Array(data.buffer, row * strideBytes, dims));
    else scales[row] = encodeInt8(from, new Int8Array(data.buffer, row * strideBytes, dims));
    const stored = read(row);
    lengths[row] = lengthOf(stored);
    if (dtype === 'f32') continue;
    const likeness = likenessOf(from, stored);
    least = Math.min(least, likeness);
    const isBeyond = dtype === 'f16' && from.some((value) => Math.abs(value) > MAX_HALF);
    if (isBeyond || likeness < LEAST_LIKENESS[dtype]) lost.push(row);
  }
  return { data, scales, lengths, lost, least };
}

/** VECTOR_INVALID when rows would be others as `dtype`: how many, which, and what to do. */
export function refuseLost(
  { lost, least, lengths: { length: rows } }: EncodedRows,
  dtype: RowType,
  first: number,
): void {
  if (lost.length === 0) return;
  const named = lost.slice(0, SHOWN_ROWS).map((row) => first + row);
  const shown = `${named.join(', ')}${lost.length > SHOWN_ROWS ? ' …' : ''}`;
  const holds =
    dtype === 'f16'
      ? `halves hold sizes from about 6e-5 to ${MAX_HALF}; store them as f32 (--dtype f32), or bring the rows to length 1`
      : 'i8 has 127 steps up to the largest value of a row; store them as f16 or f32 (--dtype f32)';
  throw new ShoalError(
    'VECTOR_INVALID',
    `${lost.length} of the ${rows} rows from ${first} on (${shown}) would be others as ${dtype}: the least cosine of ` +
      `a row with what is stored of it is ${least.toPrecision(3)}. ${holds}`,
    { dtype, rows: named, count: lost.length },
  );
}

/** The cosine of two rows; 1 where both are of length 0. Infinities, which only halves can be, are like nothing. */
function likenessOf(a: Float32Array, b: RowValues): number {
  let [product, left, right] = [0, 0, 0];
  for (let d = 0; d < a.length; d++) {
    product += a[d]! * b[d]!;
    left += a[d]! * a[d]!;
    right += b[d]! * b[d]!;
  }
  if (left === 0) return 1;
  const likeness = product / Math.sqrt(left * right);
  return Number.isFinite(likeness) ? likeness : 0;
}

/** Whole numbers from −127 to 127, the largest value of the row at the end of them. */
function encodeInt8(from: Float32Array, to: Int8Array): number {
  let most = 0;
  for (const value of from) most = Math.max(most, Math.abs(value));
  const scale = Math.fround(most / 127);
  if (scale === 0) return 0;
  for (let d = 0; d < from.length; d++) to[d] = Math.max(-127, Math.min(127, Math.round(from[d]! / scale)));
  return scale;
}
