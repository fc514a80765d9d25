// Batches whose lines workers read by themselves: real HTTP, real queue server, simulated device and ONNX Runtime. What
// comes out is what the ordinary way gives, whatever is wrong with lines, workers, parts and their objects.

import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OpenAI, toFile } from 'openai';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { DEFAULT_PREFIX, mainQueue, partsQueue } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { S3Bucket } from '@shoal/fetch/s3';
import { openModel, openTokenizer } from '@shoal/models';
import { WorkerPresence } from '@shoal/queue';
import { WORKER_FACTS, startS3Server, startTestServer, type S3Server, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer, type ProducerOptions } from '../producer.ts';
import { batchSettings } from '../testing/batch-settings.ts';
import { producerOptions } from '../testing/producer-options.ts';
import { startProcess, type StartedApp } from '../testing/processes.ts';
import type { BatchSettings } from './batches.ts';

const MODEL = 'tiny-random';
const LINES = 260;
/** Fewer go through the queue; a part has an eighth, which is 13. */
const LEAST_LINES = 100;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('parts of a batch in a bucket are tried at night alone, with moto (npm run test:nightly)');

let server: TestServer;
let folder: string;
let base: Pick<ProducerOptions, 'redisUrl' | 'model' | 'tokenizer'>;
let log: RecordingLogger;
const producers: Producer[] = [];
let workers: StartedApp[] = [];

beforeAll(async () => {
  server = await startTestServer();
  folder = await mkdtemp(join(tmpdir(), 'shoal-batch-parts-'));
  const model = await openModel(MODEL, { cacheDir: folder });
  base = { redisUrl: server.url, model, tokenizer: await openTokenizer(model) };
});
beforeEach(() => (log = new RecordingLogger()));
afterEach(async () => {
  await Promise.all(producers.splice(0).map((one) => one.stop()));
});
afterAll(async () => {
  await Promise.all(workers.map((one) => one.stop()));
  await server?.stop();
  await rm(folder, { recursive: true, force: true });
});

async function startWorker(
  more: Readonly<Record<string, string>> = {},
  app: 'gpu-worker' | 'cpu-worker' = 'gpu-worker',
): Promise<StartedApp> {
  const worker = await startProcess(app, {
    SHOAL_REDIS_URL: server.url,
    SHOAL_MODEL: MODEL,
    SHOAL_CACHE_DIR: folder,
    SHOAL_DEVICE: 'sim:8000',
    SHOAL_SIM_SERVES: 'model',
    SHOAL_PART_FOLDERS: folder,
    ...more,
  });
  expect(worker.report.kind).toBe('ready');
  workers.push(worker);
  return worker;
}

async function withWorker(): Promise<void> {
  if (workers.length === 0) await startWorker();
}

async function stopWorkers(): Promise<void> {
  await Promise.all(workers.splice(0).map((one) => one.stop()));
}

async function producer(change: Partial<BatchSettings> = {}, prefix = DEFAULT_PREFIX): Promise<OpenAI> {
  const batches = batchSettings(join(folder, 'batches'), {
    partLines: LEAST_LINES,
    partTiming: { lookMs: 50, nobodyMs: 1_000 },
    leaseMs: 1_000,
    ...change,
  });
  const started = await createProducer(producerOptions({ ...base, prefix, batches, log }));
  producers.push(started);
  return new OpenAI({ baseURL: `${started.url}/v1`, apiKey: 'none', maxRetries: 0 });
}

/** Of every 260: good lines, both encodings, a refused body, one that is too long, what no worker reads, blank lines. */
function lineOf(at: number): string {
  const body: Record<string, unknown> = { model: MODEL, input: `row ${at} of many, é漢` };
  if (at % 3 === 0) body['encoding_format'] = 'base64';
  if (at % 50 === 7) body['input'] = '';
  if (at % 90 === 11) body['input'] = 'long '.repeat(2_000);
  if (at % 90 === 13) body['input'] = `half of a pair \ud83d ${at}`;
  const text = JSON.stringify({ custom_id: `row-${at}`, method: 'POST', url: '/v1/embeddings', body });
  return at % 40 === 5 ? `\n  \n${text}\r` : text;
}

const lines = (count = LINES): string[] => Array.from({ length: count }, (_, at) => lineOf(at));

async function begun(openai: OpenAI, input: readonly string[], more: object = {}): Promise<OpenAI.Batches.Batch> {
  const file = await openai.files.create({
    file: await toFile(Buffer.from(input.join('\n')), 'input.jsonl'),
    purpose: 'batch',
  });
  const terms = { endpoint: '/v1/embeddings', completion_window: '24h', input_file_id: file.id, ...more } as const;
  return openai.batches.create(terms);
}

async function ended(openai: OpenAI, id: string): Promise<OpenAI.Batches.Batch> {
  const endings = ['completed', 'failed', 'expired', 'cancelled'];
  await expect
    .poll(async () => endings.includes((await openai.batches.retrieve(id)).status), { timeout: 240_000, interval: 50 })
    .toBe(true);
  return openai.batches.retrieve(id);
}

/** Both files, without what differs between two batches. */
async function filesOf(openai: OpenAI, batch: OpenAI.Batches.Batch): Promise<readonly string[]> {
  const ids = [batch.output_file_id, batch.error_file_id];
  const texts = await Promise.all(
    ids.map(async (id) => (id === null || id === undefined ? '' : (await openai.files.content(id)).text())),
  );
  return texts.map((text) => text.replaceAll(/"(batch_req|req)_[0-9a-f]{32}"/g, '"$1"'));
}

const said = (text: string): boolean => log.lines.some(({ message }) => message.includes(text));
const GOES = 'a large batch is read by workers';
const GIVEN_UP = 'parts of a batch are given up';

/** What the ordinary way makes of the lines, by a process that is gone then: it would take the next batch as well. */
async function expected(input: readonly string[], ...where: Parameters<typeof producer>) {
  const [change, prefix] = where;
  const openai = await producer({ ...change, partLines: 0 }, prefix);
  const batch = await ended(openai, (await begun(openai, input)).id);
  const files = await filesOf(openai, batch);
  await producers.pop()!.stop();
  return { batch, files };
}

async function partFolders(): Promise<string[]> {
  const names = await readdir(join(folder, 'batches'), { recursive: true });
  return names.filter((name) => /\/parts\/./.test(name));
}

const COUNTS = ['status', 'request_counts', 'usage', 'model'] as const;
const countsOf = (batch: OpenAI.Batches.Batch) =>
  Object.fromEntries(COUNTS.map((key) => [key, Reflect.get(batch, key)]));

test('output, errors, counts and usage are those of the ordinary way, byte for byte, and nothing is left of the parts', async () => {
  await withWorker();
  const input = lines();
  const ordinary = await expected(input);
  expect(said(GOES)).toBe(false);
  const openai = await producer();
  const batch = await ended(openai, (await begun(openai, input)).id);
  expect(said(GOES)).toBe(true);
  expect(said(GIVEN_UP)).toBe(false);
  expect(countsOf(batch)).toEqual(countsOf(ordinary.batch));
  expect(batch.request_counts).toEqual({ total: LINES, completed: LINES - 12, failed: 12 });
  expect(await filesOf(openai, batch)).toEqual(ordinary.files);
  expect(await partFolders()).toEqual([]);
  expect(await server.command('EXISTS', `${DEFAULT_PREFIX}:${partsQueue(MODEL)}:wait`)).toBe(0);
});

/** Somebody who says that parts are taken in this folder, and takes none. */
async function inName(folders: readonly string[], workerId = 'in-name'): Promise<WorkerPresence> {
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix: DEFAULT_PREFIX,
    queue: partsQueue(MODEL),
    workerId,
    facts: () => ({ ...WORKER_FACTS, partFolders: folders }),
    log: noLog,
  });
  await presence.start();
  return presence;
}

const jobsDone = async (): Promise<number> =>
  Number(await server.command('ZCARD', `${DEFAULT_PREFIX}:${mainQueue(MODEL)}:completed`));

const waitingParts = async (): Promise<number> => {
  const keys = ['prioritized', 'wait'].map((state) => `${DEFAULT_PREFIX}:${partsQueue(MODEL)}:${state}`);
  return Number(await server.command('ZCARD', keys[0]!)) + Number(await server.command('LLEN', keys[1]!));
};

const plain = (count: number, more: (at: number) => object = () => ({})): string[] =>
  Array.from({ length: count }, (_, at) => {
    const body = { model: MODEL, input: `plain ${at}`, encoding_format: 'base64', ...more(at) };
    return JSON.stringify({ custom_id: `row-${at}`, method: 'POST', url: '/v1/embeddings', body });
  });

/** Kinds for themselves, mingled, with strangers among them, and lines that are two to a worker. */
function mingled(): string[] {
  const unlike = [
    { dimensions: 8 },
    { input: ['one', 'two'] },
    { user: 'somebody' },
    { normalize: true },
    { input: '' },
  ];
  return [
    ...plain(200, (at) => (at % 20 === 3 ? { input: `unlike ${at}`, ...unlike[((at / 20) % unlike.length) | 0] } : {})),
    ...plain(130, (at) => ({ dimensions: 16, ...(at % 30 === 5 && { input: [1, 2, 3] }) })),
    ...plain(60, (at) => (at % 2 === 0 ? { truncate: 'end' } : { dimensions: 4 })),
    ...plain(60, (at) => (at === 30 ? {} : { truncate: 'end', input: `long ${'long '.repeat(at * 30)}` })).map(
      (line, at) => (at === 31 ? line.replace(':', ':\r') : line),
    ),
    ...plain(40),
  ].map((line, at) => line.replace(/row-\d+/, `row-${at}`));
}

test('lines of several kinds go by parts of each, and those between them by the queue, with the same output', async () => {
  await withWorker();
  const input = mingled();
  const before = await jobsDone();
  const ordinary = await expected(input);
  const [byQueue, openai] = [(await jobsDone()) - before, await producer()];
  const batch = await ended(openai, (await begun(openai, input)).id);
  expect([said(GOES), said(GIVEN_UP)]).toEqual([true, false]);
  expect(countsOf(batch)).toEqual(countsOf(ordinary.batch));
  expect(await filesOf(openai, batch)).toEqual(ordinary.files);
  const [goes] = log.lines.filter(({ message }) => message.includes(GOES));
  expect(goes?.fields).toMatchObject({ parts: 30, lines: 386 });
  expect((await jobsDone()) - before).toBeLessThan(2 * byQueue);
  expect(await partFolders()).toEqual([]);
});

test.each([
  ['there are fewer lines', plain(99)],
  ['lines take turns', plain(150, (at) => (at % 2 === 0 ? { dimensions: 8 } : {}))],
  ['carriage returns lie within lines', plain(150).map((line) => line.replace(':', ':\r'))],
])('where %s the batch goes through the queue', async (_, input) => {
  await withWorker();
  const openai = await producer();
  const { status, request_counts: counts } = await ended(openai, (await begun(openai, input)).id);
  expect([status, counts?.completed]).toEqual(['completed', input.length]);
  expect(said(GOES)).toBe(false);
});

test('the same where not all workers that take parts have the folder, which is said; nothing is left of the try', async () => {
  await withWorker();
  const other = await inName(['/elsewhere']);
  const openai = await producer();
  const { status } = await ended(openai, (await begun(openai, plain(120))).id);
  await other.stop();
  expect([status, said('not all workers that take parts have its files in partFolders'), said(GOES)]).toEqual([
    'completed',
    true,
    false,
  ]);
  expect(await partFolders()).toEqual([]);
});

test('another process goes on with parts that were asked for, and no line passes through the queue', async () => {
  await stopWorkers();
  const presence = await inName([folder]);
  const first = await producer({ partTiming: { lookMs: 50, nobodyMs: 60_000 } });
  const { id } = await begun(first, plain(350));
  await expect.poll(waitingParts, { timeout: 10_000 }).toBe(27);
  await producers.pop()!.stop();
  await presence.stop();
  await startWorker();
  const before = await jobsDone();
  expect(before).toBeGreaterThan(0);
  const second = await producer();
  const batch = await ended(second, id);
  expect([batch.status, batch.request_counts?.completed]).toEqual(['completed', 350]);
  expect(await jobsDone()).toBe(before);
  const [output] = await filesOf(second, batch);
  const found = output!
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as { custom_id: string });
  expect(found.map(({ custom_id: customId }) => customId)).toEqual(
    Array.from({ length: 350 }, (__, at) => `row-${at}`),
  );
});

test('a batch whose workers go away goes on through the queue', async () => {
  await stopWorkers();
  const presence = await inName([folder]);
  const openai = await producer();
  const { id } = await begun(openai, plain(150));
  await expect.poll(waitingParts, { timeout: 10_000 }).toBe(12);
  await presence.stop();
  await startWorker({ SHOAL_PART_FOLDERS: '' });
  const { status, request_counts: counts } = await ended(openai, id);
  expect([status, counts?.completed, said(GIVEN_UP)]).toEqual(['completed', 150, true]);
  expect([await waitingParts(), await partFolders()]).toEqual([0, []]);
  await stopWorkers();
});

test('a batch that is cancelled, or expires, takes its parts back, and all its lines are in the error file', async () => {
  const presence = await inName([folder]);
  const openai = await producer({ partTiming: { lookMs: 50, nobodyMs: 60_000 } });
  const { id } = await begun(openai, plain(150));
  await expect.poll(waitingParts, { timeout: 10_000 }).toBe(12);
  await openai.batches.cancel(id);
  const batch = await ended(openai, id);
  expect([batch.status, batch.request_counts]).toEqual(['cancelled', { total: 150, completed: 0, failed: 150 }]);
  expect([await waitingParts(), await partFolders()]).toEqual([0, []]);
  const [, errors] = await filesOf(openai, batch);
  expect(errors!.match(/batch_cancelled/g)).toHaveLength(150);
  await presence.stop();
});

test('counts grow by what is stored, and are those of the files when a batch is cancelled between two parts', async () => {
  await startWorker({ SHOAL_DEVICE: 'sim:20' });
  const openai = await producer();
  // a shard, and seconds of work behind it
  const { id } = await begun(
    openai,
    plain(2_000, (at) => (at < 1_100 ? {} : { input: `${at} ${'long '.repeat(100)}` })),
  );
  const seen: number[] = [];
  const look = async (): Promise<number> => {
    seen.push((await openai.batches.retrieve(id)).request_counts!.completed);
    return seen.at(-1)!;
  };
  await expect.poll(look, { timeout: 120_000, interval: 20 }).toBeGreaterThan(0);
  await openai.batches.cancel(id);
  const batch = await ended(openai, id);
  const { completed, failed } = batch.request_counts!;
  expect(seen).toEqual(seen.toSorted((one, other) => one - other));
  expect([batch.status, completed + failed]).toEqual(['cancelled', 2_000]);
  expect(completed).toBeGreaterThanOrEqual(seen.at(-1)!);
  const counted = (await filesOf(openai, batch)).map((text) => text.split('\n').filter(Boolean).length);
  expect(counted).toEqual([completed, failed]);
  await stopWorkers();
});

test('ONNX Runtime gives lines of parts the vectors of requests', async () => {
  const SHOAL_PREFIX = '{real}';
  await startWorker({ SHOAL_PREFIX, SHOAL_DEVICE: 'cpu', SHOAL_SIM_SERVES: 'itself' }, 'cpu-worker');
  const openai = await producer({}, SHOAL_PREFIX);
  const batch = await ended(
    openai,
    (
      await begun(
        openai,
        plain(LEAST_LINES, () => ({ dimensions: 16 })),
      )
    ).id,
  );
  expect([said(GOES), said(GIVEN_UP)]).toEqual([true, false]);
  const [output] = await filesOf(openai, batch);
  const found = output!
    .split('\n')
    .filter(Boolean)
    .map((line) => vectorIn(JSON.parse(line).response.body.data[0]));
  const input = Array.from({ length: LEAST_LINES }, (_, at) => `plain ${at}`);
  const asked = await openai.embeddings.create({ model: MODEL, input, dimensions: 16, encoding_format: 'base64' });
  const wanted = asked.data.map(vectorIn);
  const apart = found.map((vector, at) => Math.max(...vector.map((value, dim) => Math.abs(value - wanted[at]![dim]!))));
  expect([found.length, found[0]!.length]).toEqual([LEAST_LINES, 16]);
  expect(Math.max(...apart)).toBeLessThan(1e-5);
});

describe.skipIf(!isNightly)('in a bucket', () => {
  const SHOAL_PREFIX = '{bucket}';
  let s3: S3Server;

  beforeAll(async () => {
    s3 = await startS3Server();
    Object.assign(process.env, s3.credentials);
    await s3.makeBucket('shoal');
  }, 600_000);
  afterAll(() => s3.stop());

  test('workers read input and write objects there, and the output is that of the ordinary way', async () => {
    const AWS_ENDPOINT_URL_S3 = s3.endpoint;
    await startWorker({ SHOAL_PREFIX, AWS_ENDPOINT_URL_S3, SHOAL_PART_FOLDERS: 's3://shoal/files' });
    const place = { place: 's3://shoal/files/batches', s3Endpoint: s3.endpoint };
    const input = lines();
    const ordinary = await expected(input, place, SHOAL_PREFIX);
    const openai = await producer(place, SHOAL_PREFIX);
    const batch = await ended(openai, (await begun(openai, input)).id);
    expect([said(GOES), said(GIVEN_UP)]).toEqual([true, false]);
    expect(countsOf(batch)).toEqual(countsOf(ordinary.batch));
    expect(await filesOf(openai, batch)).toEqual(ordinary.files);
    const bucket = await S3Bucket.open('shoal', { endpoint: s3.endpoint });
    const keys: string[] = [];
    for await (const key of bucket.names('', undefined, { isDeep: true })) keys.push(key);
    bucket.close();
    expect(keys.filter((key) => key.includes('/parts/'))).toEqual([]);
  });
});

function vectorIn({ embedding }: { readonly embedding: unknown }): readonly number[] {
  const bytes = Uint8Array.from(Buffer.from(String(embedding), 'base64'));
  return [...new Float32Array(bytes.buffer)];
}
