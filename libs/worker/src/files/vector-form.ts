// Vectors as a file holds them: as they came, as halves, as bytes with a scale a row, or as bits. The rules are those of
// results (docs/jobs.md), so that a file and a job that asked for the same type hold the same bytes.

import { encodeBody, type OutputDtype } from '@shoal/contract';

export const DTYPES = ['f32', 'f16', 'i8', 'binary'] as const satisfies readonly OutputDtype[];

/** Rows in one type. */
export interface VectorValues {
  /** Values of a row: the dimensions; of bits the bytes, eight dimensions in each. */
  readonly width: number;
  /** rows × width. Halves are given by their bits. */
  readonly values: Float32Array | Uint16Array | Int8Array | Uint8Array;
  /** Of i8: by what the bytes of each row are multiplied. */
  readonly scales: Float32Array | undefined;
}

/** The column beside that of the vectors, by which bytes are multiplied. */
export function scaleColumn(vectorField: string): string {
  return `${vectorField}_scale`;
}

export function widthOf(dims: number, dtype: OutputDtype): number {
  return dtype === 'binary' ? Math.ceil(dims / 8) : dims;
}

/** `vectors`: rows × dims, row-major. */
export function encodeVectors(vectors: Float32Array, rows: number, dims: number, dtype: OutputDtype): VectorValues {
  const width = widthOf(dims, dtype);
  if (dtype === 'f32') return { width, values: vectors, scales: undefined };
  const { body } = encodeBody(vectors, rows, dims, { dtype, dimensions: undefined });
  const { buffer, byteOffset } = body;
  switch (dtype) {
    case 'f16':
      return { width, values: new Uint16Array(buffer, byteOffset, rows * dims), scales: undefined };
    case 'i8':
      return {
        width,
        values: new Int8Array(buffer, byteOffset, rows * dims),
        scales: new Float32Array(buffer.slice(byteOffset + rows * dims, byteOffset + rows * dims + rows * 4)),
      };
    case 'binary':
      return { width, values: body, scales: undefined };
  }
}
