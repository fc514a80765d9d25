// A similarity worker on a GPU as its own process, on the CUDA library's stand-in and a driver's tool that the test
// plays: it opens, tells what it holds, goes on on its CPU when the device fails, and takes the device again when that
// works; and what is said where it cannot be used.

import { fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { ShoalClient } from '@shoal/client';
import { DEFAULT_PREFIX, SIMILARITY_QUEUE } from '@shoal/contract';
import type { WorkerFacts } from '@shoal/core';
import { Fleet, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection } from '@shoal/similarity';
import { standInLibrary } from '@shoal/similarity/testing';
import { DIMS, askEverything, rowsOf } from './testing/ask-everything.ts';

const library = standInLibrary();
const folder = mkdtempSync(join(tmpdir(), 'shoal-similarity-gpu-'));
const lost = join(folder, 'lost');
const MEBIBYTE = 2 ** 20;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('auto measures at night (npm run test:nightly): half a minute of a core');

let server: TestServer;
let client: ShoalClient;
let fleet: Fleet;
let redis: Redis;
let queue: Queue;
const workers: ChildProcess[] = [];

beforeAll(async () => {
  server = await startTestServer();
  client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });
  fleet = await Fleet.connect({ redisUrl: server.url, queue: SIMILARITY_QUEUE });
  redis = openConnection({ url: server.url, name: 'test' });
  queue = new Queue(SIMILARITY_QUEUE, { connection: redis, prefix: DEFAULT_PREFIX });
  await createCollection(join(folder, 'collections'), 'docs', [{ dims: DIMS, vectors: rowsOf(1) }]);
  writeFileSync(
    join(folder, 'nvidia-smi'),
    "#!/bin/sh\necho '0, GPU-1, 580.10, 4096, 96, 4000, 0, 30, 50.0, Disabled, 9.0, NVIDIA Stand-in'\n",
    { mode: 0o755 },
  );
});

afterEach(async () => {
  for (const worker of workers.splice(0)) {
    const gone = new Promise((resolve) => worker.once('exit', resolve));
    if (worker.exitCode === null && worker.kill('SIGTERM')) await gone;
  }
  rmSync(lost, { force: true });
});

afterAll(async () => {
  await client.close();
  await Promise.all([fleet.close(), queue.close()]);
  redis.disconnect();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** Resolves with what it says first, and its log. */
async function startWorker(
  settings: Readonly<Record<string, string | undefined>>,
  options: { readonly from?: 'sources' } = {},
): Promise<{ readonly said: Record<string, unknown>; readonly log: string[] }> {
  const { main, execArgv } = programOf('gpu-worker', options);
  const worker = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      PATH: `${folder}:${process.env['PATH']}`,
      SHOAL_REDIS_URL: server.url,
      SHOAL_KIND: 'similarity',
      SHOAL_CACHE_DIR: folder,
      SHOAL_LOG_LEVEL: 'info',
      SHOAL_CUDA_LIBRARY: library,
      SHOAL_STAND_IN_BYTES: String(4_096 * MEBIBYTE),
      SHOAL_STAND_IN_LOST: lost,
      SHOAL_GPU_RETRY_MS: '200',
      CUDA_VISIBLE_DEVICES: undefined,
      ...settings,
    },
    stdio: ['ignore', 2, 'pipe', 'ipc'],
  });
  workers.push(worker);
  const log: string[] = [];
  worker.stderr!.setEncoding('utf8').on('data', (text: string) => log.push(text));
  const said = await new Promise<Record<string, unknown>>((resolve, reject) => {
    worker.once('message', (message) => resolve(message as Record<string, unknown>));
    worker.once('exit', (code, signal) =>
      reject(new Error(`the worker ended before it was ready: ${code ?? signal}\n${log.join('')}`)),
    );
  });
  return { said, log };
}

async function facts(): Promise<WorkerFacts | undefined> {
  const { workers: alive } = await fleet.read();
  return alive.find((worker) => worker.facts?.pid === workers[0]?.pid)?.facts;
}

async function devices(): Promise<string[]> {
  return (await queue.getJobs(['completed'])).map(({ returnvalue }) => (returnvalue as { device: string }).device);
}

describe.skipIf(library === undefined)('on the stand-in', () => {
  test('gpu:0 computes there, says so in every result, and shows what it holds and its break-even', async () => {
    const { said } = await startWorker({ SHOAL_DEVICE: 'gpu:0', SHOAL_SMALL_ON_CPU: 'never' }, { from: 'sources' });
    expect(said).toMatchObject({ kind: 'ready', device: 'cuda:0' });
    await askEverything(client, 'docs@1', rowsOf(1));
    expect(new Set(await devices())).toEqual(new Set(['cuda:0']));
    await expect.poll(async () => (await facts())?.similarity?.gpu?.residents).toBe(1);
    const told = await facts();
    expect(told).toMatchObject({
      device: 'cuda:0',
      lanes: ['main'],
      similarity: { calls: { cpu: 0 }, fallbacks: 0, isGpuLost: false, gpu: { evictions: 0 } },
    });
    const left = 0.8 * 4_096 * MEBIBYTE - 96 * MEBIBYTE - 512 * MEBIBYTE;
    expect(told!.similarity!.gpu!.budgetBytes).toBe(Math.floor(left - Math.floor(left / 8)));
  });

  test(
    'a device that fails in mid-job costs no answer: the same job goes on on the CPU and says so, and the device ' +
      'is taken again when it works',
    async () => {
      const { log } = await startWorker({ SHOAL_DEVICE: 'gpu:0', SHOAL_SMALL_ON_CPU: 'never' });
      await askEverything(client, 'docs@1', rowsOf(1));
      const [before] = await fleetPids();
      await queue.clean(0, 1_000, 'completed');
      writeFileSync(lost, '');
      await askEverything(client, 'docs@1', rowsOf(1));
      const values = (await queue.getJobs(['completed'])).map(
        ({ returnvalue }) => returnvalue as { device: string; fellBack?: string },
      );
      expect(values.filter(({ fellBack }) => fellBack === 'DEVICE_LOST').length).toBeGreaterThanOrEqual(1);
      for (const { device } of values) expect(device).toMatch(/^cpu:/);
      expect(log.join('')).toContain('the GPU could not compute this, the CPU does');
      await expect.poll(async () => (await facts())?.similarity?.isGpuLost).toBe(true);
      rmSync(lost);
      await expect.poll(async () => (await facts())?.similarity?.isGpuLost, { timeout: 20_000 }).toBe(false);
      await queue.clean(0, 1_000, 'completed');
      await askEverything(client, 'docs@1', rowsOf(1));
      expect(new Set(await devices())).toEqual(new Set(['cuda:0']));
      expect(before).toBeDefined();
      expect(await queue.getJobCounts('failed')).toEqual({ failed: 0 });
    },
  );

  // Fewer sizes on a busy machine, not fewer seconds: the measuring has a limit of its own.
  test.runIf(isNightly)(
    'auto measures both sides once, keeps what it found, and answers from whichever is sooner',
    async () => {
      const { said, log } = await startWorker({ SHOAL_DEVICE: 'auto' });
      expect(said).toMatchObject({ kind: 'ready', device: 'cuda:0' });
      expect(log.join('')).toContain('measured from which sizes on the GPU is faster');
      await askEverything(client, 'docs@1', rowsOf(1)); // wherever it was sooner
      await expect.poll(async () => (await facts())?.similarity?.breakEvens?.length).toBeGreaterThan(10);
      const again = await startWorker({ SHOAL_DEVICE: 'auto', SHOAL_WORKER_NAME: 'another' });
      expect(again.log.join('')).not.toContain('measured from which sizes');
    },
  );

  test('a GPU that was asked for and cannot be used is refused with the reason; auto goes on on the CPU', async () => {
    const refused = {
      kind: 'unfit',
      failure: {
        code: 'SETUP_FAILED',
        message: expect.stringContaining('device gpu:0 was asked for and cannot be used; cuda: '),
      },
    };
    const cases = [
      [
        { SHOAL_CUDA_LIBRARY: '/nowhere/similarity_cuda.so' },
        '"sh native/similarity/build.sh cuda" builds them where there is nvcc',
      ],
      [{ CUDA_VISIBLE_DEVICES: '' }, 'hides every GPU from CUDA'],
      [{ SHOAL_STAND_IN_DEVICES: '0' }, 'find no device'],
      [{ SHOAL_STAND_IN_BYTES: String(700 * MEBIBYTE), SHOAL_MEMORY_FRACTION: '0.1' }, 'others use it'],
    ] as const;
    const [fallen, forced, ...refusals] = await Promise.all([
      startWorker({
        SHOAL_DEVICE: 'auto',
        SHOAL_CUDA_LIBRARY: '/nowhere/similarity_cuda.so',
        SHOAL_WORKER_NAME: 'on-the-cpu',
      }),
      startWorker({ SHOAL_DEVICE: 'gpu:0', SHOAL_FORCE_CPU: '1', SHOAL_WORKER_NAME: 'forced' }),
      ...cases.map(([settings], at) =>
        startWorker({ SHOAL_DEVICE: 'gpu:0', SHOAL_WORKER_NAME: `refused-${at}`, ...settings }),
      ),
    ]);
    for (const [at, { said }] of refusals.entries()) {
      expect(said).toMatchObject(refused);
      expect(said).toMatchObject({ failure: { message: expect.stringContaining(cases[at]![1]) } });
    }
    const { said, log } = fallen;
    expect(said).toMatchObject({ kind: 'ready', device: expect.stringMatching(/^cpu:/) });
    expect(log.join('')).toContain('a GPU is not used');
    expect(forced.said).toMatchObject({ kind: 'ready', device: expect.stringMatching(/^cpu:/) });
    expect(forced.log.join('')).toContain('SHOAL_FORCE_CPU=1');
  });
});

async function fleetPids(): Promise<number[]> {
  return (await fleet.read()).workers.flatMap((worker) => worker.facts?.pid ?? []);
}
