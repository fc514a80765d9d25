// Similarity jobs on a GPU with little memory, through the real queue, pipeline and files, on the CUDA library's
// stand-in: collections of three times its memory, memory that runs out at every size of tile, and what goes to the CPU
// lane then. Executors are in this process, so that a test says how much memory there is. Every answer is compared with
// a direct one.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { ShoalClient } from '@shoal/client';
import { DEFAULT_PREFIX, SIMILARITY_QUEUE } from '@shoal/contract';
import { Thresholds, type SimilarityDevice } from '@shoal/core/similarity';
import { openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import {
  HybridEngine,
  cpuEngine,
  createCollection,
  graphFromEdges,
  kernelsOn,
  saveGraph,
  type CudaEngine,
} from '@shoal/similarity';
import { openStandIn, standInEngine, withStandIn } from '@shoal/similarity/testing';
import { kernelDevice } from '@shoal/worker/similarity';
import { DIMS, ROWS, askEverything as askAll, rowsOf } from './testing/ask-everything.ts';
import { startLocalWorker, type LocalExecutor } from './testing/local-worker.ts';

const standIn = openStandIn();
/** Of one collection on the stand-in: values, a length and a scale. */
const ON_DEVICE = ROWS * (DIMS * 4 + 8);
const WORK_BYTES = 1 << 17;
const folder = mkdtempSync(join(tmpdir(), 'shoal-similarity-vram-'));
const askEverything = (name: string, rows: Float32Array): Promise<void> => askAll(client, name, rows);

let server: TestServer;
let client: ShoalClient;
let redis: Redis;
let queue: Queue;
const closers: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });
  redis = openConnection({ url: server.url, name: 'test' });
  queue = new Queue(SIMILARITY_QUEUE, { connection: redis, prefix: DEFAULT_PREFIX });
  for (let seed = 0; seed < 9; seed++)
    await createCollection(folder, `c${seed}`, [{ dims: DIMS, vectors: rowsOf(seed) }]);
  await saveGraph(folder, 'ring', graphFromEdges({ from: Uint32Array.of(0, 1, 2), to: Uint32Array.of(1, 2, 0) }));
});

afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

afterAll(async () => {
  await client.close();
  await queue.close();
  redis.disconnect();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function startWorker(device: SimilarityDevice, lane: 'main' | 'cpu'): Promise<LocalExecutor> {
  const { executor, stop } = await startLocalWorker({ redisUrl: server.url, device, lane, budgetBytes: 1 << 30 });
  closers.push(stop);
  return executor;
}

/** A worker on the stand-in that computes everything there, with so much memory for what stays. */
async function startGpuWorker(
  residentBytes: number,
): Promise<{ readonly engine: CudaEngine; readonly executor: LocalExecutor }> {
  const engine = standInEngine(standIn!, { residentBytes, workBytes: WORK_BYTES });
  const hybrid = new HybridEngine({ cpu: cpuEngine(), gpu: engine, thresholds: new Thresholds(), chooses: 'never' });
  const executor = await startWorker(
    kernelDevice({ kernels: kernelsOn(hybrid), folder, gpu: { device: 'cuda:0', engine, hybrid } }),
    'main',
  );
  closers.push(async () => engine.close());
  return { engine, executor };
}

async function startCpuWorker(): Promise<void> {
  await startWorker(kernelDevice({ kernels: kernelsOn(cpuEngine()), folder }), 'cpu');
}

async function states(): Promise<Record<string, number>> {
  const counts = await queue.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'waiting-children', 'failed');
  return Object.fromEntries(Object.entries(counts).filter(([, count]) => count > 0));
}

describe.skipIf(standIn === undefined)('on the stand-in', () => {
  test('collections of three times the memory take turns on the device, and every answer is right', async () => {
    const { engine } = await startGpuWorker(3 * ON_DEVICE);
    await withStandIn({ SHOAL_STAND_IN_BYTES: 3 * ON_DEVICE + WORK_BYTES }, async () => {
      for (let round = 0; round < 3; round++)
        await Promise.all(Array.from({ length: 9 }, (_, seed) => askEverything(`c${seed}@1`, rowsOf(seed))));
    });
    expect(engine.residents.evictions).toBeGreaterThanOrEqual(6);
    expect(engine.residents.bytes).toBeLessThanOrEqual(3 * ON_DEVICE);
    expect(await states()).toEqual({});
  });

  test('one collection of three times the memory streams through it', async () => {
    const { engine } = await startGpuWorker(Math.floor(ON_DEVICE / 3));
    await withStandIn({ SHOAL_STAND_IN_BYTES: Math.floor(ON_DEVICE / 3) + WORK_BYTES }, () =>
      askEverything('c0@1', rowsOf(0)),
    );
    expect([engine.residents.count, engine.heldBytes]).toEqual([0, 0]);
  });

  test('a new version is served beside the one that readers have, and the old one leaves once replaced', async () => {
    const { engine } = await startGpuWorker(10 * ON_DEVICE);
    await createCollection(folder, 'growing', [{ dims: DIMS, vectors: rowsOf(20) }]);
    await askEverything('growing@1', rowsOf(20));
    await createCollection(folder, 'growing', [{ dims: DIMS, vectors: rowsOf(21) }]);
    await Promise.all([askEverything('growing@1', rowsOf(20)), askEverything('growing@2', rowsOf(21))]);
    expect(engine.residents.count).toBe(2);
  });

  test('memory runs out on the device at every number of rows, and nothing is lost', async () => {
    const { engine, executor } = await startGpuWorker(10 * ON_DEVICE);
    for (let most = ROWS; most >= 1; most--) {
      await withStandIn({ SHOAL_STAND_IN_MOST_ROWS: most }, () => askEverything('c1@1', rowsOf(1)));
      await executor.renew(); // one that has learned nothing
      expect(engine.heldBytes).toBe(0);
    }
    expect(await states()).toEqual({});
  });

  test('memory for the work of a call runs out at every size down to the least, and nothing is lost', async () => {
    await startGpuWorker(10 * ON_DEVICE);
    for (let most = WORK_BYTES; most >= 1 << 16; most /= 2)
      await withStandIn({ SHOAL_STAND_IN_MOST_WORK: most }, () => askEverything('c2@1', rowsOf(2)));
    expect(await states()).toEqual({});
  });

  test('what does not fit row by row goes to the CPU lane with its reason, and is answered there', async () => {
    await startGpuWorker(10 * ON_DEVICE);
    await withStandIn({ SHOAL_STAND_IN_MOST_WORK: 1 }, async () => {
      const asked = Promise.all([askEverything('c3@1', rowsOf(3)), client.spread('ring', [[0]], { k: 3, steps: 2 })]);
      await expect.poll(async () => (await queue.getJobCounts('waiting-children'))['waiting-children']).toBe(5);
      const [waiting] = await queue.getJobs(['waiting-children']);
      expect(waiting!.progress).toMatchObject({
        handedOver: { code: 'OUT_OF_VRAM', message: expect.stringContaining('GPU') },
      });
      await startCpuWorker();
      const [, [reached]] = await asked;
      expect([...reached!.ids].map(Number)).toEqual([0, 1, 2]);
    });
    const values = (await queue.getJobs(['completed'])).map(
      ({ returnvalue }) => returnvalue as { handedOver?: object; device: string },
    );
    const handedOver = values.filter((value) => value.handedOver !== undefined);
    expect(handedOver).toHaveLength(5);
    for (const value of handedOver)
      expect(value).toMatchObject({ handedOver: { reason: 'OUT_OF_VRAM' }, device: expect.stringMatching(/^cpu:/) });
    expect(await states()).toEqual({});
    await askEverything('c3@1', rowsOf(3)); // with its memory back the device answers again
  });
});
