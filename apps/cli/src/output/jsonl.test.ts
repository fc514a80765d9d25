import { expect, test } from 'vitest';
import { jsonlRow, shortestDecimal } from './jsonl.ts';

const line = (id: string | number | undefined, text: string | undefined, ...values: number[]): string =>
  jsonlRow(
    { withText: text !== undefined },
    { id, index: 4, text: text ?? '' },
    { values: Float32Array.from(values), scale: undefined },
  );

test('a row names its id when it has one, else its index', () => {
  expect(line('a"b', undefined, 0.5, -1)).toBe('{"id":"a\\"b","embedding":[0.5,-1]}\n');
  expect(line(undefined, undefined, 0.1)).toBe('{"index":4,"embedding":[0.1]}\n');
});

test('a row carries its text when it is given one', () => {
  expect(line(7, 'a\n"b" 🐟', 1)).toBe('{"id":7,"text":"a\\n\\"b\\" 🐟","embedding":[1]}\n');
});

test('every value reads back as the float32 it was', () => {
  const bits = Uint32Array.from({ length: 50_000 }, (_, i) => Math.imul(i, 2_654_435_761));
  const values = Array.from(new Float32Array(bits.buffer)).filter((value) => Number.isFinite(value));
  expect(values.filter((value) => Math.fround(Number(String(shortestDecimal(value)))) !== value)).toEqual([]);
});
