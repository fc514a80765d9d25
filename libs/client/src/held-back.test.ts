import { expect, test } from 'vitest';
import { ShoalError } from '@shoal/contract';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import type { AddResult } from '@shoal/queue';
import { HeldBack } from './held-back.ts';

const added: AddResult = { jobId: 'a', outcome: 'added' };
const refused = (retryAfterMs: number): AddResult => ({
  jobId: 'b',
  outcome: 'refused',
  error: new ShoalError('ADMISSION_REFUSED', 'full', { retryAfterMs, reason: 'rows' }),
});

function setup(whenFull: 'wait' | 'fail') {
  const clock = new ManualClock();
  const log = new RecordingLogger();
  const told: (number | undefined)[] = [];
  const heldBack = new HeldBack({ clock, log, whenFull, onHeldBack: (retryAfterMs) => told.push(retryAfterMs) });
  return { clock, log, told, heldBack };
}

test('a refusal holds first adds back, and an answer that was on its way before does not let them go', async () => {
  const { clock, log, told, heldBack } = setup('wait');
  heldBack.learn([added]);
  expect([heldBack.untilMs, told]).toEqual([undefined, []]);
  heldBack.learn([added, refused(100)]);
  expect(heldBack.untilMs).toBe(clock.nowMs() + 100);
  await clock.advance(50);
  heldBack.learn([added]);
  expect(heldBack.untilMs).toBe(clock.nowMs() + 50);
  heldBack.learn([refused(80)]);
  expect(heldBack.untilMs).toBe(clock.nowMs() + 80);
  await clock.advance(80);
  heldBack.learn([added]);
  expect(heldBack.untilMs).toBeUndefined();
  expect(told).toEqual([100, 80, undefined]);
  expect(log.lines).toHaveLength(1);
});

test('whoever does not want to wait is told of each refusal, and nothing is held back', () => {
  const { told, heldBack } = setup('fail');
  heldBack.learn([refused(100)]);
  heldBack.learn([refused(90)]);
  heldBack.learn([added]);
  expect(heldBack.untilMs).toBeUndefined();
  expect(told).toEqual([100, 90]);
});
