import { expect, test } from 'vitest';
import { NPY_HEADER_BYTES, npyHeader, npyRows } from './npy.ts';

test('the header is NumPy’s: magic, version 1.0, length, description, one line end at byte 127', () => {
  const header = npyHeader(3000, 384);
  expect(header.subarray(0, 8)).toEqual(Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0]));
  expect(header.readUInt16LE(8)).toBe(118);
  expect(header.subarray(10).toString()).toBe(
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3000, 384), }".padEnd(117) + '\n',
  );
  expect(header).toHaveLength(NPY_HEADER_BYTES);
});

test('the header has room for the most rows that a file can have', () => {
  expect(npyHeader(Number.MAX_SAFE_INTEGER, 65_536)).toHaveLength(NPY_HEADER_BYTES);
  expect(npyHeader(Number.MAX_SAFE_INTEGER, 65_536).at(-1)).toBe(0x0a);
});

test('rows are little-endian float32 in C order', () => {
  expect(npyRows(Float32Array.of(1, -2))).toEqual(Buffer.from([0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]));
});
