// One budget for bodies and answers: what is held, given back, and kept for small requests.

import { expect, test } from 'vitest';
import { ByteBudget } from './byte-budget.ts';

const MIB = 1024 * 1024;

test('what is held is counted, and given back once', () => {
  let told = 0;
  const budget = new ByteBudget({ totalBytes: 256 * MIB, onRoom: () => (told += 1) });
  const [first, second] = [budget.open(), budget.open()];
  expect([first.take(100 * MIB), first.take(20 * MIB), second.take(100 * MIB)]).toEqual([true, true, true]);
  expect(budget.usedBytes).toBe(220 * MIB);
  first.release();
  first.release();
  expect([budget.usedBytes, told]).toEqual([100 * MIB, 1]);
});

test('large requests leave an eighth to those of no more than a 256th', () => {
  const budget = new ByteBudget({ totalBytes: 256 * MIB });
  const large = Array.from({ length: 20 }, () => budget.open().take(16 * MIB));
  expect(large.filter(Boolean)).toHaveLength(14);
  const small = budget.open();
  expect([small.take(MIB / 2), small.take(MIB / 2), small.take(1)]).toEqual([true, true, false]);
  const many = Array.from({ length: 40 }, () => budget.open().take(MIB));
  expect(many.filter(Boolean)).toHaveLength(31);
  expect(budget.usedBytes).toBe(256 * MIB);
});

test('what is larger than the budget may go alone', () => {
  const budget = new ByteBudget({ totalBytes: MIB });
  const huge = budget.open();
  expect([huge.take(4 * MIB), budget.open().take(1)]).toEqual([true, false]);
  huge.release();
  const beside = budget.open();
  expect([beside.take(1), budget.open().take(4 * MIB)]).toEqual([true, false]);
});

test('who has left takes nothing more', () => {
  const budget = new ByteBudget({ totalBytes: MIB });
  const hold = budget.open();
  hold.release();
  expect([hold.take(10), budget.usedBytes]).toEqual([true, 0]);
});
