// SHL1 byte by byte: header, body, checksum, and the difference between a result that was taken and one that is
// damaged.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import {
  BodyRooms,
  RESULT_HEADER_BYTES,
  bodyBytes,
  decodeResultHeader,
  encodeResult,
  openResult,
  roomForBody,
} from './result-format.ts';

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
  const body = roomForBody(GOLDEN.length - 32);
  body.set(GOLDEN.subarray(32));
  const result = encodeResult(FACTS, body);
  expect(result.toString('hex')).toBe(GOLDEN.toString('hex'));
  expect(result.buffer).toBe(body.buffer);
});

describe('rooms for bodies', () => {
  const ROWS = { dtype: 'f32', rows: 65, dims: 384, fingerprint: '0123456789abcdef', isTruncated: false } as const;

  test(
    'a room that came back serves the next body, also one that is a little shorter, and its result ends where ' +
      'that body ends',
    () => {
      const rooms = new BodyRooms();
      const first = rooms.take(66 * 384 * 4).fill(7);
      rooms.giveBack(first.buffer);
      const second = rooms.take(65 * 384 * 4);
      expect(second.buffer).toBe(first.buffer);
      expect(second.length).toBe(65 * 384 * 4);
      second.fill(0);
      const result = encodeResult(ROWS, second);
      expect(result.buffer).toBe(second.buffer);
      expect(result.equals(encodeResult(ROWS, new Uint8Array(65 * 384 * 4)))).toBe(true);
    },
  );

  test('nobody gets a room that another still has, however often it is given back', () => {
    const rooms = new BodyRooms();
    const first = rooms.take(98_304);
    expect(rooms.take(98_304).buffer).not.toBe(first.buffer);
    rooms.giveBack(first.buffer);
    rooms.giveBack(first.buffer);
    const [second, third] = [rooms.take(98_304), rooms.take(98_304)];
    expect(second.buffer).toBe(first.buffer);
    expect(third.buffer).not.toBe(first.buffer);
  });

  test('what is small, large, or of another origin is not kept', () => {
    const rooms = new BodyRooms();
    for (const bytes of [1_536, 8 * 2 ** 20]) {
      const { buffer, length } = rooms.take(bytes);
      expect(length).toBe(bytes);
      rooms.giveBack(buffer);
      expect(rooms.take(bytes).buffer).not.toBe(buffer);
    }
    const others = roomForBody(98_304);
    rooms.giveBack(others.buffer);
    expect(rooms.take(98_304).buffer).not.toBe(others.buffer);
  });

  test('sizes that nobody asks for any more make room for those that somebody does', () => {
    const rooms = new BodyRooms();
    // 32 MiB: all that is kept
    for (const { buffer } of Array.from({ length: 8 }, () => rooms.take(4 * 2 ** 20))) rooms.giveBack(buffer);
    const { buffer } = rooms.take(98_304);
    rooms.giveBack(buffer);
    expect(rooms.take(98_304).buffer).toBe(buffer);
  });

  test('every size has its room, at most an eighth too large', () => {
    const rooms = new BodyRooms();
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 5_000_000 }), (bytes) => {
        const room = rooms.take(bytes);
        expect([room.byteOffset, room.length]).toEqual([RESULT_HEADER_BYTES, bytes]);
        expect(room.buffer.byteLength - RESULT_HEADER_BYTES).toBeLessThanOrEqual((bytes * 9) / 8);
      }),
    );
  });
});

test('golden bytes', () => {
  expect(encodeResult(FACTS, GOLDEN.subarray(32)).toString('hex')).toBe(GOLDEN.toString('hex'));
  const { header, body } = openResult(GOLDEN);
  expect(header).toEqual({ ...FACTS, crc32: 0xc3872656, isTaken: false });
  expect([body.readFloatLE(0), body.readFloatLE(4)]).toEqual([1, -2]);
});

test('whatever is encoded can be opened', () => {
  fc.assert(
    fc.property(
      fc.constantFrom('f32', 'f16', 'i8', 'binary'),
      fc.integer({ min: 1, max: 20 }),
      fc.integer({ min: 1, max: 40 }),
      fc.boolean(),
      fc.infiniteStream(fc.integer({ min: 0, max: 255 })),
      (dtype, rows, dims, isTruncated, bytes) => {
        const facts = { dtype, rows, dims, isTruncated, fingerprint: 'fedcba9876543210' } as const;
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
    ['checksum', 16, 0],
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
