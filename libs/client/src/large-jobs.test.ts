// Jobs of more than 256 rows: a real queue server, workers of core's pipeline on a simulated device, the SDK. They are
// made only where every worker says that it takes them, and what comes back is what small jobs give.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import type { WorkerFacts } from '@shoal/core';
import { FakeTokenizer } from '@shoal/core/testing';
import { payloadSetOf } from '@shoal/queue';
import { TestPlace, WORKER_FACTS, openLaneWorker, startTestServer, type TestServer } from '@shoal/queue/testing';
import { cutChunks, firstRowOf, pieceName } from './chunks.ts';
import type { ClientOptions } from './embedding.ts';
import { ShoalClient } from './shoal-client.ts';
import { MODEL, QUEUE } from './testing/payload-scene.ts';

const PATIENTLY = { timeout: 20_000 };
const ROWS = 1_100;
const SMALLER: WorkerFacts = { ...WORKER_FACTS, jobVersion: 2, isNormalized: true };
const NEW: WorkerFacts = { ...SMALLER, maxJobRows: 1_024 };

let place: TestPlace;
let beside: TestServer;

beforeAll(async () => {
  const servers = await Promise.all([startTestServer(), startTestServer({ appendFsync: 'no', topology: 'single' })]);
  place = new TestPlace(servers[0], 'large-jobs');
  beside = servers[1];
});
afterEach(() => place.clear());
afterAll(() => Promise.all([place.stop(), beside.stop()]));

async function connect(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  return place.keep(await ShoalClient.connect({ ...place.address, model: MODEL, jobTexts: 1_024, ...options }));
}

/** As Array.fromAsync, which Node 22 has and TypeScript's es2024 has not. */
async function all<Item>(items: AsyncIterable<Item>): Promise<Item[]> {
  const found: Item[] = [];
  for await (const item of items) found.push(item);
  return found;
}

/** None like another, and each fits the simulated device. */
function texts(count: number): string[] {
  return Array.from({ length: count }, (_, at) => `text ${at}`);
}

/** Names, rows and versions of the jobs that a call puts on the queue. */
async function jobsOf(ask: (client: ShoalClient, signal: AbortSignal) => Promise<unknown>, count: number) {
  const client = await connect();
  const queue = place.queue(QUEUE);
  const stop = new AbortController();
  const asked = ask(client, stop.signal).catch((error: unknown) => error);
  const jobs = await vi.waitFor(async () => {
    const found = await queue.getJobs(['prioritized', 'waiting']);
    return found.length === count ? found : Promise.reject(new Error(`${found.length} jobs`));
  }, PATIENTLY);
  stop.abort();
  await asked;
  const told = jobs.map(({ id, data }) => {
    const { v, texts: inline, input } = data as { v: number; texts?: string[]; input?: { rows: number } };
    return { id: id!, v, rows: inline?.length ?? input?.rows };
  });
  return told.toSorted((a, b) => Number(/-(\d+)/.exec(a.id)?.[1]) - Number(/-(\d+)/.exec(b.id)?.[1]));
}

const embed = (client: ShoalClient, signal: AbortSignal): Promise<unknown> =>
  client.embed(texts(ROWS), { jobId: 'c', signal });

describe('a call whose jobs may have 1,024 texts', () => {
  test('has them where all workers say that they take them, and one that is drained need not', async () => {
    await place.show(QUEUE, 'gpu', { facts: () => NEW });
    await place.show(QUEUE, 'cpu', { lanes: [`${QUEUE}-cpu`], facts: () => ({ ...NEW, maxJobRows: 4_096 }) });
    await place.show(QUEUE, 'drained', { facts: () => ({ ...SMALLER, isDrained: true }) });
    expect(await jobsOf(embed, 2)).toEqual([
      { id: 'default~c-0x1024', v: 2, rows: 1_024 },
      { id: 'default~c-1024x1024', v: 1, rows: 76 },
    ]);
  });

  test('has as many as the worker takes that takes fewest', async () => {
    await place.show(QUEUE, 'gpu', { facts: () => NEW });
    await place.show(QUEUE, 'other', { facts: () => ({ ...NEW, maxJobRows: 600 }) });
    const jobs = await jobsOf(embed, 2);
    expect(jobs.map(({ id, rows }) => [id, rows])).toEqual([
      ['default~c-0x600', 600],
      ['default~c-600x600', 500],
    ]);
  });

  const small = [0, 256, 512, 768, 1_024].map((at) => ({ id: `default~c-${at}`, v: 1, rows: at < 1_024 ? 256 : 76 }));
  test.each<readonly [who: string, facts: WorkerFacts | undefined, lane: string]>([
    ['one does not say what it takes', SMALLER, QUEUE],
    ['a worker of 0.1.0 claims', WORKER_FACTS, QUEUE],
    ['a CPU worker does not say it', SMALLER, `${QUEUE}-cpu`],
    ['a worker tells nothing at all', undefined, QUEUE],
  ])('has 256 where %s', async (_, facts, lane) => {
    await place.show(QUEUE, 'gpu', { facts: () => NEW });
    await place.show(QUEUE, 'other', { lanes: [lane], facts: facts && (() => facts) });
    expect(await jobsOf(embed, 5)).toEqual(small);
  });

  test('has 256 where nobody is alive', async () => {
    expect(await jobsOf(embed, 5)).toEqual(small);
  });

  test('has them of what is submitted, and the same ones when it is submitted again beside a worker of 0.1.0', async () => {
    const submit = (client: ShoalClient): Promise<unknown> => client.submit(texts(ROWS), { jobId: 's' });
    const large = [
      { id: 'default~s-0x1024', v: 2, rows: 1_024 },
      { id: 'default~s-1024x1024', v: 1, rows: 76 },
    ];
    await place.show(QUEUE, 'gpu', { facts: () => NEW });
    expect(await jobsOf(submit, 2)).toEqual(large);
    await place.show(QUEUE, 'old', { facts: () => WORKER_FACTS });
    expect(await jobsOf(submit, 2)).toEqual(large);
    const other = (await connect({ jobTexts: 64 })).submit(texts(ROWS), { jobId: 's' });
    expect(await other).toMatchObject({ id: 's' });
    const others = texts(ROWS).with(5, 'another');
    await expect((await connect()).submit(others, { jobId: 's' })).rejects.toMatchObject({ code: 'JOB_ID_CONFLICT' });
    const fresh = (client: ShoalClient): Promise<unknown> => client.submit(texts(300), { jobId: 'f' });
    await place.queue(QUEUE).obliterate({ force: true });
    expect((await jobsOf(fresh, 2)).map(({ id, v, rows }) => [id, v, rows])).toEqual([
      ['default~f-0', 1, 256],
      ['default~f-256', 1, 44],
    ]);
  });

  test('is one job under its own name where all of it fits, and asks no worker where 256 would do', async () => {
    await place.show(QUEUE, 'gpu', { facts: () => NEW });
    expect(await jobsOf((client, signal) => client.embed(texts(1_000), { jobId: 'c', signal }), 1)).toEqual([
      { id: 'default~c', v: 2, rows: 1_000 },
    ]);
    expect(await jobsOf((client, signal) => client.embed(texts(200), { jobId: 'd', signal }), 1)).toEqual([
      { id: 'default~d', v: 1, rows: 200 },
    ]);
  });
});

test('of cells those count in which somebody claims, and each of these', async () => {
  const prefixes = [place.address.prefix, '{large-other}', '{large-nobody}'];
  const cells = prefixes.map((prefix, at) => ({ name: `c${at}`, address: place.server.url, prefix }));
  await place.show(QUEUE, 'new', { facts: () => NEW });
  const jobs = async (jobId: string): Promise<number> => {
    const client = await connect({ redisUrl: undefined, cells });
    const handle = await client.submit(texts(1_000), { jobId });
    expect(await handle.status()).toMatchObject({ rows: 1_000 });
    return (await client.cancel([handle.id])).length;
  };
  expect(await jobs('large')).toBe(1);
  await place.show(QUEUE, 'old', { prefix: prefixes[1]!, facts: () => WORKER_FACTS });
  expect(await jobs('small')).toBe(4);
});

test('pieces keep the order of a stream whose workers change, and none has a name that another size would have', async () => {
  const sizes = [1_024, 256, 256, 1_024];
  const pieces = await all(
    cutChunks(
      texts(2_000).map((text) => ({ text })),
      0,
      async () => sizes.shift()!,
    ),
  );
  expect(pieces.map(pieceName)).toEqual(['0x1024', '1024', '1280', '1536x1024']);
  expect(pieces.map((piece) => firstRowOf(`default~c-7-${pieceName(piece)}`))).toEqual([0, 1_024, 1_280, 1_536]);
  expect(pieces.flatMap(({ items }) => items.map(({ text }) => text))).toEqual(texts(2_000));
});

test('more than 1,024 texts a job are refused before anything connects', async () => {
  await expect(connect({ jobTexts: 1_025 })).rejects.toThrow('jobTexts is 1025; a job has 1 to 1024 texts');
});

describe('jobs of 1,024 rows give what jobs of 64 rows give', () => {
  let expected: Float32Array;
  const tokenizer = new FakeTokenizer();
  /** One in 300 is too long for the simulated GPU, which hands its job over. */
  const some = texts(ROWS).map((text, at) => (at % 300 === 150 ? `${text} and a long way behind it `.repeat(4) : text));

  beforeEach(async () => {
    const worker = { ...place.address, leaseMs: 15_000, queue: QUEUE, payloadServers: beside.url, newestVersion: 2 };
    for (const role of ['gpu', 'cpu'] as const) {
      const started = await openLaneWorker({ ...worker, role });
      place.keep({ close: () => started.stop() });
    }
    const facts = { ...NEW, payloads: payloadSetOf(beside.url) };
    await place.show(QUEUE, 'gpu', { facts: () => facts });
    expected = (await (await connect({ jobTexts: 64 })).embed(some)).toFloat32();
  });

  test.each<readonly [how: string, options: () => Partial<ClientOptions>]>([
    ['as texts', () => ({})],
    ['as token ids', () => ({ tokenizer })],
    ['by payload servers', () => ({ tokenizer, payloadServers: beside.url })],
    ['in a cell', () => ({ redisUrl: undefined, cells: [{ name: 'a', address: place.server.url }] })],
  ])('%s, in every form, when some go to CPU workers', async (_, options) => {
    const client = await connect(options());
    expect((await client.embed(some, { jobId: 'whole' })).toFloat32()).toEqual(expected);
    expect(client.counts()).toMatchObject({ added: 2, delivered: 2, failed: 0, askedAgain: 0 });
    const output = { dtype: 'i8' } as const;
    const small = await (await connect({ jobTexts: 64 })).embed(some, { output });
    expect((await client.embed(some, { output })).toFloat32()).toEqual(small.toFloat32());
    const rows = await all(client.embedMany(some, { runId: 'stream' }));
    expect(rows.map(({ index, item }) => [index, item])).toEqual([...some.entries()]);
    expect(rows.flatMap(({ vector }) => [...vector])).toEqual([...expected]);
    const first = await place.queue(QUEUE).getJob('default~whole-0x1024');
    expect(first?.returnvalue).toMatchObject({ rows: 1_024, handedOver: { reason: 'OUT_OF_VRAM' } });
  });
});
