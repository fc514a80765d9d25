// The product's promise about its vectors: those of sentence-transformers on the same weights, text by text, alone and
// in company. The expected vectors are a fixture (fixtures/README.md says how it was made); no Python runs here.

import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { FETCH_TIMEOUT_MS, openMinilm, testCacheDir } from '../testing/minilm.ts';
import { RememberingRunner, cosine } from '../testing/onnx-run.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { openGraph } from './open-graph.ts';

const FIXTURES = new URL('../../fixtures/', import.meta.url);
const LEAST_COSINE = 0.99999;

let texts: readonly string[];
let expected: readonly Float32Array[];
let tokenizer: Tokenizer;
let runner: RememberingRunner;

beforeAll(async () => {
  texts = JSON.parse(await readFile(new URL('texts.json', FIXTURES), 'utf8')) as string[];
  const bytes = await readFile(new URL('vectors.f32', FIXTURES));
  const model = await openMinilm();
  const values = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  expected = texts.map((_, at) => values.subarray(at * model.dims, (at + 1) * model.dims));
  tokenizer = await openTokenizer(model);
  runner = await RememberingRunner.open(await openGraph(model, { cacheDir: testCacheDir }), model);
}, FETCH_TIMEOUT_MS);
afterAll(() => runner?.release());

/** `found` has vectors by the place of their texts. */
function expectSameVectors(how: string, found: ReadonlyMap<number, Float32Array>): void {
  const cosines = [...found].map(([at, vector]) => ({ value: cosine(vector, expected[at]!), text: texts[at]! }));
  const least = cosines.reduce((a, b) => (b.value < a.value ? b : a));
  console.log(
    `${found.size} texts ${how}: least cosine ${least.value}, for ${JSON.stringify(least.text.slice(0, 40))}`,
  );
  expect(cosines.filter(({ value }) => !(value >= LEAST_COSINE))).toEqual([]);
  for (const vector of found.values()) expect(Math.abs(Math.hypot(...vector) - 1)).toBeLessThan(1e-5);
}

describe('vectors are those of sentence-transformers', () => {
  test('the fixture covers what it should', () => {
    expect(texts.length).toBeGreaterThanOrEqual(200);
    expect(texts).toContain('');
    expect(texts.some((text) => text.length > 0 && text.trim() === '')).toBe(true);
    expect(Math.max(...texts.map((text) => text.split(' ').length))).toBeGreaterThanOrEqual(600);
    expect(texts.filter((text) => tokenizer.encode(text).isTruncated).length).toBeGreaterThanOrEqual(20);
  });

  test('for each text alone', async () => {
    const found = new Map<number, Float32Array>();
    for (const [at, text] of texts.entries()) found.set(at, (await runner.run([[...tokenizer.encode(text).ids]]))[0]!);
    expectSameVectors('alone', found);
  });

  test('for texts of all lengths in one run', async () => {
    const found = new Map<number, Float32Array>();
    // Every seventh text, so that one run has words, pages and the empty text side by side; by day six such runs.
    const runs = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 6 : 32;
    for (let first = 0; first < runs; first++) {
      const members = texts.map((_, at) => at).filter((at) => (at * 7) % 32 === first);
      const vectors = await runner.run(members.map((at) => [...tokenizer.encode(texts[at]!).ids]));
      for (const [place, at] of members.entries()) found.set(at, vectors[place]!);
    }
    expectSameVectors('in mixed runs', found);
  });
});
