// How long the oldest job waits, told true where the next in line is another: under interactive load, behind the lead
// of a newcomer, after delays and by hand; and which failed jobs are cancelled ones.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import { Queue } from 'bullmq';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { claimAll, startTestServer, type TestServer } from '../testing.ts';
import { QueueAdmin } from '../upkeep/queue-admin.ts';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { orderWaiting } from '../worker/fair-order.ts';
import { Canceller } from './cancel.ts';
import { countCancelled, oldestWaiting } from './waiting-jobs.ts';

const PREFIX = '{t-waiting}';
const QUEUE = 'embed-x';
const place = { prefix: PREFIX, queue: QUEUE };
const MINUTE_MS = 60_000;

let server: TestServer;
let connection: Redis;
let queue: Queue;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(async () => {
  await connection.flushall();
  queue = new Queue(QUEUE, { prefix: PREFIX, connection });
});
afterEach(() => queue.close());
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

interface Some {
  readonly count: number;
  readonly agoMs: number;
  readonly rows?: number;
  readonly tenant?: string;
  readonly className?: 'interactive' | 'bulk';
}

async function add(name: string, { count, agoMs, rows = 64, tenant = 't', className = 'bulk' }: Some): Promise<void> {
  const data = { v: 1, input: { form: 'tokens', rows, tokens: rows * 32, tokenizer: 'x' }, class: className, tenant };
  const timestamp = Date.now() - agoMs;
  await queue.addBulk(
    Array.from({ length: count }, (_, at) => ({ name: 'embed', data, opts: { jobId: `${name}-${at}`, timestamp } })),
  );
}

async function order(): Promise<void> {
  while ((await orderWaiting(connection, place)).unplaced > 0);
}

/** Minutes, to a tenth. */
async function minutes(): Promise<readonly number[]> {
  const { interactive, bulk } = await oldestWaiting(connection, place);
  return [interactive, bulk].map((ms) => Math.round(ms / MINUTE_MS));
}

test('nobody waits, and nobody has a place yet', async () => {
  expect(await minutes()).toEqual([0, 0]);
  await add('old', { count: 3, agoMs: 10 * MINUTE_MS });
  await add('quick', { count: 3, agoMs: 2 * MINUTE_MS, className: 'interactive' });
  expect(await minutes()).toEqual([2, 10]);
});

test('interactive jobs and newcomers before it do not hide what waits longest', async () => {
  await add('old', { count: 300, agoMs: 40 * MINUTE_MS });
  await order();
  await add('new', { count: 1_000, agoMs: 3 * MINUTE_MS, tenant: 'newcomer', rows: 8 });
  await add('quick', { count: 600, agoMs: MINUTE_MS, className: 'interactive', rows: 1 });
  await order();
  const [next] = await queue.getRanges(['prioritized'], 0, 0, true);
  expect(next).toMatch(/^quick/);
  expect(await minutes()).toEqual([1, 40]);
});

test('what was served since is not counted any more; of many tenants the one that waits longest is found', async () => {
  for (let tenant = 0; tenant < 50; tenant++)
    await add(`t${tenant}`, { count: 6, agoMs: (60 - tenant) * MINUTE_MS, tenant: `t${tenant}` });
  await order();
  expect(await minutes()).toEqual([0, 60]);
  await queue.remove('t0-0');
  for (let at = 1; at < 6; at++) await queue.remove(`t0-${at}`);
  expect(await minutes()).toEqual([0, 59]);
});

test('a delay is no waiting, and a job that is run again by hand waits from then on', async () => {
  const timestamp = Date.now() - 30 * MINUTE_MS;
  const data = { v: 1, texts: ['a'] };
  await queue.add('embed', data, { jobId: 'later', timestamp, delay: 28 * MINUTE_MS });
  await (await queue.getJob('later'))!.promote();
  expect(await minutes()).toEqual([2, 0]);
  await queue.remove('later');
  await queue.add('embed', data, { jobId: 'again', timestamp });
  const source = new BullJobSource({
    redisUrl: server.url,
    ...place,
    leaseMs: 15_000,
    stalledCheckMs: 5_000,
    log: noLog,
  });
  await source.start();
  const [claim] = await claimAll(source, 1);
  await source.settle(claim!, { kind: 'fail', failure: { code: 'INFERENCE_FAILED', message: 'seen' } });
  await source.stop();
  const admin = await QueueAdmin.connect({ redisUrl: server.url, ...place });
  expect(await admin.retry(['again'])).toEqual([{ jobId: 'again', outcome: 'retried' }]);
  expect(await minutes()).toEqual([0, 0]);
  await admin.close();
});

test('cancelled jobs are counted apart from failed ones, wherever they were, and only while they are', async () => {
  const admin = await QueueAdmin.connect({ redisUrl: server.url, ...place });
  const canceller = await Canceller.connect({ redisUrl: server.url, ...place, log: noLog });
  const source = new BullJobSource({
    redisUrl: server.url,
    ...place,
    leaseMs: 15_000,
    stalledCheckMs: 5_000,
    log: noLog,
  });
  for (const jobId of ['waits-0', 'waits-1']) await queue.add('embed', { v: 1, texts: ['a'] }, { jobId });
  await canceller.cancel(['waits-0', 'waits-1']);
  await add('runs', { count: 3, agoMs: 0 });
  await source.start();
  const claims = await claimAll(source, 3);
  const codes = ['CANCELLED', 'DEADLINE_PASSED', 'INPUT_TOO_LONG'] as const;
  for (const [at, claim] of claims.entries())
    await source.settle(claim, { kind: 'fail', failure: { code: codes[at]!, message: 'as it is' } });
  await source.stop();
  expect((await admin.counts()).lanes[0]).toMatchObject({ failed: 2, cancelled: 3 });

  let leftOut = 0;
  const found: string[] = [];
  for await (const jobIds of admin.failedIds(undefined, (count) => (leftOut += count))) found.push(...jobIds);
  expect([found, leftOut]).toEqual([[claims[2]!.jobId], 4]);

  expect(await admin.retry(['waits-0'])).toEqual([{ jobId: 'waits-0', outcome: 'retried' }]);
  await queue.remove('waits-1');
  expect(await countCancelled(connection, place)).toBe(1);
  await canceller.close();
  await admin.close();
});
