// What the claimer promises about claims: each gets one ending, whatever becomes of its executor, its lease or the
// worker; producers hear of it once and only when it is true; and stopping leaves nothing behind, at whatever moment it
// happens.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ShoalError, encodeTexts, type EmbedReturn, openResult } from '@shoal/contract';
import { fixedBudget } from '../budget/fixed-budget.ts';
import { noFaults } from '../base/fault-points.ts';
import { Pipeline, type PipelineLimits } from './pipeline.ts';
import type { JobSource, RawClaim, SettleResult, Settlement } from '../ports/queue.ts';
import type { JobOrder, JobOutcome } from '../protocol.ts';
import {
  FakeBackend,
  FakeExecutorLink,
  FakeTokenizer,
  Gate,
  InProcessExecutor,
  ManualClock,
  MemoryJobSource,
  MemoryPayloadStore,
  MemoryQueue,
  READY,
  RecordingAnnouncer,
  RecordingLogger,
  deliveredVector,
  settled,
} from '../testing/index.ts';

const LIMITS: PipelineLimits = {
  poolTokens: 4_096,
  executorTimeoutMs: 60_000,
  drainTimeoutMs: 30_000,
  claimTimeoutMs: 30_000,
};
const SERVER_NOW_MS = 1_800_000_000_000;

/** A MemoryJobSource that writes down what happens and can be held back. */
class WatchedSource implements JobSource {
  readonly endings: {
    readonly jobId: string;
    readonly token: string;
    readonly settlement: Settlement;
    readonly result: SettleResult;
  }[] = [];
  readonly limits: number[] = [];
  readonly settleGate = new Gate();
  readonly startGate = new Gate();
  private readonly stopped = Promise.withResolvers<readonly RawClaim[]>();
  claimError: Error | undefined;
  startError: Error | undefined;
  isStopped = false;
  /** Set, jobs wait and claims bring none. */
  hidesJobs = false;
  claimableError: Error | undefined;
  private readonly source: JobSource;
  private readonly onClaim: (claim: RawClaim) => void;

  constructor(source: JobSource, onClaim: (claim: RawClaim) => void = () => undefined) {
    this.source = source;
    this.onClaim = onClaim;
  }

  async start(): Promise<void> {
    await this.startGate.pass();
    if (this.startError !== undefined) throw this.startError;
    await this.source.start();
  }

  async claim(limit: number): Promise<readonly RawClaim[]> {
    this.limits.push(limit);
    if (this.claimError !== undefined) throw this.claimError;
    const claims = await (this.hidesJobs ? this.stopped.promise : this.source.claim(limit));
    claims.forEach(this.onClaim);
    return claims;
  }

  async claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.hidesJobs ? this.stopped.promise : this.source.claimUrgent(limit);
  }

  async settle(claim: RawClaim, settlement: Settlement): Promise<SettleResult> {
    await this.settleGate.pass();
    const result = await this.source.settle(claim, settlement);
    this.endings.push({ jobId: claim.jobId, token: claim.token, settlement, result });
    return result;
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.source.onLeaseLost(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.source.onCancelled(listener);
  }

  async claimable(): Promise<number> {
    if (this.claimableError !== undefined) throw this.claimableError;
    return this.source.claimable();
  }

  stopClaiming(): Promise<void> {
    this.stopped.resolve([]);
    return this.source.stopClaiming();
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    await this.source.stop();
  }

  kindsOf(jobId: string): string[] {
    return this.endings.filter((ending) => ending.jobId === jobId).map((ending) => ending.settlement.kind);
  }
}

/** A queue in which renewals of chosen jobs fail once: another worker claims them when their locks have run out. */
class FlakyQueue extends MemoryQueue {
  readonly lostLeases = new Set<string>();

  override renew(claim: RawClaim): boolean {
    return !this.lostLeases.delete(claim.jobId) && super.renew(claim);
  }
}

function setup(limits: Partial<PipelineLimits> = {}) {
  const clock = new ManualClock();
  const queue = new MemoryQueue(clock);
  const source = new WatchedSource(new MemoryJobSource(queue));
  const link = new FakeExecutorLink();
  const announcer = new RecordingAnnouncer();
  const log = new RecordingLogger();
  const pipeline = new Pipeline({
    source,
    announcer,
    clock,
    log,
    executor: link,
    serverNowMs: () => SERVER_NOW_MS + clock.nowMs(),
    limits: { ...LIMITS, ...limits },
    faults: noFaults,
  });
  const bench = {
    clock,
    queue,
    source,
    link,
    announcer,
    log,
    pipeline,
    async started(): Promise<void> {
      await pipeline.start();
      await settled();
    },
    addJobs(count: number, data: object = bulk(1), name = 'job'): void {
      for (let i = 0; i < count; i++) queue.add(`${name}-${i}`, data);
    },
    async complete(...jobIds: readonly string[]): Promise<void> {
      link.sayOutcomes(...jobIds.map((jobId) => committed(link.orderOf(jobId)!)));
      await settled();
    },
    /** Ids of the orders sent after the first `count`. */
    sentSince: (count: number): string[] =>
      link
        .orders()
        .slice(count)
        .map(({ jobId }) => jobId),
    /**
     * An executor with one run at a time, of all it has, that dies when one of the `deadly` is in it; until nothing is
     * open. Returns its deaths.
     */
    async runDeadly(deadly: ReadonlySet<string>): Promise<number> {
      let seen = 0;
      for (let run = 1; run < 1_000; run++) {
        const jobIds = link
          .orders()
          .slice(seen)
          .map(({ jobId }) => jobId);
        seen += jobIds.length;
        if (jobIds.length === 0) return link.starts - 1;
        link.say({ kind: 'began', batch: run, jobIds });
        if (jobIds.some((jobId) => deadly.has(jobId))) link.die();
        else await bench.complete(...jobIds);
        await settled();
      }
      throw new Error('it never ends');
    },
    stop: (): Promise<void> => clock.advanceUntilSettled(pipeline.stop()),
    leftovers: () => ({ timers: clock.pending, isExecutorUp: link.isUp, isSourceOpen: !source.isStopped }),
  };
  return bench;
}

const NOTHING = { timers: 0, isExecutorUp: false, isSourceOpen: false };

function bulk(rows: number, more: object = {}): object {
  return { v: rows > 256 ? 2 : 1, input: { form: 'texts', rows }, ...more };
}

function valueOf({ jobId }: JobOrder): EmbedReturn {
  return {
    v: 1,
    key: `out:${jobId}`,
    model: READY.model,
    rows: 1,
    dims: 8,
    dtype: 'f32',
    device: 'fake',
    precision: 'fp32',
    tokens: 3,
    truncated: 0,
    splits: 0,
    ms: { queued: 0, run: 1 },
  };
}

function committed(order: JobOrder): JobOutcome {
  return { kind: 'committed', jobId: order.jobId, token: order.token, value: valueOf(order) };
}

/**
 * A device that eats a job of 16 tokens each millisecond for a second, and jobs that are in the pool `fillMs` after
 * they were sent: the least that waits there in the second half of it.
 */
async function leastPooled(poolTokens: number, fillMs: number): Promise<number> {
  const bench = setup({ poolTokens, aheadTokens: poolTokens });
  const tokens = 16;
  bench.addJobs(2_000, { v: 1, input: { form: 'tokens', rows: 1, tokens, tokenizer: '0123456789abcdef' } });
  await bench.started();
  const sentMs: number[] = [];
  let [filled, eaten, least] = [0, 0, Infinity];
  for (let ms = 0; ms < 1_000; ms++) {
    const orders = bench.link.orders();
    while (sentMs.length < orders.length) sentMs.push(ms);
    const due = sentMs.findIndex((at) => at > ms - fillMs);
    const fresh = orders.slice(filled, due === -1 ? orders.length : due);
    filled += fresh.length;
    const pooled = filled - eaten;
    if (fresh.length > 0)
      bench.link.say({
        kind: 'filled',
        jobs: fresh.map(({ jobId }) => ({ jobId, tokens })),
        poolTokens: tokens * pooled,
      });
    if (ms >= 500) least = Math.min(least, tokens * pooled);
    if (pooled > 0) {
      bench.link.say({
        kind: 'ran',
        batch: ms,
        rows: 1,
        width: tokens,
        tokens,
        runMs: 1,
        duplicates: 0,
        poolTokens: tokens * (pooled - 1),
        poolAgeMs: 0,
      });
      bench.link.sayOutcomes(committed(orders[eaten++]!));
    }
    await bench.clock.advance(1);
  }
  await bench.stop();
  return least;
}

describe('claiming', () => {
  test('nothing is claimed before the executor is ready', async () => {
    const bench = setup();
    bench.addJobs(3);
    bench.link.startGate.hold();
    const started = bench.pipeline.start();
    await settled();
    expect(bench.source.limits).toEqual([]);
    bench.link.startGate.release();
    expect(await started).toEqual(READY);
    await settled();
    expect(bench.link.orders()).toHaveLength(3);
    await bench.stop();
  });

  test.each([1, 8, 64, 256, 1_024])(
    'jobs of %i rows are claimed up to the token target of the pool, give or take a job',
    async (rows) => {
      const bench = setup({ poolTokens: 65_536 });
      bench.addJobs(2_000, bulk(rows));
      await bench.started();
      const claimedTokens = bench.link.orders().length * rows * 64;
      expect(claimedTokens).toBeLessThanOrEqual(65_536 + 4 * rows * 64);
      expect(claimedTokens).toBeGreaterThanOrEqual(65_536);
      await bench.stop();
    },
  );

  test('a few jobs of one row before are no reason to take hundreds of large ones at once', async () => {
    const bench = setup({ poolTokens: 24_576 });
    bench.addJobs(5);
    await bench.started();
    await bench.complete(...bench.link.orders().map(({ jobId }) => jobId));
    bench.addJobs(500, bulk(256), 'large');
    await settled();
    expect(bench.link.orders().length).toBeLessThanOrEqual(5 + 8);
    await bench.stop();
  });

  test('room that small sizes leave is claimed, and finished jobs make room', async () => {
    const bench = setup({ poolTokens: 640 });
    bench.addJobs(1_000);
    await bench.started();
    const before = bench.link.orders().length;
    bench.link.say({
      kind: 'filled',
      jobs: bench.link.orders().map(({ jobId }) => ({ jobId, tokens: 16 })),
      poolTokens: 16 * before,
    });
    await bench.complete(bench.link.orders()[0]!.jobId);
    expect(bench.link.orders().length).toBeGreaterThan(before + 1);
    await bench.stop();
  });

  test('rows that have run make room before their jobs are complete, up to four pools of open jobs', async () => {
    const bench = setup({ poolTokens: 640 });
    bench.addJobs(1_000);
    await bench.started();
    const claimed = (): number => bench.link.orders().length;
    const said = new Set<string>();
    const tellSizes = (poolTokens: number): void => {
      const jobs = bench.link
        .orders()
        .filter(({ jobId }) => !said.has(jobId))
        .map(({ jobId }) => ({ jobId, tokens: 16 }));
      for (const { jobId } of jobs) said.add(jobId);
      bench.link.say({ kind: 'filled', jobs, poolTokens });
    };
    tellSizes(640);
    await settled();
    const full = claimed();
    for (let i = 0; i < 50; i++) {
      bench.link.say({
        kind: 'ran',
        batch: 1,
        rows: 8,
        width: 16,
        tokens: 128,
        runMs: 1,
        duplicates: 0,
        poolTokens: 0,
        poolAgeMs: 0,
      });
      await settled();
      tellSizes(0);
      await settled();
    }
    expect(claimed()).toBeGreaterThan(full);
    expect(claimed() * 16).toBeGreaterThanOrEqual(3 * 640);
    expect(claimed() * 16).toBeLessThanOrEqual(5 * 640);
    await bench.stop();
  });

  test('what the device eats until jobs are in the pool, and in 100 ms, is claimed ahead, up to a limit', async () => {
    const poolTokens = 4_000;
    // 1.4 by the 100 ms, less the room that is not worth a claim
    expect(await leastPooled(poolTokens, 0)).toBeGreaterThan(1.2 * poolTokens);
    expect(await leastPooled(poolTokens, 50)).toBeGreaterThan(1.2 * poolTokens); // a fifth of a pool on its way
    expect(await leastPooled(poolTokens, 250)).toBeLessThan(1.1 * poolTokens); // a whole one
  });

  test('an interactive job that is next in line is claimed though the pool is full; bulk jobs are not', async () => {
    const bench = setup({ poolTokens: 6_400 });
    bench.addJobs(1, bulk(100));
    await bench.started();
    expect(bench.link.orders()).toHaveLength(1);
    bench.queue.add('hurried', bulk(4, { class: 'interactive' }));
    bench.addJobs(5, bulk(100), 'later');
    await bench.clock.advance(100);
    expect(bench.sentSince(1)).toEqual(['hurried']);
    await bench.clock.advance(1_000);
    expect(bench.sentSince(2)).toEqual([]);
    await bench.stop();
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('where much may be claimed ahead, a little room is not worth a claim', async () => {
    const bench = setup({ poolTokens: 6_400, aheadTokens: 6_400 });
    bench.addJobs(200, { v: 1, input: { form: 'tokens', rows: 1, tokens: 64, tokenizer: '0123456789abcdef' } });
    await bench.started();
    const [first, ...others] = bench.link.orders().map(({ jobId }) => jobId);
    expect(others).toHaveLength(99);
    await bench.complete(first!, ...others.slice(0, 11)); // 768 of 6,400 tokens
    expect(bench.link.orders()).toHaveLength(100);
    await bench.complete(...others.slice(11, 13));
    expect(bench.link.orders()).toHaveLength(114);
    await bench.stop();
  });

  test('an interactive job is claimed though the pool is full up to what is claimed ahead', async () => {
    const bench = setup({ poolTokens: 6_400, aheadTokens: 6_400 });
    bench.addJobs(1, bulk(200));
    await bench.started();
    bench.link.say({ kind: 'filled', jobs: [{ jobId: 'job-0', tokens: 12_800 }], poolTokens: 12_800 });
    bench.link.say({
      kind: 'ran',
      batch: 1,
      rows: 1,
      width: 16,
      tokens: 64_000,
      runMs: 1,
      duplicates: 0,
      poolTokens: 12_800,
      poolAgeMs: 0,
    });
    bench.queue.add('hurried', bulk(4, { class: 'interactive' }));
    await bench.clock.advance(60);
    expect(bench.sentSince(1)).toEqual(['hurried']);
    await bench.stop();
  });

  test('there is room again for as much interactive work, not for more', async () => {
    const bench = setup({ poolTokens: 6_400 });
    bench.addJobs(200, bulk(4, { class: 'interactive' }));
    await bench.started();
    await bench.clock.advance(5_000);
    const tokens = bench.link.orders().length * 4 * 64;
    expect(tokens).toBeGreaterThanOrEqual(2 * 6_400);
    expect(tokens).toBeLessThanOrEqual(2 * 6_400 + 16 * 4 * 64);
    await bench.stop();
  });

  test('interactive jobs are sent by themselves, before bulk jobs of the same claim', async () => {
    const bench = setup({ poolTokens: 65_536 });
    bench.link.startGate.hold();
    const started = bench.pipeline.start();
    bench.queue.add('slow', bulk(64, { class: 'bulk' }));
    bench.queue.add('hurried', bulk(4, { class: 'interactive' }));
    bench.link.startGate.release();
    await started;
    await settled();
    expect(bench.link.orders().map(({ jobId }) => jobId)).toEqual(['hurried', 'slow']);
    await bench.stop();
  });

  test('jobs that tell their tokens are counted by them', async () => {
    const bench = setup({ poolTokens: 6_400 });
    bench.addJobs(20, { v: 1, input: { form: 'tokens', rows: 1, tokens: 3_200, tokenizer: '0123456789abcdef' } });
    await bench.started();
    expect(bench.link.orders().length).toBeLessThanOrEqual(3);
    await bench.stop();
  });

  test('never more than 2,000 jobs are held, those that are being settled included', async () => {
    const bench = setup({ poolTokens: 1 << 26 });
    bench.addJobs(3_000);
    bench.source.settleGate.hold();
    await bench.started();
    expect(bench.link.orders()).toHaveLength(2_000);
    await bench.complete(
      ...bench.link
        .orders()
        .slice(0, 500)
        .map(({ jobId }) => jobId),
    );
    expect(bench.link.orders()).toHaveLength(2_000);
    bench.source.settleGate.release();
    await settled();
    expect(bench.link.orders()).toHaveLength(2_500);
    await bench.stop();
  });

  test('the executor is told when nothing else is queued', async () => {
    const bench = setup({ poolTokens: 65_536 });
    bench.addJobs(3);
    await bench.started();
    expect(bench.link.sent.filter((message) => message.kind === 'run')).toMatchObject([{ isQueueDrained: true }]);
    await bench.stop();
  });

  test('an order carries what the job asks for and the token of its claim', async () => {
    const bench = setup();
    bench.queue.add('a', {
      v: 1,
      texts: ['one', 'two'],
      truncate: 'error',
      prompt: 'query',
      reply: '{shoal}:reply:me',
      output: { dtype: 'i8', dimensions: 4 },
    });
    await bench.started();
    expect(bench.link.orders()).toMatchObject([
      {
        jobId: 'a',
        input: { form: 'inline', texts: ['one', 'two'] },
        truncate: 'error',
        prompt: 'query',
        output: { dtype: 'i8', dimensions: 4 },
        resultTtlMs: 300_000,
        class: 'interactive',
      },
    ]);
    await bench.complete('a');
    expect(bench.source.endings[0]?.token).toBe(bench.link.orders()[0]?.token);
    await bench.stop();
  });

  test('a source that somebody else has stopped is not asked in a tight loop', async () => {
    const bench = setup();
    await bench.started();
    await bench.source.stopClaiming();
    await bench.clock.advance(1_000);
    expect(bench.source.limits.length).toBeLessThan(15);
    await bench.stop();
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('a queue that cannot be claimed from ends the worker, and is no unhandled rejection', async () => {
    const bench = setup();
    bench.source.claimError = new ShoalError('QUEUE_UNREACHABLE', 'gone');
    await bench.started();
    await expect(bench.pipeline.failed).rejects.toThrow('gone');
    await bench.stop();
    expect(bench.leftovers()).toEqual(NOTHING);
  });
});

test('rows that left the pool without a run do not count as waiting there', async () => {
  const bench = setup();
  bench.addJobs(2);
  await bench.started();
  bench.link.say({
    kind: 'filled',
    jobs: ['job-0', 'job-1'].map((jobId) => ({ jobId, tokens: 8_192 })),
    poolTokens: 16_384,
  });
  bench.link.sayOutcomes(
    ...['job-0', 'job-1'].map((jobId): JobOutcome => ({
      kind: 'failed',
      jobId,
      token: bench.link.orderOf(jobId)!.token,
      failure: { code: 'DEADLINE_PASSED', message: 'too late' },
    })),
  );
  await settled();
  bench.addJobs(1, bulk(1), 'next');
  await settled();
  expect(bench.sentSince(2)).toEqual(['next-0']);
  await bench.stop();
});

describe('jobs that do not run', () => {
  test('invalid ones fail without reaching the executor, and their inputs are cleaned up', async () => {
    const bench = setup();
    bench.queue.add('bad', { v: 1, texts: [] });
    bench.queue.add('good', bulk(1));
    await bench.started();
    expect(bench.link.orders().map(({ jobId }) => jobId)).toEqual(['good']);
    expect(bench.queue.inspect('bad')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^JOB_INVALID: /),
    });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'bad', outcome: 'failed', reply: undefined }]);
    await bench.stop();
  });

  test('what the queue decided to fail fails', async () => {
    const bench = setup();
    bench.queue.add('a', bulk(1), { mustFail: 'it stalled too often' });
    await bench.started();
    expect(bench.queue.inspect('a')).toMatchObject({
      state: 'failed',
      failedReason: 'JOB_INVALID: it stalled too often',
    });
    expect(bench.link.orders()).toEqual([]);
    await bench.stop();
  });

  test('one of a newer version is parked for as long as it takes, and its producer is not told', async () => {
    const bench = setup();
    bench.queue.add('a', { v: 3, anything: true });
    await bench.started();
    expect(bench.source.endings).toMatchObject([{ settlement: { kind: 'park', version: 3 } }]);
    await bench.clock.advance(3_600_000);
    expect(bench.queue.inspect('a')).toMatchObject({ state: 'delayed', attempts: 0 });
    expect(new Set(bench.source.kindsOf('a'))).toEqual(new Set(['park']));
    expect(bench.announcer.announced).toEqual([]);
    await bench.stop();
  });

  test(
    'one that may run for a while longer says so; one whose deadline passes before another executor gets it is ' +
      'not run',
    async () => {
      const bench = setup();
      bench.queue.add('soon', bulk(1, { deadline: SERVER_NOW_MS + 5_000 }));
      bench.queue.add('never', bulk(1));
      await bench.started();
      expect(bench.link.orders().map(({ remainingMs }) => remainingMs)).toEqual([5_000, undefined]);
      bench.link.startGate.hold();
      bench.link.die();
      await bench.clock.advance(5_001);
      bench.link.startGate.release();
      await settled();
      expect(bench.sentSince(2)).toEqual(['never']);
      expect(bench.queue.inspect('soon')).toMatchObject({
        state: 'failed',
        failedReason: expect.stringMatching(/^DEADLINE_PASSED: /),
      });
      await bench.stop();
    },
  );

  test('one whose deadline has passed fails, and its producer hears of it', async () => {
    const bench = setup();
    bench.queue.add('late', bulk(1, { deadline: SERVER_NOW_MS, reply: '{shoal}:reply:me' }));
    bench.queue.add('timely', bulk(1, { deadline: SERVER_NOW_MS + 60_000 }));
    await bench.started();
    expect(bench.queue.inspect('late')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^DEADLINE_PASSED: .*2027-01-15/),
    });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'late', outcome: 'failed', reply: '{shoal}:reply:me' }]);
    expect(bench.link.orders().map(({ jobId }) => jobId)).toEqual(['timely']);
    await bench.stop();
  });
});

describe('settling and announcing', () => {
  test('a committed job completes with its value, then its producer hears of it', async () => {
    const bench = setup();
    bench.queue.add('a', bulk(1, { reply: '{shoal}:reply:me' }));
    await bench.started();
    bench.source.settleGate.hold();
    await bench.complete('a');
    expect(bench.announcer.announced).toEqual([]);
    bench.source.settleGate.release();
    await settled();
    expect(bench.queue.inspect('a')).toMatchObject({ state: 'completed', returnValue: { key: 'out:a' } });
    expect(bench.announcer.announced).toEqual([
      {
        jobId: 'a',
        outcome: 'completed',
        reply: '{shoal}:reply:me',
        resultTtlMs: 300_000,
        isUrgent: true,
        wasRepeated: false,
      },
    ]);
    await bench.stop();
  });

  test('nothing is announced when the queue says that the job belongs to somebody else', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    bench.queue.steal('job-0');
    bench.queue.steal('job-1');
    const [first, second] = bench.link.orders();
    bench.link.sayOutcomes(committed(first!), {
      kind: 'failed',
      jobId: second!.jobId,
      token: second!.token,
      failure: { code: 'INFERENCE_FAILED', message: 'no' },
    });
    await settled();
    expect(bench.source.endings.map((ending) => ending.result)).toEqual(['lease-lost', 'lease-lost']);
    expect(bench.announcer.announced).toEqual([]);
    await bench.stop();
  });

  test('a result that somebody else made is announced as repeated', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    const order = bench.link.orders()[0]!;
    bench.link.sayOutcomes({ kind: 'already', jobId: order.jobId, token: order.token, value: valueOf(order) });
    await settled();
    expect(bench.announcer.announced).toMatchObject([{ outcome: 'completed', wasRepeated: true }]);
    await bench.stop();
  });

  test('a failed outcome fails the job and is announced', async () => {
    const bench = setup();
    bench.queue.add('a', bulk(1, { reply: '{shoal}:reply:me' }));
    await bench.started();
    const order = bench.link.orders()[0]!;
    bench.link.sayOutcomes({
      kind: 'failed',
      jobId: 'a',
      token: order.token,
      failure: { code: 'INPUT_LOST', message: 'nothing there' },
    });
    await settled();
    expect(bench.queue.inspect('a')).toMatchObject({
      state: 'failed',
      failedReason: 'INPUT_LOST: nothing there',
      attempts: 1,
    });
    expect(bench.announcer.announced).toMatchObject([{ outcome: 'failed', reply: '{shoal}:reply:me' }]);
    await bench.stop();
  });

  test('a lease lost at the commit abandons the claim', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    const order = bench.link.orders()[0]!;
    bench.link.sayOutcomes({ kind: 'lease-lost', jobId: order.jobId, token: order.token });
    await settled();
    expect(bench.source.kindsOf('job-0')).toEqual(['abandon']);
    expect(bench.announcer.announced).toEqual([]);
    await bench.stop();
  });

  test('the same outcome twice, one of an older claim or of an unknown job changes nothing', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    const [first, second] = bench.link.orders();
    bench.link.sayOutcomes(
      committed(first!),
      committed(first!),
      { ...committed(second!), token: 'older' },
      { ...committed(second!), jobId: 'stranger' },
    );
    await bench.complete('job-0');
    expect(bench.source.endings.map(({ jobId }) => jobId)).toEqual(['job-0']);
    expect(bench.announcer.announced).toHaveLength(1);
    await bench.stop();
  });

  test('what is settled while an announcement is under way goes together in the next', async () => {
    const bench = setup();
    bench.addJobs(5);
    await bench.started();
    bench.announcer.gate.hold();
    await bench.complete('job-0');
    await bench.complete('job-1', 'job-2');
    await bench.complete('job-3', 'job-4');
    bench.announcer.gate.release();
    await settled();
    expect(bench.announcer.announced.map(({ jobId }) => jobId)).toEqual(['job-0', 'job-1', 'job-2', 'job-3', 'job-4']);
    await bench.stop();
  });

  test('what is settled in the very moment in which an announcement ends is announced as well', async () => {
    for (let microtasks = 0; microtasks < 12; microtasks++) {
      const bench = setup();
      bench.addJobs(2);
      await bench.started();
      bench.announcer.gate.hold();
      await bench.complete('job-0');
      bench.source.settleGate.hold();
      await bench.complete('job-1');
      bench.announcer.gate.release();
      for (let i = 0; i < microtasks; i++) await Promise.resolve();
      bench.source.settleGate.release();
      await settled();
      expect(bench.announcer.announced).toHaveLength(2);
      await bench.stop();
    }
  });

  test('an announcement that fails is reported and loses nothing else', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    const announce = bench.announcer.announce.bind(bench.announcer);
    bench.announcer.announce = () => Promise.reject(new Error('connection lost'));
    await bench.complete('job-0');
    bench.announcer.announce = announce;
    await bench.complete('job-1');
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'completed' });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'job-1' }]);
    expect(bench.log.messages('warn')).toHaveLength(1);
    await bench.stop();
  });
});

describe('leases', () => {
  test('a job whose lease is lost is dropped at the executor, abandoned, and its late outcome ignored', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    bench.queue.steal('job-0');
    await bench.clock.advance(6_000);
    expect(bench.link.sent).toContainEqual({ kind: 'drop', jobIds: ['job-0'] });
    expect(bench.source.kindsOf('job-0')).toEqual(['abandon']);
    await bench.complete('job-0', 'job-1');
    expect(bench.announcer.announced.map(({ jobId }) => jobId)).toEqual(['job-1']);
    await bench.stop();
  });

  test('its tokens make room for others', async () => {
    const bench = setup({ poolTokens: 128 });
    bench.addJobs(50);
    await bench.started();
    const before = bench.link.orders().length;
    for (const { jobId } of bench.link.orders()) bench.queue.steal(jobId);
    await bench.clock.advance(6_000);
    expect(bench.link.orders().length).toBe(2 * before);
    await bench.stop();
  });

  test('a job claimed again by the same worker goes on under its new token alone', async () => {
    const bench = setup();
    const claims: RawClaim[] = ['old', 'new'].map((token) => ({
      jobId: 'a',
      token,
      name: 'embed',
      data: bulk(1),
      attempt: 0,
      queuedMs: 0,
      mustFail: undefined,
    }));
    const source = new WatchedSource({
      start: async () => undefined,
      claim: async () => (claims.length > 0 ? [claims.shift()!] : new Promise<never>(() => undefined)),
      claimUrgent: async () => [],
      settle: async () => 'settled',
      onLeaseLost: () => undefined,
      onCancelled: () => undefined,
      claimable: async () => 0,
      stopClaiming: async () => undefined,
      stop: async () => undefined,
    });
    const pipeline = new Pipeline({
      ...bench,
      source,
      executor: bench.link,
      serverNowMs: () => 0,
      limits: LIMITS,
      faults: noFaults,
    });
    await pipeline.start();
    await settled();
    bench.link.sayOutcomes(...bench.link.orders().map(committed));
    await settled();
    expect(source.endings.map(({ token, settlement }) => `${token} ${settlement.kind}`)).toEqual([
      'old abandon',
      'new complete',
    ]);
  });
});

describe('cancelling', () => {
  test(
    'a claimed job is dropped at the executor and fails, its producer hears of it, and its late outcome changes ' +
      'nothing',
    async () => {
      const bench = setup();
      bench.queue.add('a', bulk(1, { reply: '{shoal}:reply:me' }));
      bench.queue.add('b', bulk(1));
      await bench.started();
      bench.queue.cancel('a');
      await settled();
      expect(bench.link.sent).toContainEqual({ kind: 'drop', jobIds: ['a'] });
      expect(bench.queue.inspect('a')).toMatchObject({
        state: 'failed',
        failedReason: expect.stringMatching(/^CANCELLED: /),
      });
      expect(bench.announcer.announced).toMatchObject([{ jobId: 'a', outcome: 'failed', reply: '{shoal}:reply:me' }]);
      await bench.complete('a', 'b');
      expect(bench.queue.inspect('a')).toMatchObject({ state: 'failed' });
      expect(bench.announcer.announced).toHaveLength(2);
      await bench.stop();
    },
  );
});

describe('watching the queue', () => {
  test('a claim that brings nothing while jobs wait ends the worker; an empty queue never does', async () => {
    const bench = setup();
    await bench.started();
    await bench.clock.advance(600_000);
    bench.source.hidesJobs = true;
    bench.addJobs(3);
    await bench.clock.advance(120_000);
    await expect(bench.pipeline.failed).rejects.toMatchObject({
      code: 'QUEUE_STUCK',
      message: expect.stringMatching(/^\d jobs wait/),
    });
    await bench.stop();
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('so does a look for interactive jobs that never ends, while the pool is full', async () => {
    const bench = setup({ poolTokens: 128 });
    bench.addJobs(50);
    await bench.started();
    bench.source.hidesJobs = true;
    await bench.clock.advance(120_000);
    await expect(bench.pipeline.failed).rejects.toMatchObject({ code: 'QUEUE_STUCK' });
    await bench.stop();
  });

  test('a server that does not tell is reported, and waited for', async () => {
    const bench = setup();
    bench.source.claimableError = new ShoalError('QUEUE_UNREACHABLE', 'away');
    await bench.started();
    await bench.clock.advance(120_000);
    expect(bench.log.messages('warn')).toContain('nobody can tell whether jobs wait');
    bench.addJobs(1);
    await settled();
    expect(bench.link.orders()).toHaveLength(1);
    await bench.stop();
  });
});

describe('an executor that dies', () => {
  test('its jobs are dispatched again to the next one, and no attempt is used', async () => {
    const bench = setup();
    bench.addJobs(3);
    await bench.started();
    const before = bench.link.orders();
    bench.link.die();
    await settled();
    expect(bench.link.starts).toBe(2);
    expect(bench.link.orders().slice(3)).toEqual(before);
    await bench.complete('job-0', 'job-1', 'job-2');
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'completed', attempts: 1 });
    expect(bench.announcer.announced).toHaveLength(3);
    await bench.stop();
  });

  test('a job that twenty of them were about to read, and ran nothing, fails, and its producer is told', async () => {
    const bench = setup();
    bench.queue.add('a', bulk(1, { reply: '{shoal}:reply:me' }));
    await bench.started();
    for (let death = 1; death <= 19; death++) {
      bench.link.die();
      await settled();
    }
    expect(bench.queue.inspect('a')).toMatchObject({ state: 'active' });
    bench.link.die();
    await settled();
    expect(bench.queue.inspect('a')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^EXECUTOR_LOST: 20 /),
    });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'a', outcome: 'failed', reply: '{shoal}:reply:me' }]);
    await bench.stop();
  });

  test('a suspect that ended before the news of its run came is waited for by nobody', async () => {
    const bench = setup();
    bench.addJobs(4);
    await bench.started();
    bench.queue.cancel('job-0');
    await settled();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0', 'job-1'] }); // crossed the drop
    bench.link.die();
    await settled();
    expect(bench.sentSince(4)).toEqual(['job-1']);
    await bench.complete('job-1');
    expect(bench.sentSince(5)).toEqual(['job-2', 'job-3']);
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
    bench.link.die();
    await settled();
    expect(bench.sentSince(7)).toEqual(['job-2', 'job-3']);
    await bench.stop();
  });

  test('a suspect that twenty of them were about to read fails as well', async () => {
    const bench = setup();
    bench.queue.add('a', bulk(1), { stalls: 2 });
    bench.addJobs(1);
    await bench.started();
    for (let death = 1; death <= 20; death++) {
      bench.link.die();
      await settled();
    }
    expect(bench.queue.inspect('a')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^EXECUTOR_LOST: 20 /),
    });
    await bench.stop();
  });

  test('a run that was at the device makes suspects: they run alone, everybody else after them', async () => {
    const bench = setup();
    bench.addJobs(6);
    await bench.started();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0', 'job-1', 'job-2', 'job-3'] });
    bench.link.die();
    await settled();
    expect(bench.sentSince(6)).toEqual(['job-0', 'job-1']);
    await bench.complete('job-0', 'job-1');
    expect(bench.sentSince(8)).toEqual(['job-2', 'job-3']);
    await bench.complete('job-2', 'job-3');
    expect(bench.sentSince(10)).toEqual(['job-4', 'job-5']);
    await bench.stop();
  });

  test('suspects are halved until the culprit is alone; it is quarantined and told; no other is charged', async () => {
    const bench = setup();
    const data = bulk(1, { v: 2, reply: '{shoal}:reply:me', trace: { requestId: 'req-7' } });
    bench.addJobs(8, data);
    await bench.started();
    const deaths = await bench.runDeadly(new Set(['job-5']));
    expect(bench.queue.inspect('job-5')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^QUARANTINED: /),
    });
    expect(bench.queue.quarantined.get('job-5')).toEqual(data);
    expect(bench.log.lines.find(({ message }) => message === 'job quarantined')?.fields).toMatchObject({
      jobId: 'job-5',
      requestId: 'req-7',
      code: 'QUARANTINED',
    });
    expect(bench.announcer.announced.find(({ jobId }) => jobId === 'job-5')).toMatchObject({
      outcome: 'failed',
      reply: '{shoal}:reply:me',
    });
    for (const job of [0, 1, 2, 3, 4, 6, 7])
      expect(bench.queue.inspect(`job-${job}`)).toMatchObject({ state: 'completed', attempts: 1 });
    expect(deaths).toBeLessThanOrEqual(1 + 3 + 1); // all eight, halves, and once more alone
    await bench.stop();
  });

  test('while suspects run nothing is claimed; after one more death the others go back to the queue', async () => {
    const bench = setup();
    bench.addJobs(4);
    await bench.started();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0', 'job-1'] });
    bench.link.die();
    await settled();
    bench.addJobs(1, bulk(1), 'later');
    await settled();
    expect(bench.queue.inspect('job-3')).toMatchObject({ state: 'active' });
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
    bench.link.die();
    await settled();
    expect(bench.queue.inspect('job-3')).toMatchObject({ state: 'waiting', attempts: 0 });
    await bench.complete('job-0');
    await bench.complete('job-1');
    expect(bench.sentSince(4)).toEqual(['job-0', 'job-0', 'job-1', 'job-2', 'job-3', 'later-0']);
    await bench.stop();
  });

  test('a run that has ended, and one of an executor that was recycled or fell silent, makes no suspects', async () => {
    const bench = setup({ executorTimeoutMs: 4_000 });
    bench.addJobs(2);
    await bench.started();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
    bench.link.say({
      kind: 'ran',
      batch: 1,
      rows: 1,
      width: 8,
      tokens: 8,
      runMs: 1,
      duplicates: 0,
      poolTokens: 0,
      poolAgeMs: 0,
    });
    bench.link.die();
    await settled();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
    bench.link.say({ kind: 'recycle', reason: 'cuBLAS cannot allocate' });
    await settled();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
    bench.link.answersPings = false;
    await bench.clock.advance(6_000);
    expect(bench.link.starts).toBe(4);
    expect(bench.sentSince(0)).toEqual(['job-0', 'job-1', 'job-0', 'job-1', 'job-0', 'job-1', 'job-0', 'job-1']);
    expect(bench.link.kills).toEqual(['cuBLAS cannot allocate', expect.stringMatching(/^no answer/)]);
    await bench.stop();
  });

  test('an executor that asks to be recycled for ever, and gets nothing done, is taken for one that died', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    for (let i = 0; i < 12; i++) {
      bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0'] });
      bench.link.say({ kind: 'recycle', reason: 'no memory' });
      await settled();
    }
    expect(bench.queue.inspect('job-0')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^QUARANTINED: /),
    });
    await bench.complete('job-1');
    await bench.stop();
  });

  test('one that is killed because its run hangs leaves suspects', async () => {
    const bench = setup();
    bench.addJobs(3);
    await bench.started();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-1'] });
    bench.link.runningMs = 60_001;
    await bench.clock.advance(15_000);
    bench.link.runningMs = 0;
    expect(bench.sentSince(3)).toEqual(['job-1']);
    await bench.complete('job-1');
    expect(bench.sentSince(4)).toEqual(['job-0', 'job-2']);
    await bench.stop();
  });

  test('suspects whose leases are lost, or that are cancelled, hold up nobody', async () => {
    const bench = setup();
    bench.addJobs(4);
    await bench.started();
    bench.link.say({ kind: 'began', batch: 1, jobIds: ['job-0', 'job-1'] });
    bench.link.die();
    await settled();
    bench.queue.cancel('job-0');
    bench.queue.steal('job-1');
    await bench.clock.advance(6_000);
    expect(bench.sentSince(5)).toEqual(['job-1', 'job-2', 'job-3']);
    await bench.stop();
  });

  test(
    'jobs that stalled twice run alone, in smaller groups the more often, and with nobody else claimed; at eight ' +
      'they are quarantined',
    async () => {
      const bench = setup({ poolTokens: 1 << 20 });
      bench.queue.add('twice', bulk(1), { stalls: 2 });
      bench.queue.add('fresh', bulk(1));
      bench.queue.add('thrice', bulk(1), { stalls: 3 });
      bench.queue.add('once', bulk(1), { stalls: 1 });
      bench.queue.add('eight', bulk(1), { stalls: 8 });
      await bench.started();
      expect(bench.sentSince(0)).toEqual(['twice']);
      expect(bench.queue.inspect('fresh')).toMatchObject({ state: 'waiting', attempts: 0 });
      expect(bench.queue.inspect('eight')).toMatchObject({
        state: 'failed',
        failedReason: expect.stringMatching(/^QUARANTINED: 8 workers/),
      });
      await bench.complete('twice');
      await bench.complete('thrice');
      expect(bench.sentSince(1)).toEqual(['thrice', 'fresh', 'once']);
      await bench.stop();
    },
  );

  test('what is claimed while there is none reaches the next one, once', async () => {
    const bench = setup();
    await bench.started();
    bench.link.startGate.hold();
    bench.link.die();
    bench.addJobs(2);
    await settled();
    expect(bench.link.orders()).toEqual([]);
    bench.link.startGate.release();
    await settled();
    expect(bench.link.orders().map(({ jobId }) => jobId)).toEqual(['job-0', 'job-1']);
    await bench.stop();
  });

  test('starts that fail are repeated more and more slowly, then the worker ends', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    bench.link.startErrors.push(...Array.from({ length: 5 }, (_, i) => new Error(`no device ${i}`)));
    bench.link.die();
    await bench.clock.advance(10_000);
    await expect(bench.pipeline.failed).rejects.toThrow('no device 4');
    expect(bench.link.starts).toBe(6);
    await bench.stop();
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('one that dies while the queue is being reached is replaced as well', async () => {
    const bench = setup();
    bench.addJobs(1);
    bench.source.startGate.hold();
    const started = bench.pipeline.start();
    await settled();
    bench.link.die();
    bench.source.startGate.release();
    await started;
    await settled();
    expect(bench.link.starts).toBe(2);
    await bench.complete('job-0');
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'completed' });
    await bench.stop();
  });

  test('one that says nothing is killed', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    await bench.clock.advance(300_000);
    expect(bench.link.kills).toEqual([]);
    bench.link.answersPings = false;
    await bench.clock.advance(80_000);
    expect(bench.link.kills).toEqual([expect.stringMatching(/^no answer for \d+ ms$/)]);
    expect(bench.link.starts).toBe(2);
    await bench.stop();
  });

  test('one whose run does not end is killed', async () => {
    const bench = setup();
    await bench.started();
    bench.link.runningMs = 60_000;
    await bench.clock.advance(30_000);
    expect(bench.link.kills).toEqual([]);
    bench.link.runningMs = 60_001;
    await bench.clock.advance(15_000);
    expect(bench.link.kills).toEqual(['a run has lasted 60001 ms']);
    await bench.stop();
  });
});

describe('stopping', () => {
  test('a queue server that does not answer holds it up no longer than the drain may take', async () => {
    const bench = setup({ drainTimeoutMs: 5_000 });
    bench.addJobs(1);
    await bench.started();
    bench.source.settleGate.hold();
    let hasStopped = false;
    const stopped = bench.pipeline.stop().then(() => (hasStopped = true));
    await bench.clock.advance(30_000);
    expect(hasStopped).toBe(true);
    bench.source.settleGate.release();
    await stopped;
  });

  test('what has begun is finished, the rest goes back unspent', async () => {
    const bench = setup();
    bench.addJobs(3);
    await bench.started();
    bench.link.stopGate.hold();
    const stopped = bench.pipeline.stop();
    await settled();
    const [first, second, third] = bench.link.orders();
    bench.link.sayOutcomes({ kind: 'unstarted', jobId: first!.jobId, token: first!.token }, committed(second!));
    bench.link.stopGate.release();
    await stopped;
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
    expect(bench.queue.inspect('job-1')).toMatchObject({ state: 'completed' });
    expect(bench.queue.inspect(third!.jobId)).toMatchObject({ state: 'waiting', attempts: 0 });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'job-1' }]);
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('an executor that does not finish in time is killed, and its jobs go back', async () => {
    const bench = setup();
    bench.addJobs(2);
    await bench.started();
    bench.link.stopGate.hold();
    const stopped = bench.pipeline.stop();
    await bench.clock.advance(29_999);
    expect(bench.link.isUp).toBe(true);
    await bench.clock.advance(1);
    await stopped;
    expect(bench.link.kills).toEqual(['drained']);
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('an executor that dies meanwhile is not replaced', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    bench.link.stopGate.hold();
    const stopped = bench.pipeline.stop();
    await settled();
    bench.link.die();
    bench.link.stopGate.release();
    await bench.clock.advanceUntilSettled(stopped);
    expect(bench.link.starts).toBe(1);
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('an executor that hangs while draining is found out', async () => {
    const bench = setup({ executorTimeoutMs: 4_000 });
    bench.addJobs(1);
    await bench.started();
    bench.link.stopGate.hold();
    bench.link.answersPings = false;
    const stopped = bench.pipeline.stop();
    await bench.clock.advance(6_000);
    await stopped;
    expect(bench.link.kills).toEqual([expect.stringMatching(/^no answer/)]);
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test.each([0, 100, 150, 10_000])(
    'it may happen while an executor is being replaced (%i ms after it died)',
    async (ms) => {
      const bench = setup();
      bench.addJobs(1);
      await bench.started();
      bench.link.startErrors.push(new Error('not yet'), new Error('not yet'));
      bench.link.die();
      await bench.clock.advance(ms);
      await bench.stop();
      const { starts } = bench.link;
      await bench.clock.advance(60_000);
      expect(bench.link.starts).toBe(starts);
      expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
      expect(bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('it may happen while an executor starts', async () => {
    const bench = setup();
    bench.link.startGate.hold();
    const started = bench.pipeline.start();
    await settled();
    const stopped = bench.pipeline.stop();
    bench.link.startGate.release();
    await expect(started).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await stopped;
    expect(bench.source.limits).toEqual([]);
    expect(bench.source.isStopped).toBe(true);
  });

  test('it may happen while the queue is being reached', async () => {
    const bench = setup();
    bench.source.startGate.hold();
    const started = bench.pipeline.start();
    await settled();
    const stopped = bench.pipeline.stop();
    bench.source.startGate.release();
    await expect(started).rejects.toMatchObject({ code: 'INTERRUPTED' });
    await stopped;
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('it cleans up after a start that failed', async () => {
    const bench = setup();
    bench.source.startError = new ShoalError('QUEUE_UNSAFE', 'an eviction policy');
    await expect(bench.pipeline.start()).rejects.toThrow('an eviction policy');
    await bench.stop();
    expect(bench.leftovers()).toEqual(NOTHING);
    const unfit = setup();
    unfit.link.startErrors.push(new ShoalError('MODEL_CORRUPT', 'bad weights'));
    await expect(unfit.pipeline.start()).rejects.toThrow('bad weights');
    await unfit.stop();
    expect(unfit.leftovers()).toEqual(NOTHING);
  });

  test('before a start it does nothing, and nothing starts after it', async () => {
    const bench = setup();
    await bench.pipeline.stop();
    expect(bench.link.starts + bench.link.stops).toBe(0);
    await expect(bench.pipeline.start()).rejects.toThrow('not after it was stopped');
  });

  test('a second stop waits for the first and does nothing itself', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    bench.link.stopGate.hold();
    let ends = 0;
    const stops = [bench.pipeline.stop(), bench.pipeline.stop()].map((stop) => stop.then(() => ends++));
    await settled();
    expect(ends).toBe(0);
    bench.link.stopGate.release();
    await Promise.all(stops);
    await bench.pipeline.stop();
    expect(bench.link.stops).toBe(1);
    expect(bench.source.kindsOf('job-0')).toEqual(['return']);
  });

  test('it waits until every claim has its ending and every producer was told', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    bench.source.settleGate.hold();
    bench.announcer.gate.hold();
    await bench.complete('job-0');
    let isStopped = false;
    const stopped = bench.pipeline.stop().then(() => (isStopped = true));
    await settled();
    bench.source.settleGate.release();
    await settled();
    expect(isStopped).toBe(false);
    bench.announcer.gate.release();
    await stopped;
    expect(bench.announcer.announced).toHaveLength(1);
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('an announcement that never ends does not keep it for ever', async () => {
    const bench = setup();
    bench.addJobs(1);
    await bench.started();
    bench.announcer.gate.hold();
    await bench.complete('job-0');
    await bench.clock.advanceUntilSettled(bench.pipeline.stop(), 10_000);
    expect(bench.leftovers()).toEqual(NOTHING);
  });

  test('jobs that come while it stops claiming are not lost', async () => {
    const bench = setup();
    await bench.started();
    bench.addJobs(1);
    await bench.stop();
    expect(bench.queue.inspect('job-0')).toMatchObject({ state: 'waiting', attempts: 0 });
  });
});

interface World {
  readonly clock: ManualClock;
  readonly queue: FlakyQueue;
  readonly store: MemoryPayloadStore;
  readonly tokenizer: FakeTokenizer;
}

function newWorld(): World {
  const clock = new ManualClock();
  return {
    clock,
    queue: new FlakyQueue(clock, 3_000),
    store: new MemoryPayloadStore(),
    tokenizer: new FakeTokenizer(),
  };
}

function newWorker(
  { clock, queue, store, tokenizer }: World,
  { poison, latencyMs, vram }: { poison?: string; latencyMs?: () => number; vram?: number } = {},
) {
  const announcer = new RecordingAnnouncer();
  const log = new RecordingLogger();
  const poisonIds = poison === undefined ? undefined : String(Array.from(tokenizer.encode(poison).ids));
  const link = new InProcessExecutor({
    clock,
    store,
    tokenizer,
    log,
    limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 10, minRows: 4 },
    isLastLane: false,
    newBudget: () => fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }),
    newBackend: (processClock) => {
      const backend = new FakeBackend({ clock: processClock, slotTokens: 512 });
      if (vram !== undefined) backend.runsOutOfVramAbove({ paddedTokens: vram });
      backend.losesDeviceAtRows((ids) => String(ids) === poisonIds);
      return backend;
    },
    ...(latencyMs === undefined ? {} : { latencyMs }),
  });
  const source = new WatchedSource(new MemoryJobSource(queue), ({ jobId, token }) => store.locks.set(jobId, token));
  const pipeline = new Pipeline({
    source,
    announcer,
    clock,
    log,
    executor: link,
    serverNowMs: () => SERVER_NOW_MS + clock.nowMs(),
    limits: { ...LIMITS, poolTokens: 1_024 },
    faults: noFaults,
  });
  return { source, announcer, log, link, pipeline };
}

function textsOf(job: number, rows: number): string[] {
  return Array.from({ length: rows }, (_, row) =>
    Array.from({ length: 1 + ((job * 7 + row * 13) % 60) }, (__, word) => `j${job}r${row}w${word}`).join(' '),
  );
}

function vectorsAt(store: MemoryPayloadStore, jobId: string): Float32Array {
  return new Float32Array(Uint8Array.from(openResult(store.results.get(jobId)!).body).buffer);
}

function expectedVectors(tokenizer: FakeTokenizer, texts: readonly string[]): Float32Array {
  return Float32Array.from(texts.flatMap((text) => [...deliveredVector(tokenizer.encode(text).ids, 8)]));
}

describe('claimer and executor together', () => {
  test('a thousand rows come back as their own vectors', async () => {
    const world = newWorld();
    const worker = newWorker(world);
    for (let job = 0; job < 60; job++) {
      world.queue.add(`job-${job}`, bulk(17));
      world.store.inputs.set(`job-${job}`, encodeTexts(textsOf(job, 17)));
    }
    await worker.pipeline.start();
    await world.clock.advanceUntil(() => worker.announcer.announced.length === 60);
    for (let job = 0; job < 60; job++)
      expect(vectorsAt(world.store, `job-${job}`)).toEqual(expectedVectors(world.tokenizer, textsOf(job, 17)));
    await world.clock.advanceUntilSettled(worker.pipeline.stop());
    expect(world.clock.pending).toBe(0);
  });

  test('a job that loses the device every time is quarantined, and the worker lives', async () => {
    const world = newWorld();
    const worker = newWorker(world, { poison: 'deadly text' });
    world.queue.add('poison', { v: 1, texts: ['deadly text'] });
    await worker.pipeline.start();
    await world.clock.advanceUntil(() => worker.announcer.announced.length === 1);
    expect(world.queue.inspect('poison')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^QUARANTINED: .*device lost/),
    });
    expect(worker.link.starts).toBe(3);
    world.queue.add('good', { v: 1, texts: ['harmless'] });
    await world.clock.advanceUntil(() => worker.announcer.announced.length === 2);
    expect(world.queue.inspect('good')).toMatchObject({ state: 'completed' });
    await world.clock.advanceUntilSettled(worker.pipeline.stop());
    expect(world.clock.pending).toBe(0);
  });

  test(
    'two workers, executors that die, leases that are lost, workers that leave: each job completes once, with ' +
      'its own vectors',
    async () => {
      const event = fc.record({
        afterMs: fc.integer({ min: 0, max: 400 }),
        worker: fc.integer({ min: 0, max: 1 }),
        what: fc.constantFrom('die', 'lose', 'add', 'add', 'add', 'wait'),
        job: fc.integer({ min: 0, max: 30 }),
      });
      await fc.assert(
        fc.asyncProperty(
          fc.array(event, { maxLength: 60 }),
          fc.infiniteStream(fc.integer({ min: 0, max: 30 })),
          fc.integer({ min: 64, max: 512 }),
          fc.boolean(),
          async (events, latencies, vram, leaves) => {
            const world = newWorld();
            const latencyMs = (): number => latencies.next().value;
            const workers = [0, 1].map(() => newWorker(world, { latencyMs, vram }));
            for (const worker of workers) await world.clock.advanceUntilSettled(worker.pipeline.start());
            const jobs = new Map<string, string[]>();
            for (const { afterMs, worker, what, job } of events) {
              await world.clock.advance(afterMs);
              const jobId = `job-${job}`;
              if (what === 'die') workers[worker]!.link.die();
              else if (what === 'add') {
                jobs.set(jobId, textsOf(job, 1 + (job % 9)));
                world.queue.add(jobId, bulk(1 + (job % 9)));
                world.store.inputs.set(jobId, encodeTexts(jobs.get(jobId)!));
              } else if (what === 'lose' && world.queue.inspect(jobId)?.state === 'active') {
                world.queue.lostLeases.add(jobId);
              }
            }
            if (leaves) await world.clock.advanceUntilSettled(workers[0]!.pipeline.stop());
            await world.clock.advanceUntil(() =>
              [...jobs.keys()].every((jobId) => world.queue.inspect(jobId)?.state === 'completed'),
            );
            for (const [jobId, texts] of jobs)
              expect(vectorsAt(world.store, jobId)).toEqual(expectedVectors(world.tokenizer, texts));
            for (const worker of workers) await world.clock.advanceUntilSettled(worker.pipeline.stop());
            await world.clock.advance(100); // what was said to the dead arrives nowhere
            const announced = workers.flatMap((worker) => worker.announcer.announced);
            expect(announced.map(({ jobId }) => jobId).toSorted()).toEqual([...jobs.keys()].toSorted());
            expect(world.store.commits.filter(({ result }) => result === 'committed')).toHaveLength(jobs.size);
            expect(world.clock.pending).toBe(0);
          },
        ),
        { numRuns: 60 },
      );
    },
  );

  test('a worker may be stopped at any moment: what it did not finish waits unspent', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 0, max: 300 }),
        fc.integer({ min: 0, max: 20 }),
        fc.option(fc.integer({ min: 0, max: 300 })),
        async (stopMs, jobCount, deathMs) => {
          const world = newWorld();
          const worker = newWorker(world, { latencyMs: () => 1 });
          for (let job = 0; job < jobCount; job++) {
            world.queue.add(`job-${job}`, bulk(5));
            world.store.inputs.set(`job-${job}`, encodeTexts(textsOf(job, 5)));
          }
          await world.clock.advanceUntilSettled(worker.pipeline.start());
          if (deathMs !== null) world.clock.after(deathMs, () => worker.link.die());
          await world.clock.advance(stopMs);
          await world.clock.advanceUntilSettled(worker.pipeline.stop());
          const states = Array.from({ length: jobCount }, (_, job) => world.queue.inspect(`job-${job}`)!);
          for (const [job, { state, attempts }] of states.entries()) {
            expect(['waiting 0', 'completed 1']).toContain(`${state} ${attempts}`);
            expect(worker.announcer.announced.filter(({ jobId }) => jobId === `job-${job}`)).toHaveLength(
              state === 'completed' ? 1 : 0,
            );
          }
          await world.clock.advance(1_000);
          expect(world.clock.pending).toBe(0);
        },
      ),
      { numRuns: 150 },
    );
  });
});

/** As claims come from a source that knows more about them. */
function claimsWith(bench: ReturnType<typeof setup>, more: Partial<RawClaim>): void {
  const claim = bench.source.claim.bind(bench.source);
  bench.source.claim = async (limit) => (await claim(limit)).map((raw) => ({ ...raw, ...more }));
}

describe('jobs that were handed over', () => {
  test('one whose child has completed is completed and told without running, even after its deadline', async () => {
    const bench = setup();
    const value = { ...valueOf({ jobId: 'job-0' } as JobOrder), handedOver: { reason: 'OUT_OF_VRAM' as const } };
    claimsWith(bench, { ending: { kind: 'complete', value } });
    bench.addJobs(1, bulk(1, { reply: '{shoal}:reply:me', resultTtlMs: 7_000, deadline: SERVER_NOW_MS - 1 }));
    await bench.started();
    expect(bench.link.orders()).toEqual([]);
    expect(bench.source.endings).toMatchObject([
      { jobId: 'job-0', settlement: { kind: 'complete', value }, result: 'settled' },
    ]);
    expect(bench.announcer.announced).toEqual([
      {
        jobId: 'job-0',
        outcome: 'completed',
        reply: '{shoal}:reply:me',
        resultTtlMs: 7_000,
        isUrgent: true,
        wasRepeated: false,
      },
    ]);
    await bench.stop();
  });

  test('one whose child has failed fails the same way', async () => {
    const bench = setup();
    claimsWith(bench, { ending: { kind: 'fail', failure: { code: 'OUT_OF_VRAM', message: 'not here either' } } });
    bench.addJobs(1);
    await bench.started();
    expect(bench.queue.inspect('job-0')).toMatchObject({
      state: 'failed',
      failedReason: 'OUT_OF_VRAM: not here either',
    });
    expect(bench.announcer.announced).toMatchObject([{ jobId: 'job-0', outcome: 'failed' }]);
    await bench.stop();
  });

  test('a child runs under its lane and ends unannounced: the producer waits for the job it was made for', async () => {
    const bench = setup();
    claimsWith(bench, { lane: 'cpu' });
    bench.addJobs(2, bulk(1, { reply: '{shoal}:reply:me' }));
    bench.queue.add('broken', { v: 1, nonsense: true });
    await bench.started();
    expect(bench.link.orderOf('job-0')?.lane).toBe('cpu');
    await bench.complete('job-0');
    bench.link.sayOutcomes({
      kind: 'failed',
      jobId: 'job-1',
      token: bench.link.orderOf('job-1')!.token,
      failure: { code: 'OUT_OF_VRAM', message: 'x' },
    });
    await settled();
    expect(['job-0', 'job-1', 'broken'].map((jobId) => bench.queue.inspect(jobId)?.state)).toEqual([
      'completed',
      'failed',
      'failed',
    ]);
    expect(bench.announcer.announced).toEqual([]);
    await bench.stop();
  });
});
