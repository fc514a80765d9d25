// What minilm-int8 promises, on the real weights: vectors near those of minilm, the same neighbours, and no dependence
// on who else is in the micro-batch. Figures are printed; docs/models.md quotes them.

import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { FETCH_TIMEOUT_MS, openMinilm, testCacheDir } from '../testing/minilm.ts';
import { RememberingRunner, cosine } from '../testing/onnx-run.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { openModel } from '../store/model-store.ts';
import type { GraphKind } from './graph-kind.ts';
import { openGraph } from './open-graph.ts';

const CALIBRATION = new URL('../../calibration/', import.meta.url);
/** Texts of a run: enough for neighbours of all lengths. */
const RUN_TEXTS = 24;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
/** By day every fourth passage: all 450 take two minutes of CPU (2026-11-26). */
const EVERY = isNightly ? 1 : 4;

let texts: readonly string[];
let tokenizer: Tokenizer;
/** Of the frozen passages, once they are asked for. */
let exact: Promise<readonly Float32Array[]> | undefined;
let runners: Readonly<Record<'fp32' | 'int8' | 'fp16', RememberingRunner>>;

beforeAll(async () => {
  const passages = JSON.parse(await readFile(new URL('passages.json', CALIBRATION), 'utf8')) as { text: string }[];
  texts = passages.filter((_, at) => at % EVERY === 0).map(({ text }) => text);
  const [minilm, quantized] = [await openMinilm(), await openModel('minilm-int8', { cacheDir: testCacheDir })];
  tokenizer = await openTokenizer(quantized);
  const open = async (kind: GraphKind): Promise<RememberingRunner> =>
    RememberingRunner.open(
      await (kind === 'int8'
        ? openGraph(quantized, { cacheDir: testCacheDir })
        : openGraph(minilm, { cacheDir: testCacheDir, kind })),
      minilm,
    );
  runners = { fp32: await open('fused-fp32'), int8: await open('int8'), fp16: await open('plain-fp16') };
}, FETCH_TIMEOUT_MS);
afterAll(async () => {
  for (const runner of Object.values(runners)) await runner.release();
});

async function embed(
  runner: RememberingRunner,
  rows: readonly (readonly number[])[],
): Promise<readonly Float32Array[]> {
  const vectors: Float32Array[] = [];
  for (let at = 0; at < rows.length; at += RUN_TEXTS)
    vectors.push(...(await runner.run(rows.slice(at, at + RUN_TEXTS))));
  return vectors;
}

const rowsOf = (some: readonly string[]): number[][] => some.map((text) => [...tokenizer.encode(text).ids]);

/** Indexes of the ten nearest others. */
function nearest(vectors: readonly Float32Array[], query: number): readonly number[] {
  const scores = vectors.map((vector, at) => ({
    at,
    score: at === query ? -Infinity : cosine(vectors[query]!, vector),
  }));
  return scores
    .toSorted((a, b) => b.score - a.score)
    .slice(0, 10)
    .map(({ at }) => at);
}

describe('on the frozen passages', () => {
  test.each<['int8' | 'fp16', { mean: number; min: number; recall: number }]>([
    ['int8', { mean: 0.999, min: 0.99, recall: 0.96 }],
    ['fp16', { mean: 0.9999, min: 0.9999, recall: 0.995 }],
  ])('%s is near fp32 and finds the same neighbours', async (form, least) => {
    const rows = rowsOf(texts);
    const found = await embed(runners[form], rows);
    const expected = await (exact ??= embed(runners.fp32, rows));
    const cosines = found.map((vector, at) => cosine(vector, expected[at]!));
    const mean = cosines.reduce((sum, value) => sum + value, 0) / cosines.length;
    const recalls = rows.map(
      (_, query) => nearest(found, query).filter((at) => nearestTo(expected, query).includes(at)).length / 10,
    );
    const recall = recalls.reduce((sum, value) => sum + value, 0) / recalls.length;
    console.log(
      `${form} on ${rows.length} passages: mean cosine ${mean.toFixed(6)}, least ` +
        `${Math.min(...cosines).toFixed(6)}, recall@10 ${recall.toFixed(4)}`,
    );
    expect(mean).toBeGreaterThanOrEqual(least.mean);
    expect(Math.min(...cosines)).toBeGreaterThanOrEqual(least.min);
    expect(recall).toBeGreaterThanOrEqual(least.recall);
  });
});

const remembered = new Map<number, readonly number[]>();
function nearestTo(expected: readonly Float32Array[], query: number): readonly number[] {
  const known = remembered.get(query) ?? nearest(expected, query);
  remembered.set(query, known);
  return known;
}

describe('a text gets the same vector', () => {
  test.each<['fp32' | 'int8']>([['fp32'], ['int8']])('alone and inside any micro-batch: %s', async (form) => {
    const long = texts.slice(0, isNightly ? 8 : 2).map((_, at) => texts.slice(at * 9, at * 9 + 9).join(' '));
    const rows = rowsOf(['', 'a', ...long, ...texts.filter((_, at) => at % 9 === 0)]);
    const alone: Float32Array[] = [];
    for (const row of rows) alone.push((await runners[form].run([row]))[0]!);
    let least = 1;
    for (const batch of shapes(rows.length)) {
      const together = await runners[form].run(batch.map((at) => rows[at]!));
      for (const [place, at] of batch.entries()) least = Math.min(least, cosine(together[place]!, alone[at]!));
    }
    console.log(
      `${form}: ${rows.length} texts alone and in ${shapes(rows.length).length} micro-batches: least cosine ${least}`,
    );
    expect(rows.length).toBeGreaterThanOrEqual(isNightly ? 50 : 16);
    expect(least).toBeGreaterThanOrEqual(0.999999);
  });
});

/** Everything at once; runs of 2, 7 and 16 mixed lengths; runs of 16 similar lengths, as a worker cuts them. */
function shapes(count: number): readonly (readonly number[])[] {
  const indexes = Array.from({ length: count }, (_, at) => at);
  const runsOf = (size: number, order: readonly number[]): number[][] =>
    Array.from({ length: Math.ceil(count / size) }, (_, run) => order.slice(run * size, (run + 1) * size));
  const mixed = indexes.toSorted((a, b) => ((a * 37) % count) - ((b * 37) % count));
  return [indexes, ...runsOf(2, mixed), ...runsOf(7, mixed), ...runsOf(16, mixed), ...runsOf(16, indexes)];
}
