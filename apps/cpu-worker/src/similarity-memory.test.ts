// Similarity jobs when memory is short: the real queue, pipeline, kernels and files, with the executor in this process,
// so that a test says how large its budget is and when memory runs out. Every answer is compared with a direct one.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { ShoalClient } from '@shoal/client';
import type { HeldRows, SimilarityDevice } from '@shoal/core/similarity';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection, openCollectionRows, openKernels } from '@shoal/similarity';
import { kernelDevice } from '@shoal/worker/similarity';
import { DIMS, ROWS, askEverything as askAll, rowsOf } from './testing/ask-everything.ts';
import { startLocalWorker, type LocalExecutor } from './testing/local-worker.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-similarity-memory-'));
const kernels = openKernels();
const askEverything = (name: string, rows: Float32Array): Promise<void> => askAll(client, name, rows);

let server: TestServer;
let client: ShoalClient;
let rowBytes: number;
const closers: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });
  for (let seed = 0; seed < 9; seed++)
    await createCollection(folder, `c${seed}`, [{ dims: DIMS, vectors: rowsOf(seed) }]);
  const opened = await openCollectionRows(folder, 'c0@1');
  ({ rowBytes } = opened);
  await opened.close();
});

afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

afterAll(async () => {
  await client.close();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function startWorker(device: SimilarityDevice, budgetBytes: number): Promise<LocalExecutor> {
  const { executor, stop } = await startLocalWorker({ redisUrl: server.url, device, budgetBytes });
  closers.push(stop);
  return executor;
}

/** Runs out of memory for more than `mostRows()` rows at once, when they are loaded or when they are computed on. */
function shortOfMemory(
  device: SimilarityDevice,
  at: 'load' | 'run',
  mostRows: () => number,
  onRefused: (rows: number) => void,
): SimilarityDevice {
  const refusal = (
    where: 'load' | 'run',
    count: number,
  ): { readonly fits: false; readonly message: string } | undefined => {
    if (where !== at || count <= mostRows()) return undefined;
    onRefused(count);
    return { fits: false, message: `no memory for ${count} rows, says the test` };
  };
  const held = (rows: HeldRows): HeldRows => ({
    rows: rows.rows,
    bytes: rows.bytes,
    free: () => rows.free(),
    has: (id) => rows.has(id),
    slice: (first, count) => held(rows.slice(first, count)),
    topK: async (asked, options) => refusal('run', rows.rows) ?? rows.topK(asked, options),
    rescore: async (asked, candidates, options) =>
      refusal('run', rows.rows) ?? rows.rescore(asked, candidates, options),
    scores: async (asked, options) => refusal('run', rows.rows) ?? rows.scores(asked, options),
  });
  return {
    device: device.device,
    newest: (name) => device.newest(name),
    openGraph: (name) => device.openGraph(name),
    rowsOf: (matrix) => held(device.rowsOf(matrix)),
    openCollection: async (name) => {
      const source = await device.openCollection(name);
      return {
        ...source,
        load: async (first, count) => {
          const loaded = refusal('load', count) ?? (await source.load(first, count));
          return loaded.fits ? { fits: true, value: held(loaded.value) } : loaded;
        },
      };
    },
  };
}

test('collections of three times the budget take turns in it, and every answer is right', async () => {
  const budgetBytes = 3 * ROWS * rowBytes;
  const executor = await startWorker(kernelDevice({ kernels, folder }), budgetBytes);
  for (let round = 0; round < 3; round++)
    await Promise.all(Array.from({ length: 9 }, (_, seed) => askEverything(`c${seed}@1`, rowsOf(seed))));
  expect(executor.residents.evictions).toBeGreaterThanOrEqual(6);
  expect(executor.residents.bytes).toBeLessThanOrEqual(budgetBytes);
});

test('one collection of three times the budget passes by in tiles', async () => {
  const executor = await startWorker(kernelDevice({ kernels, folder }), Math.floor((ROWS * rowBytes) / 3));
  await askEverything('c0@1', rowsOf(0));
  expect(executor.residents.bytes).toBe(0);
});

test.each(['load', 'run'] as const)(
  'memory runs out in every %s of a tile that is too large, at every size, and nothing is lost',
  async (at) => {
    let most = ROWS;
    const refused = new Set<number>();
    const executor = await startWorker(
      shortOfMemory(
        kernelDevice({ kernels, folder }),
        at,
        () => most,
        (rows) => refused.add(rows),
      ),
      10 * ROWS * rowBytes,
    );
    for (most = ROWS - 1; most >= 1; most--) {
      await askEverything('c1@1', rowsOf(1));
      await executor.renew();
    }
    // halved down to one row; tiles that grew again are among them too
    expect([...refused]).toEqual(expect.arrayContaining([40, 20, 10, 5, 2]));
  },
);
