// Thousands of calls of the SDK at once, and a queue server that is killed in the middle and stays away: every call
// settles, with the vectors of its own text. A simulated device serves the model's queue. Until the server is killed
// each call that settles is followed by another, so that it is killed in the middle on a machine of any speed. By night
// 10,000 calls and 20 s.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ShoalClient } from '@shoal/client';
import { simulatedVector } from '@shoal/core/sim';
import { programOf } from '@shoal/core/testing';
import { openModel, openTokenizer } from '@shoal/models';
import { startTestServer, type TestServer } from '@shoal/queue/testing';

const MODEL = 'tiny-random';
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const CALLS = isNightly ? 10_000 : 400;
const AWAY_MS = isNightly ? 20_000 : 1_000;

let server: TestServer;
let cacheDir: string;
let worker: ChildProcess;

beforeAll(async () => {
  server = await startTestServer();
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-outage-'));
  const { main, execArgv } = programOf('gpu-worker');
  worker = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_DEVICE: 'sim:8',
      SHOAL_SIM_SERVES: 'model',
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'silent',
    },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const isUp = Promise.race([once(worker, 'message').then(() => true), once(worker, 'exit').then(() => false)]);
  if (!(await isUp)) throw new Error('the worker ended before it was up');
});
afterAll(async () => {
  if (worker.exitCode === null) {
    const gone = once(worker, 'exit');
    worker.kill('SIGTERM');
    await gone;
  }
  await server.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

test(
  `${CALLS} calls at once settle, each with its own vector, though the server is away for ${AWAY_MS} ms`,
  { timeout: isNightly ? 600_000 : 120_000 },
  async () => {
    const model = await openModel(MODEL, { cacheDir });
    const tokenizer = await openTokenizer(model);
    const client = await ShoalClient.connect({ redisUrl: server.url, model: MODEL, giveUpAfterMs: 300_000 });
    let isKilled = false;
    const settled: Promise<unknown>[] = [];
    function call(n = settled.length): void {
      const isRight = client.embed([text(n)]).then(({ vectors }) => {
        if (!isKilled) call();
        return distance(vectors, vectorOf(n)) < 1e-6;
      });
      settled.push(isRight.catch((error: unknown) => error));
    }
    const vectorOf = (n: number): Float32Array => simulatedVector(tokenizer.encode(text(n)).ids, model.dims);
    for (let n = 0; n < CALLS; n++) call();
    await expect.poll(() => client.counts().delivered, { timeout: 60_000 }).toBeGreaterThan(CALLS / 20);
    await server.kill9();
    isKilled = true;
    const before = client.counts().delivered;
    await sleep(AWAY_MS);
    await server.restart();
    const outcomes = await Promise.all(settled);
    expect(before).toBeLessThan(settled.length);
    expect(outcomes.filter((outcome) => outcome !== true)).toEqual([]);
    expect(client.counts()).toMatchObject({ delivered: settled.length, failed: 0 });
    await client.close();
  },
);

function text(n: number): string {
  return `call ${n} of many`;
}

function distance(found: Float32Array, expected: Float32Array): number {
  return Math.max(...expected.map((value, dim) => Math.abs(value - found[dim]!)));
}
