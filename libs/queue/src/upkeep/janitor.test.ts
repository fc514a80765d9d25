import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { encodeResult, keySpace } from '@shoal/contract';
import type { SweepFindings } from '@shoal/core';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { Janitor } from './janitor.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const PREFIX = '{t-janitor}';
const QUEUE = 'embed-x';
const TEN_MINUTES = 600_000;
const keys = keySpace(PREFIX);
const NOTHING = {
  inputs: 0,
  inputBytes: 0,
  strayResults: 0,
  reservations: 0,
  resultsExpired: 0,
  jobsMended: 0,
  jobsFailed: 0,
  jobsRequeued: 0,
  parentsReleased: 0,
  idsRemoved: 0,
  finishedRemoved: 0,
};

let server: TestServer;
let connection: Redis;
let clock: ManualClock;
let log: RecordingLogger;
const opened: Janitor[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(async () => {
  await connection.flushall();
  clock = new ManualClock();
  log = new RecordingLogger();
});
afterEach(async () => {
  await Promise.all(opened.splice(0).map((janitor) => janitor.stop()));
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function open(onSwept?: (findings: SweepFindings) => void, keepMs?: number): Janitor {
  const janitor = new Janitor({
    redisUrl: server.url,
    prefix: PREFIX,
    queue: QUEUE,
    cpuQueue: `${QUEUE}-cpu`,
    everyMs: TEN_MINUTES,
    keepMs,
    clock,
    serverNowMs: () => 1_000_000_000_000 + clock.nowMs(),
    restMs: 0,
    onSwept,
    log,
  });
  opened.push(janitor);
  return janitor;
}

async function leaveInput(jobId: string, queue = QUEUE): Promise<void> {
  await connection.set(keys.input(queue, jobId), Buffer.alloc(1_000));
}

function hasInput(jobId: string, queue = QUEUE): Promise<number> {
  return connection.exists(keys.input(queue, jobId));
}

test(
  'an input that had no job at two sweeps, ten minutes apart, is taken away; at one sweep, or with a job in any ' +
    'lane, it is not',
  async () => {
    for (const jobId of ['orphan', 'waits', 'on-cpu', 'done', 'comes']) await leaveInput(jobId);
    for (const jobId of ['held', 'dropped']) await leaveInput(jobId, `${QUEUE}-quarantine`);
    await connection.hset(keys.job(QUEUE, 'waits'), 'name', 'embed', 'data', '{}', 'opts', '{}');
    await connection.zadd(keys.job(QUEUE, 'prioritized'), 1, 'waits');
    await connection.hset(keys.job(`${QUEUE}-cpu`, 'on-cpu'), 'name', 'embed', 'data', '{}', 'opts', '{}');
    await connection.zadd(keys.job(`${QUEUE}-cpu`, 'prioritized'), 1, 'on-cpu');
    await connection.hset(keys.job(QUEUE, 'done'), 'finishedOn', '1', 'name', 'embed', 'data', '{}', 'opts', '{}');
    await connection.zadd(keys.job(QUEUE, 'completed'), 1, 'done');
    await connection.hset(keys.job(`${QUEUE}-quarantine`, 'held'), 'name', 'embed');
    const janitor = open();
    expect(await janitor.sweep()).toMatchObject(NOTHING);
    await clock.advance(TEN_MINUTES - 1_000);
    expect(await janitor.sweep()).toMatchObject(NOTHING); // nine tenths have passed, not all of it
    await connection.hset(keys.job(QUEUE, 'comes'), 'name', 'embed', 'data', '{}', 'opts', '{}');
    await connection.zadd(keys.job(QUEUE, 'prioritized'), 2, 'comes');
    await clock.advance(TEN_MINUTES);
    const findings = await janitor.sweep();
    expect(findings).toMatchObject({ ...NOTHING, inputs: 3, inputBytes: expect.any(Number) });
    expect(findings?.inputBytes).toBeGreaterThan(3_000);
    expect(await Promise.all(['orphan', 'waits', 'on-cpu', 'done', 'comes'].map((jobId) => hasInput(jobId)))).toEqual([
      0, 1, 1, 0, 1,
    ]);
    expect(await Promise.all(['held', 'dropped'].map((jobId) => hasInput(jobId, `${QUEUE}-quarantine`)))).toEqual([
      1, 0,
    ]);
    expect(await connection.zrange(keys.jobless(QUEUE), '0', '-1')).toEqual(['']);
  },
);

test("the second sweep may be another worker's; an input whose job came and went in between begins anew", async () => {
  await leaveInput('orphan');
  await leaveInput('again');
  await open().sweep();
  await clock.advance(TEN_MINUTES);
  await connection.hset(keys.job(QUEUE, 'again'), 'name', 'embed', 'data', '{}', 'opts', '{}');
  await connection.zadd(keys.job(QUEUE, 'prioritized'), 1, 'again');
  expect(await open().sweep()).toMatchObject({ inputs: 1 });
  await connection.del(keys.job(QUEUE, 'again'), keys.job(QUEUE, 'prioritized'));
  await clock.advance(TEN_MINUTES);
  expect(await open().sweep()).toMatchObject({ inputs: 0 });
  expect(await hasInput('again')).toBe(1);
});

test("inputs of other models are somebody else's, however alike their names", async () => {
  await leaveInput('a', 'embed-x-int8');
  await leaveInput('a', 'embed-xy');
  const janitor = open();
  await janitor.sweep();
  await clock.advance(TEN_MINUTES);
  expect(await janitor.sweep()).toMatchObject(NOTHING);
});

test('a prefix with characters that mean something in a pattern is taken literally', async () => {
  const prefix = '{t*[ja]?}';
  const odd = keySpace(prefix);
  await connection.set(odd.input(QUEUE, 'orphan'), 'x');
  await connection.set(odd.output(QUEUE, 'stray'), 'x');
  await leaveInput('a');
  const janitor = new Janitor({
    redisUrl: server.url,
    prefix,
    queue: QUEUE,
    cpuQueue: `${QUEUE}-cpu`,
    everyMs: TEN_MINUTES,
    clock,
    serverNowMs: () => 1_000_000_000_000 + clock.nowMs(),
    restMs: 0,
    log,
  });
  opened.push(janitor);
  expect(await janitor.sweep()).toMatchObject({ ...NOTHING, strayResults: 1 });
  await clock.advance(TEN_MINUTES);
  expect(await janitor.sweep()).toMatchObject({ inputs: 1, strayResults: 0 });
  expect(await hasInput('a')).toBe(1);
});

test('a result without a time to live gets one; others keep theirs', async () => {
  const result = encodeResult(
    { dtype: 'f32', rows: 1, dims: 1, fingerprint: '00112233445566ff', isTruncated: false },
    Buffer.alloc(4),
  );
  await connection.set(keys.output(QUEUE, 'stray'), result);
  await connection.lpush(keys.output(QUEUE, 'list'), 'x');
  await connection.set(keys.output(QUEUE, 'ours'), result, 'PX', 5_000_000);
  expect(await open().sweep()).toMatchObject({ ...NOTHING, strayResults: 2 });
  expect(await connection.pttl(keys.output(QUEUE, 'stray'))).toBeGreaterThan(86_000_000);
  expect(await connection.pttl(keys.output(QUEUE, 'ours'))).toBeLessThanOrEqual(5_000_000);
});

test('damaged jobs of both lanes are put right on the way', async () => {
  for (const lane of [QUEUE, `${QUEUE}-cpu`]) {
    const queue = new Queue(lane, { prefix: PREFIX, connection });
    await queue.add('embed', { v: 1, texts: ['x'] }, { jobId: 'a' });
    await connection.hset(keys.job(lane, 'a'), 'opts', 'nonsense');
    await queue.close();
  }
  expect(await open().sweep()).toMatchObject({ ...NOTHING, jobsMended: 2, jobsFailed: 2 });
  expect(log.messages('info')).toEqual(['janitor found something to do']);
});

test('one sweeps at a time: who comes meanwhile, or too early, does nothing', async () => {
  const [one, other] = [open(), open()];
  const swept = await Promise.all([one.sweep(), other.sweep()]);
  expect(swept.filter((findings) => findings !== undefined).length).toBe(1);
  expect(await other.sweep()).toBeUndefined();
  await clock.advance(TEN_MINUTES);
  await connection.set(keys.janitor(QUEUE), 'somebody else', 'PX', 30_000);
  expect(await one.sweep()).toBeUndefined();
  await connection.del(keys.janitor(QUEUE));
  expect(await one.sweep()).toMatchObject(NOTHING);
});

test('started, it sweeps by itself and tells; stopped, it leaves no timer, no connection and no lock', async () => {
  const swept: SweepFindings[] = [];
  const { promise: first, resolve } = Promise.withResolvers<void>();
  const janitor = open((findings) => {
    swept.push(findings);
    resolve();
  });
  janitor.start();
  await clock.advance(29_999);
  expect(swept).toEqual([]);
  await clock.advance(1);
  await first;
  expect(swept).toMatchObject([NOTHING]);
  await janitor.stop();
  await janitor.stop();
  expect(clock.pending).toBe(0);
  expect(await connection.exists(keys.janitor(QUEUE))).toBe(0);
  expect(String(await server.command('CLIENT', 'LIST'))).not.toContain('shoal:janitor');
});

test('many inputs are looked at in small steps', async () => {
  const inputs = 20_000;
  for (let i = 0; i < inputs / 1_000; i++)
    await connection.mset(...Array.from({ length: 1_000 }, (_, at) => [keys.input(QUEUE, `${i}-${at}`), 'x']).flat());
  const janitor = open();
  await janitor.sweep();
  await clock.advance(TEN_MINUTES);
  await server.command('CONFIG', 'RESETSTAT');
  expect(await janitor.sweep()).toMatchObject({ inputs });
  const [, scripts] = /cmdstat_evalsha:calls=(\d+)/.exec(String(await server.command('INFO', 'commandstats'))) ?? [];
  expect(Number(scripts)).toBeGreaterThan(inputs / 600); // SCAN gives some more keys than it is asked for
  expect(await connection.zcard(keys.jobless(QUEUE))).toBe(1);
});

test('finished jobs go when they are older than they are to be kept, their texts with them; others stay', async () => {
  const plain = new Queue(QUEUE, { prefix: PREFIX, connection });
  for (const jobId of ['old', 'young', 'waits']) await plain.add('embed', { v: 1, texts: ['secret'] }, { jobId });
  for (const [jobId, agoMs] of [
    ['old', 7_200_000],
    ['young', 60_000],
  ] as const) {
    await connection.lrem(`${PREFIX}:${QUEUE}:wait`, 0, jobId);
    await connection.hset(`${PREFIX}:${QUEUE}:${jobId}`, 'finishedOn', Date.now() - agoMs);
    await connection.zadd(`${PREFIX}:${QUEUE}:completed`, Date.now() - agoMs, jobId);
  }
  const janitor = open(undefined, 3_600_000);
  expect(await janitor.sweep()).toMatchObject({ finishedRemoved: 1 });
  expect(await Promise.all(['old', 'young', 'waits'].map((jobId) => plain.getJobState(jobId)))).toEqual([
    'unknown',
    'completed',
    'waiting',
  ]);
  await plain.close();
});
