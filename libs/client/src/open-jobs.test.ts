// Whose memory a delivery lies in: the reader's, until everybody who asked for it has read it.

import { expect, test } from 'vitest';
import { ShoalError, encodeResult, noFaults, systemClock } from '@shoal/core';
import type { JobState } from '@shoal/queue';
import { OpenJobs, type JobRequest, type OpenJobsParts } from './open-jobs.ts';

const FINGERPRINT = '0123456789abcdef';
const request: JobRequest = { jobId: 't~one', fingerprint: FINGERPRINT, job: { jobId: 't~one', data: { v: 1, texts: ['a'] } } };
const result = (): Buffer => encodeResult({ dtype: 'f32', rows: 1, dims: 2, fingerprint: FINGERPRINT, isTruncated: false }, new Uint8Array(Float32Array.of(0.6, 0.8).buffer));

function setup(): { jobs: OpenJobs; released: ArrayBufferLike[] } {
  const released: ArrayBufferLike[] = [];
  const reader: OpenJobsParts['reader'] = {
    onReply: () => undefined,
    onConnection: () => undefined,
    peek: async (jobIds) => jobIds.map(result),
    markTaken: async () => undefined,
    release: (results) => void released.push(...results.map(({ buffer }) => buffer)),
  };
  const producer: OpenJobsParts['producer'] = {
    onConnection: () => undefined,
    add: async (added) => added.map(({ jobId }) => ({ jobId, outcome: 'ready' }) as const),
    states: async (): Promise<JobState[]> => [],
    remove: async () => [],
  };
  const jobs = new OpenJobs({ producer, reader, clock: systemClock, log: undefined, faults: noFaults, askAfterMs: 2_000, giveUpAfterMs: 60_000, whenFull: 'wait', onHeldBack: undefined });
  return { jobs, released };
}

test('a delivery that two asked for goes back when both have read it, and once', async () => {
  const { jobs, released } = setup();
  const asked = [jobs.ask(request), jobs.ask(request)];
  const [first, second] = await Promise.all(asked.map(({ delivery }) => delivery));
  expect(second).toBe(first);
  jobs.letGo(first!);
  expect(released).toEqual([]);
  jobs.letGo(second!);
  expect(released).toEqual([first!.body.buffer]);
  jobs.letGo(first!);
  expect(released).toHaveLength(1);
  await jobs.close();
});

test('one that somebody never read is left to the collector', async () => {
  const { jobs, released } = setup();
  const asked = [jobs.ask(request), jobs.ask(request)];
  const [delivery] = await Promise.all(asked.map((one) => one.delivery));
  await jobs.abandon([asked[1]!], new ShoalError('INTERRUPTED', 'the run was stopped'));
  jobs.letGo(delivery!);
  expect(released).toEqual([]);
  await jobs.close();
});
