import { assert, integer, property } from 'fast-check';
import { expect, test } from 'vitest';
import { fewRowsAtLeast, fewRowsAtMost, fewWidth, largestShapes } from './run-shapes.ts';

const widths = integer({ min: 1, max: 64 }).map((step) => fewWidth(step * 8));

test('what is rounded down is a shape and what is rounded up is one, and neither moves again', () => {
  assert(property(integer({ min: 1, max: 20_000 }), widths, (rows, width) => {
    const less = fewRowsAtMost(rows, width);
    const more = fewRowsAtLeast(rows, width);
    expect(less).toBeLessThanOrEqual(rows);
    expect(more).toBeGreaterThanOrEqual(rows);
    expect(fewRowsAtMost(less, width)).toBe(less);
    expect(fewRowsAtLeast(less, width)).toBe(less);
    expect(fewRowsAtLeast(more, width)).toBe(more);
    expect(fewRowsAtMost(more, width)).toBe(more);
  }), { numRuns: 2_000 });
});

test('rounding up adds less than half as much again, from two rows on', () => {
  assert(property(integer({ min: 2, max: 20_000 }), widths, (rows, width) => {
    expect(fewRowsAtLeast(rows, width)).toBeLessThan(1.5 * rows + 1);
  }), { numRuns: 2_000 });
});

test('widths up to 512 come to 48, of which one shape each is warmed up', () => {
  const shapes = largestShapes(512, (width) => Math.floor(65_536 / width));
  expect(shapes).toHaveLength(48);
  expect(shapes[0]).toEqual({ width: 8, rows: 8192 });
  expect(shapes.at(-1)).toEqual({ width: 512, rows: 128 });
});
