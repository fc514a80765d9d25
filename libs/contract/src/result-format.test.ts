// SHL1 byte by byte: header, body, checksum, and the difference between a result that was taken and one that is
// damaged.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { bodyBytes, bufferForBody, encodeResult, openResult } from './result-format.ts';
import { RESULT_HEADER_BYTES, decodeResultHeader } from './result-header.ts';

/** Bytes as pairs of digits, fields apart. */
function hex(...fields: readonly string[]): Buffer {
  return Buffer.from(fields.join('').replaceAll(' ', ''), 'hex');
}

/**
 * Written by hand from the layout in result-format.ts: one row of 1.0 and −2.0. The checksum was computed with Python's
 * zlib.
 */
const GOLDEN = hex(
  '53484c31 01 00 0200', // SHL1, version 1, f32, some rows truncated
  '01000000 02000000 562687c3', // 1 row, 2 dims, crc32 0xc3872656
  '0123456789abcdef 00000000', // fingerprint, zeroes
  '0000803f 000000c0',
);
const FACTS = { dtype: 'f32', rows: 1, dims: 2, fingerprint: '0123456789abcdef', isTruncated: true } as const;

function codeOf(bytes: Buffer): unknown {
  try {
    return openResult(bytes).header.dtype;
  } catch (error) {
    return isShoalError(error) ? error.code : error;
  }
}

function changed(at: number, value: number): Buffer {
  const copy = Buffer.from(GOLDEN);
  copy[at] = value;
  return copy;
}

test('a body that was made with room for its header is not copied', () => {
  const body = bufferForBody(GOLDEN.length - 32);
  body.set(GOLDEN.subarray(32));
  const result = encodeResult(FACTS, body);
  expect(result.toString('hex')).toBe(GOLDEN.toString('hex'));
  expect(result.buffer).toBe(body.buffer);
});

test('golden bytes', () => {
  expect(encodeResult(FACTS, GOLDEN.subarray(32)).toString('hex')).toBe(GOLDEN.toString('hex'));
  const { header, body } = openResult(GOLDEN);
  expect(header).toEqual({
    ...FACTS,
    crc32: 0xc3872656,
    isTaken: false,
    isSimulated: false,
    isPointer: false,
    isPart: false,
  });
  expect([body.readFloatLE(0), body.readFloatLE(4)]).toEqual([1, -2]);
});

test('whatever is encoded can be opened', () => {
  fc.assert(
    fc.property(
      fc.constantFrom('f32', 'f16', 'i8', 'binary'),
      fc.integer({ min: 1, max: 20 }),
      fc.integer({ min: 1, max: 40 }),
      fc.boolean(),
      fc.boolean(),
      fc.infiniteStream(fc.integer({ min: 0, max: 255 })),
      (dtype, rows, dims, isTruncated, isSimulated, bytes) => {
        const facts = { dtype, rows, dims, isTruncated, isSimulated, fingerprint: 'fedcba9876543210' } as const;
        const body = Uint8Array.from({ length: bodyBytes(dtype, rows, dims) }, () => bytes.next().value);
        const result = encodeResult(facts, body);
        expect(result.length).toBe(RESULT_HEADER_BYTES + body.length);
        const opened = openResult(result);
        expect(opened.header).toMatchObject({ ...facts, isTaken: false });
        expect(Uint8Array.from(opened.body)).toEqual(body);
        expect(opened.body.buffer).toBe(result.buffer);
      },
    ),
  );
});

test.each([
  ['f32', 257, 384],
  ['i8', 1_023, 384],
  ['binary', 1_024, 385],
  ['f16', 1_024, 384],
  ['f32', 1_024, 4_096],
] as const)('a result of %s, %d rows of %d dims', (dtype, rows, dims) => {
  const body = new Uint8Array(bodyBytes(dtype, rows, dims)).map((_, at) => at % 251);
  const opened = openResult(encodeResult({ ...FACTS, dtype, rows, dims }, body));
  expect(opened.header).toMatchObject({ dtype, rows, dims });
  expect(opened.body.equals(body)).toBe(true);
});

test('a body of another size than the header announces is a bug and not written', () => {
  expect(() => encodeResult(FACTS, new Uint8Array(7))).toThrow('invariant broken');
});

test.each([
  ['f32', 3 * 10 * 4],
  ['f16', 3 * 10 * 2],
  ['i8', 3 * 10 + 3 * 4],
  ['binary', 3 * 2],
] as const)('bytes of 3 rows of 10 dims as %s', (dtype, bytes) => {
  expect(bodyBytes(dtype, 3, 10)).toBe(bytes);
});

describe('what cannot be opened', () => {
  test('a result cut off anywhere, or longer than it should be, is RESULT_CORRUPT', () => {
    for (let length = 0; length < GOLDEN.length; length++)
      expect(codeOf(GOLDEN.subarray(0, length))).toBe('RESULT_CORRUPT');
    expect(codeOf(Buffer.concat([GOLDEN, Buffer.alloc(1)]))).toBe('RESULT_CORRUPT');
  });

  test.each([
    ['magic', 0, 0x52],
    ['version', 4, 2],
    ['dtype', 5, 4],
    ['another dtype than the body has', 5, 1],
    ['rows', 8, 2],
    ['dims', 12, 3],
    ['dims beyond all memory', 15, 0xff],
    ['flag', 6, 16],
    ['checksum', 16, 0],
    ['end of the header', 31, 1],
    ['body', 39, 0x40],
  ])('a wrong %s is RESULT_CORRUPT', (_, at, value) => {
    expect(codeOf(changed(at, value))).toBe('RESULT_CORRUPT');
  });

  test('a header that is marked as taken is RESULT_TAKEN, with or without a body', () => {
    expect(codeOf(changed(6, 3))).toBe('RESULT_TAKEN');
    expect(codeOf(changed(6, 1).subarray(0, 32))).toBe('RESULT_TAKEN');
    expect(decodeResultHeader(changed(6, 1).subarray(0, 32))).toMatchObject({ isTaken: true, rows: 1, dims: 2 });
  });
});

test('a header is read from its first 32 bytes, and only when it is one', () => {
  expect(decodeResultHeader(GOLDEN.subarray(0, 32))).toMatchObject({ fingerprint: '0123456789abcdef', dtype: 'f32' });
  expect(decodeResultHeader(GOLDEN.subarray(0, 31))).toBeUndefined();
  expect(decodeResultHeader(Buffer.alloc(32))).toBeUndefined();
  expect(decodeResultHeader(changed(5, 9))).toBeUndefined();
});
