// SHI1 of pairs byte by byte: what is written comes back, and what is malformed is INPUT_CORRUPT, never another error
// and never a byte from outside the key.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { decodeInput, encodeTexts, encodeTokens } from './input-format.ts';
import { decodePairs, encodePairs, encodeQueryTexts, type DecodedPairs } from './pairs-format.ts';

/** Bytes as pairs of digits, fields apart. */
function hex(...fields: readonly string[]): Buffer {
  return Buffer.from(fields.join('').replaceAll(' ', ''), 'hex');
}

/** Written by hand from the layout in docs/jobs.md, so that other languages can rely on it. */
const GOLDEN_TEXTS = hex(
  '53484931 01 03 0000 02000000', // SHI1, version 1, form 3, flags 0, 2 pairs
  '00000000 02000000 02000000 05000000', // offsets 0, 2, 2, 5: query, two texts, the end
  '4869 e282ac', // "Hi", "", "€"
);
const GOLDEN_U16 = hex(
  '53484931 01 04 0000 02000000', // form 4, 2 pairs
  '00000000 04000000 07000000', // offsets 0, 4, 7
  '03000000 00000000', // second texts begin at 3 and at 0
  '6500 3412 6600 3412 6500 6600 6600',
);
const GOLDEN_U32 = hex(
  '53484931 01 05 0000 01000000', // form 5, 1 pair
  '00000000 02000000', // offsets 0, 2
  '02000000', // the second text begins behind the last id: it is empty
  '65000000 00000100', // 101 65536
);

const wellFormed = fc.string({ unit: 'binary', maxLength: 40 });
const texts = fc.array(wellFormed, { minLength: 1, maxLength: 256 });
const pairsOf = (most: number): fc.Arbitrary<{ ids: number[]; second: number }[]> =>
  fc.array(
    fc
      .array(fc.integer({ min: 0, max: most }), { minLength: 1, maxLength: 30 })
      .chain((ids) => fc.record({ ids: fc.constant(ids), second: fc.integer({ min: 0, max: ids.length }) })),
    { minLength: 1, maxLength: 256 },
  );

function plain(input: DecodedPairs): unknown {
  return input.form === 'texts' ? input : input.rows.map((row, at) => ({ ids: [...row], second: input.seconds[at] }));
}

/** The code of what decoding throws, or what it gives. */
function attempt(bytes: Buffer): unknown {
  try {
    return plain(decodePairs(bytes));
  } catch (error) {
    return isShoalError(error) ? error.code : error;
  }
}

function changed(bytes: Buffer, at: number, value: number, size: 1 | 2 | 4 = 1): Buffer {
  const copy = Buffer.from(bytes);
  copy.writeUIntLE(value, at, size);
  return copy;
}

test('golden bytes', () => {
  expect(encodeQueryTexts('Hi', ['', '€'])).toEqual(GOLDEN_TEXTS);
  expect(decodePairs(GOLDEN_TEXTS)).toEqual({ form: 'texts', query: 'Hi', texts: ['', '€'] });
  const pairs = [
    { ids: [101, 4660, 102, 4660], second: 3 },
    { ids: [101, 102, 102], second: 0 },
  ];
  expect(encodePairs(pairs)).toEqual(GOLDEN_U16);
  expect(plain(decodePairs(GOLDEN_U16))).toEqual(pairs);
  expect(encodePairs([{ ids: [101, 65_536], second: 2 }])).toEqual(GOLDEN_U32);
  expect(plain(decodePairs(GOLDEN_U32))).toEqual([{ ids: [101, 65_536], second: 2 }]);
});

describe('round trips', () => {
  test('any query and texts', () => {
    fc.assert(
      fc.property(wellFormed, texts, (query, given) => {
        expect(decodePairs(encodeQueryTexts(query, given))).toEqual({ form: 'texts', query, texts: given });
      }),
    );
  });

  test.each([0xffff, 0xffff_ffff])('any pairs of token ids up to %d', (most) => {
    fc.assert(
      fc.property(pairsOf(most), (pairs) => {
        expect(plain(decodePairs(encodePairs(pairs)))).toEqual(pairs);
      }),
    );
  });

  test.each([257, 1_023, 1_024])('%d pairs', (rows) => {
    const given = Array.from({ length: rows }, (_, at) => `text ${at}`);
    expect(decodePairs(encodeQueryTexts('q', given))).toEqual({ form: 'texts', query: 'q', texts: given });
    const pairs = given.map((_, at) => ({ ids: [at, 70 * at, 3], second: at % 4 }));
    expect(plain(decodePairs(encodePairs(pairs)))).toEqual(pairs);
  });

  test('at any alignment inside a larger buffer', () => {
    for (const golden of [GOLDEN_U16, GOLDEN_U32])
      for (let shift = 0; shift < 8; shift++) {
        const around = Buffer.alloc(golden.length + 16, 0xff);
        golden.copy(around, shift);
        expect(plain(decodePairs(around.subarray(shift, shift + golden.length)))).toEqual(plain(decodePairs(golden)));
      }
  });

  test.each([-1, 4, 0.5, NaN])('a second text that begins at %d of 3 ids is not written', (second) => {
    expect(() => encodePairs([{ ids: [1, 2, 3], second }])).toThrow(RangeError);
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

  test.each([
    ['version 2', changed(GOLDEN_TEXTS, 4, 2)],
    ['form 6', changed(GOLDEN_TEXTS, 5, 6)],
    ['flags', changed(GOLDEN_TEXTS, 6, 1, 2)],
    ['rows 0', changed(GOLDEN_TEXTS, 8, 0, 4)],
    ['rows 1,025', changed(GOLDEN_TEXTS, 8, 1_025, 4)],
    ['an offset that goes back', changed(GOLDEN_TEXTS, 20, 1, 4)],
    ['invalid UTF-8 in the query', changed(GOLDEN_TEXTS, 28, 0xff)],
    ['a row without token ids', changed(GOLDEN_U16, 16, 0, 4)],
    ['a second text behind its row', changed(GOLDEN_U16, 24, 5, 4)],
    ['a second text at 2³²−1', changed(GOLDEN_U16, 28, 0xffff_ffff, 4)],
  ])('%s', (_, bytes) => {
    expect(attempt(bytes)).toBe('INPUT_CORRUPT');
  });

  test('any bytes at all, and any well-formed pairs with a few bytes changed, decode or are INPUT_CORRUPT', () => {
    const encoded = fc.oneof(
      fc.tuple(wellFormed, texts).map(([query, given]) => encodeQueryTexts(query, given)),
      pairsOf(0xffff).map(encodePairs),
      pairsOf(0xffff_ffff).map(encodePairs),
    );
    const mutated = fc
      .tuple(encoded, fc.array(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { minLength: 1, maxLength: 4 }))
      .map(([bytes, changes]) =>
        changes.reduce((copy, [at, value]) => changed(copy, at % Math.min(bytes.length, 64), value), bytes),
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
});

test('pairs and single rows are not taken for each other', () => {
  for (const bytes of [GOLDEN_TEXTS, GOLDEN_U16, GOLDEN_U32])
    expect(() => decodeInput(bytes)).toThrow(/its form is [345], pairs, which only rerank jobs have/);
  for (const bytes of [encodeTexts(['a']), encodeTokens([[1]]), encodeTokens([[65_536]])])
    expect(() => decodePairs(bytes)).toThrow(/its form is [012], which has no pairs; a rerank job takes 3, 4 and 5/);
});
