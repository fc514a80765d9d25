import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { Fleet } from '../lanes/fleet.ts';
import { whyWaiting } from '../lanes/why-waiting.ts';
import { Canceller } from '../producer/cancel.ts';
import { QueueGauge } from '../producer/queue-depth.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { claimAll } from '../testing/claims.ts';
import { LANE_QUEUE, openLaneWorker, type LaneWorker } from '../testing/lane-worker.ts';
import { QueueAdmin } from '../upkeep/queue-admin.ts';
import { BullJobSource } from './bull-job-source.ts';
import { parkedJobs, releaseParked } from './parking.ts';

const MADE_UP = 99;
const ELEVEN_MINUTES = 660_000;

let server: TestServer;
let connection: Redis;
let prefix: string;
let queue: Queue;
let prefixes = 0;
let added = 0;
const startedMs = Date.now() - 1_000;
const opened: { stop(): Promise<void> }[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(() => {
  prefix = `{t-parking-${++prefixes}}`;
  queue = new Queue(LANE_QUEUE, { prefix, connection });
});
afterEach(async () => {
  await Promise.all(opened.splice(0).map((one) => one.stop()));
  await queue.close();
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const place = (): { prefix: string; queue: string } => ({ prefix, queue: LANE_QUEUE });
const counts = (): Promise<Record<string, number>> =>
  queue.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'completed', 'failed');

async function addOld(ids: readonly string[], data: object = {}, more: object = {}): Promise<void> {
  const timestamp = startedMs - ELEVEN_MINUTES;
  await queue.addBulk(
    ids.map((jobId) => ({
      name: 'embed',
      data: { v: MADE_UP, texts: [jobId], ...data },
      opts: { jobId, timestamp: timestamp + ++added, ...more },
    })),
  );
}

/** Claims from the main lane. */
async function startWorker(newestVersion?: number): Promise<LaneWorker> {
  const worker = await openLaneWorker({ redisUrl: server.url, prefix, role: 'gpu', leaseMs: 15_000, newestVersion });
  opened.push(worker);
  return worker;
}

async function openSource(newestVersion?: number, log = new RecordingLogger()): Promise<BullJobSource> {
  const source = new BullJobSource({
    ...place(),
    redisUrl: server.url,
    leaseMs: 15_000,
    stalledCheckMs: 5_000,
    newestVersion,
    log,
  });
  opened.push(source);
  await source.start();
  return source;
}

const ids = (count: number): string[] => Array.from({ length: count }, (_, at) => `job-${String(at).padStart(3, '0')}`);

/** Claims all and parks them, as a worker that knows nothing newer than version 2. */
async function parkAll(source: BullJobSource, count: number): Promise<string[]> {
  const claims = await claimAll(source, count);
  for (const claim of claims) await source.settle(claim, { kind: 'park', version: MADE_UP, reason: 'test' });
  return claims.map(({ jobId }) => jobId);
}

describe('a backlog of eleven minutes in a version that no worker knows', () => {
  test('is parked by whoever meets it, fails for nobody, and a worker that knows it does all of it', async () => {
    const all = ids(200);
    await addOld(all);
    await queue.add('embed', { v: 1, texts: ['known'] }, { jobId: 'known', timestamp: Date.now() - ELEVEN_MINUTES });
    const input = keySpace(prefix).input(LANE_QUEUE, all[0]!);
    await connection.set(input, 'what the job has kept');
    await startWorker();
    await expect.poll(() => parkedJobs(connection, place()), { timeout: 20_000 }).toEqual({ [MADE_UP]: 200 });
    await expect.poll(counts, { timeout: 10_000 }).toMatchObject({ delayed: 200, completed: 1, failed: 0 });
    expect(await connection.get(input)).toBe('what the job has kept');
    await startWorker(MADE_UP);
    await expect.poll(counts, { timeout: 60_000 }).toMatchObject({ delayed: 0, completed: 201, failed: 0 });
    expect(await parkedJobs(connection, place())).toEqual({});
  });
});

test('jobs of 1,024 rows are parked by workers that join later and know version 1 alone, and a newer one does them', async () => {
  const rows = Array.from({ length: 1_024 }, (_, at) => `row ${at}`);
  const older = await startWorker(1);
  await queue.addBulk(
    [0, 1, 2].map((at) => ({ name: 'embed', data: { v: 2, texts: rows }, opts: { jobId: `large-${at}` } })),
  );
  await queue.add('embed', { v: 1, texts: rows }, { jobId: 'too-large' });
  await queue.add('embed', { v: 1, texts: rows.slice(0, 256) }, { jobId: 'known' });
  await expect.poll(() => parkedJobs(connection, place()), { timeout: 20_000 }).toEqual({ 2: 3 });
  await expect.poll(counts, { timeout: 20_000 }).toMatchObject({ delayed: 3, completed: 1, failed: 1 });
  expect((await queue.getJob('too-large'))?.failedReason).toMatch(
    /^JOB_INVALID: .*texts: must have at most 256 entries, found 1024, and more only with "v": 2/,
  );
  await startWorker(2);
  // what is let go may be met by the older one again, which parks it once more
  await expect.poll(counts, { timeout: 60_000 }).toMatchObject({ delayed: 0, completed: 4, failed: 1 });
  expect((await queue.getJob('large-2'))?.returnvalue).toMatchObject({ rows: 1_024 });
  await older.stop();
});

test('jobs that come back are first of what has no place yet, as old as before and in the order of their adding', async () => {
  await addOld(['second', 'first'], {}, { priority: 7 });
  await addOld(['third']);
  const source = await openSource();
  await parkAll(source, 3);
  await source.stop();
  await queue.add('embed', { v: 1, texts: ['later'] }, { jobId: 'later' });
  expect(await releaseParked(connection, place(), MADE_UP)).toBe(3);
  expect((await queue.getJob('first'))?.priority).toBe(7);
  const again = await claimAll(await openSource(MADE_UP), 4);
  expect(again.map(({ jobId }) => jobId)).toEqual(['second', 'first', 'third', 'later']);
  expect(again.map(({ attempt }) => attempt)).toEqual([0, 0, 0, 0]);
  expect(again[0]!.queuedMs).toBeGreaterThanOrEqual(ELEVEN_MINUTES);
});

test('of tenants with parked jobs each has its turn, whoever has more', async () => {
  await addOld(ids(40), { tenant: 'loud', class: 'bulk' });
  await addOld(['quiet-1', 'quiet-2'], { tenant: 'quiet', class: 'bulk' });
  const source = await openSource();
  await parkAll(source, 42);
  await source.stop();
  const claimed = (await claimAll(await openSource(MADE_UP), 42)).map(({ jobId }) => jobId);
  expect(claimed.indexOf('quiet-2')).toBeLessThan(6);
});

test('whoever looks at the queue is told how many are parked, and of which version; delayed are the others', async () => {
  await addOld(ids(3));
  await addOld(['newer'], { v: 100 });
  await queue.add('embed', {}, { jobId: 'later', delay: 60_000 });
  const log = new RecordingLogger();
  const source = await openSource(undefined, log);
  const claims = await claimAll(source, 4);
  for (const claim of claims) {
    const { v } = claim.data as { readonly v: number };
    await source.settle(claim, { kind: 'park', version: v, reason: 'test' });
  }
  const told = log.lines.flatMap(({ fields }) => ('newestVersion' in fields ? [fields] : []));
  expect(told).toMatchObject([{ version: 99 }, { version: 100 }]); // once each, not once a job
  const parked = { 99: 3, 100: 1 };
  const fleet = await Fleet.connect({ ...place(), redisUrl: server.url });
  expect((await fleet.read()).lanes.main).toMatchObject({ delayed: 1, parked });
  await fleet.close();
  const admin = await QueueAdmin.connect({ ...place(), redisUrl: server.url });
  expect((await admin.counts()).lanes[0]).toMatchObject({ delayed: 1, parked });
  await admin.close();
  const gauge = await QueueGauge.connect({ ...place(), redisUrl: server.url });
  expect(await gauge.read()).toMatchObject({ jobs: { delayed: 1, parked: 4 }, parkedByVersion: parked });
  await gauge.close();
  expect((await whyWaiting(connection, queue, prefix)).message).toContain(
    '4 of them are parked: no worker knew their versions (99, 100)',
  );
});

test('one that is cancelled meanwhile is parked no longer, and what a worker does not know stays', async () => {
  await addOld(ids(2));
  await parkAll(await openSource(), 2);
  const canceller = await Canceller.connect({ ...place(), redisUrl: server.url, log: new RecordingLogger() });
  expect(await canceller.cancel(['job-000'])).toEqual([{ jobId: 'job-000', outcome: 'cancelled' }]);
  await canceller.close();
  expect(await releaseParked(connection, place(), MADE_UP - 1)).toBe(0);
  expect(await parkedJobs(connection, place())).toEqual({ [MADE_UP]: 1 });
  expect((await queue.getJob('job-000'))?.failedReason).toMatch(/^CANCELLED/);
});

test('a drained worker lets nothing go until it is resumed', async () => {
  await addOld(ids(1));
  const older = await openSource();
  await parkAll(older, 1);
  await older.stop();
  const source = new BullJobSource({
    ...place(),
    redisUrl: server.url,
    leaseMs: 15_000,
    stalledCheckMs: 5_000,
    newestVersion: MADE_UP,
    log: new RecordingLogger(),
  });
  opened.push(source);
  source.drain(true);
  await source.start();
  expect(await parkedJobs(connection, place())).toEqual({ [MADE_UP]: 1 });
  source.drain(false);
  expect((await claimAll(source, 1)).map(({ jobId }) => jobId)).toEqual(['job-000']);
});
