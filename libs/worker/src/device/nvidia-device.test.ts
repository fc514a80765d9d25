// What the driver's tool says of one GPU, as a worker takes it: of a card that is cut into slices nothing, because it
// would be of the whole, and of a card that several share what each of them leaves the others. A script on PATH stands
// in for the tool.

import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createBudget, type Budget, type MemoryLaw } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { ownBytes } from '../measure/card-budget.ts';
import { nvidiaDevice, type NvidiaDevice } from './nvidia-device.ts';
import { onlyGpu } from './only-gpu.ts';

const MIB = 2 ** 20;
const TOTAL_MIB = 143_771;
let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-nvidia-'));
  vi.stubEnv('PATH', `${folder}${delimiter}${process.env['PATH']}`);
});
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  rmSync(folder, { recursive: true, force: true });
});

function tellUsed(usedMib: number, mig = 'Disabled'): void {
  const path = join(folder, 'nvidia-smi');
  writeFileSync(
    path,
    `#!/bin/sh\necho '0, GPU-1, 580.95, ${TOTAL_MIB}, ${usedMib}, ${TOTAL_MIB - usedMib}, 0, 30, 80, ${mig}, ` +
      `9.0, NVIDIA H200'\n`,
  );
  chmodSync(path, 0o755);
}

async function device(): Promise<NvidiaDevice> {
  const found = await nvidiaDevice('0');
  if (!found.ok) throw new Error(found.reason);
  return found.device;
}

/** A worker that has loaded 600 MiB of what is used now. */
async function worker(
  card: NvidiaDevice,
  mine: { mib: number },
): Promise<{ readonly budget: Budget; look(): Promise<number> }> {
  const loadedBytes = (await card.readMemory())!.footprintBytes!;
  const law: MemoryLaw = {
    loadedBytes,
    floorBytes: 0,
    slackBytes: 0,
    perToken: [{ width: 8, bytes: 100_000 }],
    arena: 'exact',
  };
  const budget = createBudget({
    maxPaddedTokens: 2_000_000,
    maxRows: 1_000_000,
    maxTokens: 512,
    totalBytes: TOTAL_MIB * MIB,
    kneeTokens: 2_000_000,
    memory: { law, source: 'fitted' },
  });
  const own = ownBytes(loadedBytes, () => mine.mib * MIB);
  return {
    budget,
    look: async () => (budget.deviceMemory(await card.probe.read(), own()), budget.current().maxPaddedTokens),
  };
}

/** As if the last reading were old. */
function later(): void {
  const now = performance.now() + 5_000;
  vi.spyOn(performance, 'now').mockReturnValue(now);
}

test(
  'what comes to a card after a worker is not taken for its own, what it took itself is, and what others leave ' +
    'is there again',
  async () => {
    tellUsed(600);
    const card = await device();
    tellUsed(1_200);
    const mine = { mib: 90 };
    const { look } = await worker(card, mine);
    const alone = await look();
    const used = async (mib: number): Promise<number> => {
      tellUsed(mib);
      later();
      return look();
    };
    expect(await used(1_200 + 60 * 1024)).toBeLessThan(alone * 0.6);
    expect(await used(1_200 + 135 * 1024)).toBeLessThanOrEqual(512);
    mine.mib += 20 * 1024;
    expect(await used(1_200 + 20 * 1024)).toBe(alone);
  },
);

test('two workers on one card leave each other what they took, whoever came first', async () => {
  tellUsed(0);
  const first = { mib: 90 };
  const card = await device();
  tellUsed(600);
  const a = await worker(card, first);
  const second = { mib: 90 };
  const other = await device();
  tellUsed(1_200);
  const b = await worker(other, second);
  later();
  expect(await a.look()).toBe(await b.look());
  second.mib += 40 * 1024;
  tellUsed(1_200 + 40 * 1024);
  later();
  const left = await a.look();
  expect((await b.look()) - left).toBeCloseTo((40 * 1024 * MIB) / 100_000, -4);
  expect(left).toBeGreaterThan(0);
});

test(
  'nothing is read of a card that is cut into slices, where its first slice is what CUDA gives, and who starts ' +
    'on it is warned once',
  async () => {
    tellUsed(600, 'Enabled');
    const { reading, readMemory, probe } = await device();
    expect([reading, await readMemory(), await probe.read()]).toEqual([undefined, undefined, undefined]);
    const log = new RecordingLogger();
    const environment: Record<string, string | undefined> = {};
    expect(await onlyGpu('gpu:0', environment, log)).toMatchObject({ device: 'cuda:0' });
    expect(log.messages('warn')).toEqual([expect.stringMatching(/cut into slices.*by its MIG id/)]);
  },
);
