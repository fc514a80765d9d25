// Rows in, rows out, against a real queue server and a stand-in for the worker; and what is searched, as hits.

import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { mainQueue } from '@shoal/contract';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import type { ClientOptions } from './embedding.ts';
import { hitsOf } from './search.ts';
import { withSearched } from './searched.ts';
import { ShoalClient } from './shoal-client.ts';
import { DIMS, QueueStandIn, vectorOf, type StandInOptions } from './testing/stand-in.ts';

const PREFIX = '{t-many}';

let server: TestServer;
let models = 0;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
});
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
afterAll(() => server.stop());

async function setup(options: Partial<ClientOptions> = {}, standIn: StandInOptions = {}) {
  const model = { name: `m${++models}`, revision: 'r1' };
  const worker = new QueueStandIn(mainQueue(model.name), { url: server.url, prefix: PREFIX }, standIn);
  closers.push(() => worker.close());
  const place = options.connection === undefined ? { redisUrl: server.url } : {};
  const client = await ShoalClient.connect({ ...place, prefix: PREFIX, model, jobTexts: 4, ...options });
  closers.push(() => client.close());
  return { client, worker };
}

const texts = Array.from({ length: 30 }, (_, n) => `text ${n}`);

test('an array of texts comes back as rows in order, each with its own vector', async () => {
  const { client } = await setup({}, { delayMs: (jobId) => jobId.length % 7 });
  const rows: { index: number; item: string; vector: number[] }[] = [];
  for await (const { index, item, vector } of client.embedMany(texts)) rows.push({ index, item, vector: [...vector] });
  expect(rows).toEqual(texts.map((item, index) => ({ index, item, vector: vectorOf(item) })));
});

test('items of an async iterable come back as they were given, and are read no further than the window', async () => {
  const { client } = await setup({ maxInFlightJobs: 2 });
  let read = 0;
  const ahead: number[] = [];
  async function* items() {
    for (const [n, text] of texts.entries()) {
      read = n + 1;
      yield { text, key: n * 10 };
    }
  }
  for await (const { item, index } of client.embedMany(items())) {
    expect(item).toEqual({ text: texts[index], key: index * 10 });
    ahead.push(read - index);
  }
  expect(ahead).toHaveLength(30);
  // two jobs of four, the one that is handed over, the one that waits to enter, and the text that ends it
  expect(Math.max(...ahead)).toBeLessThanOrEqual(4 * 4 + 1);
});

test('a job that fails ends the rows with its error, or each of its texts is skipped in its place', async () => {
  const failure = { code: 'QUARANTINED', message: 'it killed its executor' } as const;
  const { client } = await setup({}, { failure: (jobId) => (jobId.endsWith('-4') ? failure : undefined) });
  const some = texts.slice(0, 10);
  await expect(collect(client.embedMany(some))).rejects.toMatchObject(failure);
  const rows = await collect(client.embedMany(some, { onError: 'skip' }));
  expect(rows.map(({ kind }) => kind[0])).toEqual([...'eeeesssseee'].slice(0, 10));
  expect(rows[5]).toMatchObject({ kind: 'skipped', index: 5, item: 'text 5', error: failure });
});

test('rows have the form that was asked for, i8 with their scales', async () => {
  const { client } = await setup();
  for await (const { vector, scale, item } of client.embedMany(texts.slice(0, 6), { output: { dtype: 'i8' } })) {
    expect(vector).toBeInstanceOf(Int8Array);
    for (const [i, value] of vectorOf(item).entries()) expect(Math.abs(vector[i]! * scale - value)).toBeLessThan(0.005);
  }
});

test('leaving the loop early ends the run, and what has no text is refused by its row', async () => {
  const { client } = await setup();
  for await (const { index } of client.embedMany(texts)) if (index === 5) break;
  const items = [{ text: 'a' }, undefined as unknown as { text: string }];
  await expect(collect(client.embedMany(items))).rejects.toThrow(/row 1 has no text/);
  const untyped = client as unknown as { embedMany(...values: unknown[]): unknown };
  expect(() => untyped.embedMany('hello')).toThrow(/embedMany takes an iterable of texts, or of items/);
  expect(() => untyped.embedMany(texts, { jobId: 'a' })).toThrow(/embedMany has no option "jobId"/);
});

test('a connection of one’s own says where the server is, and is neither used nor closed', async () => {
  const connection = new Redis(server.url, { lazyConnect: true });
  const { client } = await setup({ connection });
  expect((await client.embed(['a'])).vectors).toEqual(Float32Array.from(vectorOf('a')));
  await client.close();
  expect(connection.status).toBe('wait');
  const { host, port } = connection.options;
  const { client: byOptions } = await setup({ connection: { host, port } });
  expect((await byOptions.embed(['a'])).dims).toBe(DIMS);
});

test.each([
  ['a cluster', { isCluster: true, options: {} }, /redis\+cluster/],
  ['keys under another name', { options: { keyPrefix: 'mine:' } }, /"mine:" before every key/],
  ['a URL where options are expected', { url: 'redis://localhost' }, /pass that as redisUrl/],
])('a connection that cannot be used is refused: %s', async (_, connection, message) => {
  await expect(setup({ connection })).rejects.toThrow(message);
});

test('hits have score and name, and an id that JavaScript cannot say is refused', () => {
  const searched = { collection: 'docs@3', collectionModel: 'm@1' };
  const ranking = { ids: BigUint64Array.of(7n, 2n), scores: Float32Array.of(0.5, 0.25), names: ['seven', ''] };
  expect(hitsOf(withSearched([ranking], searched))).toEqual({
    ...searched,
    hits: [
      [
        { id: 7, score: 0.5, name: 'seven' },
        { id: 2, score: 0.25, name: '' },
      ],
    ],
  });
  const far = { ids: BigUint64Array.of(2n ** 60n), scores: Float32Array.of(1) };
  expect(() => hitsOf(withSearched([far], searched))).toThrow(/no safe integer/);
});

async function collect<Row>(rows: AsyncIterable<Row>): Promise<Row[]> {
  const all: Row[] = [];
  for await (const row of rows) all.push(row);
  return all;
}
