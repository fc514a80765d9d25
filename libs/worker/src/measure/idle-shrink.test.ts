import { expect, test } from 'vitest';
import type { FromExecutor } from '@shoal/core';
import { ManualClock } from '@shoal/core/testing';
import { IdleShrink } from './idle-shrink.ts';

const began: FromExecutor = { kind: 'began', batch: 1, jobIds: ['a'] };

function setup() {
  const clock = new ManualClock();
  let shrinks = 0;
  const device = { runMs: 0 };
  const idle = new IdleShrink({ runningMs: () => device.runMs, shrink: async () => ++shrinks > 0 }, clock);
  return {
    device,
    idle,
    shrinksAfter: async (ms: number) => {
      await clock.advance(ms);
      await idle.look();
      return shrinks;
    },
  };
}

test('an arena is given back once after a burst, and again after the next', async () => {
  const { idle, shrinksAfter } = setup();
  expect(await shrinksAfter(60_000)).toBe(0); // nothing ran
  idle.hear(began);
  expect(await shrinksAfter(19_000)).toBe(0);
  expect(await shrinksAfter(1_000)).toBe(1);
  expect(await shrinksAfter(60_000)).toBe(1);
  idle.hear(began);
  expect(await shrinksAfter(20_000)).toBe(2);
});

test('nothing is given back while a run goes on, however long', async () => {
  const { device, idle, shrinksAfter } = setup();
  idle.hear(began);
  device.runMs = 600_000;
  expect(await shrinksAfter(600_000)).toBe(0);
  device.runMs = 0;
  expect(await shrinksAfter(0)).toBe(1);
});
