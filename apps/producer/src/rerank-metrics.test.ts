// What /metrics tells of the queues of rerankers, which come and go with their workers: a real queue server, and what a
// worker writes there of itself.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { keySpace, rerankQueue } from '@shoal/contract';
import { openModel, openTokenizer } from '@shoal/models';
import { parseMetrics } from '@shoal/ops/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from './producer.ts';
import { producerOptions } from './testing/producer-options.ts';

const MODEL = 'tiny-random';
const PREFIX = '{shoal}';
const QUEUE = rerankQueue('scorer');
const keys = keySpace(PREFIX);

let server: TestServer;
let cacheDir: string;
let producer: Producer;

beforeAll(async () => {
  server = await startTestServer();
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-http-'));
  const model = await openModel(MODEL, { cacheDir });
  producer = await createProducer(
    producerOptions({ redisUrl: server.url, prefix: PREFIX, model, tokenizer: await openTokenizer(model) }),
  );
});
afterAll(async () => {
  await producer?.stop();
  await server.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

test('a reranker that a worker serves has its queue there, also when its workers are gone', async () => {
  const facts = { device: 'cpu', model: 'scorer@r1', lanes: ['main'], rates: {}, mix: {} };
  await server.command('ZADD', keys.workers(QUEUE), Date.now() + 60_000, 'worker-1');
  await server.command('HSET', keys.facts(QUEUE), 'worker-1', JSON.stringify(facts));
  const served = await scrape();
  expect(served.value('shoal_queue_workers', { queue: QUEUE })).toBe(1);
  expect(served.value('shoal_queue_jobs', { queue: QUEUE, state: 'waiting' })).toBe(0);
  expect(served.value('shoal_queue_oldest_waiting_seconds', { queue: QUEUE, class: 'interactive' })).toBe(0);
  expect(served.value('shoal_queue_workers', { queue: `embed-${MODEL}` })).toBe(0);
  await server.command('DEL', keys.workers(QUEUE), keys.facts(QUEUE));
  expect((await scrape()).value('shoal_queue_workers', { queue: QUEUE })).toBe(0);
});

async function scrape(): Promise<ReturnType<typeof parseMetrics>> {
  return parseMetrics(await (await fetch(`${producer.url}/metrics`)).text());
}
