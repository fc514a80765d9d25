// Rerankers through a real queue server and ONNX Runtime: plain BullMQ jobs as docs/jobs.md has them, and the scores of
// sentence-transformers, whatever runs beside them.

import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { encodePairs, encodeQueryTexts, openResult, parseFailedReason, type TokenPair } from '@shoal/contract';
import { Executor, fixedBudget, resolveSettings, systemClock, type FromExecutor, type JobOrder } from '@shoal/core';
import { noFaults, seededRandom } from '@shoal/core/base';
import { MemoryPayloadStore, RecordingLogger } from '@shoal/core/testing';
import { OrtBackend } from '@shoal/inference';
import { importModel, openGraph, openModel, openTokenizer, queueOfNamed, type StoredModel } from '@shoal/models';
import { madeModel, madeTexts, madeVectors } from '@shoal/models/testing';
import { proveModel } from '../device/prove-model.ts';
import { examineModel } from '../doctor/examine-model.ts';
import { ThreadedTokenizer } from '../executor/threaded-tokenizer.ts';
import { WorkerBench } from '../testing/worker-bench.ts';
import type { RunningWorker } from './start-claiming.ts';
import { startWorker } from './worker.ts';

/** Right code differs by 1e-6 to 6e-6, of scores up to 2. */
const MOST_DIFFERENCE = 1e-5;
/** Brought with its known pair; each proof starts a process. */
const BERT = 'cross-encoder-bert';

let bench: WorkerBench;
let worker: RunningWorker | undefined;
let log: RecordingLogger;
let texts: readonly string[];
beforeAll(async () => {
  bench = await WorkerBench.start();
  texts = await madeTexts();
});
afterEach(async () => {
  await worker?.stop();
  worker = undefined;
  await bench.clear();
});
afterAll(() => bench.stop());

/** The fixture under its own name, with raw scores: a sigmoid would make differences smaller. Brought once. */
async function bring(family: string): Promise<StoredModel> {
  const { cacheDir } = bench;
  if ((await queueOfNamed(family, { cacheDir })) === `rerank-${family}`) return openModel(family, { cacheDir });
  const folder = await mkdtemp(join(tmpdir(), 'shoal-reranker-'));
  try {
    await madeModel(family, folder);
    const path = join(folder, 'config.json');
    const config = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
    const raw = { activation_fn: 'torch.nn.modules.linear.Identity' };
    await writeFile(path, JSON.stringify({ ...config, sentence_transformers: raw }));
    const prove = (brought: StoredModel): ReturnType<typeof proveModel> => proveModel(brought, { cacheDir });
    return (await importModel(folder, { cacheDir, name: family, ...(family === BERT && { prove }) })).model;
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function serve(model: StoredModel, flags: Readonly<Record<string, string>> = {}): Promise<void> {
  log = new RecordingLogger();
  const { cacheDir, url } = bench;
  const given = { device: 'cpu', model: model.name, cacheDir, threads: '1', ...flags };
  worker = await startWorker({ settings: { ...resolveSettings({ flags: given }), redisUrl: url }, log });
}

/** Texts i and i + 1, of which sentence-transformers said the score, as the model takes them. */
async function tokenPairs(model: StoredModel, count: number): Promise<readonly TokenPair[]> {
  const tokenizer = await openTokenizer(model);
  return Array.from({ length: count }, (_, at) => tokenizer.encodePair!(texts[at]!, texts[at + 1]!));
}

function largest(found: ArrayLike<number>, expected: readonly number[]): number {
  expect(found).toHaveLength(expected.length);
  return Math.max(...expected.map((value, at) => Math.abs(value - found[at]!)));
}

describe('gives the scores of sentence-transformers', () => {
  test.each(['cross-encoder-bert', 'cross-encoder-xlmr', 'cross-encoder-modernbert'])('%s', async (family) => {
    const model = await bring(family);
    const expected = (await madeVectors(family, 'scores')).map(([score]) => score!);
    const queue = bench.openQueue(`rerank-${family}`);
    const pairs = await tokenPairs(model, expected.length);
    // before there is a worker, so that rows of many jobs run together
    await queue.addBulk(
      pairs.map((_, at) => ({
        name: 'rerank',
        data: { v: 2, query: texts[at], texts: [texts[at + 1]] },
        opts: { jobId: `inline-${at}` },
      })),
    );
    await bench.redis.set(bench.inputKey(queue, 'tokens'), encodePairs(pairs));
    const tokens = pairs.reduce((sum, { ids }) => sum + ids.length, 0);
    const input = { form: 'tokens', rows: pairs.length, tokens, tokenizer: model.tokenizerHash };
    await queue.add('rerank', { v: 2, input }, { jobId: 'tokens' });
    await serve(model);
    const together = await bench.finished(queue, 'tokens');
    expect(together).toMatchObject({ model: `${family}@${model.revision}`, rows: pairs.length, dims: 1, tokens });
    expect(together).not.toHaveProperty('normalized');
    expect(largest(await bench.vectorsOf(together), expected)).toBeLessThan(MOST_DIFFERENCE);
    const inline: number[] = [];
    for (const at of pairs.keys())
      inline.push((await bench.vectorsOf(await bench.finished(queue, `inline-${at}`)))[0]!);
    expect(largest(inline, expected)).toBeLessThan(MOST_DIFFERENCE);
    for (let at = 0; at < pairs.length; at += 6) {
      const jobId = `alone-${at}`;
      await bench.redis.set(bench.inputKey(queue, jobId), encodeQueryTexts(texts[at]!, [texts[at + 1]!]));
      await queue.add('rerank', { v: 2, input: { form: 'texts', rows: 1 } }, { jobId });
      const alone = await bench.vectorsOf(await bench.finished(queue, jobId));
      expect(largest(alone, [expected[at]!])).toBeLessThan(MOST_DIFFERENCE);
    }
    expect(log.lines).toContainEqual(expect.objectContaining({ message: 'worker ready' }));
  });
});

/** Bytes with some of them changed, or without their end. */
function damaged(bytes: Buffer, random: () => number): Buffer {
  const copy = Buffer.from(bytes);
  for (let changes = 1 + Math.floor(random() * 3); changes > 0; changes--)
    copy[Math.floor(random() * copy.length)] = Math.floor(random() * 256);
  return random() < 0.3 ? copy.subarray(0, Math.floor(random() * copy.length)) : copy;
}

test('a job that is wrong fails by name, a damaged input never gives a score that is no number, and others go on', async () => {
  const model = await bring(BERT);
  const queue = bench.openQueue(`rerank-${BERT}`);
  const failure = async (jobId: string): Promise<string> => {
    await bench.finished(queue, jobId).catch(() => undefined);
    return parseFailedReason((await queue.getJob(jobId))!.failedReason).code;
  };
  await serve(model);
  const long = 'the queue and the worker '.repeat(300);
  const data = { v: 2, query: 'the queue', texts: ['a worker', long] };
  await queue.add('rerank', data, { jobId: 'cut' });
  await queue.add('rerank', { ...data, truncate: 'error' }, { jobId: 'whole' });
  await queue.add('embed', { v: 1, texts: ['a'] }, { jobId: 'embed' });
  await queue.add('rerank', { ...data, v: 1 }, { jobId: 'old' });
  await queue.add('rerank', { ...data, prompt: 'query' }, { jobId: 'prompt' });
  expect(await bench.finished(queue, 'cut')).toMatchObject({ truncated: 1, rows: 2 });
  expect(await failure('whole')).toBe('INPUT_TOO_LONG');
  for (const jobId of ['embed', 'old', 'prompt']) expect(await failure(jobId)).toBe('JOB_INVALID');

  const random = seededRandom(35);
  const pairs = await tokenPairs(model, 4);
  const tokens = pairs.reduce((sum, { ids }) => sum + ids.length, 0);
  const forms = [
    { bytes: encodePairs(pairs), input: { form: 'tokens', rows: 4, tokens, tokenizer: model.tokenizerHash } },
    { bytes: encodeQueryTexts(texts[0]!, texts.slice(1, 5)), input: { form: 'texts', rows: 4 } },
  ];
  const ids = Array.from({ length: 60 }, (_, at) => `damaged-${at}`);
  for (const [at, jobId] of ids.entries()) {
    const { bytes, input } = forms[at % 2]!;
    await bench.redis.set(bench.inputKey(queue, jobId), damaged(bytes, random));
    await queue.add('rerank', { v: 2, input }, { jobId });
  }
  const codes = new Set<string>();
  const scores: number[] = [];
  for (const jobId of ids) {
    const value = await bench.finished(queue, jobId).catch(() => undefined);
    if (value !== undefined) scores.push(...(await bench.vectorsOf(value)));
    else codes.add(parseFailedReason((await queue.getJob(jobId))!.failedReason).code);
  }
  expect(scores.filter((score) => !Number.isFinite(score))).toEqual([]);
  expect(codes).toContain('INPUT_CORRUPT');
  expect([...codes].filter((code) => code !== 'INPUT_CORRUPT' && code !== 'INPUT_TOO_LONG')).toEqual([]);
  await queue.add('rerank', data, { jobId: 'last' });
  expect(await bench.vectorsOf(await bench.finished(queue, 'last'))).toEqual(
    await bench.vectorsOf(await bench.finished(queue, 'cut')),
  );
});

test('a batch that finds no memory is halved until it fits, and its scores are the same', async () => {
  const model = await bring(BERT);
  const { cacheDir } = bench;
  const graphPath = await openGraph(model, { cacheDir });
  const backend = await OrtBackend.open({ graphPath, dims: 1, hidden: 64, threads: 1, slotRows: 64, slotTokens: 8192 });
  const run = backend.run.bind(backend);
  const sizes: number[] = [];
  backend.run = async (slot, shape, options) => {
    sizes.push(shape.rows);
    return shape.rows > 5 ? { ok: false, outOfVram: { message: 'no room' } } : run(slot, shape, options);
  };
  const tokenizer = await openTokenizer(model);
  const threaded = new ThreadedTokenizer({
    tokenizer,
    model: BERT,
    cacheDir,
    maxTokens: tokenizer.maxTokens,
    threads: 1,
  });
  const store = new MemoryPayloadStore();
  const ended = Promise.withResolvers<FromExecutor>();
  const executor = new Executor({
    store,
    backend,
    tokenizer: threaded,
    budget: fixedBudget({ maxPaddedTokens: 8192, maxRows: 64 }),
    clock: systemClock,
    log: new RecordingLogger(),
    limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 0, minRows: 1 },
    isLastLane: true,
    model: `${BERT}@${model.revision}`,
    kind: model.kind,
    isNormalized: model.isNormalized,
    prompts: {},
    resultKey: (jobId) => jobId,
    faults: noFaults,
    send: (message) => (message.kind === 'outcomes' ? ended.resolve(message) : undefined),
  });
  const expected = (await madeVectors(BERT, 'scores')).map(([score]) => score!);
  const pairs = await tokenPairs(model, expected.length);
  const tokens = pairs.reduce((sum, { ids }) => sum + ids.length, 0);
  store.inputs.set('job', encodePairs(pairs));
  store.locks.set('job', 'token');
  const order: JobOrder = {
    jobId: 'job',
    token: 'token',
    queuedMs: 0,
    fingerprint: undefined,
    class: 'bulk',
    resultTtlMs: 1000,
    remainingMs: undefined,
    input: { form: 'tokens', rows: pairs.length, tokens, tokenizer: model.tokenizerHash },
    truncate: 'end',
    prompt: undefined,
    output: { dtype: 'f32', dimensions: undefined },
  };
  executor.handle({ kind: 'run', jobs: [order], isQueueDrained: true });
  expect(await ended.promise).toMatchObject({
    outcomes: [{ kind: 'committed', value: { splits: expect.any(Number) } }],
  });
  await executor.stop();
  await backend.stop();
  expect(Math.max(...sizes)).toBeGreaterThan(5);
  const { body } = openResult(store.results.get('job')!);
  expect(largest(new Float32Array(Uint8Array.from(body).buffer), expected)).toBeLessThan(MOST_DIFFERENCE);

  // texts enough for a trip to a thread are the same pairs there as here
  const many = Array.from(
    { length: 120 },
    (_, at) => `${texts[at % texts.length]!} ${'swims past the reef '.repeat(at % 40)}`,
  );
  const there = await threaded.encodePairs('the queue and the reef', many);
  await threaded.stop();
  const here = many.map((text) => tokenizer.encodePair!('the queue and the reef', text));
  const plain = (rows: typeof there) =>
    rows.map(({ ids, second, isTruncated }) => ({ ids: [...ids], second, isTruncated }));
  expect(plain(there)).toEqual(plain(here));
});

test('doctor runs it on its known pair, and says when that has another score or other ids', async () => {
  const model = await bring(BERT);
  const { cacheDir } = bench;
  const examine = (examined: StoredModel) =>
    examineModel({ model: examined, device: 'cpu', precision: 'auto', cacheDir, environment: {} });
  expect(await examine(model)).toMatchObject({ state: 'ok', found: expect.stringContaining('runs on cpu in fp32') });
  const canary = model.canary!;
  const vector = canary.vector.map((score) => score + 3e-4);
  expect(await examine({ ...model, canary: { ...canary, vector } } as StoredModel)).toMatchObject({
    state: 'broken',
    found: expect.stringMatching(/gives the canary pair another score than the model should: likeness 0\.9{6}/),
  });
  const second = canary.second! + 1;
  expect(await examine({ ...model, canary: { ...canary, second } } as StoredModel)).toMatchObject({
    state: 'broken',
    found: expect.stringMatching(/^the tokenizer of cross-encoder-bert gives/),
  });
});
