// Rows of a file on their way to where they are compared: as fp32, or refused by file and row. Doubles that fp32 cannot
// hold, and rows so short that nothing can be said of their direction, would otherwise be other rows without a word.

import { MAX_VALUE, ShoalError } from '@shoal/contract';
import { MIN_LENGTH } from '../engines/vectors.ts';

/** `first`: number of the first row in the file. VECTOR_INVALID names the first that cannot be compared. */
export function soundRows(
  path: string,
  values: Float32Array | Float64Array,
  dims: number,
  first: number,
): Float32Array {
  for (let from = 0; from < values.length; from += dims) refuseUnsound(path, values, from, dims, first + from / dims);
  return values instanceof Float32Array ? values : Float32Array.from(values);
}

function refuseUnsound(
  path: string,
  values: Float32Array | Float64Array,
  from: number,
  dims: number,
  row: number,
): void {
  let most = 0;
  for (let at = from; at < from + dims; at++) {
    const size = Math.abs(values[at]!);
    if (size > most) most = size;
    if (size <= MAX_VALUE) continue;
    throw new ShoalError(
      'VECTOR_INVALID',
      `${path}, row ${row}: it holds ${values[at]} at dimension ${at - from}: only numbers between ` +
        `±${MAX_VALUE.toExponential(0)} can be compared`,
      { file: path, row, dimension: at - from },
    );
  }
  if (most === 0 || most >= MIN_LENGTH) return;
  throw new ShoalError(
    'VECTOR_INVALID',
    `${path}, row ${row}: its largest number is ${most}, so that fp32 has no direction for it; bring the rows to ` +
      'length 1 before they are written',
    { file: path, row },
  );
}
