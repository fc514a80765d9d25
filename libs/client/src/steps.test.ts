// Which step comes after which, by table: what the queue said to an add or a lookup, what a reply says, what was read,
// and what a fault of the server does. And which jobs are due then.

import { describe, expect, test } from 'vitest';
import { RESULT_FLAG, ShoalError, encodePointer, encodeResult, type ErrorCode } from '@shoal/contract';
import type { AddResult, JobEnding, Peeked } from '@shoal/queue';
import type { JobRequest } from './job-request.ts';
import { StepLists } from './step-lists.ts';
import {
  FIRST_STEP,
  afterAdd,
  afterFault,
  afterFetch,
  afterLookUp,
  afterReply,
  askedTooOften,
  countOf,
  newJob,
  type Move,
  type MoveTerms,
  type OpenJob,
  type Step,
} from './steps.ts';

const FINGERPRINT = '0123456789abcdef';
const TERMS: MoveTerms = { nowMs: 10_000, askAfterMs: 2_000, giveUpAfterMs: 60_000, whenFull: 'wait' };
const REQUEST: JobRequest = {
  jobId: 't~one',
  fingerprint: FINGERPRINT,
  job: { jobId: 't~one', data: { v: 1, texts: ['a'] } },
};

function jobWith(state: Partial<OpenJob> = {}): OpenJob {
  return { ...newJob(0, REQUEST), ...state };
}

const stepTo = (step: Step): Move => ({ kind: 'step', step });
const fetching = stepTo({ name: 'to-fetch' });
const addedAgain = (how: 'always' | 'never'): Move => stepTo({ name: 'to-add', again: how, notBeforeMs: 10_250 });
const askingAgain = (code: ErrorCode): Move => ({
  kind: 'ask-again',
  code,
  again: code === 'RESULT_CORRUPT' || code === 'PAYLOAD_LOST' ? 'always' : 'when-used-up',
});
const rejected = (code: string): Move => ({ kind: 'reject', error: expect.objectContaining({ code }) });

describe('a job that was sent to be added', () => {
  const jobId = REQUEST.jobId;
  const full = new ShoalError('ADMISSION_REFUSED', 'full', { retryAfterMs: 50, reason: 'rows' });
  const other = new ShoalError('JOB_ID_CONFLICT', 'another request', { jobId, found: '', asked: '' });

  test.each<[string, AddResult, Partial<OpenJob>, Move]>([
    [
      'that was added waits as long as was asked for, rounded up to an eighth of it',
      { jobId, outcome: 'added' },
      {},
      stepTo({ name: 'waiting', askAtMs: 12_000, patienceMs: 2_000 }),
    ],
    [
      'of ours that was there already waits as long',
      { jobId, outcome: 'known' },
      { isOurs: true },
      stepTo({ name: 'waiting', askAtMs: 12_000, patienceMs: 2_000 }),
    ],
    [
      'that somebody else had added is looked up soon: no reply will come',
      { jobId, outcome: 'known' },
      {},
      stepTo({ name: 'waiting', askAtMs: 10_250, patienceMs: 250 }),
    ],
    ['that ended before it was told is fetched', { jobId, outcome: 'added' }, { announced: 'completed' }, fetching],
    [
      'that failed meanwhile is looked up at once, for the reason',
      { jobId, outcome: 'added' },
      { announced: 'failed' },
      stepTo({ name: 'waiting', askAtMs: 0, patienceMs: 2_000 }),
    ],
    ['whose result is there is fetched', { jobId, outcome: 'ready' }, {}, fetching],
    [
      'that completed and left nothing is computed again',
      { jobId, outcome: 'finished', failedReason: undefined },
      {},
      askingAgain('RESULT_EXPIRED'),
    ],
    [
      'that failed is rejected with its code',
      { jobId, outcome: 'finished', failedReason: 'OUT_OF_VRAM: too long' },
      {},
      rejected('OUT_OF_VRAM'),
    ],
    [
      'that failed for want of its input is sent again',
      { jobId, outcome: 'finished', failedReason: 'INPUT_LOST: gone' },
      {},
      askingAgain('INPUT_LOST'),
    ],
    ['whose id is taken is rejected', { jobId, outcome: 'conflict', error: other }, {}, rejected('JOB_ID_CONFLICT')],
    [
      'for which there is no room goes back to be added',
      { jobId, outcome: 'refused', error: full },
      {},
      stepTo(FIRST_STEP),
    ],
  ])('one %s', (_, result, state, move) => {
    expect(afterAdd(jobWith(state), result, TERMS)).toEqual(move);
  });

  test('one for which there is no room is rejected when nobody wants to wait', () => {
    const move = afterAdd(jobWith(), { jobId, outcome: 'refused', error: full }, { ...TERMS, whenFull: 'fail' });
    expect(move).toEqual(rejected('ADMISSION_REFUSED'));
  });

  test('times at which jobs are looked up lie an eighth of their patience apart', () => {
    const times = [10_000, 10_001, 10_249, 10_250, 10_251].map((nowMs) =>
      afterAdd(jobWith(), { jobId, outcome: 'added' }, { ...TERMS, nowMs }),
    );
    expect(times.map((move) => move.kind === 'step' && move.step.name === 'waiting' && move.step.askAtMs)).toEqual([
      12_000, 12_250, 12_250, 12_250, 12_500,
    ]);
  });

  test.each<[AddResult['outcome'], Partial<OpenJob>, string | undefined]>([
    ['added', {}, 'added'],
    ['added', { isLost: true, isOurs: true }, 'addedAgain'],
    ['known', {}, 'known'],
    ['known', { isOurs: true }, undefined],
    ['ready', {}, 'ready'],
    ['finished', {}, undefined],
    ['refused', {}, undefined],
    ['conflict', {}, undefined],
  ])('%s, %o: counted as %s', (outcome, state, counted) => {
    expect(countOf(jobWith(state), { outcome } as AddResult)).toBe(counted);
  });
});

describe('a job that was looked up', () => {
  test.each<[string, number, Pick<JobEnding, 'state' | 'failedReason'>, Partial<OpenJob>, Move]>([
    [
      'is looked up half as often while it goes on',
      250,
      { state: 'open', failedReason: undefined },
      {},
      stepTo({ name: 'waiting', askAtMs: 10_500, patienceMs: 500 }),
    ],
    [
      'but not more seldom than was asked for',
      1_500,
      { state: 'open', failedReason: undefined },
      {},
      stepTo({ name: 'waiting', askAtMs: 12_000, patienceMs: 2_000 }),
    ],
    [
      'is fetched when its reply came meanwhile',
      250,
      { state: 'open', failedReason: undefined },
      { announced: 'completed' },
      fetching,
    ],
    ['is fetched when it completed', 250, { state: 'completed', failedReason: undefined }, {}, fetching],
    ['is rejected when it failed', 250, { state: 'failed', failedReason: 'CANCELLED: x' }, {}, rejected('CANCELLED')],
    [
      'is sent again when its input was lost',
      250,
      { state: 'failed', failedReason: 'INPUT_LOST: gone' },
      {},
      askingAgain('INPUT_LOST'),
    ],
    ['is added again when nobody knows it', 250, { state: 'unknown', failedReason: undefined }, {}, stepTo(FIRST_STEP)],
  ])('%s', (_, patienceMs, ending, state, move) => {
    expect(afterLookUp(jobWith(state), patienceMs, ending, TERMS)).toEqual(move);
  });
});

test('a waiting job that is announced is fetched, or looked up at once when it failed', () => {
  const waiting = { name: 'waiting', askAtMs: 12_000, patienceMs: 2_000 } as const;
  expect(afterReply(waiting, 'completed')).toEqual({ name: 'to-fetch' });
  expect(afterReply(waiting, 'failed')).toEqual({ name: 'waiting', askAtMs: 0, patienceMs: 2_000 });
});

const result = (fingerprint = FINGERPRINT): Buffer =>
  encodeResult(
    { dtype: 'f32', rows: 1, dims: 2, fingerprint, isTruncated: false },
    new Uint8Array(Float32Array.of(0.6, 0.8).buffer),
  );

describe('a job whose result was read', () => {
  const damaged = result();
  damaged[damaged.length - 1]! ^= 1;
  const pointer = encodePointer(result(), { store: '10.0.0.5:6379', key: 'k' });
  const lost = new ShoalError('PAYLOAD_LOST', 'nothing there', { store: '10.0.0.5:6379', key: 'k' });
  const unknown = new ShoalError('PAYLOAD_ELSEWHERE', 'not one of ours', { store: '10.0.0.5:6379' });

  test.each<[string, Peeked, Move]>([
    [
      'is delivered',
      result(),
      { kind: 'deliver', result: { header: expect.objectContaining({ rows: 1 }), body: expect.any(Buffer) } },
    ],
    ['is computed again when there is none', undefined, askingAgain('RESULT_EXPIRED')],
    ['is computed again when somebody took it', taken(result()), askingAgain('RESULT_TAKEN')],
    ['is computed again, whatever is there, when it is damaged', damaged, askingAgain('RESULT_CORRUPT')],
    ['is computed again when it is no result', Buffer.from('nonsense'), askingAgain('RESULT_CORRUPT')],
    ['is asked for again where only another reader looks', pointer, askingAgain('PAYLOAD_ELSEWHERE')],
    ['is computed again, whatever is there, when a payload server lost it', lost, askingAgain('PAYLOAD_LOST')],
    ['is asked for again when its payload server is not one of ours', unknown, askingAgain('PAYLOAD_ELSEWHERE')],
    ['is rejected when the result is of another request', result('fedcba9876543210'), rejected('JOB_ID_CONFLICT')],
  ])('%s', (_, bytes, move) => {
    expect(afterFetch(jobWith(), bytes)).toEqual(move);
  });

  test('is rejected when that has happened three times before', () => {
    expect(askedTooOften(jobWith({ askedAgain: 2 }), 'RESULT_TAKEN')).toBeUndefined();
    const error = askedTooOften(jobWith({ askedAgain: 3 }), 'RESULT_TAKEN');
    expect(error).toMatchObject({ code: 'RESULT_TAKEN', message: expect.stringContaining('ended 4 times') });
  });
});

describe('a fault of the server', () => {
  const full = new ShoalError('QUEUE_FULL', 'for a moment');
  const fullDisk = new ShoalError('QUEUE_REFUSES_WRITES', 'disk', { reply: 'MISCONF Errors writing to the AOF file' });
  const damaged = new ShoalError('QUEUE_DAMAGED', 'WRONGTYPE');
  const readOnly = new ShoalError('QUEUE_REFUSES_WRITES', 'replica', { reply: 'READONLY a replica' });

  test.each<[string, Step, unknown, number, Move]>([
    [
      'while a job is added: again, the same way',
      { name: 'adding', again: 'always' },
      full,
      10_000,
      addedAgain('always'),
    ],
    [
      'while it is looked up: added, if it is gone',
      { name: 'asking', patienceMs: 1 },
      full,
      10_000,
      addedAgain('never'),
    ],
    ['while it is fetched: the same', { name: 'fetching' }, full, 10_000, addedAgain('never')],
    [
      'that nobody answered: the same',
      { name: 'fetching' },
      new ShoalError('QUEUE_UNREACHABLE', 'away'),
      10_000,
      addedAgain('never'),
    ],
    ['that has lasted as long as is waited for: once more', { name: 'fetching' }, full, -50_000, addedAgain('never')],
    ['that has lasted longer: rejected', { name: 'fetching' }, full, -50_001, rejected('QUEUE_FULL')],
    [
      'that does not pass: rejected',
      { name: 'fetching' },
      new ShoalError('QUEUE_UNSAFE', 'evicts'),
      10_000,
      rejected('QUEUE_UNSAFE'),
    ],
    ['of a full disk, for ten seconds: once more', { name: 'fetching' }, fullDisk, 0, addedAgain('never')],
    ['of a full disk, for longer: rejected', { name: 'fetching' }, fullDisk, -1, rejected('QUEUE_REFUSES_WRITES')],
    [
      'of a damaged queue, which a worker puts right: once more',
      { name: 'adding', again: 'always' },
      damaged,
      0,
      addedAgain('always'),
    ],
    ['of a queue that nobody puts right: rejected', { name: 'fetching' }, damaged, -1, rejected('QUEUE_DAMAGED')],
    ['of a server that was replaced: once more', { name: 'fetching' }, readOnly, -1, addedAgain('never')],
    ['that has no code: rejected', { name: 'fetching' }, new Error('ERR'), 10_000, rejected('QUEUE_UNREACHABLE')],
  ])('%s', (_, step, error, sinceMs, move) => {
    expect(afterFault(jobWith({ step }), error, sinceMs, TERMS)).toEqual(move);
  });
});

const toAdd = (again: 'when-used-up' | 'always' | 'never', notBeforeMs = 0): Step => ({
  name: 'to-add',
  again,
  notBeforeMs,
});
const numbers = (jobs: readonly OpenJob[]): number[] => jobs.map(({ number }) => number);

describe('which jobs are due', () => {
  test('first adds in the order in which they were asked for, the others by kind, and the time of the next', () => {
    const lists = new StepLists();
    const inOrder: [Step, boolean][] = [
      [toAdd('when-used-up'), false],
      [toAdd('when-used-up'), true],
      [toAdd('always'), false],
      [toAdd('never'), true],
      [toAdd('never', 700), true],
      [toAdd('when-used-up', 600), false],
    ];
    const jobs = inOrder.map(([step, wasLetIn], number) => ({ ...newJob(number, REQUEST), step, wasLetIn }));
    for (const job of jobs.toReversed()) lists.move(job, job.step);
    lists.move({ ...newJob(6, REQUEST) }, FIRST_STEP);
    const due = lists.dueToAdd(500);
    expect(numbers(due.toEnter)).toEqual([0]); // 6 was asked for after 5, which pauses
    expect(numbers(lists.dueToAdd(600).toEnter)).toEqual([0, 5, 6]);
    expect([due.toAdd['when-used-up'], due.toAdd.always, due.toAdd.never].map(numbers)).toEqual([[1], [2], [3]]);
    expect(due.nextMs).toBe(600);
    const held = lists.dueToAdd(500, 550);
    expect(numbers(held.toEnter)).toEqual([]);
    expect([held.toAdd['when-used-up'], held.toAdd.always, held.toAdd.never].map(numbers)).toEqual([[1], [], [3]]);
    expect(held.nextMs).toBe(550);
  });

  test('a waiting job once its time has come, and none that went on', () => {
    const lists = new StepLists();
    const [soon, later, gone] = [0, 1, 2].map((number) => newJob(number, REQUEST));
    lists.move(soon!, { name: 'waiting', askAtMs: 100, patienceMs: 1 });
    lists.move(later!, { name: 'waiting', askAtMs: 200, patienceMs: 1 });
    lists.move(gone!, { name: 'waiting', askAtMs: 50, patienceMs: 1 });
    lists.move(gone!, { name: 'gone' });
    expect(numbers(lists.dueToAsk(99))).toEqual([]);
    expect(numbers(lists.dueToAsk(100))).toEqual([0]);
    lists.move(soon!, { name: 'asking', patienceMs: 1 });
    expect(numbers(lists.dueToAsk(250))).toEqual([1]);
    lists.move(later!, { name: 'to-fetch' });
    expect(numbers(lists.dueToFetch())).toEqual([1]);
    expect(lists.dueToAsk(1_000)).toEqual([]);
    expect(lists.nextLookMs).toBe(Infinity);
  });

  test('a reply counts for the step in which it came, and not for a later one', () => {
    const lists = new StepLists();
    const job = newJob(0, REQUEST);
    lists.move(job, { name: 'adding', again: 'never' });
    job.announced = 'completed';
    lists.move(job, FIRST_STEP);
    expect(job.announced).toBeUndefined();
  });
});

function taken(bytes: Buffer): Buffer {
  bytes.writeUInt16LE(RESULT_FLAG.taken, 6);
  return bytes;
}
