// A batch while everything is killed: HTTP, worker and queue server end by SIGKILL half-way and are started again. Its
// output is complete, each custom_id is in it once with the vector of its own text, and what was wrong is in the error
// file. 100,000 lines at night, 1,000 by day.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OpenAI, toFile } from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { simulatedVector } from '@shoal/core/sim';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { startProcess, type StartedApp } from '../testing/processes.ts';

const LINES = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 1_000 : 100_000;
const MODEL = 'tiny-random';
/** One line in so many has a body that is refused. */
const WRONG_EVERY = 97;
/** And one in so many is of another kind: by parts the queue answers it all the same. */
const UNLIKE_EVERY = 89;

let server: TestServer;
let folder: string;
let model: StoredModel;
let tokenizer: Tokenizer;
const apps: StartedApp[] = [];

beforeAll(async () => {
  server = await startTestServer({ appendFsync: 'always' });
  folder = await mkdtemp(join(tmpdir(), 'shoal-kills-'));
  model = await openModel(MODEL, { cacheDir: folder });
  tokenizer = await openTokenizer(model);
});
afterAll(async () => {
  await Promise.all(apps.map((app) => app.kill9()));
  await server?.stop();
  await rm(folder, { recursive: true, force: true });
});

/** At night also of a batch whose lines workers read by themselves. */
const WAYS =
  process.env['SHOAL_TEST_NIGHTLY'] === undefined ? (['the queue'] as const) : (['the queue', 'parts'] as const);
type Way = (typeof WAYS)[number];

async function started(
  way: Way,
): Promise<{ readonly http: StartedApp; readonly worker: StartedApp; readonly openai: OpenAI }> {
  const common = { SHOAL_REDIS_URL: server.url, SHOAL_MODEL: MODEL, SHOAL_CACHE_DIR: folder };
  const [worker, http] = await Promise.all([
    // slow enough to be killed half-way by day
    startProcess('gpu-worker', {
      ...common,
      SHOAL_DEVICE: 'sim:8000+20',
      SHOAL_SIM_SERVES: 'model',
      ...(way === 'parts' && { SHOAL_PART_FOLDERS: folder }),
    }),
    startProcess('producer', {
      ...common,
      SHOAL_HTTP_PORT: '0',
      SHOAL_BATCH_JOBS_IN_FLIGHT: '8',
      SHOAL_BATCH_PART_LINES: String(LINES / 5),
    }),
  ]);
  apps.push(worker, http);
  expect([worker.report.kind, http.report.kind]).toEqual(['ready', 'ready']);
  const openai = new OpenAI({ baseURL: `${http.report.url}/v1`, apiKey: 'none', maxRetries: 5 });
  return { http, worker, openai };
}

const textOf = (at: number): string => (at % WRONG_EVERY === 0 ? '' : `row ${at} of a long night`);

function input(): string {
  return [...Array(LINES).keys()]
    .map((at) =>
      JSON.stringify({
        custom_id: `row-${at}`,
        method: 'POST',
        url: '/v1/embeddings',
        body: {
          model: MODEL,
          input: textOf(at),
          encoding_format: 'base64',
          ...(at % UNLIKE_EVERY === 1 && { user: 'somebody' }),
        },
      }),
    )
    .join('\n');
}

test.each(WAYS)('each line is answered once by %s, whatever is killed half-way', async (way) => {
  let { http, worker, openai } = await started(way);
  const file = await openai.files.create({ file: await toFile(Buffer.from(input()), 'night.jsonl'), purpose: 'batch' });
  const { id } = await openai.batches.create({
    input_file_id: file.id,
    endpoint: '/v1/embeddings',
    completion_window: '24h',
  });
  const answered = async (): Promise<number> => {
    const { completed = 0, failed = 0 } = (await openai.batches.retrieve(id)).request_counts ?? {};
    return completed + failed;
  };
  await expect.poll(answered, { timeout: 600_000, interval: 20 }).toBeGreaterThan(LINES / 4);
  expect((await openai.batches.retrieve(id)).status).toBe('in_progress');
  await Promise.all([http.kill9(), worker.kill9(), server.kill9()]);
  await server.restart();
  ({ http, worker, openai } = await started(way));
  const resumedAt = await answered();
  expect(resumedAt).toBeGreaterThan(LINES / 4);
  await expect
    .poll(async () => (await openai.batches.retrieve(id)).status, { timeout: 1_000_000, interval: 100 })
    .toBe('completed');

  const done = await openai.batches.retrieve(id);
  const wrong = Math.ceil(LINES / WRONG_EVERY);
  expect(done.request_counts).toEqual({ total: LINES, completed: LINES - wrong, failed: wrong });
  const lines = async (fileId: string): Promise<string[]> =>
    (await (await openai.files.content(fileId)).text()).split('\n').filter(Boolean);
  const strangers: string[] = [];
  let at = 0;
  for (const line of await lines(done.output_file_id!)) {
    if (at % WRONG_EVERY === 0) at++;
    const { custom_id: customId, response } = JSON.parse(line) as Answered;
    if (customId !== `row-${at}`) strangers.push(customId);
    if (at % 50 === 1) expectVector(response.body.data[0].embedding, textOf(at));
    at++;
  }
  expect(strangers).toEqual([]);
  expect(at).toBe((LINES - 1) % WRONG_EVERY === 0 ? LINES - 1 : LINES);
  const errors = (await lines(done.error_file_id!)).map((line) => JSON.parse(line) as Answered);
  expect(errors.map(({ custom_id: customId }) => customId)).toEqual(
    [...Array(wrong).keys()].map((one) => `row-${one * WRONG_EVERY}`),
  );
  expect(new Set(errors.map(({ response }) => response.status_code))).toEqual(new Set([400]));
  expect(http.log()).not.toContain('given up');
  console.log(`${LINES} lines by ${way}, killed after ${resumedAt} of them`);
  await Promise.all([http.stop(), worker.stop()]);
});

interface Answered {
  readonly custom_id: string;
  readonly response: {
    readonly status_code: number;
    readonly body: { readonly data: readonly [{ readonly embedding: string }] };
  };
}

function expectVector(base64: string, text: string): void {
  const bytes = Uint8Array.from(Buffer.from(base64, 'base64'));
  const found = new Float32Array(bytes.buffer);
  const expected = simulatedVector(tokenizer.encode(text).ids, model.dims);
  expect(Math.max(...expected.map((value, dim) => Math.abs(value - found[dim]!)))).toBeLessThan(1e-6);
}
