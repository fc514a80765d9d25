// Token ids of a caller become rows the model takes, whether special tokens are around them or not.

import { expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { idTokenizer, toTokenTexts } from './token-rows.ts';

const tokenizer: Tokenizer = {
  hash: '0'.repeat(16),
  maxTokens: 6,
  vocabularySize: 1_000,
  encode: () => ({ ids: [101, 102], isTruncated: false }),
};

function rowsOf(rows: readonly (readonly number[])[], truncate: 'end' | 'error' = 'error'): unknown[] {
  return toTokenTexts(rows, tokenizer, truncate).texts.map((text) => idTokenizer(tokenizer).encode(text).ids);
}

test('end tokens are put around ids that have none, and never twice', () => {
  expect(rowsOf([[7], [101, 7, 102], [101, 102]])).toEqual([
    [101, 7, 102],
    [101, 7, 102],
    [101, 102],
  ]);
});

test('one special token alone is an id like others', () => {
  expect(rowsOf([[101], [7, 102], [101, 7]])).toEqual([
    [101, 101, 102],
    [101, 7, 102, 102],
    [101, 101, 7, 102],
  ]);
});

test('rows up to the model’s length are taken whole, longer ones refused by their place', () => {
  expect(rowsOf([[1, 2, 3, 4]])).toEqual([[101, 1, 2, 3, 4, 102]]);
  expect(() => rowsOf([[1], [1, 2, 3, 4, 5]])).toThrow(/input\[1\] has 7 tokens.*takes 6.*"truncate": "end"/);
});

test('or cut, so that the closing token stays', () => {
  expect(rowsOf([[1, 2, 3, 4, 5, 6]], 'end')).toEqual([[101, 1, 2, 3, 4, 102]]);
});
