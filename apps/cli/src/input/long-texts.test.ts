import { describe, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { ShoalError } from '@shoal/contract';
import type { EmbeddedBlock, StreamBlock } from '@shoal/client';
import { cutLong, piecesOf, pooled, type Piece } from './long-texts.ts';
import type { TextRecord } from '@shoal/worker/files/record';

/** Two tokens around the words; a word of a script without spaces is one a character. */
const tokenizer: Tokenizer = {
  hash: '',
  maxTokens: 12,
  vocabularySize: 9,
  encode: (text) => {
    const words = text.match(/[a-z]+|[^\sa-z]/gu) ?? [];
    return { ids: [1, ...words.slice(0, 10).map(() => 3), 2], isTruncated: words.length > 10 };
  },
};

const record = (index: number, text: string): TextRecord => ({ index, id: undefined, text, file: 'a', line: index });
const words = (count: number): string =>
  Array.from({ length: count }, (_, at) => 'word'.slice(0, 1 + (at % 4))).join(' ');

describe('pieces of a long text', () => {
  test.each([
    ['words', words(101), 11],
    ['a script without spaces', '魚'.repeat(35), 4],
    ['emoji, whose halves stay together', '🐟'.repeat(35), 4],
    ['white space', `${words(15)}${' '.repeat(500)}${words(15)}`, 3],
  ])('are the text again, each fits, and there are few: %s', (_, text, most) => {
    const pieces = piecesOf(text, tokenizer, '');
    expect(pieces.join('')).toBe(text);
    expect(pieces.filter((piece) => tokenizer.encode(piece).isTruncated || !piece.isWellFormed())).toEqual([]);
    expect(pieces.length).toBeLessThanOrEqual(most + 1);
    // no word was cut in two
    expect(pieces.flatMap((piece) => piece.match(/[a-z]+/gu) ?? [])).toEqual(text.match(/[a-z]+/gu) ?? []);
  });

  test('leave room for the prompt that stands before each', () => {
    const pieces = piecesOf(words(40), tokenizer, 'passage of six words it is ');
    expect(pieces.every((piece) => piece.trim().split(' ').length <= 4)).toBe(true);
  });

  test('know their tokens and their record', async () => {
    const found: Piece[] = [];
    let long: number[] = [];
    const records = (async function* () {
      yield record(0, 'short');
      yield record(1, words(25));
    })();
    for await (const piece of cutLong(records, tokenizer, '', (count) => (long = [...long, count]))) found.push(piece);
    expect(long).toEqual([found.length - 1]);
    expect(found.slice(1).reduce((sum, { tokens }) => sum + tokens, 0)).toBe(25);
    expect(found.map(({ record: { index }, part }) => [index, part])).toEqual([
      [0, 0],
      ...found.slice(1).map((_, at) => [1, at]),
    ]);
  });
});

const held = Array.from({ length: 4 }, (_, index) => record(index, ''));
const piece = (index: number, part: number, parts: number, tokens = 1): Piece => ({
  record: held[index]!,
  part,
  parts,
  text: '',
  tokens,
});
const block = (items: readonly Piece[], ...vectors: readonly number[]): StreamBlock<Piece> =>
  ({
    kind: 'embedded',
    first: 0,
    rows: items.length,
    dims: 2,
    items,
    vectors: Float32Array.from(vectors),
    truncated: [],
  }) as unknown as EmbeddedBlock<Piece>;
const failed = (items: readonly Piece[]): StreamBlock<Piece> => ({
  kind: 'skipped',
  first: 0,
  rows: items.length,
  items,
  error: new ShoalError('INPUT_INVALID', 'no'),
});
async function all(blocks: readonly StreamBlock<Piece>[], isUnit = true) {
  const found = [];
  const source = (async function* () {
    yield* blocks;
  })();
  for await (const one of pooled(source, { isUnit, startAt: 5 }))
    found.push([
      one.kind,
      one.first,
      one.items.map(({ index }) => index),
      one.kind === 'embedded' ? [...one.vectors] : [],
    ]);
  return found;
}

describe('vectors of pieces', () => {
  test('become the mean weighted by tokens, over blocks, and of length 1 where the model’s are', async () => {
    const blocks = [
      block([piece(0, 0, 1), piece(1, 0, 2, 3)], 1, 0, 1, 0),
      block([piece(1, 1, 2, 1), piece(2, 0, 1)], 0, 1, 0, 1),
    ];
    const mean = [3 / Math.sqrt(10), 1 / Math.sqrt(10)].map(Math.fround);
    expect(await all(blocks)).toEqual([
      ['embedded', 5, [0], [1, 0]],
      ['embedded', 6, [1, 2], [...mean, 0, 1]],
    ]);
    expect((await all(blocks, false))[1]).toEqual(['embedded', 6, [1, 2], [0.75, 0.25, 0, 1]]);
  });

  test('of which one failed are those of a record that failed, once', async () => {
    const blocks = [
      block([piece(0, 0, 3)], 1, 0),
      failed([piece(0, 1, 3)]),
      block([piece(0, 2, 3), piece(1, 0, 1)], 1, 0, 0, 1),
      failed([piece(2, 0, 2)]),
      failed([piece(2, 1, 2), piece(3, 0, 1)]),
    ];
    expect(await all(blocks)).toEqual([
      ['skipped', 5, [0], []],
      ['embedded', 6, [1], [0, 1]],
      ['skipped', 7, [2], []],
      ['skipped', 8, [3], []],
    ]);
  });
});
