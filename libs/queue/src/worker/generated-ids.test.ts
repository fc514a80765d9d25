// Jobs whose id BullMQ made: without a jobId, and from job schedulers. They go every way that other jobs go, and a
// counter that begins anew never answers one job with the result of another.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { decodeResultHeader, keySpace, type EmbedReturn } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { FlowProducer, Queue, QueueEvents, type Job } from 'bullmq';
import { Canceller } from '../producer/cancel.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { LANE_QUEUE, openLaneWorker, type LaneWorker } from '../testing/lane-worker.ts';

const PREFIX = '{t-ids}';
const keys = keySpace(PREFIX);
const WIDE = 'word '.repeat(40).trim();

let server: TestServer;
let connection: Redis;
let queue: Queue;
let events: QueueEvents;
let workers: readonly LaneWorker[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(async () => {
  await connection.flushall();
  queue = new Queue(LANE_QUEUE, { prefix: PREFIX, connection });
  events = new QueueEvents(LANE_QUEUE, { prefix: PREFIX, connection: connection.duplicate() });
  await events.waitUntilReady();
  workers = [];
});
afterEach(async () => {
  await Promise.all(workers.map((worker) => worker.stop()));
  await events.close();
  await queue.close();
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function startWorkers(...roles: readonly ('gpu' | 'cpu')[]): Promise<void> {
  const place = { redisUrl: server.url, prefix: PREFIX, leaseMs: 15_000 };
  workers = await Promise.all(roles.map((role) => openLaneWorker({ ...place, role })));
}

async function add(text: string, more: object = {}): Promise<Job> {
  return queue.add('embed', { v: 1, texts: [text], ...more });
}

/** Its return value, once it has ended, and the header of what lies under the key that it names. */
async function resultOf(job: Job): Promise<{ readonly key: string; readonly fingerprint: string | undefined }> {
  const { key } = (await job.waitUntilFinished(events)) as EmbedReturn;
  const stored = await connection.getBuffer(key);
  return { key, fingerprint: stored === null ? undefined : decodeResultHeader(stored)?.fingerprint };
}

test('a job without an id completes; its result lies under id and time, which the return value names', async () => {
  await startWorkers('gpu');
  const job = await add('hello');
  expect(job.id).toBe('1');
  const { key, fingerprint } = await resultOf(job);
  expect(key).toBe(`${keys.output(LANE_QUEUE, '1')}:${job.timestamp}`);
  expect(fingerprint).toMatch(/^[0-9a-f]{16}$/);
});

test('the same number after the queue was obliterated is another job with a result of its own', async () => {
  await startWorkers('gpu');
  const first = await resultOf(await add('hello'));
  await queue.obliterate({ force: true });
  const job = await queue.add('embed', { v: 1, texts: ['other'] }, { timestamp: Date.now() + 1 });
  expect(job.id).toBe('1');
  const second = await resultOf(job);
  expect(second.key).not.toBe(first.key);
  expect(second.fingerprint).not.toBe(first.fingerprint);
});

test('each run of a job scheduler is done, and the next one is made', async () => {
  await startWorkers('gpu');
  const ran = new Set<string>();
  const both = new Promise<void>((resolve) => {
    events.on('completed', ({ jobId }) => {
      if (ran.add(jobId).size === 2) resolve();
    });
  });
  await queue.upsertJobScheduler('nightly', { every: 200 }, { name: 'embed', data: { v: 1, texts: ['hello'] } });
  await both;
  for (const jobId of ran) {
    expect(jobId).toMatch(/^repeat:nightly:\d+$/);
    const job = await queue.getJob(jobId);
    const { key } = await resultOf(job!);
    expect(key).toBe(`${keys.output(LANE_QUEUE, jobId)}:${job!.timestamp}`);
  }
  await queue.removeJobScheduler('nightly');
});

test('what does not fit the device goes through the CPU lane under the same result key, and is announced', async () => {
  await startWorkers('gpu', 'cpu');
  const listener = connection.duplicate();
  const heard = new Promise<unknown>((resolve) => listener.on('message', (_, text) => resolve(JSON.parse(text))));
  await listener.subscribe(keys.reply('me'));
  const job = await add(WIDE, { reply: keys.reply('me') });
  const { key, fingerprint } = await resultOf(job);
  expect(key).toBe(`${keys.output(LANE_QUEUE, job.id ?? '')}:${job.timestamp}`);
  expect(fingerprint).toMatch(/^[0-9a-f]{16}$/);
  expect(await heard).toEqual({ v: 1, queue: LANE_QUEUE, completed: [job.id] });
  await closeConnection(listener);
});

test('bulk, attempts, priority, removal on completion and flows work without ids', async () => {
  await startWorkers('gpu');
  const jobs = await queue.addBulk([
    { name: 'embed', data: { v: 1, texts: ['a'] }, opts: { attempts: 3, backoff: 10 } },
    { name: 'embed', data: { v: 1, texts: ['b'] }, opts: { priority: 7 } },
    { name: 'embed', data: { v: 1, texts: ['c'] }, opts: { removeOnComplete: true } },
  ]);
  const results = await Promise.all(jobs.map((job) => resultOf(job)));
  expect(new Set(results.map(({ key }) => key)).size).toBe(3);
  expect(results.every(({ fingerprint }) => fingerprint !== undefined)).toBe(true);
  const flows = new FlowProducer({ prefix: PREFIX, connection });
  const parents = new Queue('parents', { prefix: PREFIX, connection });
  const { children = [] } = await flows.add({
    name: 'parent',
    queueName: 'parents',
    children: [{ name: 'embed', queueName: LANE_QUEUE, data: { v: 1, texts: ['d'] } }],
  });
  expect((await resultOf(children[0]!.job)).fingerprint).toMatch(/^[0-9a-f]{16}$/);
  await Promise.all([flows.close(), parents.close()]);
});

test('one that waits is cancelled by its number', async () => {
  const job = await add('hello');
  const canceller = await Canceller.connect({ redisUrl: server.url, prefix: PREFIX, queue: LANE_QUEUE, log: noLog });
  expect(await canceller.cancel([job.id ?? ''])).toEqual([{ jobId: job.id, outcome: 'cancelled' }]);
  await canceller.close();
});
