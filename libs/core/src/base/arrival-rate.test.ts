import { expect, test } from 'vitest';
import { ArrivalRate } from './arrival-rate.ts';

test('is what comes a millisecond, and is forgotten when nothing comes any more', () => {
  const rate = new ArrivalRate();
  expect(rate.perMs(1_000)).toBe(0);
  for (let ms = 0; ms < 2_000; ms += 5) rate.add(10, ms);
  expect(rate.perMs(2_000)).toBeCloseTo(2, 1);
  expect(rate.perMs(2_600)).toBeLessThan(0.12);
});
