// Smaller forms of a vector: halves, bytes within half a step, bits by sign, and fewer dimensions that have length 1
// again.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { encodeBody } from './output-encoding.ts';
import { bodyBytes } from './result-format.ts';

const vectors = fc.integer({ min: 1, max: 6 }).chain((rows) =>
  fc.integer({ min: 1, max: 40 }).chain((dims) =>
    fc
      .array(
        fc.integer({ min: -100_000, max: 100_000 }).map((value) => value / 100_000),
        { minLength: rows * dims, maxLength: rows * dims },
      )
      .map((values) => ({ rows, dims, values: Float32Array.from(values) })),
  ),
);

function view(body: Uint8Array): DataView {
  return new DataView(body.buffer, body.byteOffset, body.byteLength);
}

describe('encodeBody', () => {
  test('f32 is the vectors themselves, also when they lie inside a larger buffer', () => {
    const values = new Float32Array([9, 1, 2, 3, 4, 9]).subarray(1, 5);
    const { dims, body } = encodeBody(values, 2, 2, { dtype: 'f32', dimensions: undefined });
    expect(dims).toBe(2);
    expect([0, 4, 8, 12].map((at) => view(body).getFloat32(at, true))).toEqual([1, 2, 3, 4]);
    expect(body.byteLength).toBe(16);
  });

  test('fewer dimensions are of length 1 again, or what was there where rows keep their lengths', () => {
    const values = new Float32Array([3, 4, 12, 0, 0, 5]);
    const floats = (keepsLengths: boolean): readonly number[] => {
      const { dims, body } = encodeBody(values, 2, 3, { dtype: 'f32', dimensions: 2, keepsLengths });
      expect(dims).toBe(2);
      return [0, 4, 8, 12].map((at) => view(body).getFloat32(at, true));
    };
    expect(floats(true)).toEqual([3, 4, 0, 0]);
    expect(floats(false)).toEqual([Math.fround(0.6), Math.fround(0.8), 0, 0]);
  });

  test('f16 is each value rounded', () => {
    const { body } = encodeBody(new Float32Array([1, 1 / 3, -0.5]), 1, 3, { dtype: 'f16', dimensions: undefined });
    expect([0, 2, 4].map((at) => view(body).getUint16(at, true))).toEqual([0x3c00, 0x3555, 0xb800]);
  });

  test('i8 times its row’s scale is within half a step of each value, and the largest becomes ±127', () => {
    fc.assert(
      fc.property(vectors, ({ rows, dims, values }) => {
        const { body } = encodeBody(values, rows, dims, { dtype: 'i8', dimensions: undefined });
        for (let row = 0; row < rows; row++) {
          const scale = view(body).getFloat32(rows * dims + row * 4, true);
          const bytes = Array.from({ length: dims }, (_, i) => view(body).getInt8(row * dims + i));
          const given = values.subarray(row * dims, (row + 1) * dims);
          expect(Math.max(...bytes.map((byte, i) => Math.abs(byte * scale - given[i]!)))).toBeLessThanOrEqual(
            scale * 0.5001,
          );
          expect(Math.max(...bytes.map(Math.abs))).toBe(given.every((value) => value === 0) ? 0 : 127);
        }
      }),
    );
  });

  test('binary is one bit per dimension, most significant first, rows padded to bytes', () => {
    const { body } = encodeBody(
      new Float32Array([1, -1, 0.5, 0, -2, 3, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1]),
      2,
      10,
      { dtype: 'binary', dimensions: undefined },
    );
    expect([...body]).toEqual([0b1010_0111, 0b1000_0000, 0b0000_0000, 0b0100_0000]);
  });

  test('fewer dimensions are the first ones with length 1 again; more than there are is all of them', () => {
    const { dims, body } = encodeBody(new Float32Array([0.6, 0, 0.8, 0, 0.8, 0.6]), 2, 3, {
      dtype: 'f32',
      dimensions: 2,
    });
    expect(dims).toBe(2);
    expect([0, 4, 8, 12].map((at) => view(body).getFloat32(at, true))).toEqual([1, 0, 0, 1]);
    expect(encodeBody(new Float32Array(6), 2, 3, { dtype: 'f32', dimensions: 500 }).dims).toBe(3);
  });

  test('a row whose kept dimensions are all zero stays zero', () => {
    const { body } = encodeBody(new Float32Array([0, 0, 1]), 1, 3, { dtype: 'f32', dimensions: 2 });
    expect([...body]).toEqual([0, 0, 0, 0, 0, 0, 0, 0]);
  });

  test('every form has the size that its header announces', () => {
    fc.assert(
      fc.property(
        vectors,
        fc.constantFrom('f32', 'f16', 'i8', 'binary'),
        fc.option(fc.integer({ min: 1, max: 50 }), { nil: undefined }),
        ({ rows, dims, values }, dtype, dimensions) => {
          const encoded = encodeBody(values, rows, dims, { dtype, dimensions });
          expect(encoded.dims).toBe(Math.min(dims, dimensions ?? dims));
          expect(encoded.body.byteLength).toBe(bodyBytes(dtype, rows, encoded.dims));
        },
      ),
    );
  });
});
