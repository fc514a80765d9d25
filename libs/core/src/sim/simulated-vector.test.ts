import { expect, test } from 'vitest';
import { simulatedVector } from './simulated-vector.ts';

test('the same row has the same vector, whose length is 1', () => {
  const vector = simulatedVector([101, 7, 102], 384);
  expect(vector).toEqual(simulatedVector(Int32Array.of(101, 7, 102), 384));
  expect(Math.hypot(...vector)).toBeCloseTo(1, 6);
});

test('is a fixed function: these values stay from version to version', () => {
  expect([...simulatedVector([101, 7, 102], 4)].map((value) => value.toFixed(6))).toEqual([
    '0.343148',
    '-0.605852',
    '-0.638803',
    '-0.327297',
  ]);
});

test('rows that differ in an id, in their order or in their length have vectors that are far apart', () => {
  const rows = [
    [101, 102],
    [102, 101],
    [101, 0, 102],
    [101, 0, 0, 102],
    ...Array.from({ length: 200 }, (_, i) => [101, i + 1, 102]),
  ];
  const vectors = rows.map((row) => simulatedVector(row, 384));
  const cosines = vectors.flatMap((one, at) =>
    vectors.slice(at + 1).map((other) => one.reduce((sum, value, dim) => sum + value * other[dim]!, 0)),
  );
  expect(Math.max(...cosines.map(Math.abs))).toBeLessThan(0.35);
});
