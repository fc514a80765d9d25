// When the memory law is measured: after the first batch that somebody waits for, or when nobody waits; and what
// happens when it cannot be.

import { expect, test } from 'vitest';
import type { FromExecutor, MemoryLaw } from '@shoal/core';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import { MemoryFit } from './memory-fit.ts';

const LAW: MemoryLaw = {
  loadedBytes: 1,
  floorBytes: 1,
  slackBytes: 0,
  perToken: [{ width: 8, bytes: 1 }],
  arena: 'exact',
};
const began: FromExecutor = { kind: 'began', batch: 1, jobIds: ['a'] };
const ended: FromExecutor = { kind: 'split', batch: 1, code: 'OUT_OF_VRAM' };

function setup({ freeBytes = 1e9, fails = false } = {}) {
  const clock = new ManualClock();
  const log = new RecordingLogger();
  const laws: MemoryLaw[] = [];
  const asked: AbortSignal[] = [];
  const fit = new MemoryFit({
    clock,
    log,
    loadedBytes: 2e8,
    host: { read: async () => ({ freeBytes, totalBytes: 2e9 }) },
    measure: async (signal) => {
      asked.push(signal);
      if (fails) throw new Error('no such luck');
      return LAW;
    },
    onLaw: async (law) => void laws.push(law),
  });
  return { clock, log, laws, asked, fit };
}

test('an executor that nobody asks for anything is measured after two seconds', async () => {
  const { clock, laws } = setup();
  await clock.advance(1_999);
  expect(laws).toEqual([]);
  await clock.advance(1);
  expect(laws).toEqual([LAW]);
});

test('nothing is measured while the first batch runs, however long that takes', async () => {
  const { clock, laws, fit } = setup();
  fit.hear(began);
  await clock.advance(60_000);
  expect(laws).toEqual([]);
  fit.hear(ended);
  await clock.advance(250);
  expect(laws).toEqual([LAW]);
});

test('what is stopped before measures nothing, and what is stopped meanwhile is told', async () => {
  const early = setup();
  early.fit.stop();
  await early.clock.advance(10_000);
  expect(early.asked).toEqual([]);
  const late = setup();
  await late.clock.advance(2_000);
  late.fit.stop();
  expect(late.asked[0]!.aborted).toBe(true);
});

test('too little free memory, and a measurement that fails, are lines in the log', async () => {
  const tight = setup({ freeBytes: 5e8 });
  await tight.clock.advance(2_000);
  expect(tight.asked).toEqual([]);
  expect(tight.log.lines.map((line) => line.message)).toEqual([
    'too little memory is free to measure this model, going on with the preset',
  ]);
  const broken = setup({ fails: true });
  await broken.clock.advance(2_000);
  expect(broken.log.lines.map((line) => line.message)).toEqual([
    'memory of this model could not be measured, going on with the preset',
  ]);
});
