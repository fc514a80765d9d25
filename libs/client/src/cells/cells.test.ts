// Cells end to end: real servers, a worker on a simulated device in each, the SDK. Whatever becomes of a cell, every row
// is delivered once, and an id is found where it is.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { Redis } from 'ioredis';
import { isShoalError, keySpace, mainQueue } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { QueueAdmin } from '@shoal/queue';
import { openLaneWorker, startTestServer, type TestServer } from '@shoal/queue/testing';
import type { ClientOptions } from '../embedding.ts';
import { ShoalClient } from '../shoal-client.ts';

vi.setConfig({ testTimeout: 120_000 }); // servers that are away are waited for

const MODEL = { name: 'fake', revision: '0123456789ab' };
const QUEUE = mainQueue(MODEL.name);
const NAMES = ['a', 'b'] as const;
type Name = (typeof NAMES)[number];

let servers: Record<Name, TestServer>;
let redis: Record<Name, Redis>;
let prefix = '';
let folder = '';
const closers: (() => Promise<unknown>)[] = [];
let tests = 0;

beforeAll(async () => {
  const [a, b] = await Promise.all([startTestServer({ topology: 'single' }), startTestServer({ topology: 'single' })]);
  servers = { a, b };
  redis = { a: connect(a), b: connect(b) };
  folder = mkdtempSync(join(tmpdir(), 'shoal-cells-'));
});

beforeEach(async () => {
  prefix = `{t-cells-${++tests}}`;
  await Promise.all(NAMES.map(work));
});

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  for (const name of NAMES) redis[name].disconnect();
  await Promise.all(NAMES.map((name) => servers[name].stop()));
  rmSync(folder, { recursive: true });
});

function connect({ url }: TestServer): Redis {
  const connection = new Redis(url, { maxRetriesPerRequest: null });
  connection.on('error', () => undefined); // it is killed
  return connection;
}

async function work(name: Name): Promise<void> {
  const { url: redisUrl } = servers[name];
  const worker = await openLaneWorker({ redisUrl, prefix, role: 'gpu', leaseMs: 15_000, queue: QUEUE });
  closers.push(() => worker.stop());
}

function listed(): { name: Name; address: string; write?: boolean }[] {
  return NAMES.map((name) => ({ name, address: servers[name].url }));
}

/** On a busy machine nobody is taken for away, but where that is what is tested. */
async function open(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const given = { cells: listed(), prefix, model: MODEL, jobTexts: 4, cellAwayAfterMs: 30_000 };
  const client = await ShoalClient.connect({ ...given, ...options });
  closers.push(() => client.close());
  return client;
}

/** None like another, and each fits the simulated device. */
function texts(count: number): string[] {
  return Array.from({ length: count }, (_, at) => `text ${at}`);
}

function items(count: number): { readonly text: string }[] {
  return texts(count).map((text) => ({ text }));
}

/** As one server gives them. */
async function expected(count: number): Promise<Float32Array> {
  const plain = await ShoalClient.connect({ redisUrl: servers.a.url, prefix, model: MODEL, jobTexts: 4 });
  closers.push(() => plain.close());
  return (await plain.embed(texts(count))).vectors;
}

/** Jobs that each cell has completed. */
async function completed(): Promise<Record<Name, number>> {
  const [a, b] = await Promise.all(NAMES.map((name) => redis[name].zcard(keySpace(prefix).job(QUEUE, 'completed'))));
  return { a: a!, b: b! };
}

async function admin<Answer>(name: Name, use: (admin: QueueAdmin) => Promise<Answer>): Promise<Answer> {
  const opened = await QueueAdmin.connect({ redisUrl: servers[name].url, prefix, queue: QUEUE });
  try {
    return await use(opened);
  } finally {
    await opened.close();
  }
}

async function waiting(name: Name): Promise<number> {
  return admin(name, async (opened) => (await opened.counts()).lanes[0]!.waiting);
}

test('the jobs of a call are spread over the cells, and its rows are those of one server, in order', async () => {
  const client = await open();
  const before = await completed();
  const { vectors, rows } = await client.embed(texts(120));
  expect(rows).toBe(120);
  expect(vectors).toEqual(await expected(120));
  const after = await completed();
  expect(after.b - before.b).toBeGreaterThan(2);
  expect(client.counts()).toMatchObject({ added: 30, delivered: 30, failed: 0 });
});

test('the more is open, the more new jobs go to one cell behind each other, and each has its share', async () => {
  const client = await open({ maxInFlightJobs: 256 });
  for await (const { index } of client.embedMany(texts(1_024))) expect(index).toBeLessThan(1_024);
  const ended = await Promise.all(
    NAMES.map((name) => redis[name].zrange(keySpace(prefix).job(QUEUE, 'completed'), '0', '-1')),
  );
  const cellOf = new Map(ended.flatMap((ids, at) => ids.map((id) => [Number(/\d+$/.exec(id)?.[0]), at] as const)));
  expect(cellOf.size).toBe(256);
  for (const ids of ended) expect(ids.length).toBeGreaterThan(64);
  const inOrder = Array.from(cellOf.keys())
    .toSorted((a, b) => a - b)
    .map((index) => cellOf.get(index));
  expect(inOrder.filter((cell, at) => at > 0 && cell !== inOrder[at - 1]).length).toBeLessThan(100);
});

test.for([
  ['each of two', 'b', 128],
  ['the one', 'a', 64],
] as const)('a call has 64 jobs under way for %s that takes new work', async ([, writes, jobs]) => {
  const client = await open({ cells: listed().map((cell) => ({ ...cell, write: cell.name <= writes })) });
  const seen: number[] = [];
  const stream = client.embedMany(texts(1_200), { onProgress: ({ jobsInFlight }) => seen.push(jobsInFlight) });
  await stream.next();
  await expect.poll(() => seen.at(-1)).toBe(jobs); // what is read ahead of a caller that does not come back
  for (let row = 1; row < 1_200; row++) await stream.next();
  expect(Math.max(...seen)).toBe(jobs);
});

test('an id is found in the cell that has it, whichever would be chosen now', async () => {
  const first = await open();
  const ids = Array.from({ length: 12 }, (_, at) => `id-${at}`);
  for (const jobId of ids) await first.embed(texts(2), { jobId });
  const before = await completed();
  expect(Math.min(before.a, before.b)).toBeGreaterThan(0);
  for (const name of NAMES) {
    const cells = listed().map((cell) => ({ ...cell, write: cell.name !== name }));
    const again = await open({ cells });
    for (const jobId of ids) await again.embed(texts(2), { jobId });
    await expect(again.embed(texts(3), { jobId: ids[0]! })).rejects.toThrow(/in use for another request/);
  }
  expect(await completed()).toEqual(before);
});

test('what is submitted is found by its public id with one look, and by its own id', async () => {
  const client = await open();
  const handles = await Promise.all(
    Array.from({ length: 8 }, (_, at) => client.submit(texts(9), { jobId: `later-${at}` })),
  );
  const other = await open();
  const cells = new Set<string>();
  for (const [at, { id }] of handles.entries()) {
    expect(id).toMatch(new RegExp(`^later-${at}@[ab]$`));
    cells.add(id.slice(-1));
    expect((await other.job(id).result()).rows).toBe(9);
    expect((await other.job(`later-${at}`).result()).vectors).toEqual(await expected(9));
  }
  expect(cells.size).toBe(2);
  // asking again, by either id, is the same request
  const { id } = handles[0]!;
  const before = await completed();
  for (const jobId of [id, 'later-0']) expect((await other.submit(texts(9), { jobId })).id).toBe(id);
  expect(await completed()).toEqual(before);
  const wrong = id.endsWith('a') ? 'later-0@b' : 'later-0@a';
  expect((await other.job(wrong).status()).state).toBe('unknown');
  await handles[0]!.release();
  expect((await other.job(id).status()).state).toBe('unknown');
});

test('an id of a cell that is not in the list is refused by its name, and nothing of it is lost', async () => {
  const client = await open();
  const { id } = await client.submit(texts(2), { jobId: 'kept' });
  const home = id.slice(-1) as Name;
  const other = await open({ cells: listed().filter(({ name }) => name !== home) });
  expect(() => other.job(id)).toThrow(`"kept@${home}" is in the cell "${home}", which is not in the list of cells`);
  await expect(other.embed(['x'], { jobId: 'me@example' })).rejects.toMatchObject({ code: 'CELL_UNKNOWN' });
  await expect(other.cancel([id])).rejects.toMatchObject({ code: 'CELL_UNKNOWN' });
  const back = await open({ cells: listed().map((cell) => ({ ...cell, write: cell.name !== home })) });
  expect((await back.job(id).result()).rows).toBe(2);
});

test('a request is cancelled in its cell by its public id, and wherever it is by its own', async () => {
  await Promise.all(NAMES.map((name) => admin(name, (opened) => opened.pause())));
  const client = await open();
  const byPublicId = await client.submit(texts(9), { jobId: 'one' });
  await client.submit(texts(9), { jobId: 'two' });
  const other = await open();
  for (const id of [byPublicId.id, 'two']) {
    const outcomes = (await other.cancel([id])).map(({ outcome }) => outcome);
    expect(outcomes).toEqual(['cancelled', 'cancelled', 'cancelled']);
    expect((await other.job(id).status()).state).toBe('cancelled');
  }
  expect(await other.cancel(['nobody'])).toEqual([]);
});

test('a cell that is killed costs what waits in it alone, and that is delivered when it is back', async () => {
  const client = await open({ askAfterMs: 500, cellAwayAfterMs: 1_000 });
  await admin('b', (opened) => opened.pause());
  const held = client.embed(texts(80), { class: 'bulk', jobId: 'waits' });
  held.catch(() => undefined);
  await expect.poll(() => waiting('b')).toBeGreaterThan(0);
  await servers.b.durable();
  await servers.b.kill9();
  // new work goes on, also what is asked for before anybody knows
  const during = await client.embed(texts(120));
  expect(during.vectors).toEqual(await expected(120));
  const { id } = await client.submit(texts(9), { jobId: 'meanwhile' });
  expect(id).toBe('meanwhile@a');
  await expect(client.job('nobody').status()).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    fields: { cell: 'b' },
  });
  await expect(client.job('x@b').status()).rejects.toSatisfy((error) => isShoalError(error)); // once it is known to be away
  await servers.b.restart();
  await admin('b', (opened) => opened.resume());
  expect((await held).vectors).toEqual(await expected(80));
  expect(client.counts().failed).toBe(0);
});

test('a client starts while a cell is away, and uses it once it is there', async () => {
  await servers.b.kill9();
  const client = await open();
  expect((await client.embed(texts(40))).rows).toBe(40);
  await servers.b.restart();
  await work('b');
  const before = (await completed()).b;
  await expect
    .poll(async () => (await client.embed(texts(40))) && (await completed()).b, { timeout: 20_000 })
    .toBeGreaterThan(before);
});

test('two cells that are one server by two of its names are refused, and two prefixes of one are not', async () => {
  const [address, other] = [servers.a.url, servers.a.url.replace('127.0.0.1', 'localhost')];
  expect(other).not.toBe(address);
  const twice = [
    { name: 'a', address },
    { name: 'b', address: servers.b.url },
    { name: 'c', address: other },
  ];
  await expect(open({ cells: twice })).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: 'cells: "a" and "c" are the same server, by two names of it: take one of them off the list',
  });
  const prefixes = [
    { name: 'a', address, prefix },
    { name: 'c', address: other, prefix: '{t-cells-other}' },
  ];
  await open({ cells: prefixes });
});

test('a server that is twice in a list that came later is told', async () => {
  const log = new RecordingLogger();
  const path = join(folder, 'twice.json');
  writeFileSync(path, JSON.stringify(listed()));
  await open({ cells: path, log });
  const again = { name: 'c', address: servers.a.url.replace('127.0.0.1', 'localhost') };
  writeFileSync(path, JSON.stringify([...listed(), again]));
  await vi.waitFor(() => expect(log.messages('warn')).toHaveLength(1), 10_000);
  expect(log.lines.find(({ level }) => level === 'warn')?.fields).toMatchObject({
    problems: [expect.stringContaining('"a" and "c" are the same server')],
  });
});

test('a client with no cell that answers says so', async () => {
  const cells = [{ name: 'gone', address: 'redis://127.0.0.1:1' }];
  await expect(open({ cells })).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
  await expect(open({ cells, redisUrl: servers.a.url })).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
});

test('a job that only a cell takes which the list has had for a moment waits for its first answer', async () => {
  const path = join(folder, `${tests}.json`);
  const [a, b] = listed();
  writeFileSync(path, JSON.stringify([a]));
  const log = new RecordingLogger();
  const client = await open({ cells: path, log });
  writeFileSync(path, JSON.stringify([{ ...a, write: false }, b]));
  const hasChanged = () => log.messages('info').some((message) => message.endsWith('has changed'));
  await expect.poll(hasChanged, { interval: 1, timeout: 10_000 }).toBe(true);
  const [{ rows }, handle] = await Promise.all([client.embed(texts(9)), client.submit(texts(5))]);
  expect(rows).toBe(9);
  expect(handle.id).toMatch(/@b$/);
  expect((await handle.result()).rows).toBe(5);
});

test('cells are added, drained and removed while requests are open, and none fails', async () => {
  const path = join(folder, `${tests}.json`);
  const list = (cells: unknown): void => writeFileSync(path, JSON.stringify(cells));
  const [a, b] = listed();
  list([a]);
  const log = new RecordingLogger();
  const client = await open({ cells: path, maxInFlightJobs: 8, log });
  let rows = 0;
  const at: Record<number, () => Promise<void>> = {
    40: () => change([a, b], 'b'),
    80: () => change([{ ...a, write: false }, b]),
    120: () => change([b]),
    160: () => change([a, { ...b, write: false }], 'a'),
  };
  const changes = (): number => log.messages('info').filter((message) => message.endsWith('has changed')).length;
  /** Resolves when the client has read it, and hears of results in the cell that is new. */
  async function change(cells: unknown, added?: Name): Promise<void> {
    const before = changes();
    list(cells);
    await expect.poll(changes).toBe(before + 1);
    if (added === undefined) return;
    const channels = () => redis[added].pubsub('CHANNELS', keySpace(prefix).reply('*'));
    await expect.poll(channels).toHaveLength(1);
  }
  for await (const block of client.embedStream(items(200), { runId: 'live' })) {
    if (block.kind !== 'embedded') throw block.error;
    expect(block.first).toBe(rows);
    await at[rows]?.();
    rows += block.rows;
  }
  expect(rows).toBe(200);
  expect(client.counts()).toMatchObject({ delivered: 50, failed: 0 });
  const { a: inA, b: inB } = await completed();
  expect(inA + inB).toBe(50);
  expect(Math.min(inA, inB)).toBeGreaterThan(10);
});
