// Inputs and results beside the queue server, end to end: real servers, core's pipeline and executor on a simulated
// device, the SDK. Whatever a payload server does, every row is delivered once and is the one that a plain client gets.

import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { Redis } from 'ioredis';
import { decodeResultHeader, keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { payloadSetOf, processCounts } from '@shoal/queue';
import { startTestServer, type LaneWorker, type TestServer } from '@shoal/queue/testing';
import type { ClientOptions } from './embedding.ts';
import { ShoalClient } from './shoal-client.ts';
import {
  DIMS,
  MODEL,
  QUEUE,
  ROWS,
  callsUntil,
  leaveUntaken,
  startWorker,
  tell,
  texts,
} from './testing/payload-scene.ts';

let queueServer: TestServer;
let stores: TestServer[];
let redis: Redis;
let storeConnections: Redis[];
let prefix = '';
let worker: LaneWorker;
const closers: (() => Promise<unknown>)[] = [];
let tests = 0;

beforeAll(async () => {
  [queueServer, ...stores] = (await Promise.all([
    startTestServer(),
    ...[0, 1].map(() => startTestServer({ appendFsync: 'no', topology: 'single' })),
  ])) as [TestServer, ...TestServer[]];
  redis = new Redis(queueServer.url, { maxRetriesPerRequest: null });
  storeConnections = stores.map(({ url }) => new Redis(url, { maxRetriesPerRequest: null }));
  for (const connection of storeConnections) connection.on('error', () => undefined); // they are killed
});

beforeEach(async () => {
  prefix = `{t-beside-${++tests}}`;
  await work();
  await tell(redis, prefix, payloadSetOf(payloadServers()));
});

async function work(): Promise<void> {
  worker = await startWorker({ redisUrl: queueServer.url, prefix, payloadServers: payloadServers() });
  const started = worker;
  closers.push(() => started.stop());
}

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  for (const connection of [redis, ...storeConnections]) connection.disconnect();
  await Promise.all([queueServer, ...stores].map((server) => server.stop()));
});

function payloadServers(): string {
  return stores.map(({ url }) => url).join(',');
}

async function connect(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const client = await ShoalClient.connect({
    redisUrl: queueServer.url,
    prefix,
    model: MODEL,
    jobTexts: ROWS,
    payloadServers: payloadServers(),
    ...options,
  });
  closers.push(() => client.close());
  return client;
}

/** As vectors come without payload servers. */
async function expected(asked: readonly string[]): Promise<Float32Array> {
  const plain = await connect({ payloadServers: undefined });
  return (await plain.embed(asked, { jobId: `plain-${asked.length}` })).vectors;
}

/** What the job of a run has at its result key. */
function kept(id: string): Promise<Buffer> {
  return redis.getBuffer(keySpace(prefix).output(QUEUE, `default~${id}`)) as Promise<Buffer>;
}

async function leave(runId: string, asked: readonly string[]): Promise<void> {
  closers.push(await leaveUntaken(await connect(), runId, asked));
}

interface StoredResult {
  readonly store: Redis;
  readonly key: string;
  readonly bytes: Buffer;
}

async function resultsOnStores(): Promise<StoredResult[]> {
  const found = storeConnections.map(async (store) =>
    Promise.all(
      (await store.keys(`${prefix}:out:*`)).map(async (key) => ({ store, key, bytes: (await store.getBuffer(key))! })),
    ),
  );
  return (await Promise.all(found)).flat();
}

/** Each by what is made of it and of the others. */
async function replaceResults(make: (bytes: Buffer, others: readonly Buffer[]) => Buffer): Promise<void> {
  const results = await resultsOnStores();
  for (const one of results) {
    const others = results.filter((other) => other !== one).map(({ bytes }) => bytes);
    await one.store.set(one.key, make(one.bytes, others));
  }
}

/** Of this test. */
async function keysOnStores(): Promise<string[]> {
  return (await Promise.all(stores.map((store) => store.command('KEYS', `${prefix}:*`)))).flat().map(String);
}

/** Byte by byte at once: toEqual would take seconds for a hundred thousand numbers. */
function isSame(a: Float32Array | undefined, b: Float32Array): boolean {
  return (
    a !== undefined &&
    Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength))
  );
}

/** Bytes that the queue server has had sent to it and has sent. */
async function traffic(): Promise<number> {
  const info = await redis.info('stats');
  return Number(/total_net_input_bytes:(\d+)/.exec(info)?.[1]) + Number(/total_net_output_bytes:(\d+)/.exec(info)?.[1]);
}

test('inputs and results pass the queue server by, and are gone from the payload servers once they are taken', async () => {
  const asked = texts(4 * ROWS);
  const vectors = await expected(asked);
  const client = await connect();
  const before = await traffic();
  expect(isSame((await client.embed(asked)).vectors, vectors)).toBe(true);
  expect((await traffic()) - before).toBeLessThan(4 * 25_000); // an input and a result of one job have 79,000
  expect(client.counts()).toMatchObject({ delivered: 4, askedAgain: 0 });
  await expect.poll(keysOnStores).toEqual([]);
});

test.each<[string, counted: 'lost' | 'damaged', () => Promise<unknown>]>([
  ['are emptied', 'lost', () => Promise.all(stores.map((store) => store.command('FLUSHALL')))],
  ['have other bytes', 'damaged', () => replaceResults((bytes) => Buffer.from(bytes).fill(1, bytes.length - 4))],
  ['have less of it', 'lost', () => replaceResults((bytes) => bytes.subarray(0, -4))],
  ['have another result', 'lost', () => replaceResults((_, others) => others[0]!)],
])('a result that payload servers lose because they %s is computed again, and counted', async (_, counted, spoil) => {
  const asked = texts(ROWS);
  const vectors = await expected(asked);
  await leave('a', asked);
  await leave('b', texts(2 * ROWS).slice(ROWS));
  expect(await resultsOnStores()).toHaveLength(2);
  await spoil();
  const client = await connect();
  const before = processCounts().payloads[counted];
  expect(isSame((await client.embed(asked, { jobId: 'a-0' })).vectors, vectors)).toBe(true);
  expect(processCounts().payloads[counted] - before).toBe(1);
  expect(client.counts()).toMatchObject({ ready: 1, askedAgain: 1 });
  expect(decodeResultHeader(await kept('a-0'))).toMatchObject({ isPointer: false });
});

test('an input that a payload server lost is asked for again, by the queue server', async () => {
  const asked = texts(ROWS);
  const vectors = await expected(asked);
  await worker.stop();
  const client = await connect();
  const embedded = client.embed(asked);
  await expect.poll(keysOnStores, { timeout: 20_000 }).toHaveLength(1);
  await Promise.all(stores.map((store) => store.command('FLUSHALL')));
  await work();
  expect(isSame((await embedded).vectors, vectors)).toBe(true);
  expect(client.counts()).toMatchObject({ askedAgain: 1 });
  expect(await keysOnStores()).toEqual([]);
});

test('payload servers that are killed cost no row, and results go by the queue server until they are back', async () => {
  const asked = texts(12 * ROWS);
  const vectors = await expected(asked);
  const client = await connect();
  const killed = (async () => {
    await expect.poll(keysOnStores).not.toEqual([]);
    await stores[0]!.kill9();
    await sleep(20);
    await stores[1]!.kill9();
  })();
  for (const found of await callsUntil(killed, client, asked)) expect(isSame(found, vectors)).toBe(true);
  const { vectors: first } = await client.embed(asked.slice(0, ROWS));
  expect(isSame(first, vectors.subarray(0, ROWS * DIMS))).toBe(true);
  await Promise.all(stores.map((store) => store.restart()));
});

test('what is submitted stays with the queue server, and replaces a result of its id that does not', async () => {
  const asked = texts(ROWS);
  const vectors = await expected(asked);
  const client = await connect();
  await leave('a', asked);
  expect(decodeResultHeader(await kept('a-0'))).toMatchObject({ isPointer: true, isTaken: false });
  const handle = await client.submit(asked, { jobId: 'a-0' });
  expect(isSame((await handle.result()).vectors, vectors)).toBe(true);
  expect(decodeResultHeader(await kept('a-0'))).toMatchObject({ isPointer: false });
});

test('a client without payload servers is never given a pointer, whatever lies under the id', async () => {
  const asked = texts(ROWS);
  const vectors = await expected(asked);
  await leave('a', asked);
  const plain = await connect({ payloadServers: undefined });
  expect(isSame((await plain.embed(asked, { jobId: 'a-0' })).vectors, vectors)).toBe(true);
  const data = await redis.hget(keySpace(prefix).job(QUEUE, 'default~a-0'), 'data');
  expect(data).not.toMatch(/"payloads"|"store"/);
});

test.each([
  ['none', undefined],
  ['others', 'ffffffffffffffff'],
])('where a worker has %s, nothing lies on payload servers, and that is said once', async (_, payloads) => {
  const asked = texts(ROWS);
  const vectors = await expected(asked);
  await tell(redis, prefix, payloads);
  const log = new RecordingLogger();
  const client = await connect({ log });
  expect(log.lines.filter(({ level }) => level === 'warn').map(({ fields }) => fields)).toEqual([
    { workers: ['w'], payloadServers: stores.map(({ url }) => url.replace('redis://', '')) },
  ]);
  const stream = client.embedStream(asked.map((text) => ({ text })));
  const { value } = await stream.next();
  expect(isSame(value?.kind === 'embedded' ? value.vectors : undefined, vectors)).toBe(true);
  expect(await keysOnStores()).toEqual([]);
  await stream.return(undefined);
});
