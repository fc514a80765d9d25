// From the f32 rows a device gives to the body a job asked for: fewer dimensions, smaller types. Rows come L2-normalized
// and stay so when dimensions are cut off (Matryoshka truncation: Kusupati et al. 2022, arXiv 2205.13147).

import { bodyBytes } from './result-format.ts';
import type { OutputOptions } from './job-schema.ts';

/** `vectors`: rows × dims, row-major. Returns the dimensions kept and the body in the layout of SHL1. */
export function encodeBody(vectors: Float32Array, rows: number, dims: number, output: OutputOptions): { dims: number; body: Uint8Array } {
  const kept = Math.min(output.dimensions ?? dims, dims);
  const cut = kept === dims ? vectors : shorten(vectors, rows, dims, kept);
  return { dims: kept, body: encodeValues(cut, rows, kept, output.dtype) };
}

function encodeValues(vectors: Float32Array, rows: number, dims: number, dtype: OutputOptions['dtype']): Uint8Array {
  switch (dtype) {
    case 'f32': return new Uint8Array(vectors.buffer, vectors.byteOffset, rows * dims * 4);
    case 'f16': return new Uint8Array(Uint16Array.from(vectors, toHalf).buffer);
    case 'i8': return encodeInt8(vectors, rows, dims);
    case 'binary': return encodeBits(vectors, rows, dims);
  }
}

function shorten(vectors: Float32Array, rows: number, dims: number, kept: number): Float32Array {
  const out = new Float32Array(rows * kept);
  for (let row = 0; row < rows; row++) {
    const values = vectors.subarray(row * dims, row * dims + kept);
    const norm = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
    for (let i = 0; i < kept; i++) out[row * kept + i] = norm > 0 ? values[i]! / norm : 0;
  }
  return out;
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

const bits = new DataView(new ArrayBuffer(4));

/** IEEE 754 binary16, rounded to nearest, ties to even. */
export function toHalf(value: number): number {
  bits.setFloat32(0, value);
  const word = bits.getUint32(0);
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fff_ffff;
  if (magnitude >= 0x7f80_0000) return sign | (magnitude > 0x7f80_0000 ? 0x7e00 : 0x7c00);
  if (magnitude >= 0x477f_f000) return sign | 0x7c00; // rounds past 65,504
  if (magnitude < 0x3880_0000) return sign | roundEven(Math.abs(value) * 2 ** 24); // subnormal: steps of 2⁻²⁴
  const exponent = (magnitude >>> 23) - 112;
  const mantissa = magnitude & 0x7f_ffff;
  return sign | roundEven((exponent << 10) + mantissa / 0x2000);
}

function roundEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && (floor & 1) === 1) ? floor + 1 : floor;
}
