// Similarity jobs when memory is short: the real queue, pipeline, kernels and files, with the executor in this process, so
// that a test says how large its budget is and when memory runs out. Every answer is compared with a direct one.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { ShoalClient } from '@shoal/client';
import {
  DEFAULT_PREFIX, Pipeline, Residents, SIMILARITY_QUEUE, SimilarityExecutor, noFaults, noLog, readSimilarityJob, systemClock,
  type ExecutorLink, type FromExecutor, type HeldRows, type SimilarityDevice, type SimilarityOrder, type ToExecutor,
} from '@shoal/core';
import { BullJobSource } from '@shoal/queue';
import { RedisAnnouncer, RedisPayloadStore } from '@shoal/queue/payload';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection, openCollectionRows, openKernels } from '@shoal/similarity';
import { kernelDevice } from '@shoal/worker/similarity';
import { exactRanking, expectSame, randomVectors } from './testing/exact.ts';

const DIMS = 16;
const ROWS = 40;
const folder = mkdtempSync(join(tmpdir(), 'shoal-similarity-memory-'));
const kernels = openKernels();
const queries = { values: randomVectors(3, DIMS, 99), dims: DIMS };
const rowsOf = (seed: number): Float32Array => randomVectors(ROWS, DIMS, seed);

let server: TestServer;
let client: ShoalClient;
let rowBytes: number;
const closers: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });
  for (let seed = 0; seed < 9; seed++) await createCollection(folder, `c${seed}`, [{ dims: DIMS, vectors: rowsOf(seed) }]);
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

/** An executor in this process; `renew` puts another in its place, which has learned nothing. */
class LocalExecutor implements ExecutorLink {
  residents: Residents;
  private readonly device: SimilarityDevice;
  private readonly store: RedisPayloadStore;
  private readonly listeners: ((message: FromExecutor) => void)[] = [];
  private executor: SimilarityExecutor;
  private readonly budgetBytes: number;

  constructor(device: SimilarityDevice, store: RedisPayloadStore, budgetBytes: number) {
    this.device = device;
    this.store = store;
    this.budgetBytes = budgetBytes;
    this.residents = new Residents(budgetBytes);
    this.executor = this.newExecutor();
  }

  async renew(): Promise<void> {
    await this.executor.stop();
    this.residents = new Residents(this.budgetBytes);
    this.executor = this.newExecutor();
  }

  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    return { kind: 'ready', model: 'similarity', dims: 0, maxTokens: 0, device: this.device.device, precision: 'fp32', pid: process.pid };
  }

  send(message: ToExecutor<SimilarityOrder>): void {
    if (message.kind !== 'stop') this.executor.handle(message);
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.listeners.push(listener);
  }

  onLost(): void {}

  kill(): void {}

  stop(): Promise<void> {
    return this.executor.stop();
  }

  private newExecutor(): SimilarityExecutor {
    return new SimilarityExecutor({
      store: this.store, device: this.device, residents: this.residents, clock: systemClock, log: noLog, maxRows: 64, resultKey: (jobId) => jobId, faults: noFaults,
      send: (message) => queueMicrotask(() => this.listeners.forEach((listener) => listener(message))),
    });
  }
}

async function startWorker(device: SimilarityDevice, budgetBytes: number): Promise<LocalExecutor> {
  const options = { redisUrl: server.url, prefix: DEFAULT_PREFIX, queue: SIMILARITY_QUEUE, log: noLog };
  const [store, announcer] = await Promise.all([RedisPayloadStore.connect(options), RedisAnnouncer.connect(options)]);
  const executor = new LocalExecutor(device, store, budgetBytes);
  const pipeline = new Pipeline({
    announcer, executor, source: new BullJobSource({ ...options, leaseMs: 5_000, stalledCheckMs: 1_000 }), clock: systemClock, serverNowMs: Date.now, log: noLog, faults: noFaults, readJob: readSimilarityJob,
    limits: { poolTokens: 256, executorTimeoutMs: 60_000, drainTimeoutMs: 5_000, claimTimeoutMs: 60_000 },
  });
  await pipeline.start();
  closers.push(async () => {
    await pipeline.stop();
    await Promise.all([store.stop(), announcer.stop()]);
  });
  return executor;
}

/** Runs out of memory for more than `mostRows()` rows at once, when they are loaded or when they are computed on. */
function shortOfMemory(device: SimilarityDevice, at: 'load' | 'run', mostRows: () => number, onRefused: (rows: number) => void): SimilarityDevice {
  const refusal = (where: 'load' | 'run', count: number): { readonly fits: false; readonly message: string } | undefined => {
    if (where !== at || count <= mostRows()) return undefined;
    onRefused(count);
    return { fits: false, message: `no memory for ${count} rows, says the test` };
  };
  const held = (rows: HeldRows): HeldRows => ({
    rows: rows.rows, bytes: rows.bytes,
    free: () => rows.free(),
    has: (id) => rows.has(id),
    slice: (first, count) => held(rows.slice(first, count)),
    topK: async (asked, options) => refusal('run', rows.rows) ?? rows.topK(asked, options),
    rescore: async (asked, candidates, options) => refusal('run', rows.rows) ?? rows.rescore(asked, candidates, options),
    scores: async (asked, options) => refusal('run', rows.rows) ?? rows.scores(asked, options),
  });
  return {
    device: device.device,
    openGraph: (name) => device.openGraph(name),
    rowsOf: (matrix) => held(device.rowsOf(matrix)),
    openCollection: async (name) => {
      const source = await device.openCollection(name);
      return {
        ...source,
        load: async (first, count) => {
          const loaded = refusal('load', count) ?? await source.load(first, count);
          return loaded.fits ? { fits: true, value: held(loaded.value) } : loaded;
        },
      };
    },
  };
}

async function askEverything(name: string, rows: Float32Array): Promise<void> {
  const query = (index: number): Float32Array => queries.values.subarray(index * DIMS, (index + 1) * DIMS);
  const candidates = [[1, 30, 20], [39], [7, 8, 9]];
  const [top, near, matrix, again] = await Promise.all([
    client.topK(name, queries, { k: 5 }), client.topK(name, queries, { k: 200, metric: 'l2' }), client.cosine(queries, { collection: name }, { metric: 'dot' }),
    client.rescore(name, queries, candidates.map((ids) => BigUint64Array.from(ids, BigInt)), { k: 2 }),
  ]);
  for (let i = 0; i < 3; i++) {
    expectSame(top[i], exactRanking(rows, query(i), 'cosine', 5));
    expectSame(near[i], exactRanking(rows, query(i), 'l2', ROWS));
    expectSame(again[i], exactRanking(rows, query(i), 'cosine', 2, candidates[i]));
    for (const { id, score } of exactRanking(rows, query(i), 'dot', ROWS)) expect(matrix.scores[i * ROWS + id]).toBeCloseTo(score, 4);
  }
}

test('collections of three times the budget take turns in it, and every answer is right', async () => {
  const budgetBytes = 3 * ROWS * rowBytes;
  const executor = await startWorker(kernelDevice({ kernels, folder }), budgetBytes);
  for (let round = 0; round < 3; round++) await Promise.all(Array.from({ length: 9 }, (_, seed) => askEverything(`c${seed}@1`, rowsOf(seed))));
  expect(executor.residents.evictions).toBeGreaterThanOrEqual(6);
  expect(executor.residents.bytes).toBeLessThanOrEqual(budgetBytes);
});

test('one collection of three times the budget passes by in tiles', async () => {
  const executor = await startWorker(kernelDevice({ kernels, folder }), Math.floor((ROWS * rowBytes) / 3));
  await askEverything('c0@1', rowsOf(0));
  expect(executor.residents.bytes).toBe(0);
});

test.each(['load', 'run'] as const)('memory runs out in every %s of a tile that is too large, at every size, and nothing is lost', async (at) => {
  let most = ROWS;
  const refused = new Set<number>();
  const executor = await startWorker(shortOfMemory(kernelDevice({ kernels, folder }), at, () => most, (rows) => refused.add(rows)), 10 * ROWS * rowBytes);
  for (most = ROWS - 1; most >= 1; most--) {
    await askEverything('c1@1', rowsOf(1));
    await executor.renew();
  }
  expect([...refused]).toEqual(expect.arrayContaining([40, 20, 10, 5, 2])); // halved down to one row; tiles that grew again are among them too
});
