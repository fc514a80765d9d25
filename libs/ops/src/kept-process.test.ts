import { ManualClock } from '@shoal/core/testing';
import { beforeEach, expect, test } from 'vitest';
import { KeptProcess, type AfterDeath, type KeptProcessOptions } from './kept-process.ts';

let clock: ManualClock;
let startedMs: number[];

beforeEach(() => {
  clock = new ManualClock();
  startedMs = [];
});

/** A process that lives for the next of `lives`, in ms, and for ever once there are no more; it goes when asked to. */
function kept(
  lives: number[],
  { onDeath = () => 'again', ...more }: Partial<KeptProcessOptions<number>> = {},
): KeptProcess<number> {
  return new KeptProcess({
    live: async (stopping) => {
      startedMs.push(clock.nowMs());
      const ms = lives.shift();
      await new Promise<void>((resolve) => {
        if (ms !== undefined) clock.after(ms, resolve);
        stopping.addEventListener('abort', () => resolve());
      });
      return startedMs.length;
    },
    onDeath,
    pause: { firstMs: 100, mostMs: 400 },
    clock,
    ...more,
  });
}

test('it is started again after pauses that double up to a limit', async () => {
  const process = kept([0, 0, 0, 0]);
  const running = process.run();
  await clock.advance(10_000);
  expect(startedMs).toEqual([0, 100, 300, 700, 1_100]);
  await process.stop();
  await running;
});

test('after a long life the pause is short again', async () => {
  const process = kept([0, 0, 5_000, 0], { steadyMs: 4_000 });
  const running = process.run();
  await clock.advance(10_000);
  expect(startedMs).toEqual([0, 100, 300, 5_400, 5_600]);
  await process.stop();
  await running;
});

test('after progress the pause is short again', async () => {
  const process = kept([0, 0, 5_000, 0]);
  const running = process.run();
  await clock.advance(1_000);
  process.noteProgress();
  await clock.advance(9_000);
  expect(startedMs).toEqual([0, 100, 300, 5_400, 5_600]);
  await process.stop();
  await running;
});

test('its owner is told of each death in a row, and may wait for longer or give it up', async () => {
  const told: [life: number, deaths: number][] = [];
  const answers: AfterDeath[] = ['again', 'later', 'give-up'];
  const process = kept([0, 0, 0], {
    onDeath(life, deaths) {
      told.push([life, deaths]);
      return answers.shift()!;
    },
  });
  await clock.advanceUntilSettled(process.run());
  expect(startedMs).toEqual([0, 100, 500]);
  expect(told).toEqual([
    [1, 1],
    [2, 2],
    [3, 3],
  ]);
});

test('what its owner throws over a death is thrown where it runs, and stopping says nothing of it', async () => {
  const process = kept([0], {
    onDeath() {
      throw new Error('cannot be started');
    },
  });
  const outcome = process.run().catch((error: unknown) => error);
  await clock.advance(1_000);
  expect(await outcome).toEqual(new Error('cannot be started'));
  await process.stop();
});

test('stopping ends the process and is no death', async () => {
  let deaths = 0;
  const process = kept([], {
    onDeath() {
      deaths++;
      return 'again';
    },
  });
  const running = process.run();
  await clock.advance(1_000);
  await process.stop();
  await running;
  await process.stop();
  expect([startedMs, deaths]).toEqual([[0], 0]);
});

test('stopping ends a pause at once, and leaves no timer', async () => {
  const process = kept([0, 0, 0]);
  const running = process.run();
  await clock.advance(150);
  await process.stop();
  await running;
  expect(startedMs).toEqual([0, 100]);
  expect(clock.pending).toBe(0);
});

test('when it is stopped before it runs, nothing is started', async () => {
  const process = kept([]);
  await process.stop();
  await process.run();
  expect(startedMs).toEqual([]);
});
