// An encoder that is not BERT in every switch is refused by name wherever BERT's own computation would give other
// vectors: in whole numbers, in bf16, by the native encoder; and in fp16 where states leave its range.

import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { MODEL_TYPES, describeEncoder } from '../encoder/describe-encoder.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { madeModel } from '../testing/made-models.ts';
import { readEncoder } from './encoder-weights.ts';
import { GRAPH_KINDS } from './graph-kind.ts';
import { openGraph } from './open-graph.ts';
import { kindProblem } from './unavailable-kinds.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-kinds-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const kindsOf = (config: object): readonly string[] => {
  const encoder = describeEncoder(CheckedJson.of(config, 'config.json'));
  return GRAPH_KINDS.filter((kind) => kindProblem(encoder, kind) === undefined);
};

test('BERT comes in every kind', () => {
  expect(kindsOf({ model_type: 'bert' })).toEqual(GRAPH_KINDS);
});

test.each([
  { model_type: 'bert', hidden_act: 'relu' },
  ...MODEL_TYPES.filter((type) => type !== 'bert' && type !== 'gemma3_text').map((type) => ({ model_type: type })),
])('%j comes in fp32 and fp16 alone', (config) => {
  expect(kindsOf(config)).toEqual(['fused-fp32', 'fused-fp16', 'plain-fp32', 'plain-fp16', 'cuda-fp32']);
});

test('Gemma comes in fp32 alone', () => {
  expect(kindsOf({ model_type: 'gemma3_text' })).toEqual(['fused-fp32', 'plain-fp32', 'cuda-fp32']);
});

test.each(['int8', 'cuda-bf16'] as const)('a graph of the kind %s is refused, and none is kept', async (kind) => {
  const model = await writeTinyModel(join(folder, 'model'), { seed: 1 });
  await madeModel('nomic-bert', join(folder, 'model'));
  const cacheDir = join(folder, 'cache');
  await expect(openGraph(model, { cacheDir, kind })).rejects.toMatchObject({
    code: 'MODEL_UNAVAILABLE',
    message: expect.stringMatching(new RegExp(`no graph of the kind ${kind} for nomic_bert: `)) as string,
  });
  expect(await readdir(join(cacheDir, 'graphs'))).toEqual([]);
});

test.each(['nomic-bert', 'mpnet', 'xlmr-mean', 'bert-relu'])('the native encoder is refused for %s', async (name) => {
  const model = await writeTinyModel(join(folder, 'model'), { seed: 1 });
  await madeModel(name, join(folder, 'model'));
  await expect(readEncoder(model)).rejects.toMatchObject({
    code: 'MODEL_UNAVAILABLE',
    message: expect.stringMatching(/differs from BERT, which is what the native encoder computes/) as string,
  });
});
