import { expect, test } from 'vitest';
import { array, assert, double, property } from 'fast-check';
import { risingZero } from './rising-zero.ts';

test('of values that rise it lies where the line between two of them passes 0', () => {
  expect(
    risingZero([
      [1, -3],
      [2, -1],
      [4, 1],
      [5, 9],
    ]),
  ).toBe(3);
  expect(
    risingZero([
      [1, -1],
      [2, 0],
      [3, 1],
    ]),
  ).toBe(2);
});

test('one that is off among many moves it little', () => {
  expect(
    risingZero([
      [1, -3],
      [2, 0.5],
      [3, -2],
      [4, -1],
      [5, 1],
      [6, -0.2],
      [7, 3],
    ]),
  ).toBeCloseTo(4.65, 1);
});

test('nowhere, and before the first', () => {
  expect(
    risingZero([
      [1, -2],
      [2, -1],
      [3, 0],
    ]),
  ).toBe(Infinity);
  expect(
    risingZero([
      [1, 1],
      [2, 2],
    ]),
  ).toBe(-Infinity);
  expect(risingZero([])).toBe(Infinity);
});

test(
  'whatever falls in between, it lies among the places or nowhere, and the values before it are at most 0 in ' +
    'sum, those behind at least',
  () => {
    assert(
      property(array(double({ min: -5, max: 5, noNaN: true }), { minLength: 1, maxLength: 30 }), (values) => {
        const zero = risingZero(values.map((value, place) => [place, value]));
        if (!Number.isFinite(zero)) return;
        expect(zero).toBeGreaterThanOrEqual(0);
        expect(zero).toBeLessThanOrEqual(values.length - 1);
        expect(values.slice(0, Math.floor(zero) + 1).reduce((sum, value) => sum + value, 0)).toBeLessThanOrEqual(1e-9);
        expect(values.slice(Math.floor(zero) + 1).reduce((sum, value) => sum + value, 0)).toBeGreaterThanOrEqual(-1e-9);
      }),
    );
  },
);
