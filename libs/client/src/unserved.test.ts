// Jobs of version 2 towards fleets of one version and of several: a real queue server, and workers that only tell of
// themselves, as those of 0.1.0 did and as those of now do. Nothing is added that a worker there could not read.

import type { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { mainQueue } from '@shoal/contract';
import type { WorkerFacts } from '@shoal/core';
import { TestPlace, WORKER_FACTS, startTestServer } from '@shoal/queue/testing';
import type { EmbedOptions } from './embedding.ts';
import { ShoalClient } from './shoal-client.ts';

const QUEUE = mainQueue('x');
/** A second, which is vi.waitFor's own, is over where others work as well. */
const PATIENTLY = { timeout: 20_000 };
const OLD = WORKER_FACTS;
const NEW: WorkerFacts = {
  ...OLD,
  version: '0.2.0',
  jobVersion: 2,
  prompts: ['query', 'clustering', 'none'],
  isNormalized: true,
};

let place: TestPlace;
let client: ShoalClient;
let queue: Queue;
let calls = 0;

beforeAll(async () => {
  place = new TestPlace(await startTestServer(), 'unserved');
});
beforeEach(async () => {
  client = place.keep(await ShoalClient.connect({ ...place.address, model: { name: 'x', revision: '1' } }));
  queue = place.queue(QUEUE);
});
afterEach(() => place.clear());
afterAll(() => place.stop());

async function show(workerId: string, facts: WorkerFacts | undefined, lane = QUEUE): Promise<void> {
  await place.show(QUEUE, workerId, { lanes: [lane], facts: facts && (() => facts) });
}

const jobsAdded = (): Promise<number> => queue.getJobCountByTypes('wait', 'prioritized', 'active', 'delayed');

const firstJob = async () =>
  (await queue.getJobs(['prioritized', 'waiting']))[0] ?? Promise.reject(new Error('not yet'));

/** What lies on the queue of a call that nobody answers. */
async function dataOf(options: EmbedOptions): Promise<unknown> {
  const jobId = `call-${++calls}`;
  const asked = client.embed(['one'], { ...options, jobId }).catch((error: unknown) => error);
  const job = await vi.waitFor(
    async () => (await queue.getJob(`default~${jobId}`)) ?? Promise.reject(new Error('not yet')),
    PATIENTLY,
  );
  await client.cancel([jobId]);
  await asked;
  return job.data;
}

describe('a fleet with an older worker', () => {
  test('is told by worker and version before anything is added, in a stream as well', async () => {
    await show('gpu-new', NEW);
    await show('gpu-old', OLD);
    await show('gpu-next', { ...OLD, version: '0.1.5' });
    const refusal = {
      code: 'JOB_VERSION_UNKNOWN',
      message: expect.stringMatching(
        /^the prompt "clustering" needs workers that read jobs of version 2, and embed-x is served by .*"gpu-old" of Shoal 0\.1\.0 or older/,
      ) as unknown,
    };
    await expect(client.embed(['one'], { prompt: 'clustering' })).rejects.toMatchObject(refusal);
    await expect(client.embedStream([{ text: 'a' }], { prompt: 'clustering' }).next()).rejects.toMatchObject(refusal);
    await expect(client.embed(['one'], { output: { normalize: true } })).rejects.toMatchObject({
      message: expect.stringMatching(/^normalize: true needs .*"gpu-next" of Shoal 0\.1\.5/) as unknown,
    });
    await expect(client.embed(['one'], { meta: { userId: 5 } })).rejects.toThrow(/^meta needs workers/);
    await expect(client.submit(['one'], { meta: { userId: 5 } })).rejects.toThrow(/^meta needs workers/);
    expect(await jobsAdded()).toBe(0);
  });

  test('is one whose CPU lane an older worker serves, or one that tells nothing of itself', async () => {
    await show('gpu-new', NEW);
    await show('cpu-old', OLD, `${QUEUE}-cpu`);
    await show('mute', undefined);
    await expect(client.embed(['one'], { prompt: 'clustering' })).rejects.toMatchObject({
      code: 'JOB_VERSION_UNKNOWN',
      fields: {
        workers: expect.arrayContaining([
          { workerId: 'cpu-old', version: '0.1.0 or older' },
          { workerId: 'mute', version: '0.1.0 or older' },
        ]) as unknown,
      },
    });
    expect(await jobsAdded()).toBe(0);
  });

  test('gets jobs of version 1, and of version 2 once the older one is drained', async () => {
    await show('gpu-new', NEW);
    await show('gpu-old', { ...OLD, isDrained: true });
    expect(await dataOf({ prompt: 'clustering' })).toMatchObject({ v: 2, prompt: 'clustering', texts: ['one'] });
    await show('gpu-older', OLD);
    expect(await dataOf({ prompt: 'query', truncate: 'error' })).toMatchObject({ v: 1, prompt: 'query' });
  });
});

test.each([
  ['has one', NEW, 'query'],
  ['has none', { ...NEW, prompts: ['none'] }, undefined],
])(
  'texts that are searched for get the prompt of queries where the model %s, as its workers tell',
  async (_, facts, prompt) => {
    await show('gpu', facts);
    const stop = new AbortController();
    const asked = client.search('docs', ['one'], { signal: stop.signal }).catch((error: unknown) => error);
    const job = await vi.waitFor(firstJob, PATIENTLY);
    expect(job.data.prompt).toBe(prompt);
    stop.abort();
    expect(await asked).toMatchObject({ name: 'AbortError', code: 'INTERRUPTED' });
  },
);

describe('what the model does not offer', () => {
  test.each(['klustering', 'passage'])(
    'is the prompt "%s", refused with its names before a job is added',
    async (prompt) => {
      await show('gpu-new', NEW);
      await expect(client.embed(['one'], { prompt })).rejects.toMatchObject({
        code: 'JOB_INVALID',
        message: `the prompt "${prompt}" was asked for, and x has "query", "clustering": ask for one of them, or for "none"`,
      });
      expect(await jobsAdded()).toBe(0);
    },
  );

  test('are lengths of their own, of a model that normalizes', async () => {
    await show('gpu-new', NEW);
    await expect(client.embed(['one'], { output: { normalize: false } })).rejects.toMatchObject({
      code: 'JOB_INVALID',
      message: expect.stringContaining('the vectors of x have length 1') as unknown,
    });
    expect(await jobsAdded()).toBe(0);
  });
});

describe('the request that a call is a part of', () => {
  const trace = { requestId: 'req-7', traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' };
  const vectors = { values: [1, 0], dims: 2 };

  test('travels where all workers that claim read it, and an old one makes no difference to the call', async () => {
    await show('gpu-new', NEW);
    expect(await dataOf({ trace })).toMatchObject({ v: 2, trace });
    await show('gpu-old', OLD);
    vi.spyOn(performance, 'now').mockReturnValue(performance.now() + 6_000);
    expect(await dataOf({ trace })).toEqual(expect.not.objectContaining({ trace: expect.anything() as unknown }));
    vi.restoreAllMocks();
  });

  test('is left out where nobody is alive to read it', async () => {
    expect(await dataOf({ trace })).toMatchObject({ v: 1 });
    const found = place.queue('similarity');
    const stop = new AbortController();
    const asked = client.topK('docs', vectors, { k: 1, trace, signal: stop.signal }).catch((error: unknown) => error);
    const [job] = await vi.waitFor(async () => {
      const jobs = await found.getJobs(['prioritized', 'waiting']);
      return jobs.length > 0 ? jobs : Promise.reject(new Error('not yet'));
    }, PATIENTLY);
    expect(job?.data).toMatchObject({ v: 1 });
    stop.abort();
    await asked;
  });

  test('goes with fields of its own in questions about similarity, where these need workers that know them', async () => {
    await place.show('similarity', 'sim');
    await expect(client.topK('docs', vectors, { k: 1, meta: { userId: 5 }, trace })).rejects.toMatchObject({
      code: 'JOB_VERSION_UNKNOWN',
      message: expect.stringMatching(/^meta needs workers .* and similarity is served by "sim"/) as unknown,
    });
  });

  test('is in questions about similarity where their workers read it, beside fields of their own', async () => {
    await place.show('similarity', 'sim', { facts: () => NEW });
    const [found, stop] = [place.queue('similarity'), new AbortController()];
    const options = { k: 1, meta: { userId: 5 }, trace, signal: stop.signal };
    const asked = client.topK('docs', vectors, options).catch((error: unknown) => error);
    const job = await vi.waitFor(
      async () => (await found.getJobs(['prioritized', 'waiting']))[0] ?? Promise.reject(new Error('not yet')),
      PATIENTLY,
    );
    expect(job.data).toMatchObject({ v: 2, meta: { userId: 5 }, trace });
    stop.abort();
    await asked;
  });

  test.each([
    ['r 7', /trace is 'r 7'; .*trace has requestId/],
    [{ requestId: 'r 7' }, /trace\.requestId is 'r 7'; must be 1 to 128/],
    [{ spanId: 'x' }, /trace is .*spanId/],
  ])('is refused where it cannot be one: %j', async (wrong, words) => {
    await expect(client.embed(['one'], { trace: wrong as never })).rejects.toThrow(words);
  });
});

test('where no worker is alive, what is asked for waits for one', async () => {
  expect(await dataOf({ prompt: 'clustering', output: { normalize: false } })).toMatchObject({
    v: 2,
    prompt: 'clustering',
    output: { normalize: false },
  });
});
