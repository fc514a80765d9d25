// Every family against sentence-transformers: the fixtures' graphs up to the last hidden states, pooled in double
// precision, give its vectors to the last digits, from plain and from fused operators, alone and in mixed runs. Token ids
// are those of the `tokenizers` package here; that Shoal's own are the same is proven where they are made.

import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { hasOlderConfig, madeModel, madeNames, madeTexts, madeVectors } from '../testing/made-models.ts';
import { ReferencePooling } from '../testing/reference-pooling.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { RandomTensors } from '../testing/random-tensors.ts';
import { StatesRunner } from '../testing/states-run.ts';
import { wideEncoders, wideRows } from '../testing/wide-encoders.ts';
import type { GraphKind } from './graph-kind.ts';
import { useTensors } from './named-tensors.ts';
import { openGraph } from './open-graph.ts';

/** Of a value of a vector of length 1; right code differs by 1e-7 to 9e-7. */
const MOST_DIFFERENCE = 2e-6;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
/** Their vectors depend on more than ids and weights: other settings of the tokenizer, a prompt before every text. */
const OF_OTHERS = ['bert-config-lowercases', 'bert-config-keeps-accents', 'bert-default-prompt'];
/** By day, of the many BERTs those that differ in the encoder. */
const BERTS = ['bert-mean', 'bert-eps', 'bert-relu', 'bert-gelu-tanh', 'bert-types-1'];

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-families-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const embedders = (await madeNames()).filter(
  (name) => !/^(?:cross-encoder|splade|static)-/.test(name) && !OF_OTHERS.includes(name),
);
const tried = embedders.filter((name) => isNightly || !name.startsWith('bert-') || BERTS.includes(name));
const texts = await madeTexts();
/** At night every third, by day every eighth short one, "<pad>" spelled out, and one of the longest: 512 tokens or more, where the model takes them. */
const places = texts.flatMap((text, at) =>
  (isNightly ? at % 3 === 0 : at % 8 === 0 && text.length < 1000) || text.includes('<pad>') || at === texts.length - 1
    ? [at]
    : [],
);

async function describeFolder(at: string): Promise<EncoderDescription> {
  const path = join(at, 'config.json');
  return describeEncoder(CheckedJson.parse(await readFile(path, 'utf8'), path));
}

/** Largest difference of any value to the reference, times the length of the vector where that is more than 1. */
function difference(found: readonly number[], expected: Float32Array): number {
  const length = Math.max(1, Math.hypot(...expected));
  return Math.max(...found.map((value, at) => Math.abs(value - expected[at]!))) / length;
}

describe('gives the vectors of sentence-transformers', () => {
  test.each(tried.flatMap((name) => (['fused-fp32', 'plain-fp32'] as const).map((kind) => [name, kind] as const)))(
    '%s, %s',
    async (name, kind) => {
      const { max_seq_length: maxTokens = 512 } = await madeModel(name, folder);
      const tokenizer = new ReferenceTokenizer(await readFile(join(folder, 'tokenizer.json'), 'utf8'), { maxTokens });
      const rows = (await tokenizer.encode(places.map((at) => texts[at]!))).map(({ ids }) => ids);
      const [pooling, vectors] = [await ReferencePooling.open(folder), await madeVectors(name)];
      const states = await statesOf(folder, kind, rows);
      for (const [at, place] of places.entries())
        for (const found of states[at]!)
          expect(difference(pooling.vector(found), vectors[place]!)).toBeLessThan(MOST_DIFFERENCE);
    },
    60_000,
  );
});

/** Of each row alone and among others of all lengths, which are filled up with another token than 0. */
async function statesOf(
  at: string,
  kind: GraphKind,
  rows: readonly (readonly number[])[],
): Promise<readonly (readonly (readonly (readonly number[])[])[])[]> {
  const encoder = await describeFolder(at);
  return useTensors(at, async (tensors) => {
    const runner = await StatesRunner.open(encoder, tensors, join(at, 'states.onnx'), kind);
    const alone: (readonly (readonly number[])[])[] = [];
    for (const row of rows) alone.push((await runner.run([row]))[0]!);
    const together = [await runner.run(rows.slice(0, 4), 2), await runner.run(rows.slice(4), 2)].flat();
    await runner.release();
    return rows.map((_, row) => [alone[row]!, together[row]!]);
  });
}

/** Of the largest value: at real widths sums are longer, and nothing but the two graphs is compared. */
const MOST_APART = 2e-6;
if (!isNightly) console.log('encoders of real widths are left to SHOAL_TEST_NIGHTLY=1: they take a minute');

describe.runIf(isNightly)('at the widths of real models plain and fused operators agree', () => {
  test.each(wideEncoders())(
    '%s',
    async (_, encoder) => {
      const rows = wideRows([150, 7, 1, 40]);
      const found: (readonly (readonly (readonly number[])[])[])[] = [];
      for (const kind of ['fused-fp32', 'plain-fp32'] as const) {
        const runner = await StatesRunner.open(encoder, new RandomTensors(encoder), join(folder, 'wide.onnx'), kind);
        found.push(await runner.run(rows, 3));
        await runner.release();
      }
      const [fused, plain] = found.map((states) => states.flat(2));
      const largest = fused!.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const apart = fused!.reduce((most, value, at) => Math.max(most, Math.abs(value - plain![at]!)), 0);
      expect(largest).toBeGreaterThan(1);
      expect(apart / largest).toBeLessThan(MOST_APART);
    },
    120_000,
  );
});

describe('config.json', () => {
  test.each(embedders)('%s means the same in its older spelling, if it has one', async (name) => {
    if (!(await hasOlderConfig(name))) return;
    await madeModel(name, join(folder, 'new'));
    await madeModel(name, join(folder, 'older'), { older: true });
    const [now, older] = [await describeFolder(join(folder, 'new')), await describeFolder(join(folder, 'older'))];
    expect({ ...older, modelType: now.modelType }).toEqual(now);
  });
});

/** First digits of sha256, as they were before there was any other family: a changed byte makes every cache stale. */
const BERT_BYTES: Readonly<Record<GraphKind, string>> = {
  'fused-fp32': '132aac6c753d2756',
  'fused-fp32-words16': '22f9070d83d79608',
  'fused-fp16': '749b122845d7ae7f',
  'plain-fp32': 'e276116f158e85ca',
  'plain-fp16': 'cd0232de2ec8ed37',
  int8: 'ad4eb00263b3874a',
  'int8-unsigned': '57dd54528751b985',
  'cuda-fp32': '9851818587569935',
  'cuda-bf16': '807505271730ca35',
};

test.each(Object.entries(BERT_BYTES))("BERT's own graph %s has the bytes it had", async (kind, expected) => {
  const model = await writeTinyModel(join(folder, 'tiny'), { seed: 1 });
  const path = await openGraph(model, { cacheDir: join(folder, 'cache'), kind: kind as GraphKind });
  const sha256 = createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
  expect(sha256.slice(0, 16)).toBe(expected);
});
