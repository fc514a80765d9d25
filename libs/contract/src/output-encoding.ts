// From the f32 rows a device gives to the body a job asked for: fewer dimensions, smaller types. Rows that come
// L2-normalized stay so when dimensions are cut off (Matryoshka truncation: Kusupati et al. 2022, arXiv 2205.13147);
// rows of other lengths are cut as they are.

import { toHalves, type ToHalves } from './half.ts';
import { bodyBytes, bufferForBody } from './result-format.ts';
import type { OutputOptions } from './embed-job.ts';

/** What is to be known of rows beside what was asked for. */
export interface OutputForm extends OutputOptions {
  /** Rows have lengths of their own, and keep what is left of them when dimensions are cut off. */
  readonly keepsLengths?: boolean;
}

/** `vectors`: rows × dims, row-major. Returns the dimensions kept and the body in the layout of SHL1. */
export function encodeBody(
  vectors: Float32Array,
  rows: number,
  dims: number,
  output: OutputForm,
  halvesBy: ToHalves = toHalves,
): { dims: number; body: Uint8Array } {
  const kept = Math.min(output.dimensions ?? dims, dims);
  const cut = kept === dims ? vectors : shorten(vectors, rows, dims, output, kept);
  return { dims: kept, body: encodeValues(cut, rows, kept, output.dtype, halvesBy) };
}

function encodeValues(
  vectors: Float32Array,
  rows: number,
  dims: number,
  dtype: OutputOptions['dtype'],
  halvesBy: ToHalves,
): Uint8Array {
  switch (dtype) {
    case 'f32':
      return new Uint8Array(vectors.buffer, vectors.byteOffset, rows * dims * 4);
    case 'f16':
      return encodeHalves(vectors.subarray(0, rows * dims), halvesBy);
    case 'i8':
      return encodeInt8(vectors, rows, dims);
    case 'binary':
      return encodeBits(vectors, rows, dims);
  }
}

function shorten(
  vectors: Float32Array,
  rows: number,
  dims: number,
  { keepsLengths = false }: OutputForm,
  kept: number,
): Float32Array {
  const out = new Float32Array(rows * kept);
  for (let row = 0; row < rows; row++) {
    const values = vectors.subarray(row * dims, row * dims + kept);
    if (keepsLengths) {
      out.set(values, row * kept);
      continue;
    }
    const norm = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
    for (let i = 0; i < kept; i++) out[row * kept + i] = norm > 0 ? values[i]! / norm : 0;
  }
  return out;
}

function encodeHalves(vectors: Float32Array, halvesBy: ToHalves): Uint8Array {
  const body = bufferForBody(2 * vectors.length);
  halvesBy(vectors, new Uint16Array(body.buffer, body.byteOffset));
  return body;
}

/** Symmetric per-row scale: the largest magnitude of a row becomes ±127. */
function encodeInt8(vectors: Float32Array, rows: number, dims: number): Uint8Array {
  const out = new Uint8Array(bodyBytes('i8', rows, dims));
  const values = new Int8Array(out.buffer, 0, rows * dims);
  const scales = new DataView(out.buffer, rows * dims);
  for (let row = 0; row < rows; row++) {
    let most = 0;
    for (let i = 0; i < dims; i++) most = Math.max(most, Math.abs(vectors[row * dims + i]!));
    const scale = most > 0 ? most / 127 : 1;
    for (let i = 0; i < dims; i++) values[row * dims + i] = Math.round(vectors[row * dims + i]! / scale);
    scales.setFloat32(row * 4, scale, true);
  }
  return out;
}

function encodeBits(vectors: Float32Array, rows: number, dims: number): Uint8Array {
  const rowBytes = Math.ceil(dims / 8);
  const out = new Uint8Array(rows * rowBytes);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < dims; i++) if (vectors[row * dims + i]! > 0) out[row * rowBytes + (i >> 3)]! |= 0x80 >> (i & 7);
  }
  return out;
}
