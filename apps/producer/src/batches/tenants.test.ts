// Two tenants at one server, whose queue no worker serves: neither sees what is the other's. And a notice that was not
// taken is sent again by the server that comes after.

import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { AddressInfo } from 'node:net';
import { NotFoundError, OpenAI, PermissionDeniedError, toFile } from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { makeApiKey, type NewApiKey } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { FileApiKeys } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from '../producer.ts';
import { batchSettings } from '../testing/batch-settings.ts';
import { producerOptions } from '../testing/producer-options.ts';
import { newWebhookSecret } from './webhook.ts';

const MODEL = 'tiny-random';

let server: TestServer;
let folder: string;
let keys: FileApiKeys;
const producers: Producer[] = [];

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), 'shoal-tenants-'));
  keys = new FileApiKeys(join(folder, 'keys.json'));
});
afterAll(async () => {
  await Promise.all(producers.map((producer) => producer.stop()));
  await server.stop();
  await rm(folder, { recursive: true, force: true });
});

async function started(): Promise<Producer> {
  const model = await openModel(MODEL, { cacheDir: folder });
  const tokenizer = await openTokenizer(model);
  const batches = batchSettings(join(folder, 'batches'));
  const keyFile = keys.place;
  const options = { redisUrl: server.url, prefix: '{idle}', model, tokenizer, keyFile, batches };
  const producer = await createProducer(producerOptions(options));
  producers.push(producer);
  return producer;
}

async function newKey(wanted: Partial<NewApiKey>): Promise<string> {
  const { text, kept } = makeApiKey({ name: 'test', ...wanted }, Date.now());
  await keys.add(kept);
  return text;
}

const clientOf = ({ url }: Producer, apiKey: string): OpenAI =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });

async function begun(client: OpenAI, webhook?: object): Promise<OpenAI.Batches.Batch> {
  const line = { custom_id: 'a', method: 'POST', url: '/v1/embeddings', body: { model: MODEL, input: 'x' } };
  const file = await toFile(Buffer.from(JSON.stringify(line)), 'input.jsonl');
  const { id } = await client.files.create({ file, purpose: 'batch' });
  const terms = { input_file_id: id, endpoint: '/v1/embeddings', completion_window: '24h' } as const;
  return client.batches.create({ ...terms, ...(webhook !== undefined && { webhook }) });
}

test('what is another tenant’s looks as if it were not there, in lists as well, and a key has to be for batches', async () => {
  const [ours, theirs, other] = [
    await newKey({ tenant: 'acme' }),
    await newKey({ tenant: 'rival' }),
    await newKey({ tenant: 'acme', scopes: ['embed'] }),
  ];
  const producer = await started();
  const [acme, rival] = [clientOf(producer, ours), clientOf(producer, theirs)];
  const batch = await begun(acme);
  const job = await fetch(`${producer.url}/v1/jobs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${ours}` },
    body: JSON.stringify({ endpoint: '/v1/embeddings', body: { model: MODEL, input: 'x' } }),
  });
  const { id: jobId } = (await job.json()) as { readonly id: string };
  const { id, input_file_id: fileId } = batch;
  await expect(rival.files.retrieve(fileId)).rejects.toThrow(NotFoundError);
  await expect(rival.files.content(fileId)).rejects.toThrow(NotFoundError);
  await expect(rival.files.delete(fileId)).rejects.toThrow(NotFoundError);
  await expect(rival.batches.retrieve(id)).rejects.toThrow(NotFoundError);
  await expect(rival.batches.cancel(id)).rejects.toThrow(NotFoundError);
  await expect(
    rival.batches.create({ input_file_id: fileId, endpoint: '/v1/embeddings', completion_window: '24h' }),
  ).rejects.toThrow(NotFoundError);
  for (const method of ['GET', 'DELETE']) {
    const headers = { authorization: `Bearer ${theirs}` };
    expect((await fetch(`${producer.url}/v1/jobs/${jobId}`, { method, headers })).status).toBe(404);
  }
  expect((await rival.files.list()).data).toEqual([]);
  expect((await rival.batches.list()).data).toEqual([]);
  expect((await acme.batches.list()).data.map((one) => one.id)).toEqual([id]);
  await expect(clientOf(producer, other).batches.list()).rejects.toThrow(PermissionDeniedError);
  await expect(clientOf(producer, 'none').batches.list()).rejects.toThrow(/401/);
  await acme.batches.cancel(id);
});

test('a notice that was not taken is sent again, by the server that comes after as well', async () => {
  const ours = await newKey({ tenant: 'told' });
  const secret = newWebhookSecret();
  const told: (string | string[] | undefined)[] = [];
  const hooks = createServer((request, answer) => {
    told.push(request.headers['webhook-id']);
    answer.writeHead(told.length === 1 ? 503 : 200).end();
  }).listen(0, '127.0.0.1');
  await once(hooks, 'listening');
  try {
    const first = await started();
    const client = clientOf(first, ours);
    const url = `http://127.0.0.1:${(hooks.address() as AddressInfo).port}/`;
    const { id } = await begun(client, { url, secret });
    await client.batches.cancel(id);
    await expect.poll(() => told.length, { timeout: 60_000 }).toBe(1);
    await first.stop();
    const next = clientOf(await started(), ours);
    const webhook = async (): Promise<unknown> => Reflect.get(await next.batches.retrieve(id), 'webhook');
    expect(await webhook()).toMatchObject({ status: 'pending', attempts: 1, last_error: 'answered with status 503' });
    await expect
      .poll(webhook, { timeout: 60_000 })
      .toMatchObject({ status: 'delivered', attempts: 2, last_error: null });
    expect(told).toEqual([`evt_${id}`, `evt_${id}`]);
  } finally {
    hooks.close();
  }
});
