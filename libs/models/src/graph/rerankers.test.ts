// Cross-encoders against sentence-transformers: the fixtures' graphs give its scores, from plain and from fused
// operators, alone and in mixed runs. Ids and types of pairs are those of the `tokenizers` package here.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { TokenPair } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import { describeScoreHead, type ScoreHead } from '../encoder/score-head.ts';
import { madeModel, madeTexts, madeVectors } from '../testing/made-models.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { ScoreRunner } from '../testing/score-run.ts';
import type { GraphKind } from './graph-kind.ts';
import type { NamedTensors } from './named-tensors.ts';
import { useTensors } from './named-tensors.ts';
import { rerankerGraph, type Reranker } from './reranker-graph.ts';

/** Right code differs by 1e-6 to 6e-6, of scores up to 2. */
const MOST_DIFFERENCE = 1e-5;
const NAMES = ['cross-encoder-bert', 'cross-encoder-xlmr', 'cross-encoder-modernbert'] as const;

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-rerankers-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

async function openReranker(name: string): Promise<Reranker> {
  await madeModel(name, folder);
  const path = join(folder, 'config.json');
  const config = CheckedJson.parse(await readFile(path, 'utf8'), path);
  const encoder = describeEncoder(config);
  return { encoder, head: describeScoreHead(config, encoder) };
}

/** Texts i and i + 1 as the model takes them. */
async function encodePairs(count: number): Promise<readonly TokenPair[]> {
  const texts = await madeTexts();
  const tokenizer = new ReferenceTokenizer(await readFile(join(folder, 'tokenizer.json'), 'utf8'), { maxTokens: 512 });
  const pairs = Array.from({ length: count }, (_, at) => [texts[at]!, texts[at + 1]!] as const);
  return (await tokenizer.encodePairs(pairs)).map(({ ids, types }) => {
    const second = types.indexOf(1);
    return { ids, second: second === -1 ? ids.length : second };
  });
}

function withHead(reranker: Reranker, changes: Partial<ScoreHead>): Reranker {
  return { ...reranker, head: { ...reranker.head, ...changes } };
}

function scoresOf(
  reranker: Reranker,
  kind: GraphKind,
  runs: readonly (readonly TokenPair[])[],
): Promise<readonly (readonly number[])[]> {
  return useTensors(folder, async (tensors) => {
    const runner = await ScoreRunner.open(reranker, tensors, join(folder, 'scores.onnx'), kind);
    const scores: (readonly number[])[] = [];
    for (const [at, pairs] of runs.entries()) scores.push(await runner.run(pairs, at % 3));
    await runner.release();
    return scores;
  });
}

function largest(found: readonly number[], expected: readonly number[]): number {
  return Math.max(...expected.map((value, at) => Math.abs(value - found[at]!)));
}

describe('gives the scores of sentence-transformers', () => {
  test.each(NAMES.flatMap((name) => (['fused-fp32', 'plain-fp32'] as const).map((kind) => [name, kind] as const)))(
    '%s, %s',
    async (name, kind) => {
      const reranker = await openReranker(name);
      const logits = (await madeVectors(name, 'scores')).map(([score]) => score!);
      const pairs = await encodePairs(logits.length);
      const raw = withHead(reranker, { hasSigmoid: false });
      const [together, ...alone] = await scoresOf(raw, kind, [pairs, ...pairs.map((pair) => [pair])]);
      expect(largest(together!, logits)).toBeLessThan(MOST_DIFFERENCE);
      expect(largest(alone.flat(), logits)).toBeLessThan(MOST_DIFFERENCE);
      // the fixture's config says nothing of it, and predict() applies a sigmoid then
      const predicted = logits.map((logit) => 1 / (1 + Math.exp(-logit)));
      const [scores] = await scoresOf(reranker, kind, [pairs]);
      expect(largest(scores!, predicted)).toBeLessThan(MOST_DIFFERENCE);
    },
    60_000,
  );
});

/** Right code differs by 2e-3 to 4e-3, of scores up to 2. */
const MOST_DIFFERENCE_FP16 = 5e-3;

test.each(NAMES)(
  'gives nearly the same scores in fp16: %s',
  async (name) => {
    const reranker = withHead(await openReranker(name), { hasSigmoid: false });
    const logits = (await madeVectors(name, 'scores')).map(([score]) => score!);
    const [scores] = await scoresOf(reranker, 'plain-fp16', [await encodePairs(logits.length)]);
    expect(largest(scores!, logits)).toBeLessThan(MOST_DIFFERENCE_FP16);
  },
  60_000,
);

describe('a part turned the wrong way is seen', () => {
  test.each<readonly [name: string, what: string, change: Partial<ScoreHead>]>([
    ['cross-encoder-bert', 'every token of type 0', { hasTypes: false }],
    ['cross-encoder-bert', 'the mean instead of the first token', { pooling: 'mean' }],
    ['cross-encoder-modernbert', 'the mean instead of the first token', { pooling: 'mean' }],
    ['cross-encoder-modernbert', 'another epsilon', { norm: { name: 'head.norm', hasBias: false, epsilon: 0.1 } }],
  ])(
    '%s: %s',
    async (name, _, change) => {
      const reranker = await openReranker(name);
      const logits = (await madeVectors(name, 'scores')).map(([score]) => score!);
      const [scores] = await scoresOf(withHead(reranker, { hasSigmoid: false, ...change }), 'plain-fp32', [
        await encodePairs(logits.length),
      ]);
      expect(largest(scores!, logits)).toBeGreaterThan(10 * MOST_DIFFERENCE);
    },
    60_000,
  );
});

describe('weights', () => {
  test('of the head are all taken, and one too many is refused by its name', async () => {
    const reranker = await openReranker('cross-encoder-bert');
    await useTensors(folder, async (tensors) => {
      const more: NamedTensors = {
        path: tensors.path,
        names: [...tensors.names, 'classifier2.weight'],
        has: (name) => tensors.has(name),
        expect: (name, shape) => tensors.expect(name, shape),
        read: (name) => tensors.read(name),
        stored: (name) => tensors.stored(name),
      };
      expect(() => rerankerGraph(reranker, more, 'plain-fp32')).toThrow(/tensor classifier2\.weight is no part of an/);
      const other = withHead(reranker, { classifier: 'score' });
      expect(() => rerankerGraph(other, tensors, 'plain-fp32')).toThrow(/score\.weight/);
    });
  });

  test.each(['int8', 'int8-unsigned', 'cuda-bf16'] as const)('there is no graph of the kind %s', async (kind) => {
    const reranker = await openReranker('cross-encoder-bert');
    await useTensors(folder, async (tensors) => {
      expect(() => rerankerGraph(reranker, tensors, kind)).toThrow(
        expect.objectContaining({ code: 'MODEL_UNAVAILABLE' }),
      );
    });
  });
});
