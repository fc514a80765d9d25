// Files, batches and jobs as their callers see them: the official OpenAI client and raw requests, against a real queue
// server and a simulated device, whose vectors are a function of the texts' token ids.

import { mkdtemp, readdir, rm } from 'node:fs/promises';
import {
  Agent,
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type RequestOptions,
  type Server,
} from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { NotFoundError, OpenAI, toFile } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { simulatedVector } from '@shoal/core/sim';
import { keySpace, mainQueue } from '@shoal/contract';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { closeConnection, openConnection } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { parseMetrics } from '@shoal/ops/testing';
import { createProducer, type Producer } from '../producer.ts';
import { batchSettings } from '../testing/batch-settings.ts';
import { producerOptions } from '../testing/producer-options.ts';
import { startProcess, type StartedApp } from '../testing/processes.ts';
import { Schemas, partOf, type Schema } from '../testing/schema.ts';
import type { BatchSettings } from './batches.ts';
import { newWebhookSecret } from './webhook.ts';

const MODEL = 'tiny-random';
const PREFIX = '{batches}';
const SECRET = newWebhookSecret();

let server: TestServer;
let folder: string;
let model: StoredModel;
let tokenizer: Tokenizer;
let producer: Producer;
let worker: StartedApp;
let openai: OpenAI;
let hooks: Server;
const told: { readonly body: string; readonly headers: Record<string, string> }[] = [];

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), 'shoal-batches-'));
  model = await openModel(MODEL, { cacheDir: folder });
  tokenizer = await openTokenizer(model);
  worker = await startProcess('gpu-worker', workerEnvironment());
  hooks = createServer(async (request, answer) => {
    told.push({ body: await text(request), headers: request.headers as Record<string, string> });
    answer.end();
  }).listen(0, '127.0.0.1');
  producer = await createProducer(options());
  openai = clientOf(producer);
});
afterAll(async () => {
  await producer?.stop();
  await worker?.stop();
  hooks?.close();
  await server?.stop();
  await rm(folder, { recursive: true, force: true });
});

function workerEnvironment(): Record<string, string> {
  return {
    SHOAL_REDIS_URL: server.url,
    SHOAL_PREFIX: PREFIX,
    SHOAL_MODEL: MODEL,
    SHOAL_CACHE_DIR: folder,
    SHOAL_DEVICE: 'sim:8000',
    SHOAL_SIM_SERVES: 'model',
  };
}

function options(change: Partial<BatchSettings> = {}, prefix = PREFIX): Parameters<typeof createProducer>[0] {
  return producerOptions({
    redisUrl: server.url,
    prefix,
    model,
    tokenizer,
    batches: batchSettings(join(folder, 'batches'), { webhooks: { secret: SECRET, allowsPrivate: true }, ...change }),
  });
}

/** Rows of the jobs under a prefix that are done, as they were put on the queue. */
async function rowsOfJobs(prefix: string): Promise<number[]> {
  const connection = openConnection({ url: server.url, name: 'test' });
  try {
    const [keys, queue] = [keySpace(prefix), mainQueue(MODEL)];
    const ids = await connection.zrange(keys.job(queue, 'completed'), '0', '-1');
    const data = await Promise.all(ids.map((id) => connection.hget(keys.job(queue, id), 'data')));
    return data.map((job) => Number(JSON.parse(job!).input?.rows ?? JSON.parse(job!).texts.length));
  } finally {
    await closeConnection(connection);
  }
}

function clientOf({ url }: Producer): OpenAI {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
}

const line = (customId: string, body: object, rest: object = {}): string =>
  JSON.stringify({ custom_id: customId, method: 'POST', url: '/v1/embeddings', body, ...rest });

async function uploaded(lines: readonly string[] | string, client = openai): Promise<OpenAI.FileObject> {
  const content = typeof lines === 'string' ? lines : lines.join('\n');
  return client.files.create({ file: await toFile(Buffer.from(content), 'input.jsonl'), purpose: 'batch' });
}

async function begun(
  lines: readonly string[] | string,
  more: object = {},
  client = openai,
): Promise<OpenAI.Batches.Batch> {
  const file = await uploaded(lines, client);
  const terms = { endpoint: '/v1/embeddings', completion_window: '24h', input_file_id: file.id, ...more } as const;
  return client.batches.create(terms);
}

async function ended(id: string, client = openai): Promise<OpenAI.Batches.Batch> {
  const endings = ['completed', 'failed', 'expired', 'cancelled'];
  await expect
    .poll(async () => endings.includes((await client.batches.retrieve(id)).status), { timeout: 120_000, interval: 50 })
    .toBe(true);
  return client.batches.retrieve(id);
}

interface Line {
  readonly custom_id: string;
  readonly response: { readonly status_code: number; readonly body: OpenAI.CreateEmbeddingResponse } | null;
  readonly error: { readonly code: string } | null;
}

async function linesOf(fileId: string | undefined | null, client = openai): Promise<Line[]> {
  if (fileId === undefined || fileId === null) return [];
  const content = await (await client.files.content(fileId)).text();
  return content
    .split('\n')
    .filter(Boolean)
    .map((one) => JSON.parse(one) as Line);
}

async function asked(method: string, path: string, body?: object | string): Promise<{ status: number; body: unknown }> {
  const answer = await fetch(producer.url + path, {
    method,
    ...(body !== undefined && {
      headers: { 'content-type': 'application/json' },
      body: typeof body === 'string' ? body : JSON.stringify(body),
    }),
  });
  return { status: answer.status, body: await answer.json() };
}

test('a connection whose upload was refused half-way takes the next request at once', async () => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const form = new FormData();
  form.set('elsewhere', new Blob(['{}\n'.repeat(100_000)]), 'a.jsonl');
  const upload = new Response(form);
  const headers = { 'content-type': upload.headers.get('content-type')! };
  const send = (path: string, init: RequestOptions, body?: Uint8Array): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      httpRequest(`${producer.url}${path}`, { agent, timeout: 10_000, ...init }, resolve)
        .on('error', reject)
        .on('timeout', () => reject(new Error(`${path} is not answered`)))
        .end(body);
    });
  const refused = await send('/v1/files', { method: 'POST', headers }, Buffer.from(await upload.arrayBuffer()));
  expect([refused.statusCode, await text(refused)]).toEqual([400, expect.stringContaining('unknown_parameter')]);
  const next = await send('/healthz', {});
  expect([next.statusCode, await text(next)]).toEqual([200, expect.stringContaining('ok')]);
  agent.destroy();
});

describe('a batch', () => {
  test('answers every line once with the vectors of its texts, and names what is wrong with others', async () => {
    const lines = [
      ...[...Array(700).keys()].map((at) => line(`text-${at}`, { model: MODEL, input: `text number ${at}` })),
      line('two', { model: MODEL, input: ['first', 'second'], encoding_format: 'base64', dimensions: 16 }),
      line('empty', { model: MODEL, input: '' }),
      line('strange', { model: MODEL, input: 'x', shape: 'round' }),
      line('long', { model: MODEL, input: 'word '.repeat(2_000) }),
      line('cut', { model: MODEL, input: 'word '.repeat(2_000), truncate: 'end' }),
    ];
    const batch = await begun(lines, { metadata: { run: 'nightly' } });
    expect(batch).toMatchObject({ object: 'batch', status: 'validating', metadata: { run: 'nightly' }, errors: null });
    const done = await ended(batch.id);
    expect(done).toMatchObject({
      status: 'completed',
      model: MODEL,
      request_counts: { total: 705, completed: 702, failed: 3 },
    });
    const output = await linesOf(done.output_file_id);
    expect(output.map(({ custom_id: id }) => id)).toEqual([
      ...[...Array(700).keys()].map((at) => `text-${at}`),
      'two',
      'cut',
    ]);
    for (const at of [0, 63, 64, 255, 256, 699]) {
      const { response } = output[at]!;
      const expected = [...simulatedVector(tokenizer.encode(`text number ${at}`).ids, model.dims)];
      const found = response!.body.data[0]!.embedding;
      expect(found).toHaveLength(model.dims);
      expect(Math.max(...found.map((value, dim) => Math.abs(value - expected[dim]!)))).toBeLessThan(1e-6);
      expect(response!.body.usage.prompt_tokens).toBe(tokenizer.encode(`text number ${at}`).ids.length);
    }
    expect(
      output[700]!.response!.body.data.map(({ embedding }) => Buffer.from(String(embedding), 'base64').length),
    ).toEqual([64, 64]);
    expect(output[701]!.response!.body).toMatchObject({ simulated: true, usage: { truncated_inputs: 1 } });
    const errors = await linesOf(done.error_file_id);
    expect(
      errors.map(({ custom_id: id, response }) => [
        id,
        response!.status_code,
        partOf(response, 'body', 'error', 'code'),
      ]),
    ).toEqual([
      ['empty', 400, 'empty_string'],
      ['strange', 400, 'unknown_parameter'],
      ['long', 400, 'context_length_exceeded'],
    ]);
    expect(await openai.files.retrieve(done.output_file_id!)).toMatchObject({
      purpose: 'batch_output',
      status: 'processed',
    });
    const { value } = parseMetrics(await (await fetch(`${producer.url}/metrics`)).text());
    const linesOfAll = ['completed', 'failed', 'cancelled'].map((outcome) =>
      value('shoal_batch_lines_total', { outcome }),
    );
    expect(linesOfAll).toEqual([702, 3, 0]);
    expect(value('shoal_batches_ended_total', { status: 'completed' })).toBe(1);
    expect(value('shoal_batch_files_total', { purpose: 'batch_output' })).toBe(2);
  });

  test.each([
    [
      'broken lines',
      [line('a', {}), '{"custom_id": "b", ', line('c', { model: MODEL, input: 'x' })],
      ['missing_required_parameter', 'invalid_json_line'],
    ],
    [
      'a custom_id twice',
      [line('a', { model: MODEL, input: 'x' }), line('a', { model: MODEL, input: 'y' })],
      ['duplicate_custom_id'],
    ],
    ['another endpoint', [line('a', { model: MODEL, input: 'x' }, { url: '/v1/rerank' })], ['invalid_url']],
    [
      'a model that nobody serves',
      [line('a', { model: 'e5', input: 'x' }), line('b', { model: 'e5', input: 'x' })],
      ['model_not_found', 'model_not_found'],
    ],
    ['an unknown field', [line('a', { model: MODEL, input: 'x' }, { priority: 1 })], ['unknown_parameter']],
    ['nothing in it', ['', ' '], ['empty_file']],
    [
      'too many errors',
      Array(150).fill('x') as string[],
      [...(Array(100).fill('invalid_json_line') as string[]), 'more_errors'],
    ],
  ])('with %s fails before it begins, and says where', async (_, lines, codes) => {
    const done = await ended((await begun(lines)).id);
    expect(done).toMatchObject({ status: 'failed', output_file_id: null, error_file_id: null });
    expect(done.errors!.data!.map(({ code }) => code)).toEqual(codes);
  });

  test('that is cancelled has what was answered in its output and the rest in its error file', async () => {
    const idle = await createProducer(options({ place: join(folder, 'idle') }, '{idle}')); // no worker answers
    try {
      const client = clientOf(idle);
      const lines = [...Array(600).keys()].map((at) => line(`c-${at}`, { model: MODEL, input: `text ${at}` }));
      lines[1] = line('c-1', { model: MODEL, input: '' });
      const { id } = await begun(lines, {}, client);
      await expect.poll(async () => (await client.batches.retrieve(id)).status).toBe('in_progress');
      expect(await client.batches.cancel(id)).toMatchObject({ status: 'cancelling' });
      const done = await ended(id, client);
      expect(done).toMatchObject({ status: 'cancelled', request_counts: { total: 600, completed: 0, failed: 600 } });
      const errors = await linesOf(done.error_file_id, client);
      expect(new Set(errors.map(({ custom_id: one }) => one)).size).toBe(600);
      expect(errors.filter(({ error }) => error?.code === 'batch_cancelled')).toHaveLength(599);
      await expect(client.batches.cancel(id)).resolves.toMatchObject({ status: 'cancelled' });
    } finally {
      await idle.stop();
    }
  });

  test('whose time is over has its lines in the error file', async () => {
    const idle = await createProducer(options({ place: join(folder, 'idle-2') }, '{idle}'));
    try {
      const client = clientOf(idle);
      const { id } = await begun([line('late', { model: MODEL, input: 'x' })], {}, client);
      await expect.poll(async () => (await client.batches.retrieve(id)).status).toBe('in_progress');
      await idle.stop();
      await expireNow(join(folder, 'idle-2'), id);
      const next = await createProducer(options({ place: join(folder, 'idle-2') }, '{idle}'));
      try {
        const done = await ended(id, clientOf(next));
        expect(done).toMatchObject({ status: 'expired', request_counts: { total: 1, completed: 0, failed: 1 } });
        expect(await linesOf(done.error_file_id, clientOf(next))).toMatchObject([
          { custom_id: 'late', response: null, error: { code: 'batch_expired' } },
        ]);
      } finally {
        await next.stop();
      }
    } finally {
      await idle.stop();
    }
  });

  test('is told of by a signed notice', async () => {
    told.length = 0;
    const { port } = hooks.address() as AddressInfo;
    const webhook = { url: `http://127.0.0.1:${port}/` };
    const { id } = await begun([line('a', { model: MODEL, input: 'x' })], { webhook });
    await expect.poll(() => told.length, { timeout: 60_000 }).toBe(1);
    const [{ body, headers } = { body: '', headers: {} }] = told;
    expect(await openai.webhooks.unwrap(body, headers, SECRET)).toMatchObject({
      type: 'batch.completed',
      data: { id },
    });
    await expect
      .poll(async () => partOf((await asked('GET', `/v1/batches/${id}`)).body, 'webhook', 'status'))
      .toBe('delivered');
    expect(JSON.stringify(await asked('GET', `/v1/batches/${id}`))).not.toContain('whsec_');
  });

  test('lists come in pages, the newest first', async () => {
    const ids: string[] = [];
    for await (const { id } of openai.batches.list({ limit: 2 })) ids.push(id);
    expect(ids.length).toBeGreaterThan(5);
    expect(ids).toEqual(ids.toSorted());
    expect(new Set(ids).size).toBe(ids.length);
    const page = await asked('GET', '/v1/batches?limit=1');
    expect(page.body).toMatchObject({ object: 'list', has_more: true, first_id: ids[0], last_id: ids[0] });
  });
});

/** Its completion window is over: as its record would say then. */
async function expireNow(place: string, id: string): Promise<void> {
  const { DiskStorage } = await import('./disk-storage.ts');
  const { BatchStore } = await import('./batch-store.ts');
  const store = new BatchStore(await DiskStorage.open(place));
  await store.update('batch', 'default', id, (batch) => ({ ...batch, expires_at: batch.created_at - 1 }));
}

describe('a file', () => {
  test('comes back byte for byte, is listed, and is gone once it is deleted', async () => {
    const content = Buffer.from('{"any": "bytes"}\r\n\u0000\n');
    const file = await openai.files.create({ file: await toFile(content, '../../etc/passwd'), purpose: 'batch' });
    expect(file).toMatchObject({ object: 'file', bytes: content.length, filename: 'passwd', purpose: 'batch' });
    expect(Buffer.from(await (await openai.files.content(file.id)).arrayBuffer()).equals(content)).toBe(true);
    const listed: string[] = [];
    for await (const one of openai.files.list({ purpose: 'batch', limit: 3 })) listed.push(one.id);
    expect(listed).toContain(file.id);
    expect((await openai.files.list({ order: 'asc' })).data.at(-1)!.id).toBe(listed[0]);
    expect(await openai.files.delete(file.id)).toEqual({ id: file.id, object: 'file', deleted: true });
    await expect(openai.files.retrieve(file.id)).rejects.toThrow(NotFoundError);
    await expect(openai.files.content(file.id)).rejects.toThrow(NotFoundError);
    const names = await readdir(join(folder, 'batches'), { recursive: true });
    expect(names.filter((name) => name.includes(file.id))).toEqual([]);
  });

  test.each([
    ['two fields', { 'expires_after[anchor]': 'created_at', 'expires_after[seconds]': '3600' }],
    ['JSON', { expires_after: '{"anchor":"created_at","seconds":3600}' }],
  ])('expires when its upload says so as %s', async (_, fields) => {
    const form = new FormData();
    both(form, 'batch');
    for (const [name, value] of Object.entries(fields)) form.append(name, value);
    const answer = await fetch(`${producer.url}/v1/files`, { method: 'POST', body: form });
    const { created_at: made, expires_at: until } = (await answer.json()) as OpenAI.FileObject;
    expect(until).toBe(made + 3_600);
  });

  test('expires when its upload says so', async () => {
    const file = await toFile(Buffer.from('{}'), 'a.jsonl');
    const expires_after = { anchor: 'created_at', seconds: 3_600 } as const;
    const made = await openai.files.create({ file, purpose: 'batch', expires_after });
    expect(made.expires_at).toBe(made.created_at + 3_600);
  });

  test.each([
    ['no purpose', (form: FormData) => form.append('file', new Blob(['x']), 'a'), 400, 'purpose'],
    ['another purpose', (form: FormData) => both(form, 'fine-tune'), 400, 'purpose'],
    ['no file', (form: FormData) => form.append('purpose', 'batch'), 400, 'file'],
    ['an unknown field', (form: FormData) => both(form, 'batch', 'folder'), 400, 'folder'],
    ['a file that is a plain field', (form: FormData) => form.append('file', '{}'), 400, 'file'],
    ['a field twice', (form: FormData) => both(form, 'batch', 'purpose'), 400, 'purpose'],
    [
      'an expiry in two forms',
      (form: FormData) => {
        form.append('expires_after', '{"anchor":"created_at","seconds":3600}');
        both(form, 'batch', 'expires_after[seconds]');
      },
      400,
      'expires_after',
    ],
    ['too many bytes', (form: FormData) => both(form, 'batch', undefined, 'x'.repeat((1 << 20) + 1)), 413, 'file'],
  ])('with %s is refused and leaves nothing', async (_, fill, status, param) => {
    const before = await readdir(join(folder, 'batches'), { recursive: true });
    const form = new FormData();
    fill(form);
    const answer = await fetch(`${producer.url}/v1/files`, { method: 'POST', body: form });
    expect([answer.status, partOf(await answer.json(), 'error', 'param')]).toEqual([status, param]);
    const after = await readdir(join(folder, 'batches'), { recursive: true });
    expect(after.filter((name) => !before.includes(name) && !name.startsWith('tmp'))).toEqual([]);
  });

  test('as JSON, or half of a form, is refused', async () => {
    expect(await asked('POST', '/v1/files', {})).toMatchObject({
      status: 415,
      body: { error: { code: 'unsupported_media_type' } },
    });
    const half = '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nxyz';
    const answer = await fetch(`${producer.url}/v1/files`, {
      method: 'POST',
      headers: { 'content-type': 'multipart/form-data; boundary=b' },
      body: half,
    });
    expect([answer.status, partOf(await answer.json(), 'error', 'code')]).toEqual([400, 'invalid_multipart']);
  });
});

function both(form: FormData, purpose: string, more?: string, content = 'x'): void {
  form.append('file', new Blob([content]), 'a.jsonl');
  form.append('purpose', purpose);
  if (more !== undefined) form.append(more, 'x');
}

async function endedJob(id: string): Promise<unknown> {
  await expect
    .poll(async () => partOf((await asked('GET', `/v1/jobs/${id}`)).body, 'ended_at'), { timeout: 60_000 })
    .toBeTypeOf('number');
  return (await asked('GET', `/v1/jobs/${id}`)).body;
}

describe('a job', () => {
  const body = { model: MODEL, input: ['fetch me later', 'and me'] };

  test('is handed in now and fetched later, as often as one likes', async () => {
    told.length = 0;
    const { port } = hooks.address() as AddressInfo;
    const webhook = { url: `http://127.0.0.1:${port}/` };
    const made = await asked('POST', '/v1/jobs', { endpoint: '/v1/embeddings', body, metadata: { row: '7' }, webhook });
    expect(made).toMatchObject({ status: 202, body: { object: 'job', result: null, metadata: { row: '7' } } });
    const id = String(partOf(made.body, 'id'));
    const done = await endedJob(id);
    const { data } = await openai.embeddings.create({ ...body, encoding_format: 'float' });
    expect(done).toMatchObject({ status: 'completed', error: null });
    expect(partOf(done, 'result', 'data')).toEqual(data);
    expect((await asked('GET', `/v1/jobs/${id}`)).body).toMatchObject({ status: 'completed', result: { data } });
    await expect.poll(() => told.length, { timeout: 60_000 }).toBe(1);
    expect(JSON.parse(told[0]!.body)).toMatchObject({ type: 'job.completed', data: { id } });
  });

  test.each([
    ['no endpoint', { body }, 'endpoint'],
    ['no body', { endpoint: '/v1/embeddings' }, 'body'],
    ['a wrong body', { endpoint: '/v1/embeddings', body: { model: MODEL, input: [''] } }, 'body.input[0]'],
    ['a model that nobody serves', { endpoint: '/v1/embeddings', body: { ...body, model: 'e5' } }, 'body.model'],
    [
      'a reranker that nobody serves',
      { endpoint: '/v1/rerank', body: { model: 'r', query: 'q', documents: ['d'] } },
      'body.model',
    ],
    ['a private webhook that is nonsense', { endpoint: '/v1/embeddings', body, webhook: { url: 'x' } }, 'webhook.url'],
    ['an unknown field', { endpoint: '/v1/embeddings', body, priority: 1 }, 'priority'],
    ['too long a life', { endpoint: '/v1/embeddings', body, expires_in: 1e9 }, 'expires_in'],
  ])('with %s is refused at once', async (_, job, param) => {
    const { status, body: answer } = await asked('POST', '/v1/jobs', job);
    expect(status).toBeGreaterThanOrEqual(400);
    expect(status).toBeLessThan(500);
    expect(partOf(answer, 'error', 'param')).toBe(param);
  });

  test('that is cancelled, or unknown, or of another kind, is told so', async () => {
    const idle = await createProducer(options({ place: join(folder, 'idle-3'), maxOpenJobs: 2 }, '{idle}'));
    try {
      const hand = (): Promise<Response> =>
        fetch(`${idle.url}/v1/jobs`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ endpoint: '/v1/embeddings', body }),
        });
      const [one, two, three] = [await hand(), await hand(), await hand()];
      expect([one.status, two.status, three.status]).toEqual([202, 202, 429]);
      const id = String(partOf(await one.json(), 'id'));
      const gone = await fetch(`${idle.url}/v1/jobs/${id}`, { method: 'DELETE' });
      expect(await gone.json()).toMatchObject({ id, status: 'cancelled', result: null });
      const again = await fetch(`${idle.url}/v1/jobs/${id}`, { method: 'DELETE' });
      expect(await again.json()).toMatchObject({ id, status: 'cancelled' });
    } finally {
      await idle.stop();
    }
    for (const id of ['job_1', `job_${'0'.repeat(32)}`, '..%2f..%2fetc%2fpasswd', 'batch_1'])
      expect(await asked('GET', `/v1/jobs/${id}`)).toMatchObject({
        status: 404,
        body: { error: { code: 'job_not_found' } },
      });
  });
});

describe('a request for a batch', () => {
  test.each([
    [{}, 'endpoint'],
    [{ endpoint: '/v1/chat/completions' }, 'endpoint'],
    [{ completion_window: '1 day' }, 'completion_window'],
    [{ completion_window: '15d' }, 'completion_window'],
    [{ input_file_id: 'file-1' }, 'input_file_id'],
    [{ input_file_id: '../../x' }, 'input_file_id'],
    [{ metadata: { a: 1 } }, 'metadata.a'],
    [{ metadata: Object.fromEntries([...Array(17).keys()].map((at) => [at, 'x'])) }, 'metadata'],
    [{ output_expires_after: { anchor: 'created_at', seconds: 5 } }, 'output_expires_after.seconds'],
    [{ priority: 1 }, 'priority'],
  ])('%j is refused by field', async (change, param) => {
    const whole = { endpoint: '/v1/embeddings', completion_window: '24h', input_file_id: `file-${'0'.repeat(32)}` };
    const body = Object.keys(change).length === 0 ? { ...whole, endpoint: undefined } : { ...whole, ...change };
    const { status, body: answer } = await asked('POST', '/v1/batches', body);
    expect([400, 404]).toContain(status);
    expect(partOf(answer, 'error', 'param')).toBe(param);
  });

  test.each([
    ['GET', '/v1/batches/batch_1', 404],
    ['GET', `/v1/batches/batch_${'0'.repeat(32)}`, 404],
    ['POST', `/v1/batches/batch_${'0'.repeat(32)}/cancel`, 404],
    ['GET', '/v1/files/file-1/content', 404],
    ['DELETE', '/v1/files/..%2f..', 404],
    ['GET', '/v1/files?limit=0', 400],
    ['GET', '/v1/files?order=up', 400],
    ['GET', '/v1/batches?limit=101', 400],
    ['GET', '/v1/batches?after=batch_1', 404],
    ['GET', '/v1/batches?before=x', 400],
    ['PUT', '/v1/batches', 405],
  ])('%s %s is %i', async (method, path, status) => {
    expect((await asked(method, path)).status).toBe(status);
  });
});

test('the document names every operation, and answers fit what it says', async () => {
  const { body: document } = await asked('GET', '/openapi.json');
  const schemas = new Schemas(document);
  const file = await uploaded([line('a', { model: MODEL, input: 'x' })]);
  const batch = { endpoint: '/v1/embeddings', completion_window: '24h', input_file_id: file.id };
  const made = (await asked('POST', '/v1/batches', batch)).body;
  const batchId = String(partOf(made, 'id'));
  const job = { endpoint: '/v1/embeddings', body: { model: MODEL, input: 'x' } };
  const jobId = String(partOf((await asked('POST', '/v1/jobs', job)).body, 'id'));
  await ended(batchId);
  const cases: readonly (readonly [string, string, string, object?])[] = [
    ['get', '/v1/files', ''],
    ['get', '/v1/files/{id}', file.id],
    ['get', '/v1/files/{id}', 'file-1'],
    ['post', '/v1/batches', '', batch],
    ['post', '/v1/batches', '', {}],
    ['get', '/v1/batches', ''],
    ['get', '/v1/batches/{id}', batchId],
    ['post', '/v1/batches/{id}/cancel', batchId],
    ['post', '/v1/jobs', '', job],
    ['post', '/v1/jobs', '', {}],
    ['get', '/v1/jobs', ''],
    ['get', '/v1/jobs/{id}', jobId],
    ['delete', '/v1/jobs/{id}', jobId],
    ['delete', '/v1/files/{id}', file.id],
  ];
  for (const [method, path, id, body] of cases) {
    const answer = await asked(method.toUpperCase(), path.replace('{id}', id), body);
    const said = partOf(document, 'paths', path, method, 'responses', String(answer.status));
    const schema = partOf(said, 'content', 'application/json', 'schema') as Schema;
    expect(schemas.fits(schema, answer.body), `${method} ${path}: ${JSON.stringify(answer)}`).toBe(true);
  }
  const operations = Object.entries(partOf(document, 'paths') as object).flatMap(([path, methods]) =>
    /\/v1\/(files|batches|jobs)/.test(path) ? Object.values(methods as object) : [],
  );
  expect(operations.map((one) => partOf(one, 'operationId')).sort()).toEqual(
    ['cancelBatch', 'cancelJob', 'createBatch', 'createFile', 'createJob', 'deleteFile', 'downloadFile'].concat([
      'listBatches',
      'listFiles',
      'listJobs',
      'retrieveBatch',
      'retrieveFile',
      'retrieveJob',
    ]),
  );
});

test('a file that a batch reads is kept until it has ended', async () => {
  const idle = await createProducer(options({ place: join(folder, 'idle-4') }, '{idle}'));
  try {
    const client = clientOf(idle);
    const { id, input_file_id: fileId } = await begun([line('a', { model: MODEL, input: 'x' })], {}, client);
    await expect(client.files.delete(fileId)).rejects.toThrow(/still reads/);
    await client.batches.cancel(id);
    await ended(id, client);
    await expect(client.files.delete(fileId)).resolves.toMatchObject({ deleted: true });
  } finally {
    await idle.stop();
  }
});

test('jobTexts of 1,024 makes jobs of as many lines, and of as many inputs, and names the input at fault', async () => {
  const prefix = '{batches-large}';
  // before HTTP, which keeps for some seconds what it heard of workers; a folder of its own, or it does batches of others
  const own = await startProcess('gpu-worker', { ...workerEnvironment(), SHOAL_PREFIX: prefix });
  const large = await createProducer({
    ...options({ place: join(folder, 'batches-large'), jobsInFlight: 64, jobTexts: 1_024 }, prefix),
    jobTexts: 1_024,
  });
  // a job is answered before it is among those that are done
  const rowsDone = async (): Promise<number[]> => (await rowsOfJobs(prefix)).toSorted((a, b) => b - a);
  try {
    const client = clientOf(large);
    const texts = Array.from({ length: 1_100 }, (_, at) => `text ${at}`);
    const inputs = texts.map((input, at) => line(`${at}`, { model: MODEL, input }));
    const batch = await ended((await begun(inputs, {}, client)).id, client);
    expect(batch.request_counts).toEqual({ total: 1_100, completed: 1_100, failed: 0 });
    await expect.poll(rowsDone).toEqual([1_024, 76]);
    const { data } = await client.embeddings.create({ model: MODEL, input: texts });
    expect(data.map(({ index }) => index)).toEqual([...texts.keys()]);
    await expect.poll(rowsDone).toEqual([1_024, 1_024, 76, 76]);
    const long = texts.with(1_050, 'long '.repeat(2_000));
    await expect(client.embeddings.create({ model: MODEL, input: long })).rejects.toMatchObject({
      param: 'input[1050]',
    });
  } finally {
    await own.stop();
    await large.stop();
  }
}, 120_000);
