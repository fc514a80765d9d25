// NumPy's .npy, version 1.0: float32, C order, [rows, dims]. The header has a fixed size, so that the number of rows
// can be written once it is known. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

import { endianness } from 'node:os';
import { invariant } from '@shoal/contract';

/** 10 bytes of magic, version and length, then the description padded with spaces to a multiple of 64. */
export const NPY_HEADER_BYTES = 128;

export function npyHeader(rows: number, dims: number): Buffer {
  const description = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${dims}), }`;
  const header = Buffer.alloc(NPY_HEADER_BYTES, ' ');
  header.write('\x93NUMPY\x01\x00', 'latin1');
  header.writeUInt16LE(NPY_HEADER_BYTES - 10, 8);
  header.write(description, 10, 'latin1');
  header.write('\n', NPY_HEADER_BYTES - 1, 'latin1');
  return header;
}

/** The bytes of vectors as .npy wants them: little-endian floats, a view and not a copy. */
export function npyRows(vectors: Float32Array): Buffer {
  invariant(endianness() === 'LE', 'Shoal runs on little-endian machines');
  return Buffer.from(vectors.buffer, vectors.byteOffset, vectors.byteLength);
}
