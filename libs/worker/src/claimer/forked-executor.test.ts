// The line to an executor process, on its worst days.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, test } from 'vitest';
import { SIMILARITY_CPU_QUEUE, SIMILARITY_QUEUE, mainQueue } from '@shoal/contract';
import { resolveSettings } from '@shoal/core';
import { startTestServer } from '@shoal/queue/testing';
import { ForkedExecutor } from './forked-executor.ts';
import { childrenOf, until } from '../testing/worker-bench.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-forked-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const model = 'tiny-random';
const settings = {
  redisUrl: 'redis://127.0.0.1:1',
  prefix: '{test}',
  queue: mainQueue(model),
  cpuQueue: undefined,
  cacheDir,
  threads: 1,
  tokenizerThreads: 0,
  device: 'cpu',
  precision: 'auto',
  deviceSessions: 1,
  model,
  served: model,
  maxTokens: undefined,
  logLevel: 'silent',
  limits: resolveSettings({}),
} as const;

test.skipIf(process.platform !== 'linux')(
  'an executor that is not ready in time is killed, and start says so',
  async () => {
    const executor = new ForkedExecutor(settings, { startTimeoutMs: 50 });
    const before = childrenOf(process.pid);
    await expect(executor.start()).rejects.toMatchObject({
      code: 'EXECUTOR_LOST',
      message: expect.stringContaining('it was not ready 50 ms after its start'),
    });
    await until('it is gone', async () =>
      childrenOf(process.pid).every((pid) => before.includes(pid)) ? true : undefined,
    );
  },
);

test.skipIf(process.platform !== 'linux')(
  'one that was started early and died before it was taken over is replaced',
  async () => {
    const server = await startTestServer();
    const executor = new ForkedExecutor({ ...settings, redisUrl: server.url });
    const early = await executor.startEarly();
    process.kill(early.pid, 'SIGKILL');
    await until('it is gone', async () => (childrenOf(process.pid).includes(early.pid) ? undefined : true));
    const taken = await executor.start();
    expect(taken.pid).not.toBe(early.pid);
    await executor.stop();
    await server.stop();
  },
);

test.skipIf(process.platform !== 'linux')(
  'what an executor said before it was taken over is heard by whoever takes it over',
  async () => {
    const server = await startTestServer();
    const executor = new ForkedExecutor({
      kind: 'similarity',
      redisUrl: server.url,
      prefix: '{test}',
      queue: SIMILARITY_QUEUE,
      cpuQueue: SIMILARITY_CPU_QUEUE,
      folder: join(cacheDir, 'collections'),
      cacheDir,
      device: 'cpu',
      kernels: 'auto',
      smallOnCpu: 'auto',
      cudaLibrary: undefined,
      gpuRetryMs: 30_000,
      memoryFraction: 0.8,
      maxDeviceBytes: undefined,
      threads: 1,
      maxRows: undefined,
      budgetBytes: 1 << 26,
      logLevel: 'silent',
    });
    await executor.startEarly();
    await sleep(100); // its facts, told once, follow `ready`; whenever they come, they are heard
    const heard: string[] = [];
    const answered = Promise.withResolvers<void>();
    executor.onMessage(({ kind }) => {
      heard.push(kind);
      if (kind === 'pong') answered.resolve();
    });
    await executor.start();
    executor.send({ kind: 'ping', sequence: 1 });
    await answered.promise;
    expect(heard).toEqual(['similarity', 'pong']);
    await executor.stop();
    await server.stop();
  },
);
