// Open jobs without a server. Whose memory a delivery lies in: the reader's, until everybody who asked for it has read
// it; and an input: nobody else's while a command may have it. When jobs are sent, and when they are looked up.

import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { ShoalError, encodeResult } from '@shoal/contract';
import { systemClock } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import type { JobEnding } from '@shoal/queue';
import type { JobRequest } from './job-request.ts';
import { OpenJobs, type OpenJobsParts } from './open-jobs.ts';

const FINGERPRINT = '0123456789abcdef';
const requestOf = (jobId: string, input?: Buffer): JobRequest => ({
  jobId,
  fingerprint: FINGERPRINT,
  job: { jobId, data: { v: 1, texts: ['a'] }, input },
});
const requestOfRows = (jobId: string, rows: number): JobRequest => {
  const { job, ...rest } = requestOf(jobId);
  return { ...rest, job: { ...job, parsed: { rows } as NonNullable<typeof job.parsed> } };
};
const request = requestOf('t~one');
const result = (): Buffer =>
  encodeResult(
    { dtype: 'f32', rows: 1, dims: 2, fingerprint: FINGERPRINT, isTruncated: false },
    new Uint8Array(Float32Array.of(0.6, 0.8).buffer),
  );

type Added = Parameters<OpenJobsParts['producer']['add']>[0];

type Producer = { -readonly [Key in keyof OpenJobsParts['producer']]: OpenJobsParts['producer'][Key] };

function setup(): {
  jobs: OpenJobs;
  released: ArrayBufferLike[];
  added: Added[];
  fetched: (readonly string[])[];
  producer: Producer;
} {
  const released: ArrayBufferLike[] = [];
  const added: Added[] = [];
  const fetched: (readonly string[])[] = [];
  const reader: OpenJobsParts['reader'] = {
    onReply: () => undefined,
    onConnection: () => undefined,
    peek: async (jobIds) => {
      fetched.push(jobIds);
      return jobIds.map(result);
    },
    markTaken: async () => undefined,
    damaged: () => undefined,
    asksAnew: () => undefined,
    release: (results) => void released.push(...results.map(({ buffer }) => buffer)),
  };
  const producer: Producer = {
    onConnection: () => undefined,
    add: async (group) => {
      added.push(group);
      return group.map(({ jobId }) => ({ jobId, outcome: 'ready' }) as const);
    },
    endings: async (): Promise<JobEnding[]> => [],
    remove: async () => [],
  };
  const jobs = new OpenJobs({
    producer,
    reader,
    clock: systemClock,
    log: undefined,
    faults: noFaults,
    askAfterMs: 2_000,
    giveUpAfterMs: 60_000,
    whenFull: 'wait',
    onHeldBack: undefined,
  });
  return { jobs, released, added, fetched, producer };
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

test('of many jobs that are asked for in one turn, the first are on their way while the last are made', async () => {
  const { jobs, added } = setup();
  const deliveries = Array.from({ length: 130 }, (_, at) => jobs.ask(requestOf(`t~${at}`)).delivery);
  expect(added.map((group) => group.length)).toEqual([64, 64]);
  await Promise.all(deliveries);
  expect(added.map((group) => group.length)).toEqual([64, 64, 2]);
  expect(added.flat().map(({ jobId }) => jobId)).toEqual(Array.from({ length: 130 }, (_, at) => `t~${at}`));
  await jobs.close();
});

test('small results are read before large ones and do not wait for them; of large ones few come together', async () => {
  const { jobs, fetched } = setup();
  const large = Array.from({ length: 17 }, (_, at) => requestOfRows(`t~large-${at}`, 64));
  const huge = [requestOfRows('t~huge', 4_096)];
  const small = Array.from({ length: 33 }, (_, at) => requestOf(`t~small-${at}`));
  await Promise.all([...large, ...huge, ...small].map((one) => jobs.ask(one).delivery));
  const sizes = fetched.map((jobIds) => [jobIds.length, jobIds[0]!.slice(2, 6)]);
  expect(sizes).toEqual([
    [32, 'smal'],
    [1, 'smal'],
    [8, 'larg'],
    [8, 'larg'],
    [1, 'larg'],
    [1, 'huge'],
  ]);
  await jobs.close();
});

test(
  'jobs that nobody speaks of are looked up together, after the time that was asked for and an eighth of it at ' +
    'most',
  async () => {
    const { jobs, producer } = setup();
    const looks: { readonly jobIds: readonly string[]; readonly atMs: number }[] = [];
    producer.add = async (group) => group.map(({ jobId }) => ({ jobId, outcome: 'added' }) as const);
    producer.endings = async (jobIds) => {
      looks.push({ jobIds, atMs: performance.now() });
      return jobIds.map((jobId) => ({ jobId, state: 'completed', failedReason: undefined }) as const);
    };
    // As far from the next time as can be: two jobs that are added 20 ms apart have it in common.
    await sleep(251 - (performance.now() % 250));
    const startedMs = performance.now();
    const deliveries = [jobs.ask(requestOf('t~0')).delivery];
    await sleep(20);
    deliveries.push(jobs.ask(requestOf('t~1')).delivery);
    await Promise.all(deliveries);
    expect(looks.map(({ jobIds }) => jobIds)).toEqual([['t~0', 't~1']]);
    expect(looks[0]!.atMs - startedMs).toBeGreaterThanOrEqual(2_000);
    expect(looks[0]!.atMs - startedMs).toBeLessThan(2_500);
    await jobs.close();
  },
);

const refused: Awaited<ReturnType<Producer['add']>>[number] = {
  jobId: '',
  outcome: 'refused',
  error: new ShoalError('ADMISSION_REFUSED', 'full', { retryAfterMs: 50, reason: 'rows' }),
};
const turn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

test('whoever was refused room asks for it again in the order in which jobs were asked for', async () => {
  const { jobs, producer, added } = setup();
  const add = producer.add;
  const firstIsRefused = Promise.withResolvers<void>();
  let calls = 0;
  producer.add = async (group, options) => {
    if (++calls > 2) return add(group, options);
    if (calls === 1) await firstIsRefused.promise;
    // both at the same time, or the second would have asked again before the first was refused
    else firstIsRefused.resolve();
    return group.map(() => refused);
  };
  const deliveries = Array.from({ length: 20 }, (_, at) => jobs.ask(requestOf(`t~${at}`)).delivery);
  await expect.poll(() => calls).toBe(1);
  deliveries.push(jobs.ask(requestOf('t~20')).delivery);
  await Promise.all(deliveries);
  expect(added.flat().map(({ jobId }) => jobId)).toEqual(Array.from({ length: 21 }, (_, at) => `t~${at}`));
  await jobs.close();
});

test('while a call may be refused no later job asks, which could take the room of the earlier one', async () => {
  const { jobs, producer } = setup();
  // room for one job, which is free again when its result was read; they are read in order
  const room = Promise.withResolvers<void>();
  const inside = new Set<string>();
  const asked: string[][] = [];
  producer.hadToAsk = true;
  producer.add = async (group) => {
    asked.push(group.map(({ jobId }) => jobId));
    const answers = group.map((job, at) => {
      if (inside.size > 0 || at > 0) return refused;
      inside.add(job.jobId);
      return { jobId: job.jobId, outcome: 'ready' } as const;
    });
    if (asked.length === 2) await room.promise; // the refusal is on its way
    return answers;
  };
  const first = jobs.ask(requestOf('t~0')).delivery;
  await first;
  const second = jobs.ask(requestOf('t~1')).delivery;
  await expect.poll(() => asked).toEqual([['t~0'], ['t~1']]);
  inside.delete('t~0'); // the first was read: whoever asks now gets in
  const third = jobs.ask(requestOf('t~2')).delivery;
  await turn();
  await turn();
  expect(asked).toHaveLength(2);
  room.resolve();
  await second;
  expect(inside).toEqual(new Set(['t~1']));
  inside.delete('t~1');
  await third;
  expect(asked.at(-1)).toEqual(['t~2']);
  await jobs.close();
});

test('a call that cannot be refused holds nobody back', async () => {
  const { jobs, producer } = setup();
  const calls: PromiseWithResolvers<void>[] = [];
  producer.hadToAsk = false;
  producer.add = async (group) => {
    calls.push(Promise.withResolvers());
    await calls.at(-1)!.promise;
    return group.map(({ jobId }) => ({ jobId, outcome: 'ready' }) as const);
  };
  const deliveries = [jobs.ask(requestOf('t~0')).delivery];
  await turn();
  deliveries.push(jobs.ask(requestOf('t~1')).delivery);
  await turn();
  expect(calls).toHaveLength(2);
  for (const { resolve } of calls) resolve();
  await Promise.all(deliveries);
  await jobs.close();
});

test('a job that pauses after a fault of the server is not passed by a later one', async () => {
  const { jobs, producer } = setup();
  const asked: string[][] = [];
  producer.add = async (group) => {
    asked.push(group.map(({ jobId }) => jobId));
    if (asked.length === 1) throw new ShoalError('QUEUE_FULL', 'full');
    return group.map(({ jobId }) => ({ jobId, outcome: 'ready' }) as const);
  };
  const deliveries = [jobs.ask(requestOf('t~0')).delivery];
  await turn();
  await turn();
  deliveries.push(jobs.ask(requestOf('t~1')).delivery);
  await Promise.all(deliveries);
  expect(asked).toEqual([['t~0'], ['t~0', 't~1']]);
  await jobs.close();
});
