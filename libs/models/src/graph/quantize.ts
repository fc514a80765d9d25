// Weights as whole numbers from -127 to 127: symmetric, one scale per column of a matrix or per row of a table; and the
// SmoothQuant factors (Xiao et al. 2023, arXiv 2211.10438) that move what is hard to quantize from activations into
// weights. Matrices are row-major, inputs × outputs.

export interface Quantized {
  readonly codes: Int8Array;
  /** What a code is multiplied with: one per column, or one per row. */
  readonly scales: Float32Array;
}

/** Raised whenever quantized models give other vectors from the same weights: a part of their revision. */
export const QUANTIZER_VERSION = 1;

/** One scale per column (output). */
export function quantizeColumns(matrix: Float32Array, columns: number): Quantized {
  const most = new Float32Array(columns);
  eachRow(matrix, columns, (row) => {
    for (let at = 0; at < columns; at++) most[at] = Math.max(most[at]!, Math.abs(row[at]!));
  });
  const scales = most.map(scaleOf);
  const codes = new Int8Array(matrix.length);
  eachRow(matrix, columns, (row, start) => {
    for (let at = 0; at < columns; at++) codes[start + at] = codeOf(row[at]!, scales[at]!);
  });
  return { codes, scales };
}

/** One scale per row. */
export function quantizeRows(table: Float32Array, columns: number): Quantized {
  const scales = new Float32Array(table.length / columns);
  const codes = new Int8Array(table.length);
  eachRow(table, columns, (row, start) => {
    const scale = Math.fround(scaleOf(largest(row)));
    scales[start / columns] = scale;
    for (let at = 0; at < columns; at++) codes[start + at] = codeOf(row[at]!, scale);
  });
  return { codes, scales };
}

/**
 * How much of the difficulty moves from activations to weights: 0 nothing, 1 all. From an earlier experiment; other
 * values were not tried on this graph.
 */
const ALPHA = 0.6;

/**
 * One divisor per input of a linear layer: activations are divided by it, the rows of the matrix multiplied. `maxima`:
 * the largest |activation| of each input over the calibration texts. The geometric mean of the divisors is 1, which
 * leaves both sides in the range they had.
 */
export function smoothingDivisors(maxima: Float32Array, matrix: Float32Array): Float32Array {
  return divisorsOf(maxima, largestOfRows(matrix, maxima.length));
}

/** The largest magnitude of each of the matrix's `rows`. */
export function largestOfRows(matrix: Float32Array, rows: number): Float32Array {
  const columns = matrix.length / rows;
  return Float32Array.from({ length: rows }, (_, row) => largest(matrix.subarray(row * columns, (row + 1) * columns)));
}

/** As `smoothingDivisors`, for matrices whose rows have these largest magnitudes. */
export function divisorsOf(maxima: Float32Array, largestWeights: Float32Array): Float32Array {
  const logarithms = Float64Array.from(
    maxima,
    (most, input) =>
      ALPHA * Math.log(Math.max(most, 1e-4)) - (1 - ALPHA) * Math.log(Math.max(largestWeights[input]!, 1e-5)),
  );
  const mean = logarithms.reduce((sum, value) => sum + value, 0) / logarithms.length;
  return Float32Array.from(logarithms, (value) => Math.exp(value - mean));
}

/** Row r of `matrix` times factors[r]. In place. */
export function scaleRows(matrix: Float32Array, factors: Float32Array): Float32Array {
  const columns = matrix.length / factors.length;
  eachRow(matrix, columns, (row, start) => {
    const factor = factors[start / columns]!;
    for (let at = 0; at < columns; at++) row[at]! *= factor;
  });
  return matrix;
}

/** Column c of `matrix` divided by divisors[c]. In place. */
export function divideColumns(matrix: Float32Array, divisors: Float32Array): Float32Array {
  eachRow(matrix, divisors.length, (row) => {
    for (let at = 0; at < divisors.length; at++) row[at]! /= divisors[at]!;
  });
  return matrix;
}

function eachRow(matrix: Float32Array, columns: number, visit: (row: Float32Array, start: number) => void): void {
  for (let start = 0; start < matrix.length; start += columns) visit(matrix.subarray(start, start + columns), start);
}

function largest(values: Float32Array): number {
  let most = 0;
  for (let at = 0; at < values.length; at++) most = Math.max(most, Math.abs(values[at]!));
  return most;
}

/** Nothing may be divided by 0: zeros get a scale, too. */
function scaleOf(most: number): number {
  return Math.max(most, 1e-12) / 127;
}

function codeOf(value: number, scale: number): number {
  return Math.max(-127, Math.min(127, Math.round(value / scale)));
}
