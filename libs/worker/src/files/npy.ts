// NumPy's .npy, version 1.0: C order, [rows, width], in one of four types. The header has a fixed size, so that the number
// of rows can be written once it is known. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

import { endianness } from 'node:os';
import { invariant, type OutputDtype } from '@shoal/contract';
import type { VectorValues } from './vector-form.ts';

/** 10 bytes of magic, version and length, then the description padded with spaces to a multiple of 64. */
export const NPY_HEADER_BYTES = 128;

const DESCRIPTIONS: Readonly<Record<OutputDtype, string>> = { f32: '<f4', f16: '<f2', i8: '|i1', binary: '|u1' };

/** `width`: values of a row; undefined for an array of one dimension. */
export function npyHeader(rows: number, width: number | undefined, dtype: OutputDtype = 'f32'): Buffer {
  const shape = width === undefined ? `(${rows},)` : `(${rows}, ${width})`;
  const description = `{'descr': '${DESCRIPTIONS[dtype]}', 'fortran_order': False, 'shape': ${shape}, }`;
  const header = Buffer.alloc(NPY_HEADER_BYTES, ' ');
  header.write('\x93NUMPY\x01\x00', 'latin1');
  header.writeUInt16LE(NPY_HEADER_BYTES - 10, 8);
  header.write(description, 10, 'latin1');
  header.write('\n', NPY_HEADER_BYTES - 1, 'latin1');
  return header;
}

/** The bytes of values as .npy wants them: little-endian, a view and not a copy. */
export function npyRows(values: VectorValues['values']): Buffer {
  invariant(endianness() === 'LE', 'Shoal runs on little-endian machines');
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}
