import { assert, integer, property } from 'fast-check';
import { expect, test } from 'vitest';
import { fewRowsAtLeast, fewRowsAtMost, fewWidth, fewWidths } from './run-shapes.ts';

const widths = integer({ min: 1, max: 64 }).map((step) => fewWidth(step * 8));

test('what is rounded down is a shape and what is rounded up is one, and neither moves again', () => {
  assert(
    property(integer({ min: 1, max: 20_000 }), widths, (rows, width) => {
      const less = fewRowsAtMost(rows, width);
      const more = fewRowsAtLeast(rows, width);
      expect(less).toBeLessThanOrEqual(rows);
      expect(more).toBeGreaterThanOrEqual(rows);
      expect(fewRowsAtMost(less, width)).toBe(less);
      expect(fewRowsAtLeast(less, width)).toBe(less);
      expect(fewRowsAtLeast(more, width)).toBe(more);
      expect(fewRowsAtMost(more, width)).toBe(more);
    }),
    { numRuns: 2_000 },
  );
});

test('rounding up adds less than half as much again, from two rows on', () => {
  assert(
    property(integer({ min: 2, max: 20_000 }), widths, (rows, width) => {
      expect(fewRowsAtLeast(rows, width)).toBeLessThan(1.5 * rows + 1);
    }),
    { numRuns: 2_000 },
  );
});

test('widths up to 512 come to 48', () => {
  const found = fewWidths(512);
  expect(found).toHaveLength(48);
  expect([found[0], found.at(-1)]).toEqual([8, 512]);
});
