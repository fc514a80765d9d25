// Bull Board behind the dashboard, on a real queue server, by its API; and what holds for every page.

import { request } from 'node:http';
import { Queue, Worker } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createDashboard, type Dashboard } from './dashboard.ts';

const QUEUE = 'embed-minilm';
const TEXTS = Array.from({ length: 64 }, (_, i) => `text ${i} about the sea and ${'everything in it, '.repeat(50)}`);
const VECTOR = Array.from({ length: 384 }, (_, i) => i / 1_000);

let server: TestServer;
let dashboard: Dashboard;
const queues: Queue[] = [];

beforeAll(async () => {
  server = await startTestServer();
});
beforeEach(async () => {
  await server.command('FLUSHALL');
  await fill();
  dashboard = await createDashboard({
    redisUrl: server.url,
    prefix: '{shoal}',
    host: '127.0.0.1',
    port: 0,
    version: '0.0.0',
    log: noLog,
  });
});
afterEach(async () => {
  await dashboard.stop();
  await Promise.all(queues.splice(0).map((queue) => queue.close()));
});
afterAll(() => server.stop());

/** A finished job, a failed one, a cancelled one, a damaged one and one that waits; the CPU lane is there and empty. */
async function fill(): Promise<void> {
  const connection = { url: server.url };
  const queue = new Queue(QUEUE, { prefix: '{shoal}', connection });
  const cpu = new Queue(`${QUEUE}-cpu`, { prefix: '{shoal}', connection });
  queues.push(queue, cpu);
  await cpu.waitUntilReady();
  await server.command('HSET', `{shoal}:${QUEUE}-cpu:meta`, 'opts.maxLenEvents', 100);
  for (const jobId of ['good-job', 'bad-job', 'cancelled-job'])
    await queue.add('embed', { v: 1, texts: TEXTS }, { jobId });
  const worker = new Worker(
    QUEUE,
    async (job) => {
      if (job.id === 'bad-job')
        throw new Error('INPUT_TOO_LONG: job "bad-job", row 3 has more than the 256 tokens this worker takes');
      if (job.id === 'cancelled-job')
        throw new Error('CANCELLED: the job was cancelled before a worker had claimed it');
      return { v: 1, key: `{shoal}:out:${QUEUE}:good-job`, rows: 64, dims: 384, vector: VECTOR };
    },
    { prefix: '{shoal}', connection },
  );
  await expect.poll(() => queue.getJobCounts('completed', 'failed')).toEqual({ completed: 1, failed: 2 });
  await worker.close();
  for (const jobId of ['waiting-job', 'damaged-job']) await queue.add('embed', { v: 1, texts: TEXTS }, { jobId });
  await server.command('HSET', `{shoal}:${QUEUE}:damaged-job`, 'data', '{"v":1,"texts":["');
}

async function board(query = ''): Promise<{
  status: number;
  body: { queues: { name: string; counts: Record<string, number>; readOnlyMode: boolean; jobs: { id: string }[] }[] };
  text: string;
}> {
  const response = await fetch(`${dashboard.url}/queues/api/queues${query}`);
  const text = await response.text();
  return { status: response.status, body: JSON.parse(text), text };
}

async function dump(): Promise<unknown[]> {
  return Promise.all(
    ['wait', 'completed', 'failed', 'meta'].map(async (key) =>
      String(await server.command('DUMP', `{shoal}:${QUEUE}:${key}`)),
    ),
  );
}

test('shows both lanes with their counts, read-only', async () => {
  const { body } = await board();
  expect(body.queues.map(({ name, readOnlyMode }) => [name, readOnlyMode])).toEqual([
    [QUEUE, true],
    [`${QUEUE}-cpu`, true],
  ]);
  expect(body.queues[0]!.counts).toMatchObject({ completed: 1, failed: 2, waiting: 2 });
});

test('a queue that comes later is shown soon', async () => {
  await board();
  await server.command('HSET', '{shoal}:embed-later:meta', 'opts.maxLenEvents', 100);
  await expect
    .poll(async () => (await board()).body.queues.map(({ name }) => name), { timeout: 10_000 })
    .toContain('embed-later');
});

test('lists jobs of every state, the damaged one too, in a few kilobytes and without vectors', async () => {
  const { body, text } = await board(`?activeQueue=${QUEUE}&status=latest&page=1&jobsPerPage=10`);
  expect(body.queues[0]!.jobs.map(({ id }) => id).toSorted()).toEqual([
    'bad-job',
    'cancelled-job',
    'damaged-job',
    'good-job',
    'waiting-job',
  ]);
  expect(text).toContain('64 texts, the first: text 0 about the sea');
  expect(text).toContain('384 numbers');
  expect(text).not.toContain('0.383');
  expect(text.length).toBeLessThan(14_000);
});

test.each([
  ['PUT', `/queues/api/queues/${QUEUE}/pause`],
  ['PUT', `/queues/api/queues/${QUEUE}/empty`],
  ['PUT', `/queues/api/queues/${QUEUE}/obliterate`],
  ['PUT', `/queues/api/queues/${QUEUE}/retry/failed`],
  ['PUT', `/queues/api/queues/${QUEUE}/clean/failed`],
  ['PUT', `/queues/api/queues/${QUEUE}/bad-job/retry/failed`],
  ['PUT', `/queues/api/queues/${QUEUE}/good-job/clean`],
  ['PUT', '/queues/api/queues/pause'],
])('changes nothing: %s %s', async (method, path) => {
  const before = await dump();
  const response = await fetch(`${dashboard.url}${path}`, { method });
  expect(response.status).toBe(405);
  expect(await dump()).toEqual(before);
});

test('answers to names of this machine only', async () => {
  const port = Number(new URL(dashboard.url).port);
  const statusFor = (host: string): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      request({ host: '127.0.0.1', port, path: '/queues/api/queues', headers: { host } }, (response) =>
        resolve(response.resume().statusCode),
      )
        .on('error', reject)
        .end();
    });
  expect(
    await Promise.all(
      [`127.0.0.1:${port}`, `localhost:${port}`, `[::1]:${port}`, 'evil.example', `evil.example:${port}`].map(
        statusFor,
      ),
    ),
  ).toEqual([200, 200, 200, 403, 403]);
});

test('says 503 while the server is away, and is right again after', async () => {
  await server.kill9();
  await expect.poll(async () => (await fetch(`${dashboard.url}/queues/api/queues`)).status).toBe(503);
  await server.restart();
  await expect
    .poll(async () => (await fetch(`${dashboard.url}/queues/api/queues`)).status, { timeout: 10_000 })
    .toBe(200);
});

test('a port that is taken is a setting to change; stop can be called twice', async () => {
  const taken = createDashboard({
    redisUrl: server.url,
    prefix: '{shoal}',
    host: '127.0.0.1',
    port: Number(new URL(dashboard.url).port),
    version: '0.0.0',
    log: noLog,
  });
  await expect(taken).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringContaining('dashboardPort'),
  });
  await Promise.all([dashboard.stop(), dashboard.stop()]);
  await expect(fetch(dashboard.url)).rejects.toThrow('fetch failed');
});
