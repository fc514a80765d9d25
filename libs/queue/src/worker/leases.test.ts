import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { Leases } from './leases.ts';

let log: RecordingLogger;
let lost: string[];

beforeEach(() => {
  vi.useFakeTimers();
  log = new RecordingLogger();
  lost = [];
});

afterEach(() => {
  vi.useRealTimers();
});

type Extend = (jobIds: string[], tokens: string[], leaseMs: number) => Promise<string[]>;

function make(extend: Extend): Leases {
  const leases = new Leases({ leaseMs: 3_000, extend, onLost: (jobId) => lost.push(jobId), log });
  leases.start();
  return leases;
}

test('every lease is renewed at a third of its length, in calls of at most 500', async () => {
  const extend = vi.fn<Extend>(async () => []);
  const leases = make(extend);
  for (let index = 0; index < 1_100; index++) leases.hold(`job-${index}`, `token-${index}`);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(extend.mock.calls.map(([jobIds]) => jobIds.length)).toEqual([500, 500, 100]);
  expect(extend.mock.calls[2]?.[0][99]).toBe('job-1099');
  expect(extend.mock.calls[2]?.[1][99]).toBe('token-1099');
  expect(extend.mock.calls[0]?.[2]).toBe(3_000);
  leases.stop();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(extend).toHaveBeenCalledTimes(3);
});

test('a renewal that waits for its answer is not overtaken, and a fault is not a loss', async () => {
  const answers: PromiseWithResolvers<string[]>[] = [];
  const extend = vi.fn<Extend>(() => {
    answers.push(Promise.withResolvers<string[]>());
    return answers.at(-1)!.promise;
  });
  const leases = make(extend);
  leases.hold('a', '1');
  await vi.advanceTimersByTimeAsync(5_000);
  expect(extend).toHaveBeenCalledTimes(1);
  answers[0]!.reject(new Error('OOM'));
  await vi.advanceTimersByTimeAsync(1_000);
  expect(extend).toHaveBeenCalledTimes(2);
  expect(lost).toEqual([]);
  expect(log.messages('warn')).toEqual(['leases could not be renewed, trying again']);
  leases.stop();
});

test('an answer about an older claim of a job does not concern the newer one', async () => {
  const answer = Promise.withResolvers<string[]>();
  const leases = make(() => answer.promise);
  leases.hold('a', 'old');
  await vi.advanceTimersByTimeAsync(1_000);
  leases.hold('a', 'new');
  expect(lost).toEqual(['a']); // only a lease that ran out lets us claim the job again
  answer.resolve(['a']);
  await vi.advanceTimersByTimeAsync(0);
  expect(lost).toEqual(['a']);
  expect(leases.beginSettling('a', 'old')).toBe(false);
  expect(leases.beginSettling('a', 'new')).toBe(true);
  leases.stop();
});

test('a claim whose ending is on the way is renewed but never reported lost; it can be ended once', async () => {
  const extend = vi.fn<Extend>(async (jobIds) => jobIds);
  const leases = make(extend);
  leases.hold('a', '1');
  expect(leases.beginSettling('a', '1')).toBe(true);
  expect(leases.beginSettling('a', '1')).toBe(false);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(extend).toHaveBeenCalledTimes(1);
  expect(lost).toEqual([]);
  leases.release('a', '1');
  await vi.advanceTimersByTimeAsync(1_000);
  expect(extend).toHaveBeenCalledTimes(1);
  leases.stop();
});
