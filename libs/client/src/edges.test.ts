// What plain JavaScript hands over, which no type checks, and calls that nobody answers.

import { Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { FakeTokenizer, RecordingLogger } from '@shoal/core/testing';
import { WorkerPresence } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { ShoalClient, type ClientOptions } from './index.ts';
import { withRows } from './with-rows.ts';

let server: TestServer;
let prefix: string;
let prefixes = 0;
let client: ShoalClient;

beforeAll(async () => {
  server = await startTestServer();
});
beforeEach(async () => {
  prefix = `{t-edges-${++prefixes}}`;
  client = await connect({});
});
afterEach(() => client.close());
afterAll(() => server.stop());

function connect(more: object): Promise<ShoalClient> {
  const options = { redisUrl: server.url, prefix, model: { name: 'x', revision: '1' }, ...more };
  return ShoalClient.connect(options as ClientOptions);
}

/** As JavaScript calls it. */
function untyped(value: unknown): never {
  return value as never;
}

describe('connect refuses by name', () => {
  test.each([
    [{}, /needs redisUrl.*or connection.*found undefined/],
    [{ redisUrl: 'redis://localhost', model: 7 }, /needs model, the model's name \("minilm"\) or an object.*found 7/],
    [{ redisUrl: 'redis://localhost', model: {} }, /needs model, the model's name/],
    [{ redisUrl: 'redis://localhost', model: 'BAAI/bge-m3@main' }, /a revision of the hub/],
    [{ redisUrl: 'redis://localhost', connection: {}, model: 'x' }, /redisUrl or connection, and was given both/],
    [{ connection: 'redis://localhost', model: 'x' }, /a connection of ioredis, or its options/],
    [
      { url: 'redis://localhost', model: { name: 'x' } },
      /no option "url" \(it is redisUrl\); there are redisUrl, connection, prefix/,
    ],
    [undefined, /takes its options as an object, and found undefined/],
  ])('%j', async (options, message) => {
    await expect(ShoalClient.connect(untyped(options))).rejects.toThrow(message);
    await expect(ShoalClient.connect(untyped(options))).rejects.toBeInstanceOf(TypeError);
  });
});

describe('a call refuses by name', () => {
  test.each([
    ['a text, which would be embedded letter by letter', 'hello', {}, /was given one text; write embed\(\[text\]\)/],
    ['what is no list', { 0: 'a' }, {}, /takes an array of texts, and found/],
    ['what is no text', ['a', 7], {}, /found 7 at 1/],
    ['an unknown option', ['a'], { dimensions: 10 }, /no option "dimensions" \(it is output: \{ dimensions \}\)/],
    ['a time limit that is none', ['a'], { timeoutMs: 0 }, /timeoutMs is 0/],
    ['a deadline that is none', ['a'], { deadline: 'soon' }, /deadline is 'soon'/],
  ])('%s', async (_, texts, options, message) => {
    await expect(client.embed(untyped(texts), untyped(options))).rejects.toThrow(message);
    expect(client.counts().added).toBe(0);
  });

  test('a tenant that cannot be part of an id', async () => {
    await expect(client.embed(['a'], { tenant: 'a:b' })).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  });

  test('a stream of something else', () => {
    expect(() => client.embedStream(untyped('hello'))).toThrow(/takes an iterable of items/);
    expect(() => client.embedStream([], untyped({ jobId: 'a' }))).toThrow(/no option "jobId"/);
  });
});

test('a call that nobody answers in time says why, and its job is taken back', async () => {
  const error = await client.embed(['a'], { timeoutMs: 200 }).catch((reason: unknown) => reason);
  expect(error).toMatchObject({
    code: 'DEADLINE_PASSED',
    message: expect.stringMatching(/^the vectors had not come within 0\.2 s: no worker serves embed-x, 1 job waits/),
  });
  await expect(client.embed(['a'], { deadline: new Date(Date.now() - 1) })).rejects.toMatchObject({
    code: 'DEADLINE_PASSED',
  });
  expect(await client.whyWaiting()).toMatchObject({ reason: 'no-worker', waiting: 0 });
});

test('an aborted call is an AbortError, and speaks of ids only where the caller named one', async () => {
  const aborted = { signal: AbortSignal.abort() };
  await expect(client.embed(['a'], aborted)).rejects.toMatchObject({
    name: 'AbortError',
    code: 'INTERRUPTED',
    message: 'the call was stopped before all its vectors had come; its jobs are taken off the queue',
  });
  await expect(client.embed(['a'], { ...aborted, jobId: 'mine' })).rejects.toThrow(/asking again with the same id/);
});

test('a revision that is not given is that of the workers; without a worker it is asked for', async () => {
  await expect(connect({ model: { name: 'x' } })).rejects.toMatchObject({
    code: 'MODEL_UNKNOWN',
    message: expect.stringMatching(
      /without its revision, and no worker serves embed-x, and none has left its name there\. Start one \(shoal worker/,
    ),
  });
  const facts = { device: 'cpu', precision: 'fp32', host: 'h', pid: 1, lanes: ['main'], isDrained: false } as const;
  const worker = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix,
    queue: 'embed-x',
    lanes: ['embed-x'],
    workerId: 'w',
    facts: () => ({ ...facts, model: 'x@abc', rates: {}, mix: {}, claims: 0, poolTokens: 0, tokensPerJob: 0 }),
    log: new RecordingLogger(),
  });
  await worker.start();
  try {
    await using found = await connect({ model: 'x' });
    expect(Reflect.get(found, 'model')).toBe('x@abc');
  } finally {
    await worker.stop();
  }
});

test('where no worker is alive just now, what the last one left behind tells the revision', async () => {
  const key = `${prefix}:embed-x`;
  await server.command('ZADD', `${key}:completed`, 1, 'a-job');
  await server.command('HSET', `${key}:a-job`, 'returnvalue', JSON.stringify({ v: 1, model: 'x@last' }));
  await using found = await connect({ model: 'x' });
  expect(Reflect.get(found, 'model')).toBe('x@last');
});

test('rows that were cut here and are too long for the worker all the same: client and worker disagree, and it says so', async () => {
  const connection = new Redis(server.url, { maxRetriesPerRequest: null });
  const worker = new Worker(
    'embed-x',
    () =>
      Promise.reject(
        new Error('INPUT_TOO_LONG: job "a", row 0 has more than the 256 tokens this worker takes; shorten it'),
      ),
    { prefix, connection },
  );
  try {
    await using told = await connect({ tokenizer: new FakeTokenizer({ maxTokens: 512 }), askAfterMs: 20 });
    await expect(told.embed(['word '.repeat(400)])).rejects.toMatchObject({
      code: 'INPUT_TOO_LONG',
      message: expect.stringMatching(
        /^texts were cut at 512 tokens here, and .*more than the 256 tokens this worker takes: client and worker disagree.*--max-tokens/,
      ),
    });
  } finally {
    await worker.close(true);
    connection.disconnect();
  }
});

test('a row is a view, and one that is not there an error', () => {
  const vectors = Float32Array.of(1, 2, 3, 4);
  const block = withRows({ rows: 2, dims: 2, dtype: 'f32', vectors, scales: undefined });
  expect([...block.row(1)]).toEqual([3, 4]);
  expect(block.toFloat32()).toBe(vectors);
  expect(Object.keys(block)).toEqual(['rows', 'dims', 'dtype', 'vectors', 'scales']);
  for (const index of [-1, 2, 0.5]) expect(() => block.row(index)).toThrow(/there is no row/);
});
