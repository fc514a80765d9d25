import { expect, test } from 'vitest';
import { Prefetch } from './prefetch.ts';

/**
 * A device that eats 12,000 tokens a millisecond for two seconds, and jobs that are filled so long after they were
 * asked for.
 */
function busyFor(fillMs: number): Prefetch {
  const ahead = new Prefetch();
  for (let ms = 5; ms <= 2_000; ms += 5) {
    ahead.ran(60_000, ms);
    ahead.filled(fillMs);
  }
  return ahead;
}

test('nothing before anything ran', () => {
  const ahead = new Prefetch();
  ahead.filled(50);
  expect(ahead.tokens(0)).toBe(0);
});

test('what the device eats while a job is on its way, and in 100 ms more', () => {
  expect(busyFor(70).tokens(2_000) / (12_000 * 170)).toBeCloseTo(1, 1);
  expect(busyFor(0).tokens(2_000) / (12_000 * 100)).toBeCloseTo(1, 1);
});

test('forgotten when nothing runs any more', () => {
  const ahead = busyFor(70);
  expect(ahead.tokens(4_000)).toBeLessThan(0.001 * ahead.tokens(2_000));
});
