import { expect, test } from 'vitest';
import { jsonlRow, shortestDecimal } from './jsonl.ts';

test('a row names its id when it has one, else its index', () => {
  expect(jsonlRow({ id: 'a"b', index: 4 }, Float32Array.of(0.5, -1))).toBe('{"id":"a\\"b","embedding":[0.5,-1]}\n');
  expect(jsonlRow({ id: undefined, index: 4 }, Float32Array.of(0.1))).toBe('{"index":4,"embedding":[0.1]}\n');
});

test('a row carries its text when it is given one', () => {
  expect(jsonlRow({ id: 7, index: 4, text: 'a\n"b" 🐟' }, Float32Array.of(1))).toBe(
    '{"id":7,"text":"a\\n\\"b\\" 🐟","embedding":[1]}\n',
  );
});

test('every value reads back as the float32 it was', () => {
  const bits = Uint32Array.from({ length: 50_000 }, (_, i) => Math.imul(i, 2_654_435_761));
  const values = Array.from(new Float32Array(bits.buffer)).filter((value) => Number.isFinite(value));
  expect(values.filter((value) => Math.fround(Number(String(shortestDecimal(value)))) !== value)).toEqual([]);
});
