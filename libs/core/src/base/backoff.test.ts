import { expect, test } from 'vitest';
import { backoffMs } from './backoff.ts';

test('each wait is twice the one before, up to the limit', () => {
  const waits = [0, 1, 2, 3, 4, 5].map((failures) => backoffMs(failures, { firstMs: 100, mostMs: 2_000 }));
  expect(waits).toEqual([100, 200, 400, 800, 1_600, 2_000]);
});

test('however many attempts fail, the wait stays the limit', () => {
  for (const failures of [10, 1_000, 1e6, Number.MAX_SAFE_INTEGER])
    expect(backoffMs(failures, { firstMs: 1, mostMs: 20 })).toBe(20);
});

test('a first wait beyond the limit is cut', () => {
  expect(backoffMs(0, { firstMs: 500, mostMs: 20 })).toBe(20);
});
