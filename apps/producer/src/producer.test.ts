// The HTTP producer as its callers see it: the official OpenAI client, raw requests, a real queue server and a real
// worker with a tiny random model. Bad requests get OpenAI's errors, outages a status to try again on; whoever leaves,
// leaves nothing.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import * as fc from 'fast-check';
import { BadRequestError, OpenAI } from 'openai';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { makeApiKey } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import type { Tokenizer } from '@shoal/core';
import { parseMetrics, type Exposition } from '@shoal/ops/testing';
import { FileApiKeys } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer, type ProducerOptions } from './producer.ts';
import { producerOptions } from './testing/producer-options.ts';
import { requests } from './testing/requests.ts';
import { Schemas, partOf, type Schema } from './testing/schema.ts';

const MODEL = 'tiny-random';

let server: TestServer;
let cacheDir: string;
let model: StoredModel;
let tokenizer: Tokenizer;
let producer: Producer;
const others: Producer[] = [];
const workers: ChildProcess[] = [];

beforeAll(async () => {
  server = await startTestServer();
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-http-'));
  model = await openModel(MODEL, { cacheDir });
  tokenizer = await openTokenizer(model);
  await startWorker('{shoal}');
  producer = await createProducer(options());
});
afterEach(async () => void (await Promise.all(others.splice(0).map((other) => other.stop()))));
afterAll(async () => {
  await producer?.stop();
  await Promise.all(workers.map(stopWorker));
  await server.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

function options(change: Partial<ProducerOptions> = {}): ProducerOptions {
  return producerOptions({ redisUrl: server.url, model, tokenizer, ...change });
}

/** Whose queue no worker serves. */
async function idleProducer(change: Partial<ProducerOptions> = {}): Promise<Producer> {
  const idle = await createProducer(options({ prefix: '{idle}', ...change }));
  others.push(idle);
  return idle;
}

async function startWorker(prefix: string): Promise<void> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_PREFIX: prefix,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'error',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  workers.push(child);
  const [report]: unknown[] = await once(child, 'message');
  expect(report).toMatchObject({ kind: 'ready' });
}

async function stopWorker(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  await gone;
}

function openai({ url }: Producer = producer): OpenAI {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
}

function post(body: unknown, { url }: Producer = producer, init: RequestInit = {}): Promise<Response> {
  return fetch(`${url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...init,
  });
}

function retryAfter({ headers }: Response): number {
  return Number(headers.get('retry-after'));
}

async function vectorOf(input: string | number[]): Promise<readonly number[]> {
  return (await openai().embeddings.create({ model: MODEL, input, encoding_format: 'float' })).data[0]!.embedding;
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

function cosine(a: readonly number[], b: readonly number[]): number {
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

async function waiting(prefix: string): Promise<number> {
  return Number(await server.command('LLEN', `${prefix}:embed-${MODEL}:wait`));
}

/** The answer to a request that had to be refused: status and OpenAI's error fields. */
async function refused(response: Promise<Response>): Promise<object> {
  const answer = await response;
  expect(answer.headers.get('content-type')).toBe('application/json; charset=utf-8');
  const body: unknown = await answer.json();
  expect(body).toEqual({
    error: {
      message: expect.any(String),
      type: expect.any(String),
      param: expect.toSatisfy((value) => value === null || typeof value === 'string'),
      code: expect.any(String),
    },
  });
  return { status: answer.status, ...(body as { error: object }).error };
}

/** The answer to bytes that fetch would not send. */
async function raw(bytes: string): Promise<Response> {
  const socket = connect(Number(new URL(producer.url).port), '127.0.0.1');
  socket.write(bytes);
  const [head = '', body] = (await text(socket)).split('\r\n\r\n');
  const [status = '', ...headers] = head.split('\r\n');
  return new Response(body, {
    status: Number(status.split(' ')[1]),
    headers: headers.map((line) => line.split(': ') as [string, string]),
  });
}

async function metrics({ url }: Producer = producer): Promise<Exposition> {
  const response = await fetch(`${url}/metrics`);
  expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/);
  return parseMetrics(await response.text());
}

/** "route status" → answers so far, but for those to `metrics` itself. */
async function counted(): Promise<Record<string, number>> {
  const { samples } = await metrics();
  return Object.fromEntries(
    samples.flatMap(({ name, labels: { route, status }, value }) =>
      name === 'shoal_http_requests_total' && route !== '/metrics' ? [[`${route} ${status}`, value]] : [],
    ),
  );
}

/** Spent on answers of the route for embeddings so far. */
async function seconds(): Promise<number> {
  return (await metrics()).value('shoal_http_request_duration_seconds_sum', { route: '/v1/embeddings' }) ?? 0;
}

describe('the official openai client', () => {
  test('gets a vector, the same by its default base64 as by float, of length 1', async () => {
    const answer = await openai().embeddings.create({ model: MODEL, input: 'a shoal of fish' });
    const [embedding] = answer.data;
    expect(embedding?.embedding).toHaveLength(model.dims);
    expect(embedding?.embedding).toEqual(await vectorOf('a shoal of fish'));
    expect(Math.hypot(...embedding!.embedding)).toBeCloseTo(1, 4);
    expect(answer).toMatchObject({
      object: 'list',
      model: MODEL,
      usage: { prompt_tokens: tokenizer.encode('a shoal of fish').ids.length },
    });
  });

  test('gets several jobs’ worth of vectors in the order of its inputs', async () => {
    const input = Array.from({ length: 150 }, (_, i) => `text number ${i} of many ${'more '.repeat(i % 20)}`);
    const { data } = await openai().embeddings.create({ model: MODEL, input });
    expect(data.map(({ index }) => index)).toEqual(input.map((_, i) => i));
    for (const i of [0, 63, 64, 149])
      expect(cosine(data[i]!.embedding, await vectorOf(input[i]!))).toBeGreaterThan(0.999_999);
  });

  test('gets the vector of a text for its token ids, and a refusal for ids without their end tokens', async () => {
    const ids = [...tokenizer.encode('a shoal of fish').ids];
    const expected = await vectorOf('a shoal of fish');
    expect(cosine(await vectorOf(ids), expected)).toBeGreaterThan(0.999_999);
    await expect(vectorOf(ids.slice(1, -1))).rejects.toMatchObject({
      status: 400,
      code: 'invalid_token',
      message: expect.stringContaining('check_embedding_ctx_length=False'),
    });
    const bare = await idleProducer({ prefix: '{shoal}', tokenRows: 'bare' });
    const { data } = await openai(bare).embeddings.create({ model: MODEL, input: [ids, ids.slice(1, -1)] });
    expect(data.map(({ embedding }) => cosine(embedding, expected) > 0.999_999)).toEqual([true, true]);
  });

  test('gets fewer dimensions, normalized again', async () => {
    const {
      data: [short],
    } = await openai().embeddings.create({ model: MODEL, input: 'a', dimensions: 8 });
    expect(short?.embedding).toHaveLength(8);
    expect(Math.hypot(...short!.embedding)).toBeCloseTo(1, 4);
  });

  test('gets its own error classes', async () => {
    await expect(openai().embeddings.create({ model: 'gpt', input: 'a' })).rejects.toMatchObject({
      name: 'Error',
      status: 404,
      code: 'model_not_found',
      param: 'model',
      type: 'invalid_request_error',
    });
    await expect(openai().embeddings.create({ model: MODEL, input: '' })).rejects.toBeInstanceOf(BadRequestError);
  });

  test('lists the models and finds one', async () => {
    const { data } = await openai().models.list();
    expect(data).toEqual([expect.objectContaining({ id: MODEL, object: 'model', dimensions: model.dims })]);
    expect(await openai().models.retrieve(MODEL)).toMatchObject({ id: MODEL });
    await expect(openai().models.retrieve('other')).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
  });
});

describe('a bad request', () => {
  test.each([
    ['malformed JSON', '{"model":', 400, 'invalid_json'],
    ['no JSON at all', 'hello', 400, 'invalid_json'],
    ['an empty body', '', 400, 'invalid_json'],
    ['a poisoned prototype', '{"model":"tiny-random","input":"a","__proto__":{"x":1}}', 400, 'invalid_json'],
    ['wrong types', { model: MODEL, input: { text: 'a' } }, 400, 'invalid_type'],
    ['an empty input', { model: MODEL, input: [] }, 400, 'empty_array'],
    [
      'too many inputs',
      { model: MODEL, input: Array.from({ length: 2_049 }, () => 'a') },
      400,
      'array_above_max_length',
    ],
    ['an unknown encoding', { model: MODEL, input: 'a', encoding_format: 'hex' }, 400, 'invalid_value'],
    ['too many dimensions', { model: MODEL, input: 'a', dimensions: 33 }, 400, 'integer_above_max_value'],
    ['a token of another vocabulary', { model: MODEL, input: [100_257] }, 400, 'invalid_token'],
    ['an unknown model', { model: 'ada', input: 'a' }, 404, 'model_not_found'],
    ['a body that is too large', { model: MODEL, input: 'a'.repeat(17 * 1024 * 1024) }, 413, 'request_too_large'],
  ])('%s', async (_, body, status, code) => {
    expect(await refused(post(body))).toMatchObject({ status, code, type: 'invalid_request_error' });
  });

  test.each([['text/plain'], ['application/x-www-form-urlencoded'], ['multipart/form-data; boundary=x'], ['nonsense']])(
    'with content type %s',
    async (contentType) => {
      expect(await refused(post('{}', producer, { headers: { 'content-type': contentType } }))).toMatchObject({
        status: 415,
        code: 'unsupported_media_type',
      });
    },
  );

  test('whose bytes are not UTF-8 is refused, not embedded with U+FFFD in it', async () => {
    const body = Buffer.concat([Buffer.from(`{"model":"${MODEL}","input":"caf`), Buffer.of(0xe9), Buffer.from('"}')]);
    expect(await refused(post('', producer, { body }))).toMatchObject({
      status: 400,
      code: 'invalid_json',
      message: expect.stringContaining('not UTF-8'),
    });
    expect(
      (
        await post(JSON.stringify({ model: MODEL, input: 'café' }), producer, {
          headers: { 'content-type': 'application/json; charset="UTF-8"' },
        })
      ).status,
    ).toBe(200);
  });

  test.each([
    [{ 'content-type': 'application/json; charset=iso-8859-1' }, 'iso-8859-1'],
    [{ 'content-type': 'application/json', 'content-encoding': 'gzip' }, 'gzip'],
  ])('in another form than plain UTF-8 is refused by the name of it: %j', async (headers, named) => {
    const body =
      named === 'gzip'
        ? gzipSync(JSON.stringify({ model: MODEL, input: 'a' }))
        : JSON.stringify({ model: MODEL, input: 'a' });
    expect(await refused(post('', producer, { headers, body }))).toMatchObject({
      status: 415,
      code: 'unsupported_media_type',
      message: expect.stringContaining(named),
    });
  });

  test('that no route ever sees gets OpenAI’s error as well', async () => {
    expect(await refused(fetch(`${producer.url}/v1/models/%ff`))).toMatchObject({ status: 400, code: 'invalid_url' });
    expect(await refused(fetch(`${producer.url}/v1/models/${'m'.repeat(150)}`))).toMatchObject({
      status: 414,
      code: 'url_too_long',
    });
    expect(await refused(fetch(`${producer.url}/healthz`, { headers: { large: 'x'.repeat(20_000) } }))).toMatchObject({
      status: 431,
      code: 'headers_too_large',
    });
    expect(await refused(raw('GET nonsense\r\n\r\n'))).toMatchObject({ status: 400, code: 'bad_request' });
  });

  test('to another path, or by another method', async () => {
    expect(await refused(fetch(`${producer.url}/v1/nothing`))).toMatchObject({ status: 404, code: 'unknown_url' });
    const wrongMethod = fetch(`${producer.url}/v1/embeddings`);
    expect((await wrongMethod).headers.get('allow')).toBe('POST');
    expect(await refused(wrongMethod)).toMatchObject({ status: 405, code: 'method_not_supported' });
    const deleted = fetch(`${producer.url}/healthz`, { method: 'DELETE' });
    expect((await deleted).headers.get('allow')).toBe('GET, HEAD');
    expect(await refused(deleted)).toMatchObject({ status: 405, code: 'method_not_supported' });
    expect((await fetch(`${producer.url}/healthz`, { method: 'HEAD' })).status).toBe(200);
  });

  test('a text that is too long is named by its place, in later jobs too, and cut when that is asked for', async () => {
    const long = 'word '.repeat(400);
    const input = Array.from({ length: 100 }, (_, i) => (i === 70 ? long : 'short'));
    expect(await refused(post({ model: MODEL, input }))).toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
      param: 'input[70]',
    });
    expect(await refused(post({ model: MODEL, input: long }))).toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
      param: 'input[0]',
    });
    const [first = 0, last = 0] = tokenizer.encode('').ids;
    const longRow = [first, ...Array.from({ length: 300 }, () => 5), last];
    expect(await refused(post({ model: MODEL, input: [[...tokenizer.encode('a').ids], longRow] }))).toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
      param: 'input[1]',
    });
    const cut = await post({ model: MODEL, input: long, truncate: 'end' });
    expect(cut.headers.get('x-shoal-truncated')).toBe('1');
    expect(await cut.json()).toMatchObject({ usage: { prompt_tokens: tokenizer.maxTokens, truncated_inputs: 1 } });
    const cutting = await idleProducer({ prefix: '{shoal}', truncate: 'end' });
    const both = await post({ model: MODEL, input: [long, 'short', long] }, cutting);
    expect(await both.json()).toMatchObject({ usage: { truncated_inputs: 2 } });
    expect((await post({ model: MODEL, input: long, truncate: 'error' }, cutting)).status).toBe(400);
  });

  test('leaves the server as it was', async () => {
    const socket = connect(Number(new URL(producer.url).port), '127.0.0.1');
    socket.end(
      'POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"mod',
    ); // leaves in the middle
    await once(socket.resume(), 'close');
    expect((await post({ model: MODEL, input: 'a' })).status).toBe(200);
  });
});

/** Calls at the same moment; so many more than there are turns that most have to wait for one. */
const CROWD = process.env['SHOAL_TEST_NIGHTLY'] === '1' ? 1_500 : 300;

test(`${CROWD} calls of the official client at once, with its defaults and a key, are all answered`, async () => {
  const keys = new FileApiKeys(join(cacheDir, 'keys.json'));
  const { text: apiKey, kept } = makeApiKey({ name: 'crowd', tenant: 'crowd' }, Date.now());
  await keys.add(kept);
  const crowded = await createProducer(options({ maxOpenRequests: 32, requestTimeoutMs: 60_000, keyFile: keys.place }));
  others.push(crowded);
  const client = new OpenAI({ baseURL: `${crowded.url}/v1`, apiKey });
  const texts = Array.from({ length: CROWD }, (_, i) => `word ${i % 7}`);
  const answers = await Promise.all(texts.map((input) => client.embeddings.create({ model: MODEL, input })));
  const known = await Promise.all(texts.slice(0, 7).map((one) => vectorOf(one)));
  const wrong = answers.filter(({ data }, i) => cosine(data[0]!.embedding, known[i % 7]!) < 0.99999);
  expect([answers.length, wrong]).toEqual([CROWD, []]);
});

describe('operations', () => {
  test('/metrics parses, and moves with a request', async () => {
    const before = await metrics();
    await post({ model: MODEL, input: ['one', 'two'] });
    await post({ model: MODEL, input: '' });
    const after = await metrics();
    const rise = (name: string, labels?: Record<string, string>): number =>
      (after.value(name, labels) ?? 0) - (before.value(name, labels) ?? 0);
    expect(rise('shoal_http_requests_total', { route: '/v1/embeddings', status: '200' })).toBe(1);
    expect(rise('shoal_http_requests_total', { route: '/v1/embeddings', status: '400' })).toBe(1);
    expect(rise('shoal_http_request_duration_seconds_count', { route: '/v1/embeddings' })).toBe(2);
    expect(rise('shoal_http_texts_total')).toBe(2);
    expect(rise('shoal_jobs_added_total', { class: 'interactive' })).toBe(1);
    expect(after.value('shoal_admission_refused_total', { reason: 'rows' })).toBeGreaterThanOrEqual(0);
    expect(after.value('shoal_queue_server_up')).toBe(1);
    expect(after.value('shoal_process_resident_bytes', { process: 'producer' })).toBeGreaterThan(10_000_000);
  });

  test('unknown paths are one route, whatever they are called', async () => {
    await Promise.all(['a', 'b', 'c'].map((path) => fetch(`${producer.url}/${path}`)));
    expect(
      (await metrics()).samples.filter(
        ({ name, labels }) =>
          name === 'shoal_http_requests_total' && labels['status'] === '404' && labels['route'] === 'none',
      ),
    ).toHaveLength(1);
  });

  test.each<[string, () => Promise<Response>, string, number]>([
    ['of an unknown path', () => fetch(`${producer.url}/v1/nothing/${'x'.repeat(9)}`), 'none', 404],
    ['by another method', () => fetch(`${producer.url}/v1/embeddings`, { method: 'PUT', body: '{}' }), 'none', 405],
    ['whose body is no JSON', () => post('{"model":'), '/v1/embeddings', 400],
    [
      'whose body is too large',
      () => post({ model: MODEL, input: 'a'.repeat(17 * 1024 * 1024) }),
      '/v1/embeddings',
      413,
    ],
    [
      'of another content type',
      () => post('{}', producer, { headers: { 'content-type': 'text/plain' } }),
      '/v1/embeddings',
      415,
    ],
    ['whose path is no text', () => fetch(`${producer.url}/v1/models/%ff`), 'none', 400],
    ['whose path is too long', () => fetch(`${producer.url}/v1/models/${'m'.repeat(150)}`), 'none', 414],
    [
      'with too many headers',
      () => fetch(`${producer.url}/healthz`, { headers: { large: 'x'.repeat(20_000) } }),
      'none',
      431,
    ],
    ['that is not HTTP', () => raw('GET nonsense\r\n\r\n'), 'none', 400],
    [
      'that stops being HTTP in its body',
      () =>
        raw(
          'POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: ' +
            'chunked\r\n\r\nzz\r\n',
        ),
      '/v1/embeddings',
      400,
    ],
  ])('a request %s is counted once, like any other', async (_, ask, route, status) => {
    const before = await counted();
    expect((await ask()).status).toBe(status);
    const expected = { ...before, [`${route} ${status}`]: (before[`${route} ${status}`] ?? 0) + 1 };
    await expect.poll(counted).toEqual(expected);
  });

  test('the time that a request takes is measured', async () => {
    const before = await seconds();
    const beganMs = performance.now();
    await post({ model: MODEL, input: 'a shoal of fish' });
    await expect.poll(seconds).toBeGreaterThan(before);
    expect((await seconds()) - before).toBeLessThan((performance.now() - beganMs) / 1_000);
  });

  test('/healthz, /readyz and /openapi.json', async () => {
    expect(await (await fetch(`${producer.url}/healthz`)).json()).toEqual({ status: 'ok' });
    expect(await (await fetch(`${producer.url}/readyz`)).json()).toEqual({
      status: 'ready',
      workers: 1,
      drained: 0,
      paused: false,
      waiting: 0,
    });
    expect(await (await fetch(`${producer.url}/openapi.json`)).json()).toMatchObject({
      openapi: '3.1.0',
      paths: {
        '/v1/embeddings': { post: { requestBody: { required: true } } },
        '/v1/models': {},
        '/v1/models/{id}': {},
        '/healthz': {},
        '/readyz': {},
        '/metrics': {},
      },
    });
  });

  test('a port that is taken is a setting to change', async () => {
    await expect(createProducer(options({ port: Number(new URL(producer.url).port) }))).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining('httpPort'),
    });
  });
});

describe('while texts of megabytes that never fill a row are worked on', () => {
  test('health is answered many times before the first of them', async () => {
    const isAnswered = { any: false };
    const large = ['한', 'é\u0301'].map(async (of) => {
      const answer = await post({ model: MODEL, input: of.repeat(500_000) });
      isAnswered.any = true;
      return answer.status;
    });
    let checks = 0;
    while (!isAnswered.any) {
      expect((await fetch(`${producer.url}/healthz`)).status).toBe(200);
      checks += 1;
    }
    expect(await Promise.all(large)).toEqual([200, 200]);
    expect(checks).toBeGreaterThan(10);
  });
});

/** As many at a time. */
const AT_ONCE = 48;
const GENERATED = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 192 : 3_000;

test('requests made from /openapi.json are answered as it says, none with 500, health meanwhile', async () => {
  const asked = await idleProducer({ prefix: '{shoal}', requestTimeoutMs: 2_000 });
  const document: unknown = await (await fetch(`${asked.url}/openapi.json`)).json();
  const schemas = new Schemas(document);
  const operations = Object.entries(partOf(document, 'paths') as object).flatMap(([path, methods]) =>
    Object.entries(methods as object).map(([method, operation]: [string, unknown]) => ({ path, method, operation })),
  );
  const made = fc.sample(
    fc.oneof(
      ...operations.map(({ path, method, operation }) => {
        const body = partOf(operation, 'requestBody', 'content', 'application/json', 'schema');
        const bodies = body === undefined ? fc.constant(undefined) : requests(schemas, body as Schema);
        return {
          weight: body === undefined ? 1 : 5,
          arbitrary: bodies.map((one) => ({
            path,
            method,
            operation,
            body: one === undefined ? one : JSON.stringify(one),
          })),
        };
      }),
    ),
    GENERATED,
  );
  const seen = new Map<number, number>();
  const wrong: unknown[] = [];
  const ask = async ({ path, method, operation, body }: (typeof made)[number]): Promise<void> => {
    const answer = await fetch(asked.url + path.replace('{id}', MODEL), {
      method: method.toUpperCase(),
      ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body }),
    });
    const { status } = answer;
    seen.set(status, (seen.get(status) ?? 0) + 1);
    const said = partOf(operation, 'responses', String(status)) ?? partOf(operation, 'responses', 'default');
    const schema = partOf(said, 'content', 'application/json', 'schema');
    const given = await answer.text();
    const fits = schema === undefined || schemas.fits(schema as Schema, JSON.parse(given));
    if (!fits || (status >= 500 && status !== 503)) wrong.push({ path, body, status, given: given.slice(0, 500) });
  };
  for (let at = 0; at < made.length; at += AT_ONCE) {
    const some = made.slice(at, at + AT_ONCE).map(ask);
    expect((await fetch(`${asked.url}/healthz`)).status).toBe(200);
    await Promise.all(some);
  }
  console.log(`${made.length} generated requests: ${JSON.stringify(Object.fromEntries(seen))}`);
  expect(wrong).toEqual([]);
  expect(Math.min(seen.get(200) ?? 0, seen.get(400) ?? 0)).toBeGreaterThan(GENERATED / 50);
}, 3_600_000);

describe('when vectors do not come', () => {
  test('for want of a worker: 503 with the reason and Retry-After, and nothing stays on the queue', async () => {
    const idle = await idleProducer({ requestTimeoutMs: 1_000 });
    const answer = await post({ model: MODEL, input: 'a' }, idle);
    expect([answer.status, retryAfter(answer)]).toEqual([503, expect.toSatisfy((after) => after >= 10 && after <= 15)]);
    expect(await answer.json()).toMatchObject({
      error: { code: 'timeout', message: expect.stringMatching(/within 1 s: no worker serves .*, 1 job waits/) },
    });
    await expect.poll(() => waiting('{idle}')).toBe(0);
  });

  test.each(['NOREPLICAS', 'READONLY'])('because the queue server answers %s: 503 in its words, soon', async (word) => {
    const quick = await idleProducer({ readyNeedsWorkers: true });
    expect(await (await fetch(`${quick.url}/readyz`)).json()).toMatchObject({ error: { code: 'no_worker' } });
    if (word === 'READONLY') await server.command('REPLICAOF', '127.0.0.1', '1');
    else await server.command('CONFIG', 'SET', 'min-replicas-to-write', '1');
    try {
      const found = word === 'READONLY' ? /READONLY/ : /NOREPLICAS/;
      const answer = {
        error: expect.objectContaining({ code: 'queue_refuses_writes', message: expect.stringMatching(found) }),
      };
      const ready = await fetch(`${quick.url}/readyz`);
      expect([ready.status, await ready.json()]).toEqual([503, answer]);
      const refusal = await post({ model: MODEL, input: 'a' }, quick);
      expect([refusal.status, await refusal.json()]).toEqual([503, answer]);
      expect((await fetch(`${quick.url}/healthz`)).status).toBe(200);
    } finally {
      await server.command('REPLICAOF', 'NO', 'ONE');
      await server.command('CONFIG', 'SET', 'min-replicas-to-write', '0');
    }
  });

  test('and the caller leaves: what still waits is taken off the queue', async () => {
    const idle = await idleProducer();
    const leaving = new AbortController();
    const asked = post({ model: MODEL, input: 'a' }, idle, { signal: leaving.signal }).catch(() => 'left');
    await expect.poll(() => waiting('{idle}')).toBe(1);
    leaving.abort();
    expect(await asked).toBe('left');
    await expect.poll(() => waiting('{idle}')).toBe(0);
    expect((await metrics(idle)).value('shoal_http_requests_total', { route: '/v1/embeddings', status: '499' })).toBe(
      1,
    );
  });

  test('and more ask than may: 429 with Retry-After, until one is answered', async () => {
    const idle = await idleProducer({ maxOpenRequests: 1, maxWaitingRequests: 0, requestTimeoutMs: 1_500 });
    const first = post({ model: MODEL, input: 'a' }, idle);
    await expect.poll(() => waiting('{idle}')).toBe(1);
    const second = await post({ model: MODEL, input: 'b' }, idle);
    expect([second.status, retryAfter(second), await second.json()]).toEqual([
      429,
      expect.toSatisfy((after) => after >= 1 && after <= 5),
      { error: expect.objectContaining({ type: 'rate_limit_error', code: 'too_many_requests' }) },
    ]);
    expect((await first).status).toBe(503);
    expect((await post({ model: MODEL, input: '' }, idle)).status).toBe(400);
  });

  test('because the queue takes no more: 429 with the time that it takes to have room again', async () => {
    const idle = await idleProducer({ requestTimeoutMs: 1_000, limits: { maxQueuedRows: 2, maxTenantShare: 1 } });
    const first = post({ model: MODEL, input: ['a', 'b'] }, idle);
    await expect.poll(() => waiting('{idle}')).toBe(1);
    const second = await post({ model: MODEL, input: 'c' }, idle);
    expect([second.status, second.headers.get('retry-after'), await second.json()]).toEqual([
      429,
      expect.stringMatching(/^\d+$/),
      {
        error: expect.objectContaining({
          type: 'rate_limit_error',
          code: 'queue_full',
          message: expect.stringContaining('maxQueuedRows'),
        }),
      },
    ]);
    expect((await first).status).toBe(503);
  });

  test('because the queue server is full: 429 with Retry-After, and 200 when it has room again', async () => {
    const quick = await createProducer(options({ requestTimeoutMs: 2_000 }));
    others.push(quick);
    await server.command('CONFIG', 'SET', 'maxmemory', '1');
    const answer = await post({ model: MODEL, input: 'full' }, quick);
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
    expect([answer.status, retryAfter(answer), await answer.json()]).toEqual([
      429,
      expect.toSatisfy((after) => after >= 10 && after <= 15),
      { error: expect.objectContaining({ code: 'queue_full' }) },
    ]);
    await expect
      .poll(async () => (await post({ model: MODEL, input: 'room' }, quick)).status, { timeout: 10_000 })
      .toBe(200);
  });

  test(
    'because the queue server is away: 503 with Retry-After, healthy but not ready, and its metrics say so; ' +
      'then all is back',
    async () => {
      const quick = await createProducer(options({ requestTimeoutMs: 2_000 }));
      others.push(quick);
      await server.kill9();
      const answer = await post({ model: MODEL, input: 'away' }, quick);
      expect([answer.status, retryAfter(answer), await answer.json()]).toEqual([
        503,
        expect.toSatisfy((after) => after >= 5 && after <= 8),
        { error: expect.objectContaining({ type: 'server_error', code: 'queue_unreachable' }) },
      ]);
      expect((await fetch(`${quick.url}/healthz`)).status).toBe(200);
      expect((await fetch(`${quick.url}/readyz`)).status).toBe(503);
      expect((await metrics(quick)).value('shoal_queue_server_up')).toBe(0);
      await server.restart();
      await expect
        .poll(async () => (await post({ model: MODEL, input: 'back' }, quick)).status, { timeout: 20_000 })
        .toBe(200);
    },
  );
});

test('stop does not wait for callers that only keep a connection', async () => {
  const idle = await idleProducer();
  const port = Number(new URL(idle.url).port);
  const silent = connect(port, '127.0.0.1');
  await once(silent, 'connect');
  await (await fetch(`${idle.url}/healthz`)).json(); // its connection is kept alive
  const gone = once(silent.resume(), 'close');
  await Promise.all([idle.stop(), idle.stop()]); // a kept connection lasts 72 s, longer than this test may take
  await gone;
  expect(silent.destroyed).toBe(true);
});

test('stop answers what is open, and then nothing listens', async () => {
  const idle = await idleProducer({ prefix: '{late}' });
  const asked = post({ model: MODEL, input: 'a' }, idle);
  await expect.poll(() => waiting('{late}')).toBe(1);
  const stopped = idle.stop();
  await startWorker('{late}');
  expect((await asked).status).toBe(200);
  await stopped;
  await expect(post({ model: MODEL, input: 'b' }, idle)).rejects.toThrow('fetch failed');
});

/** A connection that can say its requests when it wants to, and what came back on it. */
async function connectionTo({
  url,
}: Producer): Promise<{ readonly ask: (method: string, path: string) => void; readonly answers: Promise<string> }> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1');
  const answers = text(socket);
  await once(socket, 'connect');
  return {
    answers,
    ask: (method, path) =>
      void socket.write(`${method} ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n`),
  };
}

test(
  'while it stops, a request on a connection that was open is refused with 503 and counted, and the last scrape ' +
    'says so',
  async () => {
    const idle = await idleProducer({ prefix: '{stopping}', requestTimeoutMs: 5_000 });
    const [early, health, scrape] = await Promise.all([connectionTo(idle), connectionTo(idle), connectionTo(idle)]);
    const asked = post({ model: MODEL, input: 'a' }, idle); // no worker: the stop waits for it
    await expect.poll(() => waiting('{stopping}')).toBe(1);
    const stopped = idle.stop();
    early.ask('POST', '/v1/embeddings');
    health.ask('GET', '/healthz');
    for (const answer of [await early.answers, await health.answers]) {
      const [head = '', body = ''] = answer.split('\r\n\r\n');
      expect(head).toMatch(/^HTTP\/1\.1 503 [^]*retry-after: \d+\r\n/i);
      expect(head).toMatch(/connection: close/i);
      expect(JSON.parse(body)).toEqual({
        error: { message: expect.stringContaining('stopping'), type: 'server_error', param: null, code: 'stopping' },
      });
    }
    scrape.ask('GET', '/metrics');
    const [head = '', ...body] = (await scrape.answers).split('\r\n\r\n');
    expect(head).toMatch(/^HTTP\/1\.1 200/);
    const { value } = parseMetrics(body.join(''));
    for (const route of ['/v1/embeddings', '/healthz'])
      expect(value('shoal_http_requests_total', { route, status: '503' })).toBe(1);
    expect((await asked).status).toBe(503);
    await stopped;
  },
);

test('stop ends though a request waits behind one whose answer closes their connection', async () => {
  const idle = await idleProducer({ prefix: '{behind}', requestTimeoutMs: 1_000 });
  const body = JSON.stringify({ model: MODEL, input: 'a' });
  const socket = connect(Number(new URL(idle.url).port), '127.0.0.1');
  const gone = once(socket.resume(), 'close');
  socket.write(
    `POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ` +
      `${body.length}\r\n\r\n${body}GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n`,
  );
  await expect.poll(() => waiting('{behind}')).toBe(1);
  await idle.stop();
  await gone;
});
