// A batch of questions to a reranker: a made cross-encoder on ONNX Runtime, and the scores that /v1/rerank gives. At
// night alone: bringing and proving the model takes its time.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OpenAI, toFile } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { importModel, openModel, openTokenizer } from '@shoal/models';
import { madeModel, madeTexts } from '@shoal/models/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from '../producer.ts';
import { batchSettings } from '../testing/batch-settings.ts';
import { startProcess, type StartedApp } from '../testing/processes.ts';
import { producerOptions } from '../testing/producer-options.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('a batch for a reranker is tried at night alone (npm run test:nightly)');

const NAME = 'made-reranker';

describe.skipIf(!isNightly)('with a reranker', () => {
  let server: TestServer;
  let folder: string;
  let worker: StartedApp;
  let producer: Producer;
  let texts: readonly string[];

  beforeAll(async () => {
    server = await startTestServer();
    folder = await mkdtemp(join(tmpdir(), 'shoal-rerank-batch-'));
    texts = await madeTexts();
    await madeModel('cross-encoder-bert', join(folder, 'model'));
    await importModel(join(folder, 'model'), { cacheDir: folder, name: NAME });
    worker = await startProcess('cpu-worker', {
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: NAME,
      SHOAL_CACHE_DIR: folder,
    });
    const model = await openModel('tiny-random', { cacheDir: folder });
    const batches = batchSettings(join(folder, 'batches'));
    const tokenizer = await openTokenizer(model);
    producer = await createProducer(producerOptions({ redisUrl: server.url, model, tokenizer, batches }));
  }, 600_000);
  afterAll(async () => {
    await producer?.stop();
    await worker?.stop();
    await server?.stop();
    if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  });

  test('each line has the answer of /v1/rerank, and what is refused there is in the error file', async () => {
    const openai = new OpenAI({ baseURL: `${producer.url}/v1`, apiKey: 'none' });
    const bodies = [...Array(30).keys()].map((at) => ({
      model: NAME,
      query: texts[at % 5],
      documents: at === 3 ? [] : texts.slice(5, 15 + (at % 3)),
      ...(at % 2 === 0 && { top_n: 2, return_documents: true }),
    }));
    const lines = bodies.map((body, at) => ({ custom_id: `q${at}`, method: 'POST', url: '/v1/rerank', body }));
    const content = Buffer.from(lines.map((line) => JSON.stringify(line)).join('\n'));
    const file = await openai.files.create({ file: await toFile(content, 'questions.jsonl'), purpose: 'batch' });
    const endpoint = '/v1/rerank' as '/v1/embeddings'; // OpenAI's types know no reranking
    const { id } = await openai.batches.create({ input_file_id: file.id, endpoint, completion_window: '24h' });
    await expect
      .poll(async () => (await openai.batches.retrieve(id)).status, { timeout: 300_000, interval: 100 })
      .toBe('completed');
    const done = await openai.batches.retrieve(id);
    expect(done).toMatchObject({ model: NAME, request_counts: { total: 30, completed: 29, failed: 1 } });
    const output = (await (await openai.files.content(done.output_file_id!)).text()).trim().split('\n');
    for (const line of output) {
      const { custom_id: customId, response } = JSON.parse(line) as Answered;
      const answer = await fetch(`${producer.url}/v1/rerank`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(bodies[Number(customId.slice(1))]),
      });
      const { id: _, ...expected } = (await answer.json()) as Answered['response']['body'];
      expect(response.body).toMatchObject(JSON.parse(JSON.stringify(expected, rounded)) as object);
    }
    const errors = JSON.parse(await (await openai.files.content(done.error_file_id!)).text()) as Answered;
    expect(errors).toMatchObject({ custom_id: 'q3', response: { status_code: 400 } });
  });
});

interface Answered {
  readonly custom_id: string;
  readonly response: { readonly body: { readonly id: string } };
}

/** Scores differ in their last digits by the rows beside them in a run. */
function rounded(name: string, value: unknown): unknown {
  return name === 'relevance_score' ? undefined : value;
}
