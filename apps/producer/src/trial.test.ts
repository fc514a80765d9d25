// A trial: a simulated device serves the queue of a model, so that HTTP can be tried under load. Its vectors are a
// function of the texts' token ids, everybody can see that they are not the model's, and no worker that computes the
// model shares its queue.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue, QueueEvents } from 'bullmq';
import { OpenAI } from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { jobSchema, mainQueue } from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';
import { simulatedVector } from '@shoal/core/sim';
import { programOf } from '@shoal/core/testing';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { Fleet } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from './producer.ts';
import { producerOptions } from './testing/producer-options.ts';

const MODEL = 'tiny-random';
const QUEUE = mainQueue(MODEL);
const PREFIX = '{trial}';
const SIMULATED = { SHOAL_DEVICE: 'sim:8000', SHOAL_SIM_SERVES: 'model' };

let server: TestServer;
let cacheDir: string;
let model: StoredModel;
let tokenizer: Tokenizer;
let producer: Producer;
let trial: Started;
const workers: ChildProcess[] = [];

beforeAll(async () => {
  server = await startTestServer();
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-trial-'));
  model = await openModel(MODEL, { cacheDir });
  tokenizer = await openTokenizer(model);
  trial = await startWorker('gpu-worker', { SHOAL_PREFIX: PREFIX, ...SIMULATED });
  producer = await createProducer(producerOptions({ redisUrl: server.url, prefix: PREFIX, model, tokenizer }));
});
afterAll(async () => {
  await producer?.stop();
  await Promise.all(workers.map(stopWorker));
  await server.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

interface Started {
  readonly report: unknown;
  /** What it has logged until it said so. */
  readonly log: () => string;
}

async function startWorker(app: 'cpu-worker' | 'gpu-worker', environment: Record<string, string>): Promise<Started> {
  const { main, execArgv } = programOf(app);
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'warn',
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  workers.push(child);
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (text += String(chunk)));
  const [report]: unknown[] = await once(child, 'message');
  return { report, log: () => text };
}

async function stopWorker(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  await gone;
}

test('the worker says what it is, in its log and to the fleet', async () => {
  expect(trial.report).toMatchObject({ kind: 'ready', device: 'sim:8000' });
  await expect.poll(trial.log).toContain('A TRIAL');
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  await expect.poll(async () => (await fleet.read()).workers.map(({ facts }) => facts?.device)).toEqual(['sim:8000']);
  await fleet.close();
});

test('each text has the vector of its token ids, under load, and every answer says that it is simulated', async () => {
  const openai = new OpenAI({ baseURL: `${producer.url}/v1`, apiKey: 'none', maxRetries: 0 });
  const requests = [...Array(20).keys()].map((request) =>
    [...Array(25).keys()].map((at) => `text ${at} of request ${request}`),
  );
  await Promise.all(
    requests.map(async (input) => {
      const { data, response } = await openai.embeddings.create({ model: MODEL, input }).withResponse();
      expect(response.headers.get('x-shoal-simulated')).toBe('1');
      for (const [at, text] of input.entries()) {
        const expected = simulatedVector(tokenizer.encode(text).ids, model.dims);
        expect(
          Math.max(...expected.map((value, dim) => Math.abs(value - data.data[at]!.embedding[dim]!))),
        ).toBeLessThan(1e-6);
      }
    }),
  );
  const [jobId] = [await server.command('ZRANGE', `${PREFIX}:${QUEUE}:completed`, '0', '0')].flat();
  const ended = await server.command('HGET', `${PREFIX}:${QUEUE}:${String(jobId)}`, 'returnvalue');
  expect(JSON.parse(String(ended))).toMatchObject({ device: 'sim:8000' });
});

test('a plain BullMQ job gets its own fields back, and its vectors in the return value, as the schema says', async () => {
  const place = { prefix: PREFIX, connection: { url: server.url } };
  const [queue, events] = [new Queue(QUEUE, place), new QueueEvents(QUEUE, place)];
  const data = { v: 2, texts: ['hello', 'world'], meta: { userId: 5, tags: ['a', null] }, returnVectors: true };
  const value = await (await queue.add('embed', data)).waitUntilFinished(events, 60_000);
  expect(value).toMatchObject({ v: 1, rows: 2, dims: model.dims, dtype: 'f32', meta: data.meta });
  const { buffer } = new Uint8Array(Buffer.from(value.vectors, 'base64'));
  const expected = data.texts.flatMap((text) => [...simulatedVector(tokenizer.encode(text).ids, model.dims)]);
  const found = new Float32Array(buffer);
  expect(found).toHaveLength(expected.length);
  expect(Math.max(...expected.map((each, at) => Math.abs(each - found[at]!)))).toBeLessThan(1e-6);
  const { embed, modelReturn } = jobSchema()['$defs'] as Readonly<Record<string, object>>;
  for (const [schema, written] of [
    [embed, data],
    [modelReturn, value],
  ])
    expect(z.fromJSONSchema({ ...schema }).safeParse(written).error).toBeUndefined();
  await Promise.all([queue.close(), events.close()]);
});

test('a request’s id and trace context are with its jobs, and in what the worker logs of one that fails', async () => {
  const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  const body = JSON.stringify({ model: MODEL, input: 'whose' });
  const headers = { 'content-type': 'application/json', 'x-request-id': 'req-7', traceparent, tracestate: 'a=1' };
  const answer = await fetch(`${producer.url}/v1/embeddings`, { method: 'POST', headers, body });
  expect([answer.status, answer.headers.get('x-request-id')]).toEqual([200, 'req-7']);
  const queue = new Queue(QUEUE, { prefix: PREFIX, connection: { url: server.url } });
  const jobs = await queue.getJobs(['completed'], 0, 500);
  expect(jobs.map(({ data }) => data.trace)).toContainEqual({ requestId: 'req-7', traceparent, tracestate: 'a=1' });
  expect(jobs.filter(({ data }) => data.trace?.requestId !== undefined).length).toBeGreaterThan(1); // made where none came
  const wrong = { v: 2, texts: ['one'], fingerprint: '0'.repeat(16), trace: { requestId: 'req-8' } };
  await queue.add('embed', wrong);
  await expect.poll(trial.log).toMatch(/"requestId":"req-8".*"code":"FINGERPRINT_MISMATCH"/);
  await queue.close();
});

async function decoded(body: object): Promise<unknown> {
  const headers = { 'content-type': 'application/json' };
  return (await fetch(`${producer.url}/decode`, { method: 'POST', headers, body: JSON.stringify(body) })).json();
}

const refusal = (code: string, param: string): object => ({ error: { code, param, message: expect.any(String) } });

test('ids become text again, of one row or of several, and what is no id is refused with its place', async () => {
  const { ids } = tokenizer.encode('iron atoms align.');
  expect(await decoded({ ids })).toEqual(['iron atoms align.']);
  expect(await decoded({ ids: [[...ids], []], skip_special_tokens: false })).toEqual([
    expect.stringMatching(/^\[CLS\] iron atoms align\. \[SEP\]$/),
    '',
  ]);
  expect(await decoded({})).toMatchObject(refusal('missing_required_parameter', 'ids'));
  expect(await decoded({ ids: [[1], [1_000_000]] })).toMatchObject(refusal('invalid_token', 'ids[1][0]'));
  expect(await decoded({ ids: [1], inputs: 'a' })).toMatchObject(refusal('unknown_parameter', 'inputs'));
});

async function answered(path: string): Promise<unknown> {
  return (await fetch(producer.url + path)).json();
}

test('/readyz and /v1/models say so, as long as the queue is marked or a simulation alive', async () => {
  const says = { simulated: true };
  expect(await answered('/readyz')).toMatchObject({ status: 'ready', ...says });
  expect(await answered('/v1/models')).toMatchObject({ data: [{ id: MODEL, ...says }] });
  expect(await answered(`/v1/models/${MODEL}`)).toMatchObject(says);
  // the server has lost its memory: the worker still says what it is
  await server.command('HDEL', `${PREFIX}:load`, `service ${QUEUE}`);
  expect(await answered('/readyz')).toMatchObject(says);
  await server.command('HSET', `${PREFIX}:load`, `service ${QUEUE}`, 'model');
  await expect.poll(() => answered('/readyz')).not.toHaveProperty('simulated');
  await expect.poll(() => answered(`/v1/models/${MODEL}`)).not.toHaveProperty('simulated');
  await server.command('HSET', `${PREFIX}:load`, `service ${QUEUE}`, 'simulation');
  await expect.poll(() => answered(`/v1/models/${MODEL}`)).toMatchObject(says);
});

test('a worker that computes the model does not start beside it', async () => {
  const { report } = await startWorker('cpu-worker', { SHOAL_PREFIX: PREFIX });
  expect(report).toMatchObject({
    kind: 'unfit',
    failure: { code: 'CONFIG_INVALID', message: expect.stringContaining('alive now: sim:8000') },
  });
});

test('a simulated device does not serve where a worker computes the model, nor a real one as a trial', async () => {
  const real = await startWorker('cpu-worker', { SHOAL_PREFIX: '{work}' });
  expect(real.report).toMatchObject({ kind: 'ready' });
  const [simulated, mistaken] = await Promise.all([
    startWorker('gpu-worker', { SHOAL_PREFIX: '{work}', ...SIMULATED }),
    startWorker('cpu-worker', { SHOAL_PREFIX: '{other}', SHOAL_SIM_SERVES: 'model' }),
  ]);
  expect(simulated.report).toMatchObject({
    kind: 'unfit',
    failure: { code: 'CONFIG_INVALID', message: expect.stringContaining('SHOAL_PREFIX={trial}') },
  });
  expect(mistaken.report).toMatchObject({
    kind: 'unfit',
    failure: { code: 'CONFIG_INVALID', message: expect.stringContaining('simServes = "model"') },
  });
});
