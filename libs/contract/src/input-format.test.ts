// SHI1 byte by byte: what is written comes back, and what is malformed is INPUT_CORRUPT, never another error and never
// a byte from outside the key.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { decodeInput, encodeTexts, encodeTokens, type DecodedInput } from './input-format.ts';

/** Bytes as pairs of digits, fields apart. */
function hex(...fields: readonly string[]): Buffer {
  return Buffer.from(fields.join('').replaceAll(' ', ''), 'hex');
}

/** Written by hand from the layout in input-format.ts, so that other languages can rely on it. */
const GOLDEN_TEXTS = hex(
  '53484931 01 00 0000 03000000', // SHI1, version 1, form 0, flags 0, 3 rows
  '00000000 02000000 02000000 05000000', // offsets 0, 2, 2, 5
  '4869 e282ac', // "Hi", "", "€"
);
const GOLDEN_U16 = hex(
  '53484931 01 01 0000 02000000', // form 1, 2 rows
  '00000000 03000000 05000000', // offsets 0, 3, 5
  '6500 3412 6600 6500 6600', // 101 4660 102, 101 102
);
const GOLDEN_U32 = hex(
  '53484931 01 02 0000 01000000', // form 2, 1 row
  '00000000 02000000', // offsets 0, 2
  '65000000 00000100', // 101 65536
);

const wellFormed = fc.string({ unit: 'binary', maxLength: 40 });
const texts = fc.array(wellFormed, { minLength: 1, maxLength: 256 });
const rowsOf = (most: number): fc.Arbitrary<number[][]> =>
  fc.array(fc.array(fc.integer({ min: 0, max: most }), { minLength: 1, maxLength: 30 }), {
    minLength: 1,
    maxLength: 256,
  });

function plain(input: DecodedInput): unknown {
  return input.form === 'texts' ? input : { ...input, rows: input.rows.map((row) => [...row]), ids: [...input.ids] };
}

/** The code of what decoding throws, or what it gives. */
function attempt(bytes: Buffer): unknown {
  try {
    return plain(decodeInput(bytes));
  } catch (error) {
    return isShoalError(error) ? error.code : error;
  }
}

function changed(bytes: Buffer, at: number, value: number, size: 1 | 2 | 4 = 1): Buffer {
  const copy = Buffer.from(bytes);
  copy.writeUIntLE(value, at, size);
  return copy;
}

describe('golden bytes', () => {
  test('texts', () => {
    expect(encodeTexts(['Hi', '', '€'])).toEqual(GOLDEN_TEXTS);
    expect(decodeInput(GOLDEN_TEXTS)).toEqual({ form: 'texts', texts: ['Hi', '', '€'] });
  });

  test('token ids of two bytes', () => {
    expect(
      encodeTokens([
        [101, 4660, 102],
        [101, 102],
      ]),
    ).toEqual(GOLDEN_U16);
    expect(plain(decodeInput(GOLDEN_U16))).toEqual({
      form: 'tokens',
      rows: [
        [101, 4660, 102],
        [101, 102],
      ],
      ids: [101, 4660, 102, 101, 102],
    });
  });

  test('token ids of four bytes', () => {
    expect(encodeTokens([[101, 65_536]])).toEqual(GOLDEN_U32);
    expect(plain(decodeInput(GOLDEN_U32))).toEqual({ form: 'tokens', rows: [[101, 65_536]], ids: [101, 65_536] });
  });
});

describe('round trips', () => {
  test('any texts', () => {
    fc.assert(
      fc.property(texts, (given) => {
        expect(decodeInput(encodeTexts(given))).toEqual({ form: 'texts', texts: given });
      }),
    );
  });

  test.each([256, 257, 1_023, 1_024])('%d rows, whatever is in them', (rows) => {
    const exactly = { minLength: rows, maxLength: rows };
    const ids = fc.array(fc.array(fc.integer({ min: 0, max: 70_000 }), { minLength: 1, maxLength: 4 }), exactly);
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'binary', maxLength: 4 }), exactly), ids, (given, tokens) => {
        expect(decodeInput(encodeTexts(given))).toEqual({ form: 'texts', texts: given });
        expect(plain(decodeInput(encodeTokens(tokens)))).toEqual({ form: 'tokens', rows: tokens, ids: tokens.flat() });
      }),
      { numRuns: 5 },
    );
  });

  test('lone surrogates become U+FFFD, a byte order mark stays', () => {
    expect(decodeInput(encodeTexts(['a\ud800b', '\ufeffc']))).toEqual({
      form: 'texts',
      texts: ['a\ufffdb', '\ufeffc'],
    });
  });

  test.each([
    ['u16', 0xffff],
    ['u32', 0xffff_ffff],
  ] as const)('any token ids as %s', (_, most) => {
    fc.assert(
      fc.property(rowsOf(most), (rows) => {
        expect(plain(decodeInput(encodeTokens(rows)))).toEqual({ form: 'tokens', rows, ids: rows.flat() });
      }),
    );
  });

  test('token ids from arrays of any kind', () => {
    for (const rows of [
      [
        [101, 4660, 102],
        [101, 102],
      ],
      [[101, 65_536]],
    ]) {
      const wanted = encodeTokens(rows);
      for (const given of [rows.map((row) => Uint32Array.from(row)), rows.map((row) => Int32Array.from(row))])
        expect(encodeTokens(given)).toEqual(wanted);
    }
  });

  test.each([-1, 0.5, NaN, 2 ** 32, -(2 ** 31)])('a token id that is %d is refused', (id) => {
    for (const other of [1, 65_536])
      expect(() =>
        encodeTokens([
          [other, 2],
          [3, id],
        ]),
      ).toThrow(new RangeError(`a token id is ${id}: it must be a whole number from 0 to 4294967295`));
  });

  test('token ids at any alignment inside a larger buffer', () => {
    for (const golden of [GOLDEN_U16, GOLDEN_U32]) {
      for (let shift = 0; shift < 8; shift++) {
        const around = Buffer.alloc(golden.length + 16, 0xff);
        golden.copy(around, shift);
        expect(plain(decodeInput(around.subarray(shift, shift + golden.length)))).toEqual(plain(decodeInput(golden)));
      }
    }
  });
});

describe('malformed input is INPUT_CORRUPT', () => {
  test.each([
    ['texts', GOLDEN_TEXTS],
    ['u16', GOLDEN_U16],
    ['u32', GOLDEN_U32],
  ] as const)('%s cut off at any byte, or with bytes after its end', (_, golden) => {
    for (let length = 0; length < golden.length; length++)
      expect(attempt(golden.subarray(0, length))).toBe('INPUT_CORRUPT');
    for (const more of [1, 2, 4, 100])
      expect(attempt(Buffer.concat([golden, Buffer.alloc(more)]))).toBe('INPUT_CORRUPT');
  });

  test('what lies behind the key in a larger buffer is not read', () => {
    const around = Buffer.concat([GOLDEN_TEXTS, Buffer.from('secret')]);
    expect(attempt(changed(around, 24, 11, 4).subarray(0, GOLDEN_TEXTS.length))).toBe('INPUT_CORRUPT');
  });

  test.each([
    ['magic', changed(GOLDEN_TEXTS, 0, 0x54)],
    ['version 0', changed(GOLDEN_TEXTS, 4, 0)],
    ['version 2', changed(GOLDEN_TEXTS, 4, 2)],
    ['form 3', changed(GOLDEN_TEXTS, 5, 3)],
    ['flags', changed(GOLDEN_TEXTS, 6, 1, 2)],
    ['flags in the high byte', changed(GOLDEN_TEXTS, 7, 0x80)],
    ['rows 0', changed(GOLDEN_TEXTS, 8, 0, 4)],
    ['rows 1,025', changed(GOLDEN_TEXTS, 8, 1_025, 4)],
    ['rows 2³²−1', changed(GOLDEN_TEXTS, 8, 0xffff_ffff, 4)],
    ['a first offset that is not 0', changed(GOLDEN_TEXTS, 12, 1, 4)],
    ['an offset that goes back', changed(GOLDEN_TEXTS, 20, 1, 4)],
    ['a last offset beyond the end', changed(GOLDEN_TEXTS, 24, 6, 4)],
    ['a last offset of 2³²−1', changed(GOLDEN_U32, 16, 0xffff_ffff, 4)],
    ['an offset in the middle beyond the end', changed(GOLDEN_TEXTS, 16, 0xffff_fff0, 4)],
    ['invalid UTF-8', changed(GOLDEN_TEXTS, 28, 0xff)],
    ['a character shared by two texts', changed(changed(GOLDEN_TEXTS, 20, 3, 4), 16, 3, 4)],
    ['a surrogate in UTF-8', Buffer.concat([GOLDEN_TEXTS.subarray(0, 30), Buffer.from('eda080', 'hex')])],
    ['a row without token ids', changed(GOLDEN_U16, 16, 0, 4)],
  ])('%s', (_, bytes) => {
    expect(attempt(bytes)).toBe('INPUT_CORRUPT');
  });

  test('1,025 rows that are otherwise well-formed', () => {
    expect(attempt(encodeTexts(Array.from({ length: 1_025 }, () => 'x')))).toBe('INPUT_CORRUPT');
    expect(attempt(encodeTokens(Array.from({ length: 1_025 }, () => [1])))).toBe('INPUT_CORRUPT');
  });

  test('any bytes at all, and any well-formed input with a few bytes changed, decode or are INPUT_CORRUPT', () => {
    const mutated = fc
      .tuple(
        fc.oneof(texts.map(encodeTexts), rowsOf(0xffff).map(encodeTokens), rowsOf(0xffff_ffff).map(encodeTokens)),
        fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 }),
      )
      .map(([bytes, changes]) =>
        changes.reduce((copy: Buffer, [at, value]) => changed(copy, at % Math.min(bytes.length, 64), value), bytes),
      );
    const arbitrary = fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes));
    fc.assert(
      fc.property(fc.oneof(mutated, arbitrary), (bytes) => {
        const result = attempt(bytes);
        expect(result === 'INPUT_CORRUPT' || (typeof result === 'object' && !(result instanceof Error))).toBe(true);
      }),
      { numRuns: 2_000 },
    );
  });

  test('the message says what was found', () => {
    expect(() => decodeInput(Buffer.from('hello'))).toThrow(/SHI1.*5 bytes/);
    expect(() => decodeInput(changed(GOLDEN_TEXTS, 12, 7, 4))).toThrow(/offset 0 is 7, not 0/);
    expect(() => decodeInput(changed(GOLDEN_TEXTS, 20, 1, 4))).toThrow(/offset 2 is 1, less than the one before/);
  });
});
