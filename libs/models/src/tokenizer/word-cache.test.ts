import { expect, test } from 'vitest';
import { WordCache } from './word-cache.ts';

test('a word is found again, also after a generation of others, if it was asked for meanwhile', () => {
  const cache = new WordCache();
  cache.add('kept', 1);
  cache.add('forgotten', [1, 2]);
  for (let at = 0; at < 150_000; at++) {
    cache.add(`word ${at}`, at);
    if (at % 10_000 === 0) cache.get('kept');
  }
  expect(cache.get('kept')).toBe(1);
  expect(cache.get('forgotten')).toBeUndefined();
});

test('long stretches are not kept', () => {
  const cache = new WordCache();
  cache.add('x'.repeat(49), 1);
  expect(cache.get('x'.repeat(49))).toBeUndefined();
});
