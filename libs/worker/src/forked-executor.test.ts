// The line to an executor process, on its worst days.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { mainQueue, resolveSettings } from '@shoal/core';
import { startTestServer } from '@shoal/queue/testing';
import { ForkedExecutor } from './forked-executor.ts';
import { childrenOf, until } from './testing/worker-bench.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-forked-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const model = 'tiny-random';
const settings = {
  redisUrl: 'redis://127.0.0.1:1', prefix: '{test}', queue: mainQueue(model), cpuQueue: undefined, cacheDir, threads: 1, tokenizerThreads: 0,
  device: 'cpu', precision: 'auto', deviceSessions: 1, model, served: model, simulatedTokensPerMs: undefined, maxTokens: undefined, logLevel: 'silent', limits: resolveSettings({}),
} as const;

test.skipIf(process.platform !== 'linux')('an executor that is not ready in time is killed, and start says so', async () => {
  const executor = new ForkedExecutor(settings, { startTimeoutMs: 50 });
  const before = childrenOf(process.pid);
  await expect(executor.start()).rejects.toMatchObject({ code: 'EXECUTOR_LOST', message: expect.stringContaining('it was not ready 50 ms after its start') });
  await until('it is gone', async () => (childrenOf(process.pid).every((pid) => before.includes(pid)) ? true : undefined));
});

test.skipIf(process.platform !== 'linux')('one that was started early and died before it was taken over is replaced', async () => {
  const server = await startTestServer();
  const executor = new ForkedExecutor({ ...settings, redisUrl: server.url });
  const early = await executor.startEarly();
  process.kill(early.pid, 'SIGKILL');
  await until('it is gone', async () => (childrenOf(process.pid).includes(early.pid) ? undefined : true));
  const taken = await executor.start();
  expect(taken.pid).not.toBe(early.pid);
  await executor.stop();
  await server.stop();
});
