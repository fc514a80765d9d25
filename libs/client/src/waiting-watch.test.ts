import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import type { Waiting } from '@shoal/queue';
import { WaitingWatch } from './waiting-watch.ts';

function setup() {
  const clock = new ManualClock();
  const standing = { open: 0, ended: 0 };
  const told: (string | undefined)[] = [];
  const givenUp: string[] = [];
  let reason: Waiting['reason'] = 'busy';
  const watch = new WaitingWatch({
    clock,
    ask: async () => ({
      reason,
      message: `it is ${reason}`,
      waiting: 1,
      active: 0,
      workers: 1,
      drained: 0,
      isPaused: false,
    }),
    standing: () => standing,
    onWaiting: (waiting) => told.push(waiting?.message),
    notServedAfterMs: 30_000,
    onNotServed: ({ code, message }) => {
      givenUp.push(`${code}: ${message}`);
      standing.open = 0;
    },
  });
  const open = (): void => {
    standing.open++;
    watch.opened();
  };
  return { clock, standing, told, givenUp, watch, open, found: (now: Waiting['reason']) => (reason = now) };
}

test('the reason is told after three seconds, when it changes, and every half minute', async () => {
  const { clock, told, open, found } = setup();
  open();
  await clock.advance(2_900);
  expect(told).toEqual([]);
  await clock.advance(200);
  expect(told).toEqual(['it is busy']);
  found('paused');
  await clock.advance(3_000);
  expect(told).toEqual(['it is busy', 'it is paused']);
  await clock.advance(29_000);
  expect(told).toHaveLength(2);
  await clock.advance(3_000);
  expect(told).toEqual(['it is busy', 'it is paused', 'it is paused']);
});

test('nothing is told while jobs end, that they end again is told once, and nobody looks when none is open', async () => {
  const { clock, standing, told, open } = setup();
  open();
  standing.ended++;
  await clock.advance(3_000);
  expect(told).toEqual([]);
  await clock.advance(3_000);
  expect(told).toEqual(['it is busy']);
  standing.ended++;
  await clock.advance(6_000 - 1);
  expect(told).toEqual(['it is busy', undefined]);
  standing.open = 0;
  await clock.advance(3_000);
  expect(clock.pending).toBe(0);
  open();
  expect(clock.pending).toBe(1);
});

test('a name that nobody serves is given up after half a minute, anything else is waited for', async () => {
  const { clock, givenUp, open, found } = setup();
  found('no-worker');
  open();
  await clock.advance(120_000);
  expect(givenUp).toEqual([]);
  found('not-served');
  await clock.advance(20_000);
  found('paused');
  await clock.advance(3_000);
  found('not-served');
  await clock.advance(29_000);
  expect(givenUp).toEqual([]);
  await clock.advance(9_000);
  expect([givenUp, clock.pending]).toEqual([['NOT_SERVED: it is not-served'], 0]);
});

test('a client that is closed asks no more', async () => {
  const { clock, told, watch, open } = setup();
  open();
  watch.stop();
  await clock.advance(60_000);
  expect([told, clock.pending]).toEqual([[], 0]);
});
