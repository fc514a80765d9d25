// The memory law of a real graph under ONNX Runtime, for an executor whose own slots are smaller than what is measured.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { liveBytes } from '@shoal/core';
import { openGraph, writeTinyModel } from '@shoal/models';
import { measureMemory } from './measure-memory.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-measure-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test('a model is measured beside an executor that runs few rows and tokens at once', async () => {
  const maxWidth = 256;
  const model = await writeTinyModel(join(folder, 'wide'), { hidden: 256, heads: 8, layers: 2, seed: 11 });
  const graphPath = await openGraph(model, { cacheDir: folder });
  const { dims, precision } = model;
  const slots = { slotRows: 4, slotTokens: maxWidth };
  const backend = { graphPath, dims, hidden: 256, precision, threads: 1, ...slots };
  const law = await measureMemory({ backend, maxWidth, timeoutMs: 60_000 });
  const increment = (rows: number): number => liveBytes(law, { rows, width: maxWidth }) - law.loadedBytes;
  // 8 rows have no room in this executor's slots, and were measured
  expect(increment(8)).toBeGreaterThan(2 * increment(1));
}, 120_000);
