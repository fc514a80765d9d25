// Whatever lies in a queue is shown in a few hundred characters.

import { expect, test } from 'vitest';
import { assert, jsonValue, property } from 'fast-check';
import { shorten } from './shorten.ts';

test('texts are counted, and the first one begun', () => {
  const texts = Array.from({ length: 64 }, (_, i) => `text ${i} ${'long '.repeat(1_000)}`);
  expect(shorten({ v: 1, texts, tenant: 'default' })).toEqual({
    v: 1,
    texts: `64 texts, the first: ${texts[0]!.slice(0, 80)}… (5,007 characters)`,
    tenant: 'default',
  });
});

test('vectors are counted, never shown', () => {
  expect(
    shorten({
      vector: Array.from({ length: 384 }, () => 0.5),
      vectors: [
        [1, 2],
        [3, 4],
        [5, 6],
      ],
    }),
  ).toEqual({ vector: '384 numbers', vectors: ['2 numbers', 'and 2 items more'] });
});

test('small things stay as they are', () => {
  const value = {
    v: 1,
    key: '{shoal}:out:embed-minilm:a',
    rows: 64,
    ms: { queued: 1, run: 2.5 },
    truncated: 0,
    none: null,
    yes: true,
    empty: [],
  };
  expect(shorten(value)).toEqual(value);
});

test('anything JSON can hold is shown, in little, whatever its size and depth', () => {
  assert(property(jsonValue({ maxDepth: 8 }), (value) => JSON.stringify(shorten(value) ?? null).length < 100_000));
  const deep = JSON.parse(`${'{"a":'.repeat(5_000)}1${'}'.repeat(5_000)}`);
  expect(JSON.stringify(shorten(deep)).length).toBeLessThan(100);
  expect(
    JSON.stringify(
      shorten(Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`field${i}`, 'x'.repeat(1_000)]))),
    ).length,
  ).toBeLessThan(8_000);
});

test('a character that lies on the cut does not become half a one', () => {
  expect(shorten(`${'a'.repeat(79)}😀😀`)).toBe(`${'a'.repeat(79)}\uFFFD… (83 characters)`);
});
