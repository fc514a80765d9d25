// A server whose clock was set back by two hours, told by what that leaves behind: times to live, times of presence,
// places in line and reservations that lie two hours in the future.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace, parseJob } from '@shoal/contract';
import { noLog, systemClock } from '@shoal/core';
import { Queue } from 'bullmq';
import { Admission, recountAdmission } from '../admission/admission.ts';
import { WorkerPresence, liveWorkers, serverClock } from '../lanes/worker-presence.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { claimAll, startTestServer, type TestServer } from '../testing.ts';
import { Janitor } from '../upkeep/janitor.ts';
import { repairQueue } from '../upkeep/repair.ts';
import { BullJobSource } from './bull-job-source.ts';
import { lookAtClock } from './clock-watch.ts';

const PREFIX = '{t-clock}';
const QUEUE = 'embed-x';
const TWO_HOURS_MS = 7_200_000;
const LEASE_MS = 1_000;
const CHECK_MS = 200;
const keys = keySpace(PREFIX);
const place = { prefix: PREFIX, queue: QUEUE, stalledCheckMs: CHECK_MS };

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
  await queue.waitUntilReady();
});
afterEach(() => queue.close());
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function newSource(leaseMs = LEASE_MS): BullJobSource {
  const { url: redisUrl } = server;
  return new BullJobSource({ ...place, redisUrl, leaseMs, log: noLog });
}

/** As if the clock had been two hours ahead until now. */
async function pretendStep(): Promise<void> {
  const [seconds] = await connection.time();
  await connection.set(keys.clock(QUEUE), Number(seconds) * 1_000 + TWO_HOURS_MS);
}

/** Claimed by a worker that is gone, under a lock and behind a check that last for two hours. */
async function leaveClaim(jobId: string): Promise<void> {
  const dead = newSource();
  await dead.start();
  await queue.add('embed', { v: 1, texts: ['a'] }, { jobId });
  await claimAll(dead, 1);
  await dead.stop();
  await connection.pexpire(keys.lock(QUEUE, jobId), TWO_HOURS_MS);
  await connection.set(keys.job(QUEUE, 'stalled-check'), 1, 'PX', TWO_HOURS_MS);
}

test('a job of a dead worker comes back after lease and check, not after the step', async () => {
  await leaveClaim('a');
  await pretendStep();
  const alive = newSource();
  await alive.start();
  expect((await claimAll(alive, 1)).map(({ jobId }) => jobId)).toEqual(['a']);
  await alive.stop();
});

test('without a step locks are left alone, those of longer leases too; a check that lasts too long goes', async () => {
  await leaveClaim('a');
  await connection.set(keys.lock(QUEUE, 'a'), 'somebody~x@7200000', 'PX', TWO_HOURS_MS);
  const before = await lookAtClock(connection, place, false);
  expect(before).toMatchObject({ backMs: 0, locksShortened: 0 });
  expect(await connection.exists(keys.job(QUEUE, 'stalled-check'))).toBe(0);
  await pretendStep();
  expect(await lookAtClock(connection, place, false)).toMatchObject({ locksShortened: 0 });
});

test('what a step has left of a lease is what it was before; a lock without an end gets one', async () => {
  await leaveClaim('a');
  await leaveClaim('b');
  await connection.set(keys.lock(QUEUE, 'a'), 'dead@60000', 'PX', TWO_HOURS_MS + 5_000);
  await connection.set(keys.lock(QUEUE, 'b'), 'dead@60000');
  await pretendStep();
  const { backMs, locksShortened } = await lookAtClock(connection, place, false);
  expect(backMs).toBeGreaterThan(TWO_HOURS_MS - 5_000);
  expect(locksShortened).toBe(2);
  const [a, b] = await Promise.all([connection.pttl(keys.lock(QUEUE, 'a')), connection.pttl(keys.lock(QUEUE, 'b'))]);
  expect([a > 3_000 && a < 12_000, b > 50_000 && b <= 60_000]).toEqual([true, true]);
});

test('a repair shortens locks whoever saw the step, and says how many', async () => {
  await leaveClaim('a');
  const report = await repairQueue({ connection, prefix: PREFIX, queue: QUEUE, isThorough: true });
  expect(report.shortened).toBe(1);
  expect(await connection.pttl(keys.lock(QUEUE, 'a'))).toBeLessThanOrEqual(LEASE_MS);
});

test('the rate limit of a queue does not outlast its own time', async () => {
  await queue.setGlobalRateLimit(1, 5_000);
  await connection.set(keys.job(QUEUE, 'limiter'), 9, 'PX', TWO_HOURS_MS);
  await lookAtClock(connection, place, false);
  expect(await connection.pttl(keys.job(QUEUE, 'limiter'))).toBeLessThanOrEqual(5_000);
});

test('a worker that wrote its time before the step is not alive for two hours', async () => {
  const [seconds] = await connection.time();
  await connection.zadd(keys.workers(QUEUE), Number(seconds) * 1_000 + TWO_HOURS_MS, 'ghost');
  const presence = await WorkerPresence.connect({ redisUrl: server.url, ...place, workerId: 'real', log: noLog });
  expect(await liveWorkers(connection, QUEUE, PREFIX)).toEqual([]);
  await presence.start();
  expect(await liveWorkers(connection, QUEUE, PREFIX)).toEqual(['real']);
  await presence.start();
  await presence.stop();
});

test('a sweep is not put off by one that seems to be in the future, nor by the lock of a dead janitor', async () => {
  const now = await serverClock(server.url);
  await connection.zadd(keys.jobless(QUEUE), now() + TWO_HOURS_MS, '');
  await connection.set(keys.janitor(QUEUE), 'dead', 'PX', TWO_HOURS_MS);
  const options = { redisUrl: server.url, ...place, cpuQueue: `${QUEUE}-cpu`, everyMs: 600_000, restMs: 0, log: noLog };
  const janitor = new Janitor({ ...options, clock: systemClock, serverNowMs: now });
  expect(await janitor.sweep()).toBeDefined();
  await janitor.stop();
});

test('a caller that was to come back in the future holds up nobody; a reservation from there ages from now on', async () => {
  const now = Math.round((await serverClock(server.url))());
  await connection.zadd(keys.door(QUEUE), 1, `gone 1000 1000 ${now + TWO_HOURS_MS}`);
  const admission = new Admission(connection, { prefix: PREFIX, queue: QUEUE, caller: 'me' });
  const job = parseJob('a', 'embed', { v: 1, input: { form: 'texts', rows: 9 } });
  expect((await admission.admit([{ job, inputBytes: 10 }])).admitted).toBe(1);
  expect(await connection.zcard(keys.door(QUEUE))).toBe(0);
  const held = (await connection.hget(keys.admitted(QUEUE), 'a')) ?? '';
  await connection.hset(
    keys.admitted(QUEUE),
    'a',
    held.replace(String(/\d{13}/.exec(held)), String(now + TWO_HOURS_MS)),
  );
  expect((await recountAdmission(connection, { prefix: PREFIX, queue: QUEUE })).released).toBe(0);
  const renewed = Number(/\d{13}/.exec((await connection.hget(keys.admitted(QUEUE), 'a')) ?? ''));
  expect(Math.abs(renewed - now)).toBeLessThan(60_000);
});

test('a clock that is set to another time is followed: deadlines are judged by what the server says', async () => {
  const now = await serverClock(server.url);
  const told = now();
  now.heard(told - TWO_HOURS_MS);
  expect(Math.abs(now() - (told - TWO_HOURS_MS))).toBeLessThan(1_000);
  now.heard(now() + 400); // the way of an answer
  expect(Math.abs(now() - (told - TWO_HOURS_MS))).toBeLessThan(300);
});
