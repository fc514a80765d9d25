// Rows of fp32 into what a collection stores, with their scales and lengths. Refuses what cannot be compared
// (VECTOR_INVALID).

import { ShoalError, toHalves } from '@shoal/contract';
import { strideOf } from './collection-file.ts';
import { checkValues, lengthOf, rowReader, type Matrix, type RowType } from '../engines/vectors.ts';

export interface EncodedRows {
  readonly data: Uint8Array;
  readonly scales: Float32Array;
  readonly lengths: Float32Array;
}

/** The largest half is 65,504. */
const MAX_HALF = 65_504;

/** `what` begins the message about a bad value: "row". */
export function encodeRows(matrix: Matrix, dtype: RowType): EncodedRows {
  checkValues(matrix, 'row');
  const { values, rows, dims } = matrix;
  const strideBytes = strideOf(dtype, dims);
  const data = new Uint8Array(rows * strideBytes);
  const scales = new Float32Array(dtype === 'i8' ? rows : 0);
  for (let row = 0; row < rows; row++) {
    const from = values.subarray(row * dims, (row + 1) * dims);
    if (dtype === 'f32') new Float32Array(data.buffer, row * strideBytes, dims).set(from);
    else if (dtype === 'f16') encodeHalves(from, new Uint16Array(data.buffer, row * strideBytes, dims), row);
    else scales[row] = encodeInt8(from, new Int8Array(data.buffer, row * strideBytes, dims));
  }
  const read = rowReader({ dtype, data, rows, dims, strideBytes, scales });
  return { data, scales, lengths: Float32Array.from({ length: rows }, (_, row) => lengthOf(read(row))) };
}

function encodeHalves(from: Float32Array, to: Uint16Array, row: number): void {
  const large = from.find((value) => Math.abs(value) > MAX_HALF);
  if (large !== undefined)
    throw new ShoalError(
      'VECTOR_INVALID',
      `row ${row} holds ${large}, which is no half (at most ${MAX_HALF}): store these rows as f32 or i8`,
      { row },
    );
  toHalves(from, to);
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
