// A batch through OpenAI's Python client, end to end, against a simulated device. Runs at night alone: it installs other
// people's packages (clients.test.ts). The npm client is tried by day, in ../batches/batches.test.ts.

import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { cacheFolder, type Tokenizer } from '@shoal/core';
import { simulatedVector } from '@shoal/core/sim';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from '../producer.ts';
import { batchSettings } from '../testing/batch-settings.ts';
import { startProcess, type StartedApp } from '../testing/processes.ts';
import { producerOptions } from '../testing/producer-options.ts';
import { installClients, type Clients } from './install.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('a batch through the Python client is tried at night alone (npm run test:nightly)');

const MODEL = 'tiny-random';

describe.skipIf(!isNightly)('openai (PyPI)', () => {
  let clients: Clients;
  let server: TestServer;
  let folder: string;
  let model: StoredModel;
  let tokenizer: Tokenizer;
  let worker: StartedApp;
  let producer: Producer;

  beforeAll(async () => {
    clients = await installClients(cacheFolder(process.env['SHOAL_CACHE_DIR']));
    server = await startTestServer();
    folder = await mkdtemp(join(tmpdir(), 'shoal-python-'));
    model = await openModel(MODEL, { cacheDir: folder });
    tokenizer = await openTokenizer(model);
    worker = await startProcess('gpu-worker', {
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: MODEL,
      SHOAL_CACHE_DIR: folder,
      SHOAL_DEVICE: 'sim:8000',
      SHOAL_SIM_SERVES: 'model',
    });
    const batches = batchSettings(join(folder, 'batches'));
    producer = await createProducer(producerOptions({ redisUrl: server.url, model, tokenizer, batches }));
  }, 900_000);
  afterAll(async () => {
    await producer?.stop();
    await worker?.stop();
    await server?.stop();
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  });

  async function run(asked: object): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const script = fileURLToPath(new URL('batch.py', import.meta.url));
      const child = execFile(clients.python, [script], { maxBuffer: 1 << 28 }, (error, out, said) =>
        error === null ? resolve(JSON.parse(out)) : reject(new Error(`${error.message}\n${said}`)),
      );
      child.stdin!.end(JSON.stringify(asked));
    });
  }

  test('runs a batch from the upload to the output', async () => {
    const lines = [...Array(300).keys()].map((at) => ({
      custom_id: `row-${at}`,
      method: 'POST',
      url: '/v1/embeddings',
      body: { model: MODEL, input: at === 7 ? '' : `text ${at}` },
    }));
    const done = await run({ url: `${producer.url}/v1`, endpoint: '/v1/embeddings', lines });
    expect(done).toMatchObject({
      status: 'completed',
      counts: { total: 300, completed: 299, failed: 1 },
      metadata: { by: 'python' },
      listed: true,
      gone: 'NotFoundError',
      errors: [{ custom_id: 'row-7', response: { status_code: 400, body: { error: { code: 'empty_string' } } } }],
    });
    const { output } = done as { readonly output: readonly Answered[] };
    expect(output.map(({ custom_id: id }) => id)).toEqual(
      lines.flatMap(({ custom_id: id }, at) => (at === 7 ? [] : [id])),
    );
    const [first] = output;
    const expected = simulatedVector(tokenizer.encode('text 0').ids, model.dims);
    const found = first!.response.body.data[0].embedding;
    expect(Math.max(...found.map((value, dim) => Math.abs(value - expected[dim]!)))).toBeLessThan(1e-6);
  });
});

interface Answered {
  readonly custom_id: string;
  readonly response: { readonly body: { readonly data: readonly [{ readonly embedding: readonly number[] }] } };
}
