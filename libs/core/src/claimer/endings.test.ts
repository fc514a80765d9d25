// What a claim ends with, by table: what the queue said of it, what is in it, what the executor made of it.

import { describe, expect, test } from 'vitest';
import { ShoalError, type EmbedReturn, type Failure, type HandOver } from '@shoal/contract';
import type { Announcement, RawClaim, SettleResult, Settlement } from '../ports/queue.ts';
import type { JobOutcome } from '../protocol.ts';
import { endingOf, failed, judge, quarantined, toSettledJob, type Ending } from './endings.ts';
import { readEmbedJob, type QueuedJob, type ReadJob } from './queued-job.ts';

const NOW_MS = 1_800_000_000_000;
const VALUE: EmbedReturn = {
  v: 1,
  key: 'out:job',
  model: 'minilm@main',
  rows: 3,
  dims: 8,
  dtype: 'f32',
  device: 'fake',
  precision: 'fp32',
  tokens: 9,
  truncated: 0,
  splits: 0,
  ms: { queued: 0, run: 1 },
};
const FAILURE: Failure = { code: 'OUT_OF_VRAM', message: 'not here either' };
const REPLY = '{shoal}:reply:me';

function claimOf(more: Partial<RawClaim> = {}, data: object = {}): RawClaim {
  return {
    jobId: 'job',
    token: 'token',
    name: 'embed',
    data: { v: 1, input: { form: 'texts', rows: 3 }, reply: REPLY, resultTtlMs: 7_000, ...data },
    attempt: 0,
    queuedMs: 0,
    mustFail: undefined,
    ...more,
  };
}

function announced(outcome: 'completed' | 'failed', more: Partial<Announcement> = {}): Announcement {
  return { jobId: 'job', outcome, reply: REPLY, resultTtlMs: 7_000, isUrgent: true, wasRepeated: false, ...more };
}

/** What is told of a job that could not be read. */
const UNREAD = announced('failed', { reply: undefined, resultTtlMs: 0, isUrgent: false });

const throwing =
  (error: unknown): ReadJob =>
  () => {
    throw error;
  };
const ofUnknownVersion = throwing(new ShoalError('JOB_VERSION_UNKNOWN', 'version 9', { version: 9 }));

test('fields of its producer come back with the result, of a repeated job too', () => {
  const claim = claimOf({}, { v: 2, meta: { userId: 5 } });
  const job = readEmbedJob(claim);
  for (const kind of ['committed', 'already'] as const)
    expect(endingOf({ claim, job }, { kind, jobId: 'job', token: 'token', value: VALUE }).settlement).toEqual({
      kind: 'complete',
      value: { ...VALUE, meta: { userId: 5 } },
    });
});

describe('a job that was just claimed', () => {
  test.each<[string, RawClaim, ReadJob?]>([
    ['without a deadline', claimOf()],
    ['whose deadline is to come', claimOf({}, { deadline: NOW_MS + 1 })],
    ['that stalled seven times', claimOf({ stalls: 7 })],
    ['of the CPU lane', claimOf({ lane: 'cpu' })],
  ])('runs: one %s', (_, claim) => {
    expect(judge(claim, readEmbedJob, NOW_MS)).toMatchObject({ kind: 'run', job: { jobId: 'job', rows: 3 } });
  });

  test.each<[string, RawClaim, ReadJob, Settlement, Announcement | undefined]>([
    [
      'that stalled eight times is quarantined unread',
      claimOf({ stalls: 8, mustFail: 'never looked at' }),
      readEmbedJob,
      { kind: 'quarantine', failure: expect.objectContaining({ code: 'QUARANTINED' }) },
      UNREAD,
    ],
    [
      'that the queue has given up fails unread',
      claimOf({ mustFail: 'stalled too often' }),
      readEmbedJob,
      { kind: 'fail', failure: { code: 'JOB_INVALID', message: 'stalled too often' } },
      UNREAD,
    ],
    [
      'that cannot be read fails with the code of the reader',
      claimOf({ name: 'nonsense' }),
      readEmbedJob,
      { kind: 'fail', failure: expect.objectContaining({ code: 'JOB_INVALID' }) },
      UNREAD,
    ],
    [
      'whose deadline is now fails',
      claimOf({}, { deadline: NOW_MS }),
      readEmbedJob,
      {
        kind: 'fail',
        failure: {
          code: 'DEADLINE_PASSED',
          message: 'the deadline 2027-01-15T08:00:00.000Z passed before the job ran',
        },
      },
      announced('failed'),
    ],
    [
      'of a version that is not known yet is parked, however long it has waited, and nobody is told',
      claimOf({ queuedMs: 660_000 }),
      ofUnknownVersion,
      { kind: 'park', version: 9, reason: 'version 9' },
      undefined,
    ],
    [
      'whose child has completed completes, even after its deadline',
      claimOf({ ending: { kind: 'complete', value: VALUE } }, { deadline: NOW_MS - 1 }),
      readEmbedJob,
      { kind: 'complete', value: VALUE },
      announced('completed'),
    ],
    [
      'whose child has failed fails the same way',
      claimOf({ ending: { kind: 'fail', failure: FAILURE } }),
      readEmbedJob,
      { kind: 'fail', failure: FAILURE },
      announced('failed'),
    ],
    [
      'of the CPU lane is not announced',
      claimOf({ lane: 'cpu' }, { deadline: NOW_MS - 1 }),
      readEmbedJob,
      { kind: 'fail', failure: expect.objectContaining({ code: 'DEADLINE_PASSED' }) },
      undefined,
    ],
  ])('one %s', (_, claim, readJob, settlement, announcement) => {
    expect(judge(claim, readJob, NOW_MS)).toEqual({ kind: 'end', ending: { settlement, announcement } });
  });

  test('an error of the reader that is no verdict goes on', () => {
    expect(() => judge(claimOf(), throwing(new TypeError('a bug')), NOW_MS)).toThrow('a bug');
  });
});

describe('a job that the executor has done with', () => {
  const claim = claimOf();
  const job = readEmbedJob(claim);
  const about = { jobId: 'job', token: 'token' };
  const handOver: HandOver = { reason: FAILURE, peakBytes: 1 };

  test.each<[JobOutcome, Settlement, Announcement | undefined]>([
    [{ kind: 'committed', ...about, value: VALUE }, { kind: 'complete', value: VALUE }, announced('completed')],
    [
      { kind: 'already', ...about, value: VALUE },
      { kind: 'complete', value: VALUE },
      announced('completed', { wasRepeated: true }),
    ],
    [{ kind: 'failed', ...about, failure: FAILURE }, { kind: 'fail', failure: FAILURE }, announced('failed')],
    [{ kind: 'hand-over', ...about, handOver }, { kind: 'hand-over', handOver }, undefined],
    [{ kind: 'lease-lost', ...about }, { kind: 'abandon' }, undefined],
    [{ kind: 'unstarted', ...about }, { kind: 'return', delayMs: 0, reason: 'worker stopped' }, undefined],
  ])('$kind', (outcome, settlement, announcement) => {
    expect(endingOf({ claim, job }, outcome)).toEqual({ settlement, announcement });
    const ofChild = endingOf({ claim: claimOf({ lane: 'cpu' }), job }, outcome);
    expect(ofChild).toEqual({ settlement, announcement: undefined });
  });

  test('bulk work is announced with the rest', () => {
    const bulk: QueuedJob = { ...job, class: 'bulk' };
    const endings: Ending[] = [
      failed(claim, FAILURE, bulk),
      quarantined(claim, 'it kills executors', bulk),
      endingOf({ claim, job: bulk }, { kind: 'committed', ...about, value: VALUE }),
    ];
    expect(endings.map(({ announcement }) => announcement?.isUrgent)).toEqual([false, false, false]);
  });
});

describe('what is counted', () => {
  test.each<[Settlement, SettleResult, object]>([
    [{ kind: 'complete', value: VALUE }, 'settled', { outcome: 'complete', code: undefined, rows: 3 }],
    [{ kind: 'complete', value: VALUE }, 'announced', { outcome: 'complete', code: undefined, rows: 3 }],
    [
      { kind: 'complete', value: { ...VALUE, handedOver: { reason: 'OUT_OF_VRAM' } } },
      'settled',
      { outcome: 'complete', code: undefined, rows: 0 },
    ],
    [{ kind: 'complete', value: VALUE }, 'lease-lost', { outcome: 'abandon', code: 'LEASE_LOST', rows: 0 }],
    [{ kind: 'fail', failure: FAILURE }, 'settled', { outcome: 'fail', code: 'OUT_OF_VRAM', rows: 0 }],
    [
      { kind: 'quarantine', failure: { code: 'QUARANTINED', message: 'x' } },
      'settled',
      { outcome: 'quarantine', code: 'QUARANTINED', rows: 0 },
    ],
    [{ kind: 'abandon' }, 'settled', { outcome: 'abandon', code: undefined, rows: 0 }],
    [
      { kind: 'return', delayMs: 0, reason: 'worker stopped' },
      'settled',
      { outcome: 'return', code: undefined, rows: 0 },
    ],
  ])('of a settlement %o that was %s', (settlement, result, counted) => {
    expect(toSettledJob(settlement, result)).toEqual(counted);
  });
});
