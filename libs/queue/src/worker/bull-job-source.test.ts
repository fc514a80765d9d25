import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { setTimeout as sleep } from 'node:timers/promises';
import { keySpace, type EmbedReturn } from '@shoal/contract';
import { noLog, type Logger, type Settlement } from '@shoal/core';
import { RecordingLogger, describeJobSource } from '@shoal/core/testing';
import { Queue, QueueEvents } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { claimAll } from '../testing/claims.ts';
import { jobSourceHarness } from '../testing/job-source-harness.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const LEASE_MS = 900;
const STALLED_CHECK_MS = 300;

let server: TestServer;
let connection: Redis;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

interface Scene {
  readonly prefix: string;
  readonly queue: Queue;
  open(settings?: { leaseMs?: number; log?: Logger }): BullJobSource;
  close(): Promise<void>;
}

function setScene(url = server.url): Scene {
  const prefix = `{t-source-${++prefixes}}`;
  const own = openConnection({ url, name: 'test' });
  const queue = new Queue('embed-x', { prefix, connection: own });
  queue.on('error', () => undefined); // outages are part of the play
  const opened: BullJobSource[] = [];
  return {
    prefix,
    queue,
    open: ({ leaseMs = LEASE_MS, log = noLog } = {}) => {
      const source = new BullJobSource({
        redisUrl: url,
        prefix,
        queue: 'embed-x',
        leaseMs,
        stalledCheckMs: STALLED_CHECK_MS,
        quarantineOf: 'embed-x',
        workerId: `worker-${opened.length}`,
        log,
      });
      opened.push(source);
      return source;
    },
    close: async () => {
      await Promise.all(opened.map((source) => source.stop()));
      await queue.close();
      await closeConnection(own);
      if (url === server.url) await expectNoConnections();
    },
  };
}

/** The server knows of every connection: none of a stopped worker may be left. */
async function expectNoConnections(): Promise<void> {
  await vi.waitFor(
    async () => {
      const clients = String(await server.command('CLIENT', 'LIST'));
      if (clients.split('\n').some((line) => / name=(shoal:worker|\{t-source)/.test(line)))
        throw new Error(`connections left behind:\n${clients}`);
    },
    { timeout: 10_000 },
  );
}

describeJobSource('BullJobSource', async () => {
  const scene = setScene();
  return jobSourceHarness({
    redisUrl: server.url,
    prefix: scene.prefix,
    queue: 'embed-x',
    leaseMs: LEASE_MS,
    open: () => scene.open(),
    onClosed: () => scene.close(),
  });
});

const RETURN: EmbedReturn = {
  v: 1,
  key: '{t}:out:embed-x:a',
  model: 'x@1',
  rows: 1,
  dims: 4,
  dtype: 'f32',
  device: 'cpu',
  precision: 'fp32',
  tokens: 3,
  truncated: 0,
  splits: 0,
  ms: { queued: 1, run: 2 },
};

describe('a drained source', () => {
  let scene: Scene;
  let source: BullJobSource;

  beforeEach(async () => {
    scene = setScene();
    source = scene.open();
    await source.start();
  });

  afterEach(() => scene.close());

  const waiting = (): Promise<number> => scene.queue.getJobCountByTypes('wait', 'prioritized');

  test('claims nothing, keeps and settles what it holds, and goes on when resumed', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const [held] = await source.claim(8);
    source.drain(true);
    await scene.queue.add('embed', {}, { jobId: 'b' });
    const claim = source.claim(8);
    expect(await Promise.race([claim, sleep(LEASE_MS * 2)])).toBeUndefined(); // as long as a lease without renewal
    expect([await waiting(), await source.claimable()]).toEqual([1, 0]);
    expect(await source.settle(held!, { kind: 'complete', value: RETURN })).toBe('settled');
    source.drain(false);
    expect((await claim).map(({ jobId, attempt }) => [jobId, attempt])).toEqual([['b', 0]]);
  });

  test('looks into no lane without waiting either', async () => {
    source.drain(true);
    await scene.queue.add('embed', {}, { jobId: 'a' });
    expect(await source.claimNow(8)).toEqual([]);
    expect(await source.claimUrgent(8)).toEqual([]);
  });

  test('gives back unspent what a claim brings that was under way', async () => {
    const claim = source.claim(8);
    await expect.poll(async () => String(await server.command('CLIENT', 'LIST'))).toMatch(/ cmd=bzpopmin /); // it waits
    source.drain(true);
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const events = (): Promise<string> => connection.xrange(`${scene.prefix}:embed-x:events`, '-', '+').then(String);
    await vi.waitFor(async () => expect(await events()).toContain('active'), { timeout: 10_000 });
    await vi.waitFor(async () => expect(await waiting()).toBe(1), { timeout: 10_000 });
    source.drain(false);
    expect((await claim).map(({ jobId, attempt }) => [jobId, attempt])).toEqual([['a', 0]]);
  });

  test('may be stopped', async () => {
    source.drain(true);
    const claim = source.claim(8);
    await source.stopClaiming();
    expect(await claim).toEqual([]);
  });
});

describe('BullJobSource and BullMQ', () => {
  let scene: Scene;

  beforeEach(() => {
    scene = setScene();
  });

  afterEach(() => scene.close());

  const started = async (settings?: { leaseMs?: number; log?: Logger }): Promise<BullJobSource> => {
    const source = scene.open(settings);
    await source.start();
    return source;
  };

  test('a plain BullMQ producer sees its job complete, with return value, event and worker', async () => {
    const own = openConnection({ url: server.url, name: 'test' });
    const events = new QueueEvents('embed-x', { prefix: scene.prefix, connection: own });
    await events.waitUntilReady();
    const heard = once(events, 'completed');
    const job = await scene.queue.add('embed', { v: 1, texts: ['plain'] });
    const source = await started();
    const [claim] = await source.claim(8);
    expect(claim).toMatchObject({ jobId: job.id, name: 'embed', data: { v: 1, texts: ['plain'] } });
    await source.settle(claim!, { kind: 'complete', value: RETURN });
    expect((await heard)[0]).toMatchObject({ jobId: job.id, returnvalue: RETURN });
    expect(await job.getState()).toBe('completed');
    expect(await scene.queue.getJob(job.id ?? '')).toMatchObject({
      returnvalue: RETURN,
      processedBy: 'worker-0',
      attemptsMade: 1,
    });
    await events.close();
    await closeConnection(own);
  });

  test('a verdict is final whatever attempts the producer gave, and leaves no stack trace', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a', attempts: 5, backoff: { type: 'fixed', delay: 10 } });
    const source = await started();
    const [claim] = await source.claim(1);
    await source.settle(claim!, { kind: 'fail', failure: { code: 'JOB_INVALID', message: 'no texts' } });
    const job = await scene.queue.getJob('a');
    expect(await job?.getState()).toBe('failed');
    expect(job).toMatchObject({ failedReason: 'JOB_INVALID: no texts', stacktrace: [] });
  });

  test('prioritized jobs are claimed in their order, and one that goes back wakes an idle worker at once', async () => {
    for (const [jobId, priority] of [
      ['late', 9],
      ['early', 1],
      ['middle', 5],
    ] as const)
      await scene.queue.add('embed', {}, { jobId, priority });
    const [busy, idle] = await Promise.all([started(), started()]);
    const claims = await claimAll(busy, 3);
    expect(claims.map(({ jobId }) => jobId)).toEqual(['early', 'middle', 'late']);
    const next = idle.claim(1);
    await sleep(100); // the idle worker has looked and waits now
    const returnedMs = performance.now();
    await busy.settle(claims[1]!, { kind: 'return', delayMs: 0, reason: 'test' });
    expect((await next)[0]?.jobId).toBe('middle');
    expect(performance.now() - returnedMs).toBeLessThan(1_500); // else it looks again after 2 s
  });

  test('a burst of 2,000 jobs is claimed in few round trips, settled, and each once', async () => {
    const jobs = Array.from({ length: 2_000 }, (_, index) => ({
      name: 'embed',
      data: { index },
      opts: { jobId: `job-${index}` },
    }));
    await scene.queue.addBulk(jobs);
    const source = await started({ leaseMs: 15_000 });
    const claims = await source.claim(2_000);
    expect(new Set(claims.map(({ jobId }) => jobId)).size).toBe(2_000);
    await Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN })));
    expect(await scene.queue.getJobCounts('waiting', 'active')).toEqual({ waiting: 0, active: 0 });
    expect(await scene.queue.getCompletedCount()).toBe(1_000); // what a worker keeps
    expect(await connection.xlen(`${scene.prefix}:embed-x:events`)).toBeLessThan(1_500);
  });

  test("what a job says about keeping it wins over the worker's default", async () => {
    await scene.queue.add('embed', {}, { jobId: 'gone', removeOnComplete: true });
    const source = await started();
    const [claim] = await source.claim(1);
    expect(await source.settle(claim!, { kind: 'complete', value: RETURN })).toBe('settled');
    expect(await scene.queue.getJob('gone')).toBeUndefined();
  });

  test('jobs whose hash is corrupt or gone are claimed like the others, with a reason to fail them', async () => {
    const jobIds = ['data', 'opts', 'gone', 'good', 'empty'];
    await scene.queue.addBulk(jobIds.map((jobId) => ({ name: 'embed', data: { jobId }, opts: { jobId } })));
    const keys = keySpace(scene.prefix);
    await connection.hset(keys.job('embed-x', 'data'), 'data', '{"broken');
    await connection.hset(keys.job('embed-x', 'opts'), 'opts', 'not json');
    await connection.del(keys.job('embed-x', 'gone'));
    await connection.hset(keys.job('embed-x', 'empty'), 'data', '');
    const log = new RecordingLogger();
    const source = await started({ log });
    const claims = await claimAll(source, 5);
    expect(claims.map(({ jobId, data, mustFail }) => [jobId, data, mustFail?.slice(0, 40)])).toEqual([
      ['data', {}, 'its record cannot be read: "data" is not'],
      ['opts', { jobId: 'opts' }, 'its record cannot be read: "opts" is not'],
      ['gone', {}, 'its record is gone; only its id was left'],
      ['good', { jobId: 'good' }, undefined],
      ['empty', {}, undefined],
    ]);
    expect(log.messages('error')).toEqual([]);
    for (const claim of claims)
      expect(await source.settle(claim, { kind: 'fail', failure: { code: 'JOB_INVALID', message: 'x' } })).toBe(
        'settled',
      );
    expect(await scene.queue.getFailedCount()).toBe(5);
  });

  test('a job that the queue decided must fail says so', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a' });
    await connection.hset(keySpace(scene.prefix).job('embed-x', 'a'), 'defa', 'stalled too often');
    const [claim] = await (await started()).claim(1);
    expect(claim?.mustFail).toBe('stalled too often');
  });

  test("a dead worker's job comes back within its lease and two looks, however often that happens", async () => {
    await scene.queue.add('embed', {}, { jobId: 'a', attempts: 1 });
    for (let death = 0; death < 4; death++) {
      const source = await started();
      const [claim] = await source.claim(1);
      expect(claim).toMatchObject({ jobId: 'a', attempt: 0, mustFail: undefined });
      await source.stop();
    }
    expect(await (await scene.queue.getJob('a'))?.getState()).toBe('active');
  });

  // a claim has the hour at which it was asked for, and a worker that was stopped just then is answered seconds later
  test('an ending is not taken for its own by a claim of the same millisecond that lost the job before', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const job = keySpace(scene.prefix).job('embed-x', 'a');
    const first = await started({ leaseMs: 60_000 });
    const [lost] = await first.claim(1);
    const processedOn = await connection.hget(job, 'processedOn');
    await connection.del(`${job}:lock`);
    await connection.lmove(`${scene.prefix}:embed-x:active`, `${scene.prefix}:embed-x:wait`, 'LEFT', 'LEFT');
    const next = await started();
    const [claim] = await next.claim(1);
    await connection.hset(job, 'processedOn', processedOn!);
    const ending: Settlement = { kind: 'fail', failure: { code: 'CANCELLED', message: 'enough' } };
    expect(await next.settle(claim!, ending)).toBe('settled');
    expect(await first.settle(lost!, ending)).toBe('lease-lost');
  });

  test('stopClaiming ends a wait at once', async () => {
    const source = await started();
    const waiting = source.claim(8);
    await sleep(100);
    const askedMs = performance.now();
    await source.stopClaiming();
    expect(await waiting).toEqual([]);
    expect(performance.now() - askedMs).toBeLessThan(1_500);
  });

  test('a paused queue is not asked in a hot loop, and goes on when it is resumed', async () => {
    await scene.queue.pause();
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const source = await started();
    const waiting = source.claim(8);
    await sleep(100);
    const before = await scriptCalls();
    await sleep(500);
    expect((await scriptCalls()) - before).toBeLessThan(20);
    await scene.queue.resume();
    expect((await waiting)[0]?.jobId).toBe('a');
  });

  test('settles although its connections are cut again and again', async () => {
    await scene.queue.addBulk(
      Array.from({ length: 500 }, (_, index) => ({ name: 'embed', data: {}, opts: { jobId: `job-${index}` } })),
    );
    const source = await started({ leaseMs: 5_000 });
    const claims = await claimAll(source, 500);
    const cutting = (async () => {
      for (let round = 0; round < 5; round++) {
        await connection.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        await sleep(10);
      }
    })();
    const results = await Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN })));
    await cutting;
    expect(results.filter((result) => result !== 'settled')).toEqual([]);
    expect(await scene.queue.getCompletedCount()).toBe(500);
  });

  test('leases are kept and jobs are completed while the memory of the server is full', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const source = await started();
    const lost = vi.fn<(jobId: string) => void>();
    source.onLeaseLost(lost);
    const [claim] = await source.claim(1);
    await server.command('CONFIG', 'SET', 'maxmemory', '1');
    await sleep(LEASE_MS * 3);
    expect(await source.settle(claim!, { kind: 'complete', value: RETURN })).toBe('settled');
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
    expect(lost).not.toHaveBeenCalled();
  });
});

async function scriptCalls(): Promise<number> {
  const text = String(await server.command('INFO', 'commandstats'));
  return [...text.matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/g)].reduce((sum, [, calls]) => sum + Number(calls), 0);
}

describe('BullJobSource and a server that dies', () => {
  let own: TestServer;
  let scene: Scene;

  beforeEach(async () => {
    own = await startTestServer({ appendFsync: 'always' });
    scene = setScene(own.url);
  });

  afterEach(async () => {
    await scene.close();
    await own.stop();
  });

  test('a waiting claim goes on by itself after the server was killed and started again', async () => {
    const source = scene.open();
    await source.start();
    const waiting = source.claim(8);
    await own.restart();
    await scene.queue.add('embed', {}, { jobId: 'a' });
    expect((await waiting)[0]?.jobId).toBe('a');
  });

  test('claims held over a short restart are still ours and are completed after it', async () => {
    await scene.queue.addBulk(
      Array.from({ length: 100 }, (_, index) => ({ name: 'embed', data: {}, opts: { jobId: `job-${index}` } })),
    );
    const source = scene.open({ leaseMs: 15_000 });
    await source.start();
    const claims = await claimAll(source, 100);
    await own.kill9();
    const results = Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN })));
    await own.restart();
    expect(new Set(await results)).toEqual(new Set(['settled']));
    expect(await scene.queue.getCompletedCount()).toBe(100);
  });

  test('an outage longer than the lease loses the leases, which is told, and the jobs are claimed again', async () => {
    await scene.queue.addBulk(
      Array.from({ length: 20 }, (_, index) => ({
        name: 'embed',
        data: {},
        opts: { jobId: `job-${index}`, attempts: 1 },
      })),
    );
    const source = scene.open();
    await source.start();
    const lost: string[] = [];
    source.onLeaseLost((jobId) => lost.push(jobId));
    const first = await claimAll(source, 20);
    const again = claimAll(source, 20);
    await own.kill9();
    await sleep(LEASE_MS * 5);
    await own.restart();
    const second = await again;
    expect(second.map(({ jobId }) => jobId).sort()).toEqual(first.map(({ jobId }) => jobId).sort());
    expect(lost.toSorted()).toEqual(first.map(({ jobId }) => jobId).sort());
    expect(await source.settle(first[0]!, { kind: 'complete', value: RETURN })).toBe('lease-lost');
    const results = await Promise.all(second.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN })));
    expect(new Set(results)).toEqual(new Set(['settled']));
  });

  test('stop does not wait for a server that is away, whatever is under way', async () => {
    await scene.queue.add('embed', {}, { jobId: 'a' });
    const source = scene.open();
    await source.start();
    const [claim] = await source.claim(1);
    const waiting = source.claim(8);
    await own.kill9();
    await sleep(300);
    const settled = source.settle(claim!, { kind: 'complete', value: RETURN });
    await source.stop(); // or the test ends at its limit
    expect(await settled).toBe('lease-lost');
    expect(await waiting).toEqual([]);
    await own.restart();
  });

  test('a server that is not there or not safe is named at the start, and nothing is left running', async () => {
    await own.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
    await expect(scene.open().start()).rejects.toMatchObject({ code: 'QUEUE_UNSAFE' });
    await own.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
    const nowhere = new BullJobSource({
      redisUrl: 'redis://127.0.0.1:1',
      prefix: '{t}',
      queue: 'embed-x',
      leaseMs: 1_000,
      stalledCheckMs: 500,
      log: noLog,
    });
    await expect(nowhere.start()).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
  });
});
