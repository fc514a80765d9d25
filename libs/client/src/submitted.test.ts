// Requests that somebody comes back for: in the same process, in another one that knows nothing but the id, and after
// results were released, expired, failed or taken back. A real queue server and a stand-in for the worker.

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { RESULT_HEADER_BYTES, encodeResult, keySpace, mainQueue, type OutputDtype } from '@shoal/contract';
import { loopTurn } from '@shoal/core/base';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import type { ClientOptions, JobState } from './embedding.ts';
import { ShoalClient } from './shoal-client.ts';
import { Submitted, ofVectors } from './submitted.ts';
import { QueueStandIn, vectorOf, type StandInOptions } from './testing/stand-in.ts';

const PREFIX = '{t-submitted}';
const TEXTS = ['a', 'b', 'c', 'd', 'e'];
const keys = keySpace(PREFIX);

let server: TestServer;
let redis: Redis;
let models = 0;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  redis = new Redis(server.url);
});
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

function work(name: string, options: StandInOptions = {}): QueueStandIn {
  const worker = new QueueStandIn(mainQueue(name), { url: server.url, prefix: PREFIX }, options);
  closers.push(() => worker.close());
  return worker;
}

async function connect(name: string, options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const place = { redisUrl: server.url, prefix: PREFIX, jobTexts: 2, model: { name, revision: 'r1' } };
  const client = await ShoalClient.connect({ ...place, ...options });
  closers.push(() => client.close());
  return client;
}

async function setup(options: StandInOptions = {}) {
  const name = `m${++models}`;
  return { name, client: await connect(name), worker: work(name, options) };
}

const right = { rows: 5, vectors: Float32Array.from(TEXTS.flatMap(vectorOf)) };

test('a request is waiting until a worker comes, then completed, and its vectors can be had twice', async () => {
  const name = `m${++models}`;
  const client = await connect(name);
  const handle = await client.submit(TEXTS, { jobId: 'nightly', meta: { userId: 5 } });
  expect(await handle.status()).toMatchObject({
    state: 'waiting',
    rows: 5,
    rowsDone: 0,
    model: `${name}@r1`,
    meta: { userId: 5 },
  });
  const job = await redis.hget(keys.job(mainQueue(name), 'default~nightly-2'), 'data');
  expect(JSON.parse(job!)).toMatchObject({ v: 2, meta: { userId: 5 }, class: 'bulk', resultTtlMs: 86_400_000 });
  const early = handle.result();
  work(name);
  expect(await early).toMatchObject({ ...right, model: `${name}@r1`, meta: { userId: 5 } });
  expect(await handle.result()).toMatchObject(right);
  expect(await handle.status()).toMatchObject({ state: 'completed', rowsDone: 5 });
});

test('another process fetches by the id alone what a process that has ended submitted', async () => {
  const name = `m${++models}`;
  const program = new URL('./testing/submit-and-end.ts', import.meta.url).pathname;
  const options = { redisUrl: server.url, prefix: PREFIX, model: { name, revision: 'r1' }, jobTexts: 2 };
  const run = (step: object) =>
    promisify(execFile)(process.execPath, ['--conditions=@shoal/source', program], {
      env: { ...process.env, SUBMIT_AND_END: JSON.stringify({ options, id: 'later', ...step }) },
    });
  expect((await run({ texts: TEXTS })).stdout).toBe('waiting\n');
  work(name);
  expect(JSON.parse((await run({})).stdout)).toEqual([...right.vectors]);
});

test.each<OutputDtype>(['f32', 'f16', 'i8', 'binary'])(
  '%s rows are, byte for byte, what lies on the server',
  async (dtype) => {
    const { client, name } = await setup();
    const result = await (await client.submit(TEXTS, { jobId: dtype, output: { dtype } })).result();
    const stored = await Promise.all(
      [0, 2, 4].map((first) => redis.getBuffer(keys.output(mainQueue(name), `default~${dtype}-${first}`))),
    );
    const bodies = stored.map((bytes) => bytes!.subarray(RESULT_HEADER_BYTES));
    const scaleBytes = [2, 2, 1].map((rows) => (dtype === 'i8' ? rows * 4 : 0));
    const rowsOf = bodies.map((body, at) => body.subarray(0, body.length - scaleBytes[at]!));
    const scalesOf = bodies.map((body, at) => body.subarray(body.length - scaleBytes[at]!));
    expect(bytesOf(result.vectors)).toEqual(Buffer.concat(rowsOf));
    expect(bytesOf(result.scales)).toEqual(Buffer.concat(scalesOf));
  },
);

function bytesOf(array: NodeJS.TypedArray | undefined): Buffer {
  return array === undefined ? Buffer.alloc(0) : Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

test('the same id is the same request again, however it is cut, and a conflict with other texts', async () => {
  const { client, worker, name } = await setup();
  const [first, second] = await Promise.all([1, 2].map(() => client.submit(TEXTS, { jobId: 'twice' })));
  expect(await first!.result()).toMatchObject(right);
  expect(await second!.result()).toMatchObject(right);
  expect(worker.rows).toBe(5);
  await expect(client.submit(['x', ...TEXTS.slice(1)], { jobId: 'twice' })).rejects.toMatchObject({
    code: 'JOB_ID_CONFLICT',
  });
  const other = await connect(name, { jobTexts: 64 });
  const third = await other.submit(TEXTS, { jobId: 'twice' });
  expect(await third.result()).toMatchObject(right);
  expect(worker.rows).toBe(5);
  for (const texts of [TEXTS.slice(1), [...TEXTS, 'more']])
    await expect(other.submit(texts, { jobId: 'twice' })).rejects.toMatchObject({ code: 'JOB_ID_CONFLICT' });
});

test('an id that another call has is a conflict, and its job is left alone', async () => {
  const name = `m${++models}`;
  const client = await connect(name);
  const other = client.embed(['mine'], { jobId: 'taken' });
  await expect.poll(() => client.counts().added).toBe(1);
  await expect(client.submit(['yours'], { jobId: 'taken' })).rejects.toMatchObject({ code: 'JOB_ID_CONFLICT' });
  expect((await client.job('taken').status()).state).toBe('unknown');
  work(name);
  expect((await other).vectors).toEqual(Float32Array.from(vectorOf('mine')));
});

test('an aborted submit takes back what it has added', async () => {
  const limits = { maxQueuedRows: 8 };
  const client = await connect(`m${++models}`, { prefix: '{t-submitted-abort}', limits });
  const stop = new AbortController();
  const texts = Array.from({ length: 20 }, (_, n) => `text ${n}`);
  const full = client.submit(texts, { jobId: 'never', signal: stop.signal }).catch((error: unknown) => error);
  await expect.poll(async () => (await client.whyWaiting()).waiting).toBeGreaterThan(0);
  stop.abort();
  expect(await full).toMatchObject({ name: 'AbortError', code: 'INTERRUPTED' });
  expect(await client.whyWaiting()).toMatchObject({ waiting: 0 });
  expect((await client.job('never').status()).state).toBe('unknown');
});

test('a request is one of its tenant, and unknown to others', async () => {
  const { client } = await setup();
  const handle = await client.submit(['a'], { jobId: 'mine', tenant: 'acme' });
  await handle.result();
  const states: JobState[] = [];
  for (const tenant of ['acme', 'other']) states.push((await client.job('mine', { tenant }).status()).state);
  expect(states).toEqual(['completed', 'unknown']);
  await expect(client.job('mine').result()).rejects.toMatchObject({ code: 'INPUT_LOST' });
  expect(await client.job('mine').cancel()).toBe('unknown');
});

test('a job that fails is the failure of its request', async () => {
  const failure = { code: 'INPUT_TOO_LONG', message: 'row 0 is too long' } as const;
  const { client } = await setup({ failure: (jobId) => (jobId.endsWith('-2') ? failure : undefined) });
  const handle = await client.submit(TEXTS);
  await expect(handle.result()).rejects.toMatchObject(failure);
  expect(await handle.status()).toMatchObject({ state: 'failed', error: failure });
});

test('a request that is taken back is cancelled, and submitted again it is computed', async () => {
  const name = `m${++models}`;
  const client = await connect(name);
  const handle = await client.submit(TEXTS, { jobId: 'back' });
  const waiting = handle.result().catch((error: unknown) => error);
  expect(await handle.cancel()).toBe('cancelled');
  expect(await waiting).toMatchObject({ code: 'CANCELLED' });
  expect(await handle.status()).toMatchObject({ state: 'cancelled', rowsDone: 0 });
  work(name);
  expect(await (await client.submit(TEXTS, { jobId: 'back' })).result()).toMatchObject(right);
});

test('any client takes a request of several jobs back by its id', async () => {
  const name = `m${++models}`;
  const handle = await (await connect(name)).submit(TEXTS, { jobId: 'whole' });
  const results = await (await connect(name)).cancel(['whole']);
  expect(results.map(({ outcome }) => outcome)).toEqual(['cancelled', 'cancelled', 'cancelled']);
  expect((await handle.status()).state).toBe('cancelled');
});

test('what finds no room and does not want to wait leaves nothing behind', async () => {
  const place = { prefix: '{t-submitted-full}', whenFull: 'fail', limits: { maxQueuedRows: 8 } } as const;
  const client = await connect(`m${++models}`, place);
  const texts = Array.from({ length: 20 }, (_, n) => `text ${n}`);
  await expect(client.submit(texts, { jobId: 'large' })).rejects.toMatchObject({ code: 'ADMISSION_REFUSED' });
  expect((await client.job('large').status()).state).toBe('unknown');
  expect(await client.whyWaiting()).toMatchObject({ waiting: 0 });
});

test('a client that is closed ends the waits of its handles', async () => {
  const client = await connect(`m${++models}`);
  const handle = await client.submit(['a']);
  const waiting = handle.result().catch((error: unknown) => error);
  await client.close();
  expect(await waiting).toMatchObject({ code: 'INTERRUPTED' });
});

test('a wait that is aborted, or too long, leaves the request as it is', async () => {
  const name = `m${++models}`;
  const client = await connect(name);
  const handle = await client.submit(TEXTS);
  const reason = new Error('the user went away');
  await expect(handle.result({ signal: AbortSignal.abort(reason) })).rejects.toMatchObject({
    name: 'AbortError',
    code: 'INTERRUPTED',
    cause: reason,
  });
  await expect(handle.result({ timeoutMs: 50 })).rejects.toMatchObject({ code: 'DEADLINE_PASSED' });
  expect((await handle.status()).state).toBe('waiting');
});

test('what is released is forgotten, and what is gone without that is expired', async () => {
  const { client, name } = await setup();
  const [kept, released] = [await client.submit(['a']), await client.submit(['b'])];
  await Promise.all([kept.result(), released.result()]);
  await released.release();
  expect((await released.status()).state).toBe('unknown');
  await redis.unlink(keys.output(mainQueue(name), `default~${kept.id}`));
  expect((await kept.status()).state).toBe('expired');
  await expect(kept.result()).rejects.toMatchObject({ code: 'RESULT_EXPIRED' });
});

test('a finished job that the queue has forgotten is completed as long as its result lies there', async () => {
  const { client, name } = await setup();
  const handle = await client.submit(['a']);
  await handle.result();
  const [queue, jobId] = [mainQueue(name), `default~${handle.id}`];
  await redis.unlink(keys.job(queue, jobId));
  await redis.zrem(`${PREFIX}:${queue}:completed`, jobId);
  expect((await handle.status()).state).toBe('completed');
  expect((await handle.result()).toFloat32()).toEqual(Float32Array.from(vectorOf('a')));
});

test('wrong calls are refused by name before anything is sent', async () => {
  const client = await connect(`m${++models}`);
  const untyped = client as unknown as Record<'submit' | 'job', (...values: unknown[]) => unknown>;
  await expect(untyped.submit('hello')).rejects.toThrow('submit takes an array of texts and was given one text');
  await expect(untyped.submit([])).rejects.toThrow('submit needs at least one text');
  await expect(untyped.submit(['a'], { meta: { at: new Date(0) } })).rejects.toThrow('meta.at is 1970');
  await expect(untyped.submit(['a'], { meta: { a: { b: undefined } } })).rejects.toThrow('meta.a.b is undefined');
  await expect(untyped.submit(['a'], { timeoutMs: 5 })).rejects.toThrow('submit has no option "timeoutMs"');
  expect(() => untyped.job(7)).toThrow('job takes the id of a request, a text, and found 7');
  expect(() => untyped.job('a', { signal: 1 })).toThrow('job has no option "signal"');
});

test('a job that completes between two questions is completed, and not expired', async () => {
  const part = { jobId: 'default~late', rows: 1, fingerprint: '0123456789abcdef' };
  const record = { v: 1, model: 'm@1', rows: 1, dtype: 'f32', parts: [part], submittedMs: 0 };
  const vector = new Uint8Array(4);
  const result = encodeResult({ ...part, dtype: 'f32', dims: 1, isTruncated: false }, vector);
  let isDone = false;
  const producer = {
    records: { read: async () => JSON.stringify(record) },
    endings: async () => {
      await loopTurn();
      isDone = true; // the worker ends it while this answer is on its way
      return [{ jobId: part.jobId, state: 'completed' }];
    },
    resultHeads: async () => [isDone ? Buffer.from(result.subarray(0, RESULT_HEADER_BYTES)) : undefined],
    states: async () => [],
  };
  const lines = { find: async () => ({ line: { producer } }) } as unknown as ConstructorParameters<typeof Submitted>[0];
  const handle = new Submitted(lines, { id: 'late', tenant: 'default' }, ofVectors());
  expect((await handle.status()).state).toBe('completed');
});
