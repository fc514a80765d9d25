// Rows of a result in the form in which it is stored, as arrays in memory of their own; and from there to one
// Float32Array, up to what the smaller forms have lost. The layouts are those of core's encodeBody.

import { ShoalError, fromHalves, type OutputDtype, type ResultHeader } from '@shoal/contract';
import type { StoredForms, Vectors } from './embedding.ts';

/** What an array of rows is of; `dtype` says which form. */
export type StoredRows = Pick<Vectors<OutputDtype>, 'rows' | 'dims' | 'dtype' | 'vectors' | 'scales'>;

const ARRAYS: { readonly [Dtype in OutputDtype]: new (length: number) => StoredForms[Dtype] } = {
  f32: Float32Array,
  f16: Uint16Array,
  i8: Int8Array,
  binary: Uint8Array,
};

/** Of an array of this form. */
export function elementsOfRow(dtype: OutputDtype, dims: number): number {
  return dtype === 'binary' ? Math.ceil(dims / 8) : dims;
}

/**
 * `body`: what `openResult` returned. A copy: aligned, and the reader's memory is free for the next result. Throws
 * RESULT_CORRUPT where there are no vectors in the result.
 */
export function storedRows(header: Pick<ResultHeader, 'dtype' | 'rows' | 'dims'>, body: Buffer): StoredRows {
  const dtype = vectorsDtype(header);
  const { rows, dims } = header;
  const { buffer } = new Uint8Array(body);
  const length = rows * elementsOfRow(dtype, dims);
  switch (dtype) {
    case 'f32':
      return { rows, dims, dtype, vectors: new Float32Array(buffer), scales: undefined };
    case 'f16':
      return { rows, dims, dtype, vectors: new Uint16Array(buffer), scales: undefined };
    case 'binary':
      return { rows, dims, dtype, vectors: new Uint8Array(buffer), scales: undefined };
    case 'i8':
      return {
        rows,
        dims,
        dtype,
        vectors: new Int8Array(buffer, 0, length),
        scales: new Float32Array(buffer.slice(length)), // behind rows of any length it is not aligned
      };
  }
}

/** The same rows of several results, in order and without gaps. None at all: no rows of `dtype`. */
export function joinedRows(parts: readonly StoredRows[], dtype: OutputDtype): StoredRows {
  const [first] = parts;
  if (first !== undefined && parts.length === 1) return first;
  const form = first?.dtype ?? dtype;
  const dims = first?.dims ?? 0;
  const rows = parts.reduce((sum, part) => sum + part.rows, 0);
  const vectors = new ARRAYS[form](rows * elementsOfRow(form, dims));
  const scales = form === 'i8' ? new Float32Array(rows) : undefined;
  let at = 0;
  for (const part of parts) {
    vectors.set(part.vectors, at * elementsOfRow(form, dims));
    if (part.scales !== undefined) scales?.set(part.scales, at);
    at += part.rows;
  }
  return { rows, dims, dtype: form, vectors, scales };
}

/** rows × dims values; set bits of the binary form become 1, clear bits −1. What is f32 already is given as it is. */
export function toFloat32({ rows, dims, dtype, vectors, scales }: StoredRows): Float32Array {
  if (vectors instanceof Float32Array) return vectors;
  if (vectors instanceof Uint16Array) return fromHalves(vectors);
  const out = new Float32Array(rows * dims);
  if (dtype === 'i8') {
    for (let i = 0; i < out.length; i++) out[i] = vectors[i]! * scales![Math.floor(i / dims)]!;
    return out;
  }
  const rowBytes = elementsOfRow(dtype, dims);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < dims; i++)
      out[row * dims + i] = (vectors[row * rowBytes + (i >> 3)]! & (0x80 >> (i & 7))) === 0 ? -1 : 1;
  }
  return out;
}

/** Of what is not asked for as vectors: scores. Throws as `storedRows` does. */
export function widen(header: Pick<ResultHeader, 'dtype' | 'rows' | 'dims'>, body: Buffer): Float32Array {
  return toFloat32(storedRows(header, body));
}

function vectorsDtype({ dtype }: Pick<ResultHeader, 'dtype'>): OutputDtype {
  if (dtype === 'ranking')
    throw new ShoalError('RESULT_CORRUPT', 'the result holds a ranking where vectors were asked for');
  return dtype;
}
