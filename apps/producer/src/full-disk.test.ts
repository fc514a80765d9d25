// HTTP in front of a queue server whose disk is full, for real: who asks for vectors and who asks for readiness hear it
// in the server's words, and both are served again once there is room.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import { SmallDisk } from '@shoal/fetch/testing';
import { openModel, openTokenizer } from '@shoal/models';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from './producer.ts';

const MODEL = 'tiny-random';
const disk = SmallDisk.make(1_000_000);
const cannot =
  typeof disk === 'string'
    ? disk
    : process.env['SHOAL_TEST_TOPOLOGY'] === undefined
      ? undefined
      : 'servers of a topology share none';
if (cannot !== undefined) console.log(`a full disk is not tried: ${cannot}`);

let server: TestServer;
let producer: Producer;
let cacheDir: string;

beforeAll(async () => {
  if (cannot !== undefined || typeof disk === 'string') return;
  server = await startTestServer({ args: ['--dir', disk.folder] });
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-full-disk-'));
  const model = await openModel(MODEL, { cacheDir });
  producer = await createProducer({
    redisUrl: server.url,
    prefix: '{full}',
    model,
    tokenizer: await openTokenizer(model),
    host: '127.0.0.1',
    port: 0,
    requestTimeoutMs: 60_000,
    maxOpenRequests: 8,
    version: '0.0.0',
    log: noLog,
  });
});

afterAll(async () => {
  if (cannot !== undefined || typeof disk === 'string') return;
  await producer?.stop();
  await server?.stop();
  disk.remove();
  await rm(cacheDir, { recursive: true, force: true });
});

function post(init: RequestInit = {}): Promise<Response> {
  return fetch(`${producer.url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: MODEL, input: 'a' }),
    ...init,
  });
}

test.skipIf(cannot !== undefined)(
  'its words come with 503 and Retry-After, from /readyz too, and jobs are taken again when there is room',
  async () => {
    if (typeof disk === 'string') return;
    const ready = (): Promise<Response> => fetch(`${producer.url}/readyz`);
    expect((await ready()).status).toBe(200);
    disk.fill();
    await server.command('SET', 'big', 'x'.repeat(20_000)).catch(() => undefined);
    await expect.poll(async () => (await ready()).status, { timeout: 20_000 }).toBe(503);
    const inItsWords = {
      error: { code: 'queue_refuses_writes', message: expect.stringMatching(/MISCONF .*No space left on device/) },
    };
    for (const answer of [await ready(), await post()]) {
      expect([answer.status, Number(answer.headers.get('retry-after'))]).toEqual([
        503,
        expect.toSatisfy((s) => s >= 1),
      ]);
      expect(await answer.json()).toMatchObject(inItsWords);
    }
    expect((await fetch(`${producer.url}/healthz`)).status).toBe(200);
    disk.empty();
    await expect.poll(async () => (await ready()).status, { timeout: 20_000 }).toBe(200);
    const leaving = new AbortController();
    const asked = post({ signal: leaving.signal }).catch(() => 'left');
    await expect.poll(async () => (await ready()).json()).toMatchObject({ waiting: 1 });
    leaving.abort();
    expect(await asked).toBe('left');
  },
  90_000,
);
