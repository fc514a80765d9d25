import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import { Outage } from './outage.ts';

function setup() {
  const clock = new ManualClock();
  const givenUpMs: number[] = [];
  const outage = new Outage({ clock, giveUpAfterMs: 1_000, onGiveUp: () => givenUpMs.push(clock.nowMs()) });
  return { clock, givenUpMs, outage };
}

test('an outage ends when every connection is back, and each change renews the patience', async () => {
  const { clock, givenUpMs, outage } = setup();
  outage.connection('lost');
  await clock.advance(900);
  outage.connection('lost');
  await clock.advance(900);
  outage.connection('back');
  expect(outage.isGoingOn).toBe(true);
  await clock.advance(900);
  outage.connection('back');
  expect(outage.isGoingOn).toBe(false);
  await clock.advance(5_000);
  expect([givenUpMs, clock.pending]).toEqual([[], 0]);
});

test('it is given up once, and again for jobs that were opened after that', async () => {
  const { clock, givenUpMs, outage } = setup();
  outage.opened();
  expect(clock.pending).toBe(0);
  outage.connection('lost');
  await clock.advance(500);
  outage.opened();
  await clock.advance(3_000);
  expect(givenUpMs).toEqual([1_000]);
  outage.opened();
  await clock.advance(3_000);
  expect(givenUpMs).toEqual([1_000, 4_500]);
});

test('a client that is closed waits for nothing', async () => {
  const { clock, givenUpMs, outage } = setup();
  outage.connection('lost');
  outage.stop();
  await clock.advance(5_000);
  expect([givenUpMs, clock.pending]).toEqual([[], 0]);
});
