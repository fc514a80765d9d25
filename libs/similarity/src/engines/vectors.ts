// Queries and rows as the kernels take them: flat, row-major, little-endian. Says what a vector may hold, and refuses
// the rest by code before anything is computed: NaN, infinities, and values whose products would leave fp32.

import { firstIncomparable, MAX_VALUE, ShoalError } from '@shoal/contract';
import { nativeAddon } from './native-addon.ts';

/** dot: Σ q·r. l2: Σ (q − r)², the smallest is best. cosine: Σ q·r ÷ (‖q‖ ‖r‖), 0 where either is of length 0. */
export type Metric = 'dot' | 'l2' | 'cosine';
export const METRICS: readonly Metric[] = ['dot', 'l2', 'cosine'];

export type RowType = 'f32' | 'f16' | 'i8';
export const ROW_TYPES: readonly RowType[] = ['f32', 'f16', 'i8'];
export const BYTES_OF: Readonly<Record<RowType, number>> = { f32: 4, f16: 2, i8: 1 };

/** `rows` vectors of `dims` values. */
export interface Matrix {
  readonly values: Float32Array;
  readonly rows: number;
  readonly dims: number;
}

/** Rows that are searched: those of a collection, or a matrix (`rowsOf`). */
export interface RowBlock {
  readonly dtype: RowType;
  /** Row r begins at byte r × strideBytes; aligned to its element. */
  readonly data: Uint8Array;
  readonly rows: number;
  readonly dims: number;
  readonly strideBytes: number;
  /** i8 only: what the whole numbers of a row are multiplied with. */
  readonly scales?: Float32Array;
  /** ‖row‖ of each row; worked out when absent. */
  readonly lengths?: Float32Array;
  /** Rising; absent: row numbers. */
  readonly ids?: BigUint64Array;
}

/** A vector shorter than this has no 1/‖v‖ in fp32: it counts as one of length 0, whose cosine with everything is 0. */
export const MIN_LENGTH = 1e-30;

export function matrixOf(values: Float32Array, dims: number): Matrix {
  if (!Number.isInteger(dims) || dims < 1 || values.length % dims !== 0) {
    throw new ShoalError('DIMENSIONS_MISMATCH', `${values.length} values are not whole vectors of ${dims} dimensions`, {
      values: values.length,
      dims,
    });
  }
  return { values, rows: values.length / dims, dims };
}

/** A matrix as rows to search, without a copy. Its values are not looked at: see `checkValues`. */
export function rowsOf({ values, rows, dims }: Matrix): RowBlock {
  return {
    dtype: 'f32',
    data: new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
    rows,
    dims,
    strideBytes: dims * 4,
  };
}

/** Fewer values are looked at here sooner than native code is asked. */
const MANY_VALUES = 256;

/**
 * VECTOR_INVALID naming the first value that cannot be searched with. `what`: "query", "row"; `first`: the number that
 * the first of them has for whoever reads the message.
 */
export function checkValues({ values, dims }: Matrix, what: string, first = 0): void {
  if (values.length >= MANY_VALUES && nativeAddon()?.allWithin(values, MAX_VALUE) === true) return;
  const at = firstIncomparable(values);
  if (at === undefined) return;
  const [vector, dimension] = [first + Math.floor(at / dims), at % dims];
  throw new ShoalError(
    'VECTOR_INVALID',
    `${what} ${vector} holds ${values[at]} at dimension ${dimension}: only numbers between ` +
      `±${MAX_VALUE.toExponential(0)} can be compared`,
    { what, vector, dimension },
  );
}

export function checkDims(queries: { readonly dims: number }, rows: { readonly dims: number }): void {
  if (queries.dims === rows.dims) return;
  throw new ShoalError(
    'DIMENSIONS_MISMATCH',
    `the queries have ${queries.dims} dimensions and the rows ${rows.dims}: both must come from one model`,
    { queries: queries.dims, rows: rows.dims },
  );
}

/** The row at which `id` stands, or undefined. */
export function rowOfId({ ids, rows }: RowBlock, id: bigint): number | undefined {
  if (ids === undefined) return id < BigInt(rows) ? Number(id) : undefined;
  let [low, high] = [0, rows];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (ids[middle]! < id) low = middle + 1;
    else high = middle;
  }
  return ids[low] === id ? low : undefined;
}

export function idOfRow({ ids }: RowBlock, row: number): bigint {
  return ids?.[row] ?? BigInt(row);
}

/** Rows [first, last) of a block, without a copy. */
export function sliceRows(block: RowBlock, first: number, last: number): RowBlock {
  const { data, strideBytes, scales, lengths, ids } = block;
  return {
    ...block,
    rows: last - first,
    data: data.subarray(first * strideBytes, last * strideBytes),
    ...(scales === undefined ? {} : { scales: scales.subarray(first, last) }),
    ...(lengths === undefined ? {} : { lengths: lengths.subarray(first, last) }),
    ...(ids === undefined ? {} : { ids: ids.subarray(first, last) }),
  };
}

/** i8 rows are read in fp64: the product with their scale is not rounded. */
export type RowValues = Float32Array | Float64Array;

/** Reads rows as numbers, whatever they are stored as. The array is used again by the next call. */
export type RowReader = (row: number) => RowValues;

export function rowReader({ dtype, data, dims, strideBytes, scales }: RowBlock): RowReader {
  const out = dtype === 'i8' ? new Float64Array(dims) : new Float32Array(dims);
  if (dtype === 'f32') {
    if (data.byteOffset % 4 === 0 && strideBytes % 4 === 0) {
      const values = new Float32Array(data.buffer, data.byteOffset, Math.floor(data.byteLength / 4));
      return (row) => values.subarray((row * strideBytes) / 4, (row * strideBytes) / 4 + dims);
    }
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    return (row) => {
      for (let d = 0; d < dims; d++) out[d] = view.getFloat32(row * strideBytes + d * 4, true);
      return out;
    };
  }
  if (dtype === 'f16') {
    return (row) => {
      const at = row * strideBytes;
      for (let d = 0; d < dims; d++) out[d] = HALVES[data[at + 2 * d]! | (data[at + 2 * d + 1]! << 8)]!;
      return out;
    };
  }
  const whole = new Int8Array(data.buffer, data.byteOffset, data.byteLength);
  return (row) => {
    const scale = scales?.[row] ?? 1;
    for (let d = 0; d < dims; d++) out[d] = whole[row * strideBytes + d]! * scale;
    return out;
  };
}

/** Every half as a number: 65,536 of them cost 256 KiB and a millisecond, decoding one by arithmetic 20 ns. */
const HALVES = Float32Array.from({ length: 65_536 }, (_, half) => {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
});

export function lengthOf(values: RowValues): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i]! * values[i]!;
  return Math.sqrt(sum);
}
