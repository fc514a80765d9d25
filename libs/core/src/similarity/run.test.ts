// How much a device is given in one go, where memory is no limit.

import { expect, test } from 'vitest';
import type { Clock } from '../ports/clock.ts';
import { Residents } from './ledger.ts';
import { EMPTY_RANKING } from './rankings.ts';
import type { HeldGraph, HeldRows } from './device.ts';
import type { OpenCollection, OpenGraph, Work } from './fill.ts';
import { SimilarityRun } from './run.ts';
import { FakeSimilarityDevice } from '../testing/fake-similarity-device.ts';

/** Rows of each call, of a device that does so many products a millisecond. */
async function callsOf(
  rows: number,
  queries: number,
  dims: number,
  productsPerMs: number,
  hasOwnMemory = false,
): Promise<number[]> {
  let nowMs = 0;
  const clock: Clock = { nowMs: () => nowMs, after: () => () => undefined };
  const calls: number[] = [];
  const held = (count: number): HeldRows => ({
    rows: count,
    bytes: 0,
    free: () => undefined,
    has: () => true,
    slice: (_, length) => held(length),
    topK: async () => {
      calls.push(count);
      nowMs += (count * queries * dims) / productsPerMs;
      return { fits: true, value: Array.from({ length: queries }, () => EMPTY_RANKING) };
    },
    rescore: async () => Promise.reject(new Error('not asked for')),
    scores: async () => Promise.reject(new Error('not asked for')),
  });
  const collection = {
    source: { name: 'docs@1', rows, dims, rowBytes: 4 * dims },
    whole: () => held(rows),
  } as unknown as OpenCollection;
  const work: Work = {
    kind: 'rows',
    collection,
    queries: { values: new Float32Array(queries * dims), rows: queries, dims },
    candidates: undefined,
  };
  const run = new SimilarityRun({
    device: Object.assign(new FakeSimilarityDevice(), { hasOwnMemory }),
    residents: new Residents(0),
    clock,
    onSplit: () => undefined,
    onDevice: () => undefined,
  });
  await run.compute(
    { kind: 'topk', collection: 'docs@1', k: 1, metric: 'cosine' },
    [work],
    new AbortController().signal,
  );
  return calls;
}

test('what takes a slow device long is given to it in parts of ten seconds', async () => {
  const calls = await callsOf(10_000_000, 1_000, 768, 5e7);
  expect(calls.reduce((sum, rows) => sum + rows, 0)).toBe(10_000_000);
  expect(Math.max(...calls) * 1_000 * 768).toBeLessThanOrEqual(5e7 * 10_000);
  expect(calls.length).toBeLessThan(20);
});

test('a fast one gets all at once as soon as that is known, but never more bytes than a disk brings', async () => {
  expect(await callsOf(1_000_000, 1_000, 384, 1e11)).toHaveLength(2);
  expect(Math.max(...(await callsOf(100_000_000, 1, 384, 1e11)))).toBeLessThanOrEqual((4 * 2 ** 30) / (4 * 384));
});

test('what lies on the device is compared in one go: a part of it would be brought there again', async () => {
  expect(await callsOf(100_000_000, 100, 768, 1e9, true)).toEqual([100_000_000]);
});

test('a device that spreads is idle between two parts', async () => {
  const held: HeldGraph = {
    bytes: 0,
    free: () => undefined,
    spread: async (seeds, { onPart }) => {
      for (let part = 1; part < 3; part++) onPart();
      return { fits: true, value: seeds.map(() => EMPTY_RANKING) };
    },
  };
  const busy: boolean[] = [];
  const clock: Clock = { nowMs: () => 0, after: () => () => undefined };
  const run = new SimilarityRun({
    device: new FakeSimilarityDevice(),
    residents: new Residents(0),
    clock,
    onSplit: () => undefined,
    onDevice: (isBusy) => busy.push(isBusy),
  });
  const work: Work = {
    kind: 'graph',
    graph: { source: { name: 'links' }, whole: () => held } as unknown as OpenGraph,
    seeds: [[0], [1]],
  };
  await run.compute(
    { kind: 'spread', graph: 'links', steps: 3, decay: 0.5, threshold: 0, k: 1 },
    [work],
    new AbortController().signal,
  );
  expect(busy).toEqual([true, false, true, false, true, false]);
});
