// What every JobSource does, fakes included: describeJobSource('name', make) runs the suite against one. It speaks the
// port's language only; how a queue is set up, looked into and let grow old is the harness's business.

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { invariant, type EmbedReturn } from '@shoal/contract';
import type { JobSource, RawClaim } from '../ports/queue.ts';
import type { JobRecord } from './memory-job-source.ts';

export interface JobSourceHarness {
  readonly leaseMs: number;
  /** A worker of its own on the harness's queue, not started. `stop` of the harness does not stop it. */
  open(): JobSource;
  add(jobId: string, data: unknown): Promise<void>;
  inspect(jobId: string): Promise<JobRecord | undefined>;
  /** As when the job's lease ran out and another worker claimed it. */
  steal(jobId: string): Promise<void>;
  /** As somebody in another process takes it back. */
  cancel(jobId: string): Promise<void>;
  /** Ids of the jobs in quarantine. */
  quarantined(): Promise<readonly string[]>;
  passTime(ms: number): Promise<void>;
  /** Fails when a worker, timer or connection is left behind. */
  close(): Promise<void>;
}

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

export function describeJobSource(name: string, make: () => Promise<JobSourceHarness>): void {
  describe(`${name} as a JobSource`, () => {
    let harness: JobSourceHarness;
    let opened: JobSource[];
    const open = async (): Promise<JobSource> => {
      const source = harness.open();
      opened.push(source);
      await source.start();
      return source;
    };
    const add = (...jobIds: string[]): Promise<unknown> =>
      Promise.all(jobIds.map((jobId) => harness.add(jobId, { v: 1, texts: [jobId] })));

    beforeEach(async () => {
      harness = await make();
      opened = [];
    });

    afterEach(async () => {
      await Promise.all(opened.map((source) => source.stop()));
      await harness.close();
    });

    test('each job is claimed once, by whoever asks, up to the limit, with what it carries', async () => {
      const ids = Array.from({ length: 50 }, (_, index) => `job-${index}`);
      await add(...ids);
      const [one, other] = await Promise.all([open(), open()]);
      const claims = [...(await claimAll(one, 20)), ...(await claimAll(other, 30))];
      expect(claims.map((claim) => claim.jobId).sort()).toEqual(ids.toSorted());
      expect(new Set(claims.map((claim) => claim.token)).size).toBe(50);
      expect(
        claims.every(
          (claim) =>
            claim.name === 'embed' && claim.attempt === 0 && claim.queuedMs >= 0 && claim.mustFail === undefined,
        ),
      ).toBe(true);
      expect(claims.find((claim) => claim.jobId === 'job-7')?.data).toEqual({ v: 1, texts: ['job-7'] });
      expect((await harness.inspect('job-7'))?.state).toBe('active');
    });

    test('a claim waits until there is a job', async () => {
      const source = await open();
      const claim = source.claim(8);
      await add('late');
      expect((await claim).map(({ jobId }) => jobId)).toEqual(['late']);
    });

    test('of jobs that are next in line only interactive ones are claimed as urgent, without waiting', async () => {
      const source = await open();
      expect(await source.claimUrgent(8)).toEqual([]);
      for (const jobId of ['one', 'two', 'three'])
        await harness.add(jobId, { v: 1, texts: [jobId], class: 'interactive' });
      await harness.add('slow', { v: 1, texts: ['slow'], class: 'bulk' });
      const claims = [...(await source.claimUrgent(2))];
      expect(claims).toHaveLength(2);
      claims.push(...(await source.claimUrgent(8)));
      expect(claims.map(({ jobId }) => jobId).toSorted()).toEqual(['one', 'three', 'two']);
      expect(await source.claimUrgent(8)).toEqual([]);
      expect((await source.claim(1)).map(({ jobId }) => jobId)).toEqual(['slow']);
    });

    test('a completed job has its return value, a failed one its code and message', async () => {
      await add('good', 'bad');
      const source = await open();
      const [first, second] = await claimAll(source, 2);
      const good = first?.jobId === 'good' ? first : second;
      const bad = first?.jobId === 'good' ? second : first;
      invariant(good !== undefined && bad !== undefined, 'both jobs were claimed');
      expect(await source.settle(good, { kind: 'complete', value: RETURN })).toBe('settled');
      expect(
        await source.settle(bad, {
          kind: 'fail',
          failure: { code: 'INPUT_TOO_LONG', message: 'text 3 has 900 tokens' },
        }),
      ).toBe('settled');
      expect(await harness.inspect('good')).toMatchObject({ state: 'completed', returnValue: RETURN });
      expect(await harness.inspect('bad')).toMatchObject({
        state: 'failed',
        failedReason: 'INPUT_TOO_LONG: text 3 has 900 tokens',
      });
    });

    test('a claim has one ending: the second is refused and changes nothing', async () => {
      await add('a');
      const source = await open();
      const claim = await claimOne(source);
      await source.settle(claim, { kind: 'complete', value: RETURN });
      expect(await source.settle(claim, { kind: 'fail', failure: { code: 'OUT_OF_VRAM', message: 'late' } })).toBe(
        'lease-lost',
      );
      expect((await harness.inspect('a'))?.state).toBe('completed');
    });

    test('a returned job comes back at once and no attempt was charged', async () => {
      await add('a');
      const source = await open();
      for (let round = 0; round < 5; round++) {
        const claim = await claimOne(source);
        expect(claim.attempt).toBe(0);
        expect(await source.settle(claim, { kind: 'return', delayMs: 0, reason: 'test' })).toBe('settled');
      }
      expect(await harness.inspect('a')).toMatchObject({ state: 'waiting', attempts: 0 });
    });

    test('a job returned with a delay comes back after it and no attempt was charged', async () => {
      await add('a');
      const source = await open();
      await source.settle(await claimOne(source), { kind: 'return', delayMs: 400, reason: 'test' });
      expect(await harness.inspect('a')).toMatchObject({ state: 'delayed', attempts: 0 });
      const again = claimOne(source);
      await harness.passTime(400);
      expect((await again).attempt).toBe(0);
    });

    test('a parked job is out of the way, has not ended, and no attempt was charged', async () => {
      await add('a', 'b');
      const source = await open();
      const [first, second] = await claimAll(source, 2);
      expect(await source.settle(first!, { kind: 'park', version: 99, reason: 'test' })).toBe('settled');
      expect(await harness.inspect(first!.jobId)).toMatchObject({ state: 'delayed', attempts: 0 });
      await source.settle(second!, { kind: 'return', delayMs: 0, reason: 'test' });
      expect((await source.claim(8)).map(({ jobId }) => jobId)).toEqual([second!.jobId]);
    });

    test('leases are renewed for as long as a claim is held', async () => {
      await add('a');
      const [holder, rival] = await Promise.all([open(), open()]);
      const lost = vi.fn<(jobId: string) => void>();
      holder.onLeaseLost(lost);
      const claim = await claimOne(holder);
      const stolen = rival.claim(1);
      await harness.passTime(harness.leaseMs * 3);
      expect(await holder.settle(claim, { kind: 'complete', value: RETURN })).toBe('settled');
      expect(lost).not.toHaveBeenCalled();
      await rival.stopClaiming();
      expect(await stolen).toEqual([]);
    });

    test('a lost lease is reported once, and settling then changes nothing', async () => {
      await add('a', 'b');
      const source = await open();
      const lost = vi.fn<(jobId: string) => void>();
      source.onLeaseLost(lost);
      const claims = await claimAll(source, 2);
      await harness.steal('a');
      await harness.passTime(harness.leaseMs * 2);
      expect(lost.mock.calls).toEqual([['a']]);
      for (const claim of claims) {
        expect(await source.settle(claim, { kind: 'complete', value: RETURN })).toBe(
          claim.jobId === 'a' ? 'lease-lost' : 'settled',
        );
      }
      expect((await harness.inspect('a'))?.state).toBe('active');
      expect((await harness.inspect('b'))?.state).toBe('completed');
    });

    test("whatever the ending, a claim whose lock is somebody else's is left alone", async () => {
      await add('a', 'b', 'c', 'd');
      const source = await open();
      const claims = await claimAll(source, 4);
      for (const { jobId } of claims) await harness.steal(jobId);
      const results = await Promise.all([
        source.settle(claims[0]!, { kind: 'complete', value: RETURN }),
        source.settle(claims[1]!, { kind: 'fail', failure: { code: 'INPUT_LOST', message: 'x' } }),
        source.settle(claims[2]!, { kind: 'return', delayMs: 0, reason: 'x' }),
        source.settle(claims[3]!, { kind: 'return', delayMs: 1_000, reason: 'x' }),
      ]);
      expect(results).toEqual(['lease-lost', 'lease-lost', 'lease-lost', 'lease-lost']);
      for (const { jobId } of claims)
        expect(await harness.inspect(jobId)).toMatchObject({ state: 'active', attempts: 0 });
    });

    test('an abandoned claim is forgotten and its job goes to somebody else, without an attempt charged', async () => {
      await add('a');
      const [one, other] = await Promise.all([open(), open()]);
      const claim = await claimOne(one);
      expect(await one.settle(claim, { kind: 'abandon' })).toBe('settled');
      const next = claimOne(other);
      await harness.passTime(harness.leaseMs * 2);
      expect(await next).toMatchObject({ jobId: 'a', attempt: 0 });
      expect(await one.settle(claim, { kind: 'complete', value: RETURN })).toBe('lease-lost');
    });

    test('a cancelled job that waits has failed; of one that is claimed its holder hears, and ends it', async () => {
      await add('held', 'waits');
      const source = await open();
      const cancelled = vi.fn<(jobIds: readonly string[]) => void>();
      source.onCancelled(cancelled);
      const claim = await claimOne(source);
      const other = claim.jobId === 'held' ? 'waits' : 'held';
      await harness.cancel(other);
      expect(await harness.inspect(other)).toMatchObject({
        state: 'failed',
        failedReason: expect.stringMatching(/^CANCELLED: /),
        attempts: 0,
      });
      await harness.cancel(claim.jobId);
      await vi.waitFor(() => expect(cancelled).toHaveBeenCalledWith([claim.jobId]), { timeout: 10_000 });
      expect(await source.settle(claim, { kind: 'fail', failure: { code: 'CANCELLED', message: 'taken back' } })).toBe(
        'settled',
      );
      expect(await harness.inspect(claim.jobId)).toMatchObject({
        state: 'failed',
        failedReason: 'CANCELLED: taken back',
      });
    });

    test('a quarantined job has failed, and is in quarantine', async () => {
      await add('a');
      const source = await open();
      expect(
        await source.settle(await claimOne(source), {
          kind: 'quarantine',
          failure: { code: 'QUARANTINED', message: 'it kills' },
        }),
      ).toBe('settled');
      expect(await harness.inspect('a')).toMatchObject({ state: 'failed', failedReason: 'QUARANTINED: it kills' });
      expect(await harness.quarantined()).toEqual(['a']);
    });

    test('a job whose worker died has stalled once more each time', async () => {
      await add('a');
      for (const stalls of [0, 1, 2]) {
        const source = await open();
        const claim = claimOne(source);
        await harness.passTime(stalls === 0 ? 0 : harness.leaseMs * 2);
        expect((await claim).stalls ?? 0).toBe(stalls);
        await source.stop();
      }
    });

    test('claimable counts what waits, not what is claimed or delayed', async () => {
      await add('a', 'b', 'c', 'd');
      const source = await open();
      expect(await source.claimable()).toBe(4);
      const [first] = await claimAll(source, 2);
      expect(await source.claimable()).toBe(2);
      await source.settle(first!, { kind: 'return', delayMs: 60_000, reason: 'test' });
      expect(await source.claimable()).toBe(2);
    });

    test(
      'stopClaiming: the waiting claim and every later one resolve empty; claims held are still renewed and ' +
        'settled',
      async () => {
        await add('a');
        const source = await open();
        const claim = await claimOne(source);
        const waiting = source.claim(8);
        await source.stopClaiming();
        expect(await waiting).toEqual([]);
        await add('b');
        expect(await source.claim(8)).toEqual([]);
        await harness.passTime(harness.leaseMs * 2);
        expect(await source.settle(claim, { kind: 'complete', value: RETURN })).toBe('settled');
        expect((await harness.inspect('b'))?.state).toBe('waiting');
      },
    );

    test('a job added while a worker stops waiting goes to another worker at once', async () => {
      const [leaving, staying] = await Promise.all([open(), open()]);
      const left = leaving.claim(8);
      const stayed = staying.claim(8);
      await Promise.all([leaving.stopClaiming(), add('a')]);
      const claims = [
        ...(await left),
        ...(await Promise.race([stayed, left.then((kept) => (kept.length > 0 ? [] : stayed))])),
      ];
      expect(claims.map(({ jobId }) => jobId)).toEqual(['a']);
    });

    test('stop may come early and twice, and leaves claims to their leases', async () => {
      const never = harness.open();
      await never.stop();
      await never.stop();
      await add('a');
      const source = await open();
      const claim = await claimOne(source);
      const waiting = source.claim(8);
      await Promise.all([source.stop(), source.stop()]);
      await source.stop();
      expect(await waiting).toEqual([]);
      expect(await source.claim(1)).toEqual([]);
      expect(await source.settle(claim, { kind: 'complete', value: RETURN })).toBe('lease-lost');
      const next = claimOne(await open());
      await harness.passTime(harness.leaseMs * 2);
      expect((await next).jobId).toBe('a');
    });
  });
}

/** Claims until `count` jobs are there. */
async function claimAll(source: JobSource, count: number): Promise<RawClaim[]> {
  const claims: RawClaim[] = [];
  while (claims.length < count) claims.push(...(await source.claim(count - claims.length)));
  return claims;
}

async function claimOne(source: JobSource): Promise<RawClaim> {
  const [claim] = await source.claim(1);
  invariant(claim !== undefined, 'a started source claims a job');
  return claim;
}
