// Versions are compared by numbers, whatever stands behind them.

import { expect, test } from 'vitest';
import { isBelowAdvised, isOlder, isTooOld } from '@shoal/contract';

test.each([
  ['7.0.15', '7.2.0', true],
  ['7.2.0', '7.2.0', false],
  ['7.10.0', '7.9.9', false],
  ['8.0.0-rc1', '8.0.0', false],
  ['9', '8.0.0', false],
  ['7.2', '7.2.1', true],
  ['unstable', '7.0.8', true],
])('%s is older than %s: %s', (version, than, expected) => {
  expect(isOlder(version, than)).toBe(expected);
});

test('what is refused is a Redis before 7.0.8, and what is warned of depends on the program', () => {
  expect([isTooOld('Redis', '7.0.7'), isTooOld('Redis', '7.0.8'), isTooOld('Valkey', '7.0.0')]).toEqual([
    true,
    false,
    false,
  ]);
  expect([
    isBelowAdvised('Redis', '7.2.4'),
    isBelowAdvised('Valkey', '7.2.4'),
    isBelowAdvised('Valkey', '8.0.0'),
  ]).toEqual([false, true, false]);
});
