// Rerankers through a real queue server and ONNX Runtime: plain BullMQ jobs as docs/jobs.md has them, and the scores of
// sentence-transformers, whatever runs beside them.

import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { encodePairs, encodeQueryTexts, type TokenPair } from '@shoal/contract';
import { resolveSettings } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { importModel, openTokenizer, type StoredModel } from '@shoal/models';
import { madeModel, madeTexts, madeVectors } from '@shoal/models/testing';
import { proveModel } from '../device/prove-model.ts';
import { WorkerBench } from '../testing/worker-bench.ts';
import type { RunningWorker } from './start-claiming.ts';
import { startWorker } from './worker.ts';

/** Right code differs by 1e-6 to 6e-6, of scores up to 2. */
const MOST_DIFFERENCE = 1e-5;

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

/** The fixture under its own name, with raw scores: a sigmoid would make differences smaller. */
async function bring(family: string): Promise<StoredModel> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-reranker-'));
  try {
    await mkdir(folder, { recursive: true });
    await madeModel(family, folder);
    const path = join(folder, 'config.json');
    const config = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
    const raw = { activation_fn: 'torch.nn.modules.linear.Identity' };
    await writeFile(path, JSON.stringify({ ...config, sentence_transformers: raw }));
    const { cacheDir } = bench;
    const prove = (brought: StoredModel): ReturnType<typeof proveModel> => proveModel(brought, { cacheDir });
    return (await importModel(folder, { cacheDir, name: family, prove })).model;
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
