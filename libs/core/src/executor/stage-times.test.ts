import { expect, test } from 'vitest';
import type { FromExecutor } from '../protocol.ts';
import { ManualClock } from '../testing/manual-clock.ts';
import { StageTimes } from './stage-times.ts';

test('what stages take is told in one message a second at most, and the rest at the end', async () => {
  const clock = new ManualClock();
  const sent: FromExecutor[] = [];
  const stages = new StageTimes({ clock, send: (message) => sent.push(message) });
  await stages.during('fill', () => clock.advance(30));
  stages.now('plan', () => undefined);
  const lost = stages.during('commit', async () => {
    await clock.advance(900);
    throw new Error('lost');
  });
  await expect(lost).rejects.toThrow('lost');
  expect(sent).toEqual([]);
  await clock.advance(100);
  expect(sent).toEqual([{ kind: 'stages', tookMs: { fill: [30], plan: [0], commit: [900] } }]);
  stages.now('plan', () => undefined);
  stages.stop();
  expect(sent.slice(1)).toEqual([{ kind: 'stages', tookMs: { plan: [0] } }]);
  stages.now('plan', () => undefined);
  expect(clock.pending).toBe(0);
});
