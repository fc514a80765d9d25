// The client against a real queue server and a stand-in for the worker that keeps to the public contract (docs/jobs.md)
// and can be told to misbehave. Vectors are a function of each row's bytes, so that a lost, doubled or swapped row is
// seen.

import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { execFile, fork } from 'node:child_process';
import { promisify } from 'node:util';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import {
  SIMILARITY_QUEUE,
  decodeResultHeader,
  encodeBody,
  encodeTexts,
  fingerprintOf,
  isShoalError,
  keySpace,
  mainQueue,
  type ErrorCode,
} from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';
import { processCounts } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import type { ClientModel, ClientOptions, StreamBlock } from './embedding.ts';
import { QueueLine } from './queue-line.ts';
import { ShoalClient } from './shoal-client.ts';
import { DIMS, QueueStandIn, vectorOf, type StandInOptions } from './testing/stand-in.ts';
import type { RowIds } from './similarity-calls.ts';

const PREFIX = '{t-client}';
const ONE_QUERY = { values: Float32Array.of(1), dims: 1 };
const keys = keySpace(PREFIX);

let server: TestServer;
let redis: Redis;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  redis = new Redis(server.url, { maxRetriesPerRequest: null });
  redis.on('error', () => undefined);
});

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

// ---- the stand-in ---------------------------------------------------------------------------------------------------

class StandIn extends QueueStandIn {
  constructor(queue: string, options: StandInOptions = {}, url = server.url) {
    super(queue, { url, prefix: PREFIX }, options);
    closers.push(() => this.close());
  }
}

/** Code units as ids; at most 16 tokens. */
const tokenizer: Tokenizer = {
  hash: '0123456789abcdef',
  maxTokens: 16,
  vocabularySize: 70_000,
  encode(text) {
    const ids = Array.from(text.slice(0, 14), (letter) => letter.codePointAt(0)! + 3);
    return { ids: [1, ...ids, 2], isTruncated: text.length > 14 };
  },
};

let models = 0;
function newModel(): { name: string; revision: string } {
  return { name: `m${++models}`, revision: 'r1' };
}

async function connect(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const client = await ShoalClient.connect({ redisUrl: server.url, prefix: PREFIX, model: newModel(), ...options });
  closers.push(() => client.close());
  return client;
}

async function setup(
  options: Partial<ClientOptions & { readonly model: ClientModel }> = {},
  standIn: StandInOptions = {},
) {
  const model = options.model ?? newModel();
  const queue = mainQueue(model.name);
  const worker = new StandIn(queue, standIn);
  const client = await connect({ ...options, model });
  return { model, queue, worker, client };
}

function* lines(count: number, from = 0): Generator<{ text: string; n: number }> {
  for (let n = from; n < count; n++) yield { text: `line ${n} ${'x'.repeat(n % 7)}`, n };
}

function* brokenLines(count: number): Generator<{ text: string }> {
  yield* lines(count);
  throw new Error('disk on fire');
}

async function collect<Item>(stream: AsyncIterable<StreamBlock<Item>>): Promise<StreamBlock<Item>[]> {
  const blocks: StreamBlock<Item>[] = [];
  for await (const block of stream) blocks.push(block);
  return blocks;
}

const EVERY_ROW = 'every row once, in order, with its own vector';

function judge(blocks: readonly StreamBlock<{ text: string }>[], rows: number, from = 0): string {
  let next = from;
  for (const block of blocks) {
    if (block.first !== next) return `a block begins at row ${block.first} where row ${next} is expected`;
    if (block.kind === 'skipped') return `rows from ${next} were skipped: ${block.error.message}`;
    for (const [row, { text }] of block.items.entries()) {
      const expected = vectorOf(text);
      if (block.vectors.subarray(row * DIMS, (row + 1) * DIMS).some((value, i) => value !== expected[i]))
        return `row ${next + row} has another row's vector`;
    }
    next += block.rows;
  }
  return next === rows ? EVERY_ROW : `${next} rows came where ${rows} are expected`;
}

function fingerprintOfTexts(queue: string, texts: readonly string[]): string {
  return fingerprintOf(
    {
      model: `${queue.slice('embed-'.length)}@r1`,
      prompt: undefined,
      truncate: 'end',
      output: { dtype: 'f32', dimensions: undefined },
    },
    encodeTexts(texts),
  );
}

async function codeOf(work: Promise<unknown>): Promise<ErrorCode | 'no error'> {
  try {
    await work;
    return 'no error';
  } catch (error) {
    if (isShoalError(error)) return error.code;
    throw error;
  }
}

test('a prompt that the model does not have is refused before anything is queued', async () => {
  const client = await connect({ model: { ...newModel(), prompts: { query: '', passage: '' } } });
  await expect(client.embed(['a'], { prompt: 'query' })).rejects.toMatchObject({
    code: 'JOB_INVALID',
    message: expect.stringMatching(/the prompt "query" was asked for, and .* has no prompts/) as unknown,
  });
});

// ---- results --------------------------------------------------------------------------------------------------------

test('three texts come back as three rows, and the result is marked taken', async () => {
  const { client, queue } = await setup();
  const result = await client.embed(['a', 'b', ''], { jobId: 'three' });
  expect({ ...result, vectors: [...result.vectors] }).toEqual({
    rows: 3,
    dims: DIMS,
    dtype: 'f32',
    tokens: undefined,
    truncated: false,
    isSimulated: false,
    vectors: ['a', 'b', ''].flatMap(vectorOf),
  });
  await client.close();
  expect(decodeResultHeader((await redis.getBuffer(keys.output(queue, 'default~three')))!)?.isTaken).toBe(true);
  expect(await redis.exists(keys.input(queue, 'default~three'))).toBe(0);
});

test('an id or a tenant with half of a surrogate pair is refused before anything is added', async () => {
  const client = await connect();
  expect(await codeOf(client.embed(['a'], { jobId: 's\ud800' }))).toBe('JOB_INVALID');
  expect(await codeOf(client.topK('docs@1', ONE_QUERY, { k: 1, jobId: 's\ud800' }))).toBe('JOB_INVALID');
  expect(client.counts().added).toBe(0);
  expect(await codeOf(connect({ tenant: 't\ud800' }))).toBe('CONFIG_INVALID');
});

test('no texts are no rows and no job', async () => {
  const client = await connect();
  expect(await client.embed([])).toMatchObject({ rows: 0 });
  expect(client.counts().added).toBe(0);
});

test('a client with a tokenizer sends token ids and says which rows were cut', async () => {
  const { client } = await setup({ tokenizer, jobTexts: 2 });
  const texts = ['short', 'a text that is too long', 'x', '12345678901234', '123456789012345'];
  const result = await client.embed(texts);
  expect([...result.vectors]).toEqual(texts.flatMap((text) => vectorOf([...tokenizer.encode(text).ids])));
  expect(result.tokens).toEqual([7, 16, 3, 16, 16]);
  expect(result.truncated).toEqual([1, 4]);
  expect(await codeOf(client.embed(texts, { truncate: 'error' }))).toBe('INPUT_TOO_LONG');
});

test('smaller output types come back as they are stored, over several jobs, and are widened on request', async () => {
  const { client } = await setup({ jobTexts: 2 });
  const texts = ['a', 'b', 'c'];
  const values = Float32Array.from(texts.flatMap(vectorOf));
  for (const [dtype, kind, tolerance] of [
    ['f32', Float32Array, 0],
    ['f16', Uint16Array, 0.0005],
    ['i8', Int8Array, 0.005],
    ['binary', Uint8Array, 2],
  ] as const) {
    const result = await client.embed(texts, { output: { dtype } });
    const { vectors, scales = new Float32Array() } = result;
    expect(vectors).toBeInstanceOf(kind);
    expect([result.rows, result.dims, result.dtype]).toEqual([3, DIMS, dtype]);
    const { body } = encodeBody(values, 3, DIMS, { dtype, dimensions: undefined });
    expect(
      Buffer.concat(
        [vectors, scales].map(({ buffer, byteOffset, byteLength }) => Buffer.from(buffer, byteOffset, byteLength)),
      ),
    ).toEqual(Buffer.from(body));
    expect(result.row(1)).toHaveLength(dtype === 'binary' ? 1 : DIMS);
    const widened = result.toFloat32();
    for (const [i, value] of widened.entries())
      expect(Math.abs(value - (dtype === 'binary' ? Math.sign(values[i]!) : values[i]!))).toBeLessThanOrEqual(
        dtype === 'binary' ? 0 : tolerance,
      );
  }
  expect((await client.embed(['a'], { output: { dimensions: 3 } })).dims).toBe(3);
});

test('3,000 rows keep their order though jobs complete in any order', async () => {
  const { client, worker } = await setup({ jobTexts: 20, maxInFlightJobs: 32 }, { delayMs: () => Math.random() * 30 });
  expect(judge(await collect(client.embedStream(lines(3_000))), 3_000)).toBe(EVERY_ROW);
  expect(worker.rows).toBe(3_000);
});

test('a text too long to travel inside a job goes by input key, alone', async () => {
  const { client } = await setup();
  const items = [{ text: 'a' }, { text: 'é'.repeat(3_000_000) }, { text: 'b' }];
  const blocks = await collect(client.embedStream(items));
  expect(blocks.map(({ rows }) => rows)).toEqual([1, 1, 1]);
  expect(judge(blocks, 3)).toBe(EVERY_ROW);
});

test('passthrough fields come back with their rows, and blocks count from startAt', async () => {
  const { client } = await setup({ jobTexts: 10 });
  const blocks = await collect(client.embedStream(lines(125, 100), { startAt: 100, runId: 'from-100' }));
  expect(judge(blocks, 125, 100)).toBe(EVERY_ROW);
  expect(blocks.flatMap(({ items }) => items.map(({ n }) => n))).toEqual(Array.from({ length: 25 }, (_, i) => 100 + i));
});

test('two clients at once each get their own rows', async () => {
  const { client, model } = await setup({ jobTexts: 8 }, { delayMs: () => Math.random() * 5 });
  const other = await connect({ model, jobTexts: 8 });
  const [mine, theirs] = await Promise.all([
    collect(client.embedStream(lines(500))),
    collect(other.embedStream(lines(700))),
  ]);
  expect(judge(mine, 500)).toBe(EVERY_ROW);
  expect(judge(theirs, 700)).toBe(EVERY_ROW);
});

test('two clients with the same run id at once both get every row', async () => {
  const { client, model } = await setup({ jobTexts: 8, askAfterMs: 100 }, { delayMs: () => Math.random() * 20 });
  const other = await connect({ model, jobTexts: 8, askAfterMs: 100 });
  const [mine, theirs] = await Promise.all([
    collect(client.embedStream(lines(400), { runId: 'same' })),
    collect(other.embedStream(lines(400), { runId: 'same' })),
  ]);
  expect(judge(mine, 400)).toBe(EVERY_ROW);
  expect(judge(theirs, 400)).toBe(EVERY_ROW);
});

test('the same request twice at once in one client is one job', async () => {
  const { client, worker } = await setup({}, { delayMs: () => 20 });
  const [one, two] = await Promise.all([
    client.embed(['a'], { jobId: 'twice' }),
    client.embed(['a'], { jobId: 'twice' }),
  ]);
  expect(one.vectors).toEqual(two.vectors);
  expect(worker.rows).toBe(1);
});

// ---- ids ------------------------------------------------------------------------------------------------------------

test('an id in use for other texts is a conflict, and both requests are told apart by fingerprint', async () => {
  const model = newModel();
  const client = await connect({ model });
  const first = client.embed(['a'], { jobId: 'mine' });
  first.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(1);
  await expect(client.embed(['b'], { jobId: 'mine' })).rejects.toMatchObject({
    code: 'JOB_ID_CONFLICT',
    fields: { found: expect.any(String), asked: expect.any(String) },
  });
  const other = await connect({ model });
  expect(await codeOf(other.embed(['b'], { jobId: 'mine' }))).toBe('JOB_ID_CONFLICT');
});

test('a finished request whose result nobody took is fetched without computing', async () => {
  const { client, worker, queue } = await setup();
  const request = { texts: ['a', 'b'], jobId: 'ready' };
  const plain = new Queue(queue, { prefix: PREFIX, connection: redis });
  await plain.add(
    'embed',
    { v: 1, texts: request.texts, fingerprint: fingerprintOfTexts(queue, request.texts) },
    { jobId: `default~${request.jobId}` },
  );
  await expect.poll(() => plain.getJobState(`default~${request.jobId}`)).toBe('completed');
  expect([...(await client.embed(request.texts, { jobId: request.jobId })).vectors]).toEqual(
    request.texts.flatMap(vectorOf),
  );
  expect(worker.rows).toBe(2);
  expect(client.counts()).toMatchObject({ ready: 1, added: 0 });
});

test('a request that waits already is known, and its end is found though nobody announces it to us', async () => {
  const model = newModel();
  const queue = mainQueue(model.name);
  const plain = new Queue(queue, { prefix: PREFIX, connection: redis });
  await plain.add(
    'embed',
    { v: 1, texts: ['a'], fingerprint: fingerprintOfTexts(queue, ['a']), reply: keys.reply('nobody') },
    { jobId: 'default~known' },
  );
  const client = await connect({ model });
  const result = client.embed(['a'], { jobId: 'known' });
  await expect.poll(() => client.counts().known).toBe(1);
  const worker = new StandIn(queue);
  expect([...(await result).vectors]).toEqual(vectorOf('a'));
  expect(worker.rows).toBe(1);
});

test('a request that was answered before is computed again', async () => {
  const { client, worker, queue } = await setup();
  for (let i = 1; i <= 3; i++) {
    expect([...(await client.embed(['a'], { jobId: 'again' })).vectors]).toEqual(vectorOf('a'));
    await expect
      .poll(async () => decodeResultHeader((await redis.getBuffer(keys.output(queue, 'default~again')))!)?.isTaken)
      .toBe(true);
  }
  expect(worker.rows).toBe(3);
});

// ---- results that cannot be had -------------------------------------------------------------------------------------

test('a result that expired before it was read is computed again', async () => {
  const { client } = await setup(
    {},
    { tamper: async (_, outKey, times) => void (times === 1 && (await redis.del(outKey))) },
  );
  expect([...(await client.embed(['a'])).vectors]).toEqual(vectorOf('a'));
  expect(client.counts().askedAgain).toBe(1);
});

test('a result that always expires fails after three more times', async () => {
  const { client, worker } = await setup({}, { tamper: async (_, outKey) => void (await redis.del(outKey)) });
  expect(await codeOf(client.embed(['a'], { jobId: 'gone' }))).toBe('RESULT_EXPIRED');
  expect(worker.runs.get('default~gone')).toBe(4);
});

test('a result that somebody else took is computed again', async () => {
  const { client } = await setup(
    {},
    { tamper: async (_, outKey, times) => void (times === 1 && (await redis.setrange(outKey, 6, '\x01'))) },
  );
  expect([...(await client.embed(['a'])).vectors]).toEqual(vectorOf('a'));
  expect(client.counts().askedAgain).toBe(1);
});

test('a damaged result is never delivered: it is computed again, and fails when it stays damaged', async () => {
  let damages = 1;
  const { client } = await setup(
    {},
    { tamper: async (_, outKey) => void (damages-- > 0 && (await redis.setrange(outKey, 40, 'damaged'))) },
  );
  expect([...(await client.embed(['a'])).vectors]).toEqual(vectorOf('a'));
  damages = Infinity;
  expect(await codeOf(client.embed(['a']))).toBe('RESULT_CORRUPT');
});

test('what is left of a taken result whose job is long gone does not stand in the way', async () => {
  const { client, queue } = await setup();
  await client.embed(['a'], { jobId: 'left' });
  await client.close();
  const plain = new Queue(queue, { prefix: PREFIX, connection: redis });
  await plain.remove('default~left');
  const again = await connect({ model: { name: queue.slice(6), revision: 'r1' } });
  expect([...(await again.embed(['a'], { jobId: 'left' })).vectors]).toEqual(vectorOf('a'));
});

test('a job that fails rejects with its code and message', async () => {
  const { client } = await setup({}, { failure: () => ({ code: 'QUARANTINED', message: 'it killed its executor' }) });
  await expect(client.embed(['a'])).rejects.toMatchObject({ code: 'QUARANTINED', message: 'it killed its executor' });
});

test('a failed job ends the stream, or is skipped in its place', async () => {
  const { client } = await setup(
    { jobTexts: 10 },
    { failure: (jobId) => (jobId.endsWith('-20') ? { code: 'INFERENCE_FAILED', message: 'poison' } : undefined) },
  );
  expect(await codeOf(collect(client.embedStream(lines(50))))).toBe('INFERENCE_FAILED');
  const blocks = await collect(client.embedStream(lines(50), { onError: 'skip' }));
  expect(blocks.map(({ kind, first }) => [kind, first])).toEqual([
    ['embedded', 0],
    ['embedded', 10],
    ['skipped', 20],
    ['embedded', 30],
    ['embedded', 40],
  ]);
});

test('when nothing is ever announced, results are found by asking', async () => {
  const { client } = await setup({ jobTexts: 10, askAfterMs: 100 }, { isSilent: true });
  expect(judge(await collect(client.embedStream(lines(200))), 200)).toBe(EVERY_ROW);
  expect(client.counts().lookedUp).toBeGreaterThan(0);
});

// ---- stopping -------------------------------------------------------------------------------------------------------

test('an aborted run rejects with INTERRUPTED and takes what waits off the queue, inputs included', async () => {
  const client = await connect({ jobTexts: 10, maxInFlightJobs: 8, tokenizer });
  const abort = new AbortController();
  const run = collect(client.embedStream(lines(1_000), { signal: abort.signal }));
  run.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(8);
  abort.abort();
  expect(await codeOf(run)).toBe('INTERRUPTED');
  expect(await redis.keys(`${PREFIX}:in:embed-m${models}:*`)).toEqual([]);
  expect(await redis.llen(`${PREFIX}:embed-m${models}:wait`)).toBe(0);
});

test('cancel takes a waiting request back, with all its parts, and whoever waits for it hears at once', async () => {
  const client = await connect({ jobTexts: 10, askAfterMs: 60_000 });
  const run = client.embed(
    [...lines(35)].map(({ text }) => text),
    { jobId: 'mine' },
  );
  run.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(4);
  expect((await client.cancel(['mine', 'nobodys'])).map(({ outcome }) => outcome)).toEqual([
    'cancelled',
    'cancelled',
    'cancelled',
    'cancelled',
  ]);
  expect(await codeOf(run)).toBe('CANCELLED');
});

test('cancel leaves other requests alone whose ids begin alike', async () => {
  const client = await connect({ jobTexts: 2, askAfterMs: 60_000 });
  const order = client.embed(['a', 'b', 'c'], { jobId: 'order' });
  const others = [
    client.embed(['d'], { jobId: 'order-7' }),
    client.embed(['e', 'f', 'g'], { jobId: 'order-final' }),
    collect(client.embedStream([{ text: 'h' }], { runId: 'order-run' })),
  ];
  for (const call of [order, ...others]) call.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(6);
  expect((await client.cancel(['order'])).map(({ jobId }) => jobId).toSorted()).toEqual([
    'default~order-0',
    'default~order-2',
  ]);
  expect(await codeOf(order)).toBe('CANCELLED');
  expect(
    await redis.exists(
      ...['order-7', 'order-final-0', 'order-final-2', 'order-run-0'].map(
        (id) => `${PREFIX}:embed-m${models}:default~${id}`,
      ),
    ),
  ).toBe(4);
  expect((await client.cancel(['order-run', 'order-7'])).map(({ jobId }) => jobId).toSorted()).toEqual([
    'default~order-7',
    'default~order-run-0',
  ]);
});

test('an aborted run marks what a worker has, so that it is dropped there', async () => {
  const { client, queue } = await setup({ jobTexts: 10, maxInFlightJobs: 2 }, { delayMs: () => 2_000 });
  const abort = new AbortController();
  const run = collect(client.embedStream(lines(20), { runId: 'run', signal: abort.signal }));
  run.catch(() => undefined);
  await expect.poll(() => redis.llen(`${PREFIX}:${queue}:active`), { timeout: 10_000 }).toBe(2);
  abort.abort();
  expect(await codeOf(run)).toBe('INTERRUPTED');
  for (const first of [0, 10])
    expect(await redis.hexists(`${PREFIX}:${queue}:default~run-${first}`, 'shoalCancelled')).toBe(1);
});

test('a signal that was aborted before stops a run before it begins', async () => {
  const client = await connect();
  expect(await codeOf(client.embed(['a'], { signal: AbortSignal.abort() }))).toBe('INTERRUPTED');
  expect(client.counts().added).toBe(0);
});

test('leaving the loop early takes what waits off the queue', async () => {
  const left = Promise.withResolvers<void>();
  const standIn: StandInOptions = {
    concurrency: 1,
    // the first job ends once all have their places on the queue, the next one once the caller has left
    tamper: async () => {
      if (worker.rows > 0) return left.promise;
      await vi.waitUntil(async () => (await waiting()) === 15, { timeout: 60_000 });
    },
  };
  const { client, worker, queue } = await setup({ jobTexts: 10, maxInFlightJobs: 16 }, standIn);
  const waiting = (): Promise<number> => redis.llen(`${PREFIX}:${queue}:wait`);
  for await (const block of client.embedStream(lines(10_000))) {
    expect(block.first).toBe(0);
    break;
  }
  await expect.poll(waiting).toBe(0);
  left.resolve();
  await expect.poll(() => redis.llen(`${PREFIX}:${queue}:active`)).toBe(0);
  expect(worker.rows).toBeLessThanOrEqual(20);
});

test('an input that throws is reported after the rows before it', async () => {
  const { client } = await setup({ jobTexts: 10 });
  const seen: number[] = [];
  await expect(
    (async () => {
      for await (const { first } of client.embedStream(brokenLines(20))) seen.push(first);
    })(),
  ).rejects.toThrow('disk on fire');
  expect(seen).toEqual([0]); // the second ten are an unfinished job when the input breaks
});

test('close rejects what is open, and nothing is left running', async () => {
  const client = await connect();
  const open = client.embed(['a']);
  open.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(1);
  await client.close();
  await client.close();
  expect(await codeOf(open)).toBe('INTERRUPTED');
  await expect.poll(async () => String(await redis.client('LIST')).match(/name=shoal-/g)).toBe(null);
});

test('a similarity question that is aborted while its line opens ends at once, and leaves nothing queued', async () => {
  const client = await connect();
  const line = await QueueLine.open(
    { redisUrl: server.url, prefix: PREFIX, model: newModel() },
    { queue: SIMILARITY_QUEUE, name: 'similarity' },
  );
  const slow = Promise.withResolvers<QueueLine>();
  const open = vi.spyOn(QueueLine, 'open').mockReturnValueOnce(slow.promise);
  const abort = new AbortController();
  const asked = client.topK('docs@1', ONE_QUERY, { k: 1, signal: abort.signal });
  asked.catch(() => undefined);
  await vi.waitUntil(() => open.mock.calls.length === 1, { timeout: 20_000 });
  abort.abort();
  expect(await codeOf(asked)).toBe('INTERRUPTED'); // though the line is not open yet
  const crossing = new AbortController();
  const crossed = client.topK('docs@1', ONE_QUERY, { k: 1, signal: crossing.signal });
  crossed.catch(() => undefined);
  await nextTurn();
  slow.resolve(line);
  crossing.abort(); // after the line has opened, before the call hears of it
  expect(await codeOf(crossed)).toBe('INTERRUPTED');
  expect(await codeOf(client.topK('docs@1', ONE_QUERY, { k: 1, signal: AbortSignal.abort() }))).toBe('INTERRUPTED');
  open.mockRestore();
  expect(line.jobs.counts().added).toBe(0);
});

test('nothing is opened after close: every call says that the client was closed', async () => {
  const client = await connect();
  await client.close();
  const open = vi.spyOn(QueueLine, 'open');
  expect(await codeOf(client.topK('docs@1', ONE_QUERY, { k: 1 }))).toBe('INTERRUPTED');
  expect(await codeOf(client.spread('links', [[0]], { k: 1 }))).toBe('INTERRUPTED');
  expect(await codeOf(client.embed(['a']))).toBe('INTERRUPTED');
  expect(await codeOf(client.cancel(['a']))).toBe('INTERRUPTED');
  expect(open).not.toHaveBeenCalled();
  open.mockRestore();
  await expect.poll(async () => String(await redis.client('LIST')).match(/name=shoal-/g)).toBe(null);
});

test('values that are no whole rows are refused before anything is asked', async () => {
  const client = await connect();
  for (const dims of [0, -1, 1.5, 2, Number.NaN])
    expect(await codeOf(client.topK('docs@1', { values: Float32Array.of(1, 2, 3), dims }, { k: 1 }))).toBe(
      'DIMENSIONS_MISMATCH',
    );
});

test.each([2, 1_000])('plain arrays of %i numbers ask what typed arrays ask', async (length) => {
  const client = await connect();
  const queue = new Queue(SIMILARITY_QUEUE, { connection: redis, prefix: PREFIX });
  closers.push(() => queue.close());
  const ids = Array.from({ length }, (_, i) => i);
  const asked = async (
    id: string,
    values: Float32Array | number[],
    candidates: RowIds,
  ): Promise<{ fingerprint?: string }> => {
    const jobId = `${id}-${randomUUID()}`;
    client.rescore('docs@1', { values, dims: length }, [candidates], { k: 1, jobId }).catch(() => undefined);
    const job = await vi.waitUntil(() => queue.getJob(`default~${jobId}`), { timeout: 20_000 });
    return job.data;
  };
  const typed = await asked('typed', Float32Array.from(ids), BigUint64Array.from(ids, BigInt));
  expect(typed.fingerprint).toMatch(/^[0-9a-f]{16}$/);
  expect(await asked('numbers', ids, ids)).toEqual(typed);
  expect(await asked('bigints', ids, ids.map(BigInt))).toEqual(typed);
});

test.each<[unknown, RegExp]>([
  [[[1.5]], /candidates\[0\]\[0\] is 1\.5; a row id is a whole number from 0 to 9007199254740991/],
  [[[0, -1]], /candidates\[0\]\[1\] is -1; /],
  [[[-1n]], /is -1n; /],
  [[[2 ** 53]], /is 9007199254740992; /],
  [[[2n ** 64n]], /is 18446744073709551616n; /],
  [[[Number.NaN]], /is NaN; /],
  [[['5']], /is '5'; /],
  [[1, 2], /candidates\[0\] is 1; each query has a list of row ids/],
  [[Uint8Array.of(1)], /candidates\[0\] is Uint8Array\(1\) \[ 1 \]; each query has/],
  [[[1], [2]], /there are 2 lists of candidates for 1 queries; pass one for each query/],
  [[], /there are 0 lists of candidates/],
])('candidates that cannot be rows are refused at once: %o', async (candidates, said) => {
  const client = await connect();
  const open = vi.spyOn(QueueLine, 'open');
  await expect(client.rescore('docs@1', ONE_QUERY, candidates as RowIds[], { k: 1 })).rejects.toMatchObject({
    code: 'SEARCH_INVALID',
    message: expect.stringMatching(said),
  });
  expect(open).not.toHaveBeenCalled();
  open.mockRestore();
});

test('values that are no numbers are refused before anything is added', async () => {
  const client = await connect();
  const bytes = { values: Buffer.of(0, 0, 128, 63), dims: 1 } as unknown as typeof ONE_QUERY;
  await expect(client.topK('docs@1', bytes, { k: 1 })).rejects.toMatchObject({
    code: 'VECTOR_INVALID',
    message: expect.stringMatching(/^values are <Buffer 00 00 80 3f>; pass a Float32Array/),
  });
  const nested = {
    values: [
      [1, 2],
      ['3', null],
    ],
    dims: 2,
  } as unknown as typeof ONE_QUERY;
  await expect(client.topK('docs@1', nested, { k: 1 })).rejects.toMatchObject({
    code: 'VECTOR_INVALID',
    message: expect.stringContaining('holds NaN'),
  });
  expect(client.counts().added).toBe(0);
});

// ---- memory ---------------------------------------------------------------------------------------------------------

test('neither a slow caller nor a long input makes memory grow', async () => {
  const { client } = await setup({ maxInFlightJobs: 16, tokenizer });
  let ahead = 0;
  let most = 0;
  let rows = 0;
  const stream = client.embedStream(lines(200_000), {
    onProgress: ({ rowsRead, rowsDone }) => (ahead = Math.max(ahead, rowsRead - rowsDone)),
  });
  for await (const block of stream) {
    rows += block.rows;
    if (block.first % 64_000 === 0) {
      globalThis.gc?.();
      most = Math.max(most, process.memoryUsage().heapUsed);
    }
    if (block.first === 64_000) await sleep(200);
  }
  expect(rows).toBe(200_000);
  expect(ahead).toBeLessThanOrEqual(16 * 64);
  expect(most).toBeLessThan(300e6);
});

test('tokenizing does not keep the event loop from turning', async () => {
  let [encoded, most] = [0, 0];
  const slow: Tokenizer = {
    ...tokenizer,
    encode: (text) => {
      most = Math.max(most, ++encoded);
      const end = performance.now() + 4;
      while (performance.now() < end);
      return tokenizer.encode(text);
    },
  };
  const { client } = await setup({ tokenizer: slow, jobTexts: 256 });
  const timer = setInterval(() => {
    encoded = 0;
  }, 1);
  await client.embed(Array.from({ length: 256 }, (_, i) => `t${i}`));
  clearInterval(timer);
  expect(most).toBeLessThan(128); // texts between two turns; all at once would be 256
});

// ---- deaths ---------------------------------------------------------------------------------------------------------

test('after the server was killed and started again the run goes on with the same rows', async () => {
  const own = await startTestServer({ appendFsync: 'everysec' });
  closers.push(() => own.stop());
  const model = newModel();
  const client = await connect({ redisUrl: own.url, model, jobTexts: 10, maxInFlightJobs: 16 });
  const worker = new StandIn(mainQueue(model.name), { delayMs: () => 5 }, own.url);
  let kills = 0;
  const blocks: StreamBlock<{ text: string }>[] = [];
  for await (const block of client.embedStream(lines(3_000))) {
    blocks.push(block);
    if (block.first === 500 || block.first === 1_500) {
      await own.restart();
      kills++;
    }
  }
  expect(kills).toBe(2);
  expect(judge(blocks, 3_000)).toBe(EVERY_ROW);
  expect(worker.rows).toBeGreaterThanOrEqual(3_000);
});

test('jobs that the server lost are added again when it is back', async () => {
  const own = await startTestServer({ appendFsync: 'no' });
  closers.push(() => own.stop());
  const model = newModel();
  const client = await connect({ redisUrl: own.url, model, tokenizer });
  const result = client.embed(['a', 'b']);
  await expect.poll(() => client.counts().added).toBe(1);
  await own.restart(); // without AOF: it comes back empty
  await expect.poll(() => client.counts().addedAgain).toBe(1);
  const worker = new StandIn(mainQueue(model.name), {}, own.url);
  expect((await result).rows).toBe(2);
  expect(worker.rows).toBe(2);
});

test('a server that stays away ends in QUEUE_UNREACHABLE', async () => {
  const own = await startTestServer();
  const client = await connect({ redisUrl: own.url, giveUpAfterMs: 300 });
  closers.push(() => own.stop());
  const open = client.embed(['a']);
  open.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(1);
  await own.kill9();
  expect(await codeOf(open)).toBe('QUEUE_UNREACHABLE');
  expect(await codeOf(client.embed(['b']))).toBe('QUEUE_UNREACHABLE');
  await own.restart();
});

/** Every connection but the one that says so. */
function cutConnections(): void {
  void redis
    .call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
    .then(() => redis.call('CLIENT', 'KILL', 'TYPE', 'pubsub'))
    .catch(() => undefined);
}

test('connections that break again and again cost no row', async () => {
  const { client } = await setup({ jobTexts: 10, maxInFlightJobs: 16 }, { delayMs: () => 3 });
  const blocks: StreamBlock<{ text: string }>[] = [];
  for await (const block of client.embedStream(lines(3_000)))
    if (blocks.push(block) % 15 === 0) setTimeout(cutConnections, 20 * Math.random());
  expect(judge(blocks, 3_000)).toBe(EVERY_ROW);
});

/** Calls of this process that found the server full. */
const refusals = (): number => processCounts().refused.memory;

test('a full server is waited for, and ends in QUEUE_FULL when it stays full', async () => {
  const own = await startTestServer();
  closers.push(() => own.stop());
  const model = newModel();
  const hasty = await connect({ redisUrl: own.url, model, tokenizer, giveUpAfterMs: 1_000 });
  const client = await connect({ redisUrl: own.url, model, tokenizer });
  await own.command('CONFIG', 'SET', 'maxmemory', '100kb');
  expect(await codeOf(hasty.embed(['a']))).toBe('QUEUE_FULL');
  const before = refusals();
  const patient = client.embed(['b']);
  await expect.poll(refusals).toBeGreaterThan(before);
  await own.command('CONFIG', 'SET', 'maxmemory', '0');
  const worker = new StandIn(mainQueue(model.name), {}, own.url);
  expect((await patient).rows).toBe(1);
  expect(worker.rows).toBe(1);
});

test('a server that was away for longer than results live: what expired is computed again, and right', async () => {
  const own = await startTestServer();
  closers.push(() => own.stop());
  const model = newModel();
  const queue = mainQueue(model.name);
  const worker = new StandIn(queue, { isSilent: true }, own.url); // so that nobody fetches before the server goes
  const client = await connect({ redisUrl: own.url, model, jobTexts: 10, askAfterMs: 60_000 });
  const run = collect(client.embedStream(lines(50)));
  await expect.poll(() => worker.rows).toBe(50);
  const results = (await own.command('KEYS', `${PREFIX}:out:${queue}:*`)) as string[];
  await expect.poll(() => own.command('LLEN', `${PREFIX}:${queue}:active`)).toBe(0);
  for (const key of results) await own.command('PEXPIRE', key, 400);
  await own.durable();
  await own.kill9();
  await sleep(500);
  await own.restart();
  await expect.poll(() => worker.rows, { timeout: 20_000 }).toBe(100);
  await own.command('PUBLISH', 'nobody', ''); // the stand-in announces nothing: the client is told by its own asking
  await own.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  expect(judge(await run, 50)).toBe(EVERY_ROW);
  expect(client.counts().askedAgain).toBe(5);
});

test(
  'a queue that takes no more is waited for: every row comes, in order, and no more than fits is ever on the ' +
    'queue',
  async () => {
    const notices: (number | undefined)[] = [];
    const { client, queue } = await setup(
      {
        jobTexts: 10,
        limits: { maxQueuedRows: 50, maxTenantShare: 1 },
        onHeldBack: (retryAfterMs) => notices.push(retryAfterMs),
      },
      { delayMs: () => 5 },
    );
    let most = 0;
    const timer = setInterval(
      () => void redis.hget(keys.load(), `rows ${queue}`).then((rows) => (most = Math.max(most, Number(rows)))),
      5,
    );
    closers.push(async () => clearInterval(timer));
    const blocks = await collect(client.embedStream(lines(1_000)));
    clearInterval(timer);
    expect(judge(blocks, 1_000)).toBe(EVERY_ROW);
    expect(most).toBeLessThanOrEqual(50);
    expect(notices.filter((notice) => notice !== undefined).length).toBeGreaterThan(0);
    expect(notices.at(-1)).toBeUndefined();
  },
);

test('a damaged queue is waited for until somebody puts it right', async () => {
  const { client, queue } = await setup();
  const wrongTypes = async (): Promise<number> =>
    Number(/errorstat_WRONGTYPE:count=(\d+)/.exec(await redis.info('errorstats'))?.[1] ?? 0);
  await redis.set(keys.job(queue, 'prioritized'), 'no sorted set');
  const before = await wrongTypes();
  const asked = client.embed(['a'], { class: 'bulk' });
  await expect.poll(wrongTypes).toBeGreaterThan(before);
  await redis.del(keys.job(queue, 'prioritized'));
  expect((await asked).rows).toBe(1);
});

test('two clients share what fits, and both get through', async () => {
  const limits = { maxQueuedRows: 40, maxTenantShare: 1 };
  const { model, client } = await setup({ jobTexts: 10, limits }, { delayMs: () => 2 });
  const other = await connect({ model, jobTexts: 10, limits });
  const both = await Promise.all([collect(client.embedStream(lines(400))), collect(other.embedStream(lines(400)))]);
  for (const blocks of both) expect(judge(blocks, 400)).toBe(EVERY_ROW);
});

test('who does not want to wait is told when to come back', async () => {
  const model = newModel(); // which nobody serves
  // room is counted by prefix
  const client = await connect({ model, prefix: '{full}', whenFull: 'fail', limits: { maxQueuedRows: 8 } });
  // interactive: of a bulk job's room a tenth is kept free
  const first = client.embed(['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']);
  first.catch(() => undefined);
  await expect.poll(() => client.counts().added).toBe(1);
  await expect(client.embed(['k'])).rejects.toMatchObject({
    code: 'ADMISSION_REFUSED',
    fields: { reason: 'rows', retryAfterMs: expect.any(Number) },
  });
});

test.for(['before-acknowledge', 'after-acknowledge'])(
  'a client killed %s leaves nothing that a resumed run would miss',
  async (point) => {
    const { model, client, worker } = await setup({ jobTexts: 10, askAfterMs: 200 }, { delayMs: () => 2 });
    const runId = `run-${randomUUID()}`;
    const child = fork(new URL('./testing/killed-client.ts', import.meta.url), [], {
      env: {
        ...process.env,
        KILLED_CLIENT: JSON.stringify({
          redisUrl: server.url,
          prefix: PREFIX,
          model,
          jobTexts: 10,
          maxInFlightJobs: 8,
          runId,
          rows: 500,
          fault: `${point}:SIGKILL:2`,
        }),
      },
      execArgv: ['--conditions=@shoal/source'],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    const [, signal] = await once(child, 'exit');
    expect(signal).toBe('SIGKILL');
    const items = [...lines(500)].map(({ text }) => ({ text }));
    expect(judge(await collect(client.embedStream(items, { runId })), 500)).toBe(EVERY_ROW);
    expect(worker.rows).toBeLessThan(1_000); // the first run was killed in the middle
  },
);

test('the plain BullMQ example gets its vectors, and those of a repeated id at once', async () => {
  const model = newModel();
  const worker = new StandIn(mainQueue(model.name));
  const example = new URL('../../../examples/plain-bullmq.mjs', import.meta.url).pathname;
  const environment = { ...process.env, REDIS_URL: server.url, SHOAL_PREFIX: PREFIX, SHOAL_MODEL: model.name };
  for (let i = 0; i < 2; i++) {
    const { stdout } = await promisify(execFile)(process.execPath, [example, 'example-1'], { env: environment });
    expect(stdout).toContain('3 rows of 8 dimensions');
    expect(stdout).toContain(
      vectorOf('Invoices are due within thirty days.')
        .slice(0, 4)
        .map((value) => value.toFixed(4))
        .join(' '),
    );
  }
  expect(worker.rows).toBe(3);
});

test('a few texts that are too long for one job are several, and each has its own id', async () => {
  const { client, worker } = await setup();
  const texts = ['a'.repeat(700_000), 'b'.repeat(700_000), 'c'];
  const { rows, vectors } = await client.embed(texts, { jobId: 'long' });
  expect([rows, vectors]).toEqual([3, Float32Array.from(texts.flatMap(vectorOf))]);
  expect([...worker.runs.keys()].sort()).toEqual(['default~long', 'default~long-1']);
});
