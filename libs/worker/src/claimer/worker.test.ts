// The worker as a whole, through nothing but the public contract: a plain BullMQ producer on a real server, real
// processes, real ONNX Runtime on a tiny random model. Processes are killed at every fault point; whatever dies, one
// result is visible.

import { fork, type ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import {
  decodeResultHeader,
  encodeTexts,
  encodeTokens,
  fingerprintOf,
  keySpace,
  mainQueue,
  openResult,
} from '@shoal/contract';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { parseMetrics } from '@shoal/ops/testing';
import { openConnection, type Redis } from '@shoal/queue';
import { freePort, startTestServer, type TestServer } from '@shoal/queue/testing';
import { childrenOf } from '../testing/worker-bench.ts';

const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const PREFIX = '{shoal}';
const keys = keySpace(PREFIX);
const LEASE_MS = 1_500;
const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-worker-test-'));

let server: TestServer;
let redis: Redis;
const queues: Queue[] = [];
const children = new Set<ChildProcess>();

beforeAll(async () => {
  server = await startTestServer();
  redis = openConnection({ url: server.url, name: 'test' });
});

afterEach(async () => {
  await Promise.all([...children].map(stopWorker));
  await Promise.all(queues.splice(0).map((queue) => queue.close()));
  await redis.flushall();
});

afterAll(async () => {
  redis.disconnect();
  await server.stop();
  rmSync(cacheDir, { recursive: true, force: true });
});

interface WorkerReady {
  readonly kind: string;
  readonly failure?: { readonly message: string };
}

function startWorker(
  environment: Record<string, string> = {},
  options: { readonly from?: 'sources' } = {},
): Promise<ChildProcess> {
  const { main, execArgv } = programOf('cpu-worker', options);
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'error',
      SHOAL_LEASE_MS: String(LEASE_MS),
      SHOAL_STALLED_CHECK_MS: '300',
      ...environment,
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  children.add(child);
  return new Promise((resolve, reject) => {
    child.once('message', (message: WorkerReady) =>
      message.kind === 'ready' ? resolve(child) : reject(new Error(message.failure?.message)),
    );
    child.once('exit', (code, signal) => {
      children.delete(child);
      reject(new Error(`worker ended before it was ready: ${code ?? signal}`));
    });
  });
}

async function stopWorker(child: ChildProcess): Promise<number | null> {
  if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
  child.kill('SIGCONT');
  child.kill('SIGTERM');
  return exited;
}

function plainQueue(model = 'tiny-random'): Queue {
  const queue = new Queue(mainQueue(model), { connection: redis, prefix: PREFIX });
  queues.push(queue);
  return queue;
}

async function until<T>(what: string, look: () => Promise<T | undefined>, timeoutMs = 25_000): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    if (performance.now() > deadline) throw new Error(`never came true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function finished(
  queue: Queue,
  jobId: string,
): Promise<{ state: string; failedReason: string; value: { key: string; dims: number; rows: number } }> {
  return until(`${jobId} is finished`, async () => {
    const state = await queue.getJobState(jobId); // first: a job read before it ended has no return value
    const job = await queue.getJob(jobId);
    return state === 'completed' || state === 'failed'
      ? { state, failedReason: job?.failedReason ?? '', value: job?.returnvalue as never }
      : undefined;
  });
}

async function vectorsAt(key: string): Promise<Float32Array[]> {
  const bytes = await redis.getBuffer(key);
  const { header, body } = openResult(bytes!);
  const flat = new Float32Array(Uint8Array.from(body).buffer);
  return Array.from({ length: header.rows }, (_, row) => flat.subarray(row * header.dims, (row + 1) * header.dims));
}

/** What ONNX Runtime gives for each text alone, without queue, pool or worker. */
async function expectedVectors(modelName: string, texts: readonly string[]): Promise<Float32Array[]> {
  const model = await openModel(modelName, { cacheDir });
  const tokenizer = await openTokenizer(model);
  const backend = await OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir }),
    dims: model.dims,
    threads: 1,
    slotRows: 1,
    slotTokens: 512,
  });
  const vectors: Float32Array[] = [];
  for (const text of texts) {
    const slot = backend.lend()!;
    const { ids } = tokenizer.encode(text);
    slot.ids.set(ids);
    slot.lengths[0] = ids.length;
    await backend.run(slot, { rows: 1, width: ids.length });
    vectors.push(slot.embeddings.slice(0, model.dims));
    backend.giveBack(slot);
  }
  await backend.stop();
  return vectors;
}

function cosine(a: Float32Array, b: Float32Array): number {
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}

function expectSame(found: readonly Float32Array[], expected: readonly Float32Array[]): void {
  expect(found).toHaveLength(expected.length);
  for (const [row, vector] of found.entries()) expect(cosine(vector, expected[row]!)).toBeGreaterThan(0.999999);
}

const TEXTS = [
  'a fish',
  'a shoal of fish swims past the reef at dawn',
  '',
  'Ünïcödé 数据 👍',
  'one two three four five six seven eight nine ten '.repeat(12),
];

describe('a plain BullMQ producer', () => {
  test('gets the vectors that the model gives, from inline texts and from input keys in both forms', async () => {
    await startWorker({}, { from: 'sources' });
    const queue = plainQueue();
    const model = await openModel('tiny-random', { cacheDir });
    const tokenizer = await openTokenizer(model);
    await queue.add('embed', { v: 1, texts: TEXTS }, { jobId: 'inline' });
    await redis.set(keys.input(queue.name, 'as-texts'), encodeTexts(TEXTS));
    await queue.add('embed', { v: 1, input: { form: 'texts', rows: TEXTS.length } }, { jobId: 'as-texts' });
    const ids = TEXTS.map((text) => tokenizer.encode(text).ids);
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    await redis.set(keys.input(queue.name, 'as-tokens'), encodeTokens(ids));
    await queue.add(
      'embed',
      { v: 1, input: { form: 'tokens', rows: ids.length, tokens, tokenizer: tokenizer.hash } },
      { jobId: 'as-tokens' },
    );
    const expected = await expectedVectors('tiny-random', TEXTS);
    for (const jobId of ['inline', 'as-texts', 'as-tokens']) {
      const { state, failedReason, value } = await finished(queue, jobId);
      expect([state, failedReason]).toEqual(['completed', '']);
      expect(value.key).toBe(keys.output(queue.name, jobId));
      expect(JSON.stringify(value).length).toBeLessThanOrEqual(300);
      expectSame(await vectorsAt(value.key), expected);
      await until('its input is deleted', async () =>
        (await redis.exists(keys.input(queue.name, jobId))) === 0 ? true : undefined,
      );
    }
  });

  test('gets them from many micro-batches side by side in several sessions', async () => {
    await startWorker({ SHOAL_DEVICE_SESSIONS: '3', SHOAL_MAX_PADDED_TOKENS: '64' });
    const queue = plainQueue();
    const expected = await expectedVectors('tiny-random', TEXTS);
    const jobIds = Array.from({ length: 40 }, (_, i) => `many-${i}`);
    const many = Array.from({ length: 30 }, (_, i) => TEXTS[i % TEXTS.length]!);
    await queue.addBulk(jobIds.map((jobId) => ({ name: 'embed', data: { v: 1, texts: many }, opts: { jobId } })));
    for (const jobId of jobIds) {
      const { state, value } = await finished(queue, jobId);
      expect(state).toBe('completed');
      expectSame(
        await vectorsAt(value.key),
        many.map((_, i) => expected[i % TEXTS.length]!),
      );
    }
  });

  test('that uses an id again for other texts gets JOB_ID_CONFLICT, for the same texts the same result', async () => {
    await startWorker();
    const queue = plainQueue();
    await queue.add('embed', { v: 1, texts: ['first'] }, { jobId: 'again' });
    await finished(queue, 'again');
    const before = await redis.getBuffer(keys.output(queue.name, 'again'));
    await queue.remove('again');
    await queue.add('embed', { v: 1, texts: ['other'] }, { jobId: 'again' });
    expect(await finished(queue, 'again')).toMatchObject({
      state: 'failed',
      failedReason: expect.stringMatching(/^JOB_ID_CONFLICT: /),
    });
    expect(await redis.getBuffer(keys.output(queue.name, 'again'))).toEqual(before);
    await queue.remove('again');
    await queue.add('embed', { v: 1, texts: ['first'] }, { jobId: 'again' });
    expect(await finished(queue, 'again')).toMatchObject({ state: 'completed' });
    expect(await redis.getBuffer(keys.output(queue.name, 'again'))).toEqual(before);
  });

  test('of one model never gets the result of another, even under the same job id', async () => {
    await startWorker();
    await startWorker({ SHOAL_MODEL: 'tiny-random-b' });
    for (const model of ['tiny-random', 'tiny-random-b']) {
      const queue = plainQueue(model);
      await queue.add('embed', { v: 1, texts: TEXTS }, { jobId: 'same-id' });
      const { value } = await finished(queue, 'same-id');
      expectSame(await vectorsAt(value.key), await expectedVectors(model, TEXTS));
    }
    const [a, b] = await Promise.all(
      ['tiny-random', 'tiny-random-b'].map((model) => redis.getBuffer(keys.output(mainQueue(model), 'same-id'))),
    );
    expect(decodeResultHeader(a!)!.fingerprint).not.toBe(decodeResultHeader(b!)!.fingerprint);
  });

  test('is told by code and sentence what is wrong with its job, and its neighbours complete', async () => {
    await startWorker();
    const queue = plainQueue();
    const bad: [string, unknown, RegExp][] = [
      ['no-texts', { v: 1, texts: [] }, /^JOB_INVALID: .*texts/],
      ['number', { v: 1, texts: ['a', 5] }, /^JOB_INVALID: .*texts\.1/],
      ['misspelt', { v: 1, texts: ['a'], truncat: 'end' }, /^JOB_INVALID: .*unknown field "truncat"/],
      ['no-version', { texts: ['a'] }, /^JOB_INVALID: .*"v"/],
      ['no-input', { v: 1, input: { form: 'texts', rows: 1 } }, /^INPUT_LOST: /],
      ['too-long', { v: 1, texts: ['word '.repeat(600)], truncate: 'error' }, /^INPUT_TOO_LONG: /],
      ['stranger', { v: 1, texts: ['a'], fingerprint: '0123456789abcdef' }, /^FINGERPRINT_MISMATCH: /],
    ];
    await queue.add('embed', { v: 1, texts: ['good'] }, { jobId: 'good' });
    for (const [jobId, data] of bad) await queue.add('embed', data, { jobId });
    await redis.set(keys.input(queue.name, 'garbage'), 'not an input');
    await queue.add('embed', { v: 1, input: { form: 'texts', rows: 1 } }, { jobId: 'garbage' });
    expect(await finished(queue, 'good')).toMatchObject({ state: 'completed' });
    for (const [jobId, , reason] of [...bad, ['garbage', null, /^INPUT_CORRUPT: /] as const]) {
      expect(await finished(queue, jobId)).toMatchObject({
        state: 'failed',
        failedReason: expect.stringMatching(reason),
      });
    }
  });
});

test('a worker that is told to stop while its server takes no writes ends, ready or not', async () => {
  const { main, execArgv } = programOf('cpu-worker');
  const refusing = await startTestServer({ topology: 'single', args: ['--min-replicas-to-write', '1'] });
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: refusing.url,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'info',
      SHOAL_LOG_FORMAT: 'json',
    },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  const heard: unknown[] = [];
  child.on('message', (message) => heard.push(message));
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  let said = '';
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (said += text));
  await until('it says what it waits for', async () => said.includes('could not be shown to others') || undefined);
  expect(said).toContain('NOREPLICAS');
  const [executor] = await until('it has an executor', async () => {
    const pids = childrenOf(child.pid!);
    return pids.length > 0 ? pids : undefined;
  });
  child.kill('SIGTERM');
  expect(await ended).toBe(0);
  expect(said).toContain('stopped while it started');
  expect(heard).toEqual([]);
  await until('its executor is gone', async () => (existsSync(`/proc/${executor}`) ? undefined : true));
  await refusing.stop();
});

test('a worker serves metrics that parse and move', async () => {
  const port = await freePort();
  await startWorker({ SHOAL_METRICS_PORT: String(port) });
  const scrape = async () => parseMetrics(await (await fetch(`http://127.0.0.1:${port}/metrics`)).text());
  const before = await scrape();
  const queue = plainQueue();
  await queue.add('embed', { v: 1, texts: TEXTS }, { jobId: 'counted' });
  await finished(queue, 'counted');
  const after = await until('the job is counted', async () => {
    const found = await scrape();
    return found.value('shoal_texts_total') === TEXTS.length ? found : undefined;
  });
  expect(before.value('shoal_texts_total') ?? 0).toBe(0);
  expect(after.value('shoal_jobs_settled_total', { outcome: 'complete' })).toBe(1);
  expect(after.value('shoal_tokens_total', { kind: 'real' })).toBeGreaterThan(TEXTS.length);
});

describe('whatever dies, one result is visible', () => {
  let model: StoredModel;
  beforeEach(async () => {
    model = await openModel('tiny-random', { cacheDir });
  });

  async function expectOneResult(queue: Queue, jobIds: readonly string[]): Promise<void> {
    const expected = await expectedVectors('tiny-random', TEXTS);
    for (const jobId of jobIds) {
      const { state, failedReason, value } = await finished(queue, jobId);
      expect([jobId, state, failedReason]).toEqual([jobId, 'completed', '']);
      expectSame(await vectorsAt(value.key), expected);
      const header = decodeResultHeader(await redis.getrangeBuffer(value.key, 0, 31))!;
      const options = { prompt: undefined, truncate: 'end', output: { dtype: 'f32', dimensions: undefined } } as const;
      expect(header.fingerprint).toBe(
        fingerprintOf({ model: `${model.name}@${model.revision}`, ...options }, encodeTexts(TEXTS)),
      );
      expect((await queue.getJob(jobId))!.attemptsMade).toBeLessThanOrEqual(1);
    }
    expect(await queue.getJobCounts('active', 'waiting', 'failed', 'delayed')).toEqual({
      active: 0,
      waiting: 0,
      failed: 0,
      delayed: 0,
    });
  }

  const atNight = ['before-commit', 'before-complete', 'after-complete', 'after-announce'];
  if (!isNight) console.warn(`SIGKILL ${atNight.join(', ')} are tried at night (npm run test:nightly)`);
  test.each(['after-commit', ...(isNight ? atNight : [])])('SIGKILL %s', async (point) => {
    const queue = plainQueue();
    const jobIds = Array.from({ length: 20 }, (_, i) => `${point}-${i}`);
    await queue.addBulk(jobIds.map((jobId) => ({ name: 'embed', data: { v: 1, texts: TEXTS }, opts: { jobId } })));
    await startWorker({ SHOAL_FAULT_POINT: `${point}:SIGKILL:2` });
    await startWorker();
    await expectOneResult(queue, jobIds);
  });

  test('an executor that is stopped past its lease and resumed writes nothing', async () => {
    const queue = plainQueue();
    await queue.add('embed', { v: 1, texts: TEXTS }, { jobId: 'stopped' });
    const frozen = await startWorker({ SHOAL_FAULT_POINT: 'before-commit:SIGSTOP:1', SHOAL_LOG_LEVEL: 'silent' });
    const token = await until(
      'the job is claimed',
      async () => (await redis.get(keys.lock(queue.name, 'stopped'))) ?? undefined,
    );
    await until('its executor has stopped', async () => ((await stoppedChildOf(frozen.pid!)) ? true : undefined));
    frozen.kill('SIGSTOP'); // the claimer as well: nobody renews the lease now
    await startWorker();
    const { value } = await finished(queue, 'stopped');
    const written = await redis.getBuffer(value.key);
    await redis.set('probe', written!); // what the second worker wrote, to compare with after the first one went on
    await redis.del(value.key);
    frozen.kill('SIGCONT');
    for (const pid of childrenOf(frozen.pid!)) process.kill(pid, 'SIGCONT');
    await stopWorker(frozen);
    expect(await redis.exists(value.key), 'the late commit must be refused').toBe(0);
    expect(await redis.get(keys.lock(queue.name, 'stopped'))).not.toBe(token);
  });

  test('SIGTERM drains: exit code 0, nothing active, what had not begun is back unspent', async () => {
    const queue = plainQueue();
    const worker = await startWorker();
    let added = 0;
    async function addMore(): Promise<void> {
      const names = Array.from({ length: 100 }, () => `drain-${added++}`);
      const opts = { removeOnComplete: false };
      await queue.addBulk(
        names.map((jobId) => ({ name: 'embed', data: { v: 1, texts: TEXTS }, opts: { ...opts, jobId } })),
      );
    }
    const gone = new AbortController();
    // three hundred wait for as long as it lives: it is told to stop while there are some, however quick it is
    const adding = (async () => {
      while (!gone.signal.aborted) {
        if ((await queue.getJobCountByTypes('waiting', 'prioritized')) < 300) await addMore();
        await sleep(5);
      }
    })();
    await until('work has begun', async () => ((await queue.getCompletedCount()) > 0 ? true : undefined));
    expect(await stopWorker(worker).finally(() => gone.abort())).toBe(0);
    await adding;
    expect(await queue.getActiveCount()).toBe(0);
    const waiting = await queue.getJobs(['waiting', 'prioritized'], 0, -1);
    expect(waiting.length).toBeGreaterThan(0);
    expect(waiting.every((job) => job.attemptsMade === 0)).toBe(true);
    expect((await queue.getCompletedCount()) + waiting.length).toBe(added);
  });

  test('SIGKILL of the worker takes its executor with it', async () => {
    const worker = await startWorker();
    const [executor] = childrenOf(worker.pid!);
    worker.kill('SIGKILL');
    await until('the executor is gone', async () => (isAlive(executor!) ? undefined : true), 5_000);
  });
});

async function stoppedChildOf(pid: number): Promise<boolean> {
  const { readFile } = await import('node:fs/promises');
  for (const child of childrenOf(pid))
    if (/^State:\s+T/m.test(await readFile(`/proc/${child}/status`, 'utf8'))) return true;
  return false;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
