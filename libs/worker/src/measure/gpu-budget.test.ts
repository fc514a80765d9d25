// Where the budget of a GPU begins and what it keeps an eye on. The session runs on the CPU under a GPU's name: the
// budget knows of a device only what it is told.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel } from '@shoal/models';
import { openDeviceBudget } from './device-budget.ts';

const GIB = 2 ** 30;
let cacheDir: string;
beforeAll(async () => {
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-gpu-budget-'));
});
afterAll(() => rm(cacheDir, { recursive: true, force: true }));

async function budgetOf(deviceKind: string, totalGib: number, free = { bytes: totalGib * GIB }) {
  const model = await openModel('tiny-random', { cacheDir });
  const totalBytes = totalGib * GIB;
  const freeAtStart = free.bytes; // the driver's tool counts all that was taken since, by whomever
  const backend = await OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir, kind: 'fused-fp16' }),
    precision: 'fp16',
    dims: model.dims,
    threads: 1,
    slotRows: 16_384,
    slotTokens: 262_144,
    device: 'cuda:0',
    deviceKind,
    probe: { read: async () => ({ freeBytes: free.bytes, totalBytes }) },
    readMemory: async () => ({
      liveBytes: undefined,
      footprintBytes: GIB + freeAtStart - free.bytes,
      source: 'driver',
    }),
  });
  const clock = new ManualClock();
  const limits = {
    maxPaddedTokens: undefined,
    maxRows: 16_384,
    memoryFraction: 0.8,
    latencyTargetMs: 100,
    maxDeviceBytes: undefined,
    windowRows: 64,
    maxWaitMs: 10,
    minRows: 8,
    maxRowAgeMs: 250,
  };
  const log = new RecordingLogger();
  const opened = await openDeviceBudget({
    backend,
    model,
    maxTokens: 512,
    settings: { limits, threads: 1, cacheDir },
    clock,
    log,
  });
  return { ...opened, clock, log, close: async () => (opened.stop(), backend.stop()) };
}

test('a large card begins with its preset, which is far below its memory, and says so', async () => {
  const { budget, log, close } = await budgetOf('NVIDIA H200', 140);
  expect(budget.current()).toMatchObject({ maxPaddedTokens: 65_536, source: 'preset' });
  expect(log.messages('info')).toEqual([expect.stringMatching(/preset for "NVIDIA H200"/)]);
  await close();
});

test('what others take of the card while a worker runs leaves less for its runs', async () => {
  const free = { bytes: 20 * GIB };
  const { budget, clock, close } = await budgetOf('NVIDIA H200', 20, free);
  const before = budget.rowsAt(512);
  free.bytes = 0.1 * GIB;
  await clock.advance(5_001);
  await expect.poll(() => budget.rowsAt(512)).toBeLessThan(before);
  await close();
});
