// Cancelling from any process: what waits has failed when the call returns, what a worker has is dropped when it hears,
// whichever way that is, and nothing of a cancel is left for the next life of an id.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { keySpace } from '@shoal/contract';
import type { RawClaim, Settlement } from '@shoal/core';
import { noFaults, type FaultPoints } from '@shoal/core/base';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { Canceller } from './cancel.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let scenes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const HAND_OVER: Settlement = {
  kind: 'hand-over',
  handOver: { reason: { code: 'OUT_OF_VRAM', message: 'x' }, peakBytes: undefined },
};
const claimOne = async (source: BullJobSource): Promise<RawClaim> => (await source.claim(1))[0]!;

describe('a canceller', () => {
  let prefix: string;
  let main: Queue;
  let cpu: Queue;
  let canceller: Canceller;
  const sources: BullJobSource[] = [];

  beforeEach(async () => {
    prefix = `{t-cancel-${++scenes}}`;
    [main, cpu] = ['embed-x', 'embed-x-cpu'].map((name) => new Queue(name, { prefix, connection })) as [Queue, Queue];
    canceller = await Canceller.connect({ redisUrl: server.url, prefix, queue: 'embed-x', log: new RecordingLogger() });
  });

  afterEach(async () => {
    await Promise.all(sources.splice(0).map((source) => source.stop()));
    await canceller.close();
    await Promise.all([main.close(), cpu.close()]);
  });

  async function started(
    lane = 'embed-x',
    faults: FaultPoints = noFaults,
  ): Promise<{ source: BullJobSource; heard: string[] }> {
    const source = new BullJobSource({
      redisUrl: server.url,
      prefix,
      queue: lane,
      leaseMs: 900,
      stalledCheckMs: 300,
      handOverTo: 'embed-x-cpu',
      faults,
      log: new RecordingLogger(),
    });
    sources.push(source);
    const heard: string[] = [];
    source.onCancelled((jobIds) => heard.push(...jobIds));
    await source.start();
    return { source, heard };
  }

  /** A claimed job, as when its lease ran out. */
  async function waitAgain(jobId: string): Promise<void> {
    await connection.del(`${prefix}:embed-x:${jobId}:lock`);
    await connection.lrem(`${prefix}:embed-x:active`, 0, jobId);
    await connection.rpush(`${prefix}:embed-x:wait`, jobId);
  }

  const outcomeOf = async (jobId: string): Promise<string> => (await canceller.cancel([jobId]))[0]!.outcome;

  test('fails what waits, in line, by priority or delayed; deletes its input, and tells who waits for it', async () => {
    const reply = `${prefix}:reply:me`;
    const subscriber = openConnection({ url: server.url, name: 'test' });
    const messages: string[] = [];
    subscriber.on('message', (_channel: string, message: string) => messages.push(message));
    await subscriber.subscribe(reply);
    const data = { v: 1, texts: ['a'], reply };
    await main.addBulk([
      { name: 'embed', data, opts: { jobId: 'a' } },
      { name: 'embed', data, opts: { jobId: 'b', priority: 5 } },
      { name: 'embed', data, opts: { jobId: 'c', delay: 60_000 } },
    ]);
    await connection.set(keySpace(prefix).input('embed-x', 'a'), 'input');
    expect(await canceller.cancel(['a', 'b', 'c', 'nobody'])).toEqual([
      { jobId: 'a', outcome: 'cancelled' },
      { jobId: 'b', outcome: 'cancelled' },
      { jobId: 'c', outcome: 'cancelled' },
      { jobId: 'nobody', outcome: 'unknown' },
    ]);
    for (const jobId of ['a', 'b', 'c']) {
      const job = await main.getJob(jobId);
      expect(job).toMatchObject({ failedReason: expect.stringMatching(/^CANCELLED: /), attemptsMade: 0 });
      expect(await job?.getState()).toBe('failed');
    }
    expect(await main.getJobCounts('wait', 'prioritized', 'delayed', 'failed')).toEqual({
      wait: 0,
      prioritized: 0,
      delayed: 0,
      failed: 3,
    });
    expect(await connection.exists(keySpace(prefix).input('embed-x', 'a'))).toBe(0);
    await vi.waitFor(
      () =>
        expect(messages.flatMap((message) => (JSON.parse(message) as { failed: string[] }).failed).toSorted()).toEqual([
          'a',
          'b',
          'c',
        ]),
      { timeout: 10_000 },
    );
    expect(await outcomeOf('a')).toBe('finished');
    await closeConnection(subscriber);
  });

  test('tells the worker that has the job; a job that ends first stays ended', async () => {
    await main.addBulk(['a', 'b'].map((jobId) => ({ name: 'embed', data: {}, opts: { jobId } })));
    const { source, heard } = await started();
    const [a, b] = [await claimOne(source), await claimOne(source)];
    expect(await outcomeOf('a')).toBe('asked');
    await vi.waitFor(() => expect(heard).toContain('a'), { timeout: 10_000 });
    await source.settle(a, { kind: 'fail', failure: { code: 'CANCELLED', message: 'x' } });
    await source.settle(b, { kind: 'fail', failure: { code: 'INPUT_LOST', message: 'x' } });
    expect(await outcomeOf('b')).toBe('finished');
    await vi.waitFor(async () => expect(await connection.hexists(`${prefix}:embed-x:a`, 'shoalCancelled')).toBe(0), {
      timeout: 10_000,
    }); // a retry by hand runs
  });

  test('is heard by a worker whose ear was cut off meanwhile', async () => {
    await main.add('embed', {}, { jobId: 'a' });
    const { source, heard } = await started();
    await claimOne(source);
    await connection.hset(`${prefix}:embed-x:a`, 'shoalCancelled', 1); // as if the broadcast had gone by
    await connection.set(keySpace(prefix).cancelled('embed-x'), 1);
    const clients = String(await server.command('CLIENT', 'LIST'));
    const [, id] = /id=(\d+) .*name=shoal:cancels:embed-x/.exec(clients)!;
    await server.command('CLIENT', 'KILL', 'ID', id!);
    await vi.waitFor(() => expect(heard).toContain('a'), { timeout: 10_000 });
    heard.length = 0;
    expect(await outcomeOf('a')).toBe('asked');
    await vi.waitFor(() => expect(heard).toContain('a'), { timeout: 15_000 });
  });

  test('is heard by whoever claims the job next, when its worker gives it back at that moment', async () => {
    await main.add('embed', {}, { jobId: 'a' });
    const first = await started();
    const claim = await claimOne(first.source);
    await outcomeOf('a');
    await first.source.settle(claim, { kind: 'return', delayMs: 0, reason: 'draining' });
    const second = await started();
    const next = await claimOne(second.source);
    expect(next.ending).toMatchObject({ kind: 'fail', failure: { code: 'CANCELLED' } }); // without a look: nothing runs
    await vi.waitFor(() => expect(new Set(second.heard)).toEqual(new Set(['a'])), { timeout: 10_000 }); // or more often
  });

  test('is heard by whoever claims the job next, when its worker lost it before the job had ended', async () => {
    await main.add('embed', {}, { jobId: 'a' });
    const first = await started();
    const claim = await claimOne(first.source);
    await outcomeOf('a');
    await waitAgain('a'); // as the look for stalled jobs does
    const second = await started();
    const ending = { kind: 'fail', failure: { code: 'CANCELLED', message: 'x' } } as const;
    expect(await first.source.settle(claim, ending)).toBe('lease-lost');
    const next = await claimOne(second.source);
    expect(next.ending).toMatchObject({ kind: 'fail', failure: { code: 'CANCELLED' } });
    expect(await second.source.settle(next, ending)).toBe('settled');
    await vi.waitFor(async () => expect(await connection.hexists(`${prefix}:embed-x:a`, 'shoalCancelled')).toBe(0), {
      timeout: 10_000,
    });
  });

  test('an ending is nobody else’s, although it says the same', async () => {
    await main.add('embed', {}, { jobId: 'a' });
    const [first, second] = [await started(), await started()];
    const ending = { kind: 'fail', failure: { code: 'INPUT_LOST', message: 'x' } } as const;
    const claim = await claimOne(first.source);
    await waitAgain('a');
    expect(await second.source.settle(await claimOne(second.source), ending)).toBe('settled');
    expect(await first.source.settle(claim, ending)).toBe('lease-lost');
  });

  test('does not touch a later job of the same id', async () => {
    await main.add('embed', {}, { jobId: 'a' });
    const { source, heard } = await started();
    const claim = await claimOne(source);
    await outcomeOf('a');
    await vi.waitFor(() => expect(heard).toContain('a'), { timeout: 10_000 });
    await source.settle(claim, { kind: 'fail', failure: { code: 'CANCELLED', message: 'x' } });
    await main.remove('a');
    heard.length = 0;
    await main.add('embed', {}, { jobId: 'a' });
    await claimOne(source);
    await main.add('embed', {}, { jobId: 'next' }); // its claim comes after the look for marks of the one before
    await claimOne(source);
    await connection.ping();
    expect(heard).toEqual([]);
  });

  test('follows a job that is handed over between the look and the mark', async () => {
    const { source } = await started();
    await main.add('embed', { v: 1, texts: ['a'] }, { jobId: 'a' });
    const claim = await claimOne(source);
    const markJob = Reflect.get(canceller, 'mark') as (...args: unknown[]) => Promise<unknown>;
    Reflect.set(canceller, 'mark', async (...args: unknown[]) => {
      Reflect.deleteProperty(canceller, 'mark');
      expect(await source.settle(claim, HAND_OVER)).toBe('settled');
      return markJob.apply(canceller, args);
    });
    expect(await outcomeOf('a')).toBe('cancelled');
    expect(await main.getJobState('a')).toBe('failed');
    expect(await cpu.getJob('a')).toBeUndefined();
  });

  const mark = (): Promise<unknown> =>
    Promise.all([
      connection.hset(`${prefix}:embed-x:a`, 'shoalCancelled', 1),
      connection.set(keySpace(prefix).cancelled('embed-x'), 1),
    ]);

  test.each(['before the hand-over', 'in the middle of it'])(
    'a job that was marked %s is not moved, but heard by whoever claims it next',
    async (when) => {
      const { source, heard } = await started('embed-x', {
        reach: () => when === 'in the middle of it' && void mark(),
      });
      await main.add('embed', { v: 1, texts: ['a'] }, { jobId: 'a', priority: 5 });
      const claim = await claimOne(source);
      if (when !== 'in the middle of it') await mark();
      expect(await source.settle(claim, HAND_OVER)).toBe('settled');
      expect([await main.getJobState('a'), await cpu.getJobState('a')]).toEqual(['prioritized', 'unknown']);
      const again = await claimOne(source);
      expect(again).toMatchObject({ jobId: 'a', attempt: 0, stalls: 0 });
      await vi.waitFor(() => expect(heard).toContain('a'), { timeout: 10_000 });
      await source.settle(again, { kind: 'fail', failure: { code: 'CANCELLED', message: 'x' } });
      expect(await main.getJobState('a')).toBe('failed');
    },
  );

  test('reaches a job that was handed over: its child is removed, or its worker told', async () => {
    const { source } = await started();
    for (const jobId of ['waits', 'runs']) {
      await main.add('embed', { v: 1, texts: [jobId] }, { jobId });
      await source.settle(await claimOne(source), HAND_OVER);
    }
    await source.stopClaiming();
    expect(await outcomeOf('waits')).toBe('cancelled');
    expect(await main.getJobState('waits')).toBe('failed');
    expect(await cpu.getJob('waits')).toBeUndefined();
    const cpuWorker = await started('embed-x-cpu');
    const claim = await claimOne(cpuWorker.source);
    expect(claim.jobId).toBe('runs');
    expect(await outcomeOf('runs')).toBe('asked');
    await vi.waitFor(() => expect(new Set(cpuWorker.heard)).toEqual(new Set(['runs'])), { timeout: 10_000 });
    await cpuWorker.source.settle(claim, { kind: 'fail', failure: { code: 'CANCELLED', message: 'x' } });
    expect(await main.getJobState('runs')).toBe('waiting'); // whoever claims it finds its child's failure
  });
});
