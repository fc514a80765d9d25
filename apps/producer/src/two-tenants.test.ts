// A tenant with little beside one with much, through a whole server and a worker on a simulated device: what it asks for
// is answered again and again while the other's requests are still being answered.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { makeApiKey } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { openModel, openTokenizer } from '@shoal/models';
import { FileApiKeys } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from './producer.ts';
import { producerOptions } from './testing/producer-options.ts';

const MODEL = 'tiny-random';
const LOUD_REQUESTS = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 64 : 256;

let server: TestServer;
let folder: string;
let worker: ChildProcess;
let producer: Producer;
let keys: FileApiKeys;

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), 'shoal-two-tenants-'));
  keys = new FileApiKeys(join(folder, 'keys.json'));
  const model = await openModel(MODEL, { cacheDir: folder });
  const { main, execArgv } = programOf('gpu-worker');
  worker = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: folder,
      SHOAL_LOG_LEVEL: 'error',
      // a run takes its time, and the loud one needs a hundred and more of them however quick the machine is
      SHOAL_DEVICE: 'sim:1000000+5',
      SHOAL_MAX_ROWS: '64',
      SHOAL_SIM_SERVES: 'model',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  await once(worker, 'message');
  const tokenizer = await openTokenizer(model);
  const options = { redisUrl: server.url, model, tokenizer, keyFile: keys.place, requestTimeoutMs: 60_000 };
  producer = await createProducer(producerOptions({ ...options, maxOpenRequests: 128 }));
});
afterAll(async () => {
  await producer?.stop();
  const gone = once(worker, 'exit');
  worker.kill('SIGTERM');
  await gone;
  await server.stop();
  await rm(folder, { recursive: true, force: true });
});

async function callerOf(tenant: string): Promise<(texts: number) => Promise<void>> {
  const { text: key, kept } = makeApiKey({ name: tenant, tenant }, Date.now());
  await keys.add(kept);
  return async (texts) => {
    const input = Array.from({ length: texts }, (_, at) => `text ${at} of ${tenant}`);
    const response = await fetch(`${producer.url}/v1/embeddings`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      body: JSON.stringify({ model: MODEL, input }),
    });
    expect(response.status).toBe(200);
    expect(((await response.json()) as { readonly data: readonly unknown[] }).data).toHaveLength(texts);
  };
}

test(`one text after the other is answered beside ${LOUD_REQUESTS} requests of 128 texts`, async () => {
  const [loud, quiet] = [await callerOf('loud'), await callerOf('quiet')];
  await Promise.all([loud(1), quiet(1)]);
  const done: number[] = [];
  const all = Promise.all(
    Array.from({ length: LOUD_REQUESTS }, async () => {
      await loud(128);
      done.push(done.length);
    }),
  );
  await expect.poll(() => done.length, { interval: 5, timeout: 60_000 }).toBeGreaterThan(0);
  const meanwhile: number[] = [];
  for (let asked = 0; asked < 8; asked++) {
    await quiet(1);
    meanwhile.push(done.length);
  }
  await all;
  expect(meanwhile.at(-1)).toBeLessThan(LOUD_REQUESTS);
});
