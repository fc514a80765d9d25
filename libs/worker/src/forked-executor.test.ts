// The line to an executor process, on its worst days.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { mainQueue, resolveSettings } from '@shoal/core';
import { ForkedExecutor } from './forked-executor.ts';
import { childrenOf, until } from './testing/worker-bench.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-forked-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

test.skipIf(process.platform !== 'linux')('an executor that is not ready in time is killed, and start says so', async () => {
  const model = 'tiny-random';
  const executor = new ForkedExecutor({
    redisUrl: 'redis://127.0.0.1:1', prefix: '{test}', queue: mainQueue(model), cpuQueue: undefined, cacheDir, threads: 1, tokenizerThreads: 0,
    device: 'cpu', precision: 'auto', deviceSessions: 1, model, served: model, simulatedTokensPerMs: undefined, maxTokens: undefined, logLevel: 'silent', limits: resolveSettings({}),
  }, { startTimeoutMs: 50 });
  const before = childrenOf(process.pid);
  await expect(executor.start()).rejects.toMatchObject({ code: 'EXECUTOR_LOST', message: expect.stringContaining('it was not ready 50 ms after its start') });
  await until('it is gone', async () => (childrenOf(process.pid).every((pid) => before.includes(pid)) ? true : undefined));
});
