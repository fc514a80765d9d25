// An encoder that is not BERT in every switch is refused by name wherever BERT's own computation would give other
// vectors: by the native encoder; and in fp16 where states leave its range. In bf16 graphs have types
// that agree, as far as a machine without a GPU can tell.

import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { MODEL_TYPES, describeEncoder } from '../encoder/describe-encoder.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { madeModel, madeNames } from '../testing/made-models.ts';
import { StatesRunner } from '../testing/states-run.ts';
import { readDescription } from '../store/stored-model.ts';
import { readEncoder } from './encoder-weights.ts';
import { GRAPH_KINDS } from './graph-kind.ts';
import { useTensors } from './named-tensors.ts';
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
])('%j comes in every kind', (config) => {
  expect(kindsOf(config)).toEqual(GRAPH_KINDS);
});

test('Gemma comes in every kind but those in fp16', () => {
  expect(kindsOf({ model_type: 'gemma3_text' })).toEqual(GRAPH_KINDS.filter((kind) => !kind.endsWith('-fp16')));
});

/** One of each model_type, and those with scaled angles. */
const IN_BFLOATS = (await madeNames()).filter((name) => !/^(?:cross-encoder|splade|static|bert)-/.test(name));

test.each([...IN_BFLOATS, 'bert-relu'])('the types of the graph of %s in bf16 agree', async (name) => {
  await madeModel(name, folder);
  const encoder = await readDescription(folder);
  // types are inferred before kernels are looked for, and the CPU provider has none of bf16: further goes a GPU alone
  await expect(
    useTensors(folder, (tensors) => StatesRunner.open(encoder, tensors, join(folder, 'bf16.onnx'), 'cuda-bf16')),
  ).rejects.toThrow(/Could not find an implementation for (?:MatMul|Sum|Add)\(/);
});

test.each(['fused-fp16', 'plain-fp16'] as const)(
  'a graph of the kind %s is refused, and none is kept',
  async (kind) => {
    const model = await writeTinyModel(join(folder, 'model'), { seed: 1 });
    await madeModel('gemma3-embedding', join(folder, 'model'));
    const cacheDir = join(folder, 'cache');
    await expect(openGraph(model, { cacheDir, kind })).rejects.toMatchObject({
      code: 'MODEL_UNAVAILABLE',
      message: expect.stringMatching(new RegExp(`no graph of the kind ${kind} for gemma3_text: `)) as string,
    });
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([]);
  },
);

test.each(['nomic-bert', 'mpnet', 'xlmr-mean', 'bert-relu'])('the native encoder is refused for %s', async (name) => {
  const model = await writeTinyModel(join(folder, 'model'), { seed: 1 });
  await madeModel(name, join(folder, 'model'));
  await expect(readEncoder(model)).rejects.toMatchObject({
    code: 'MODEL_UNAVAILABLE',
    message: expect.stringMatching(/differs from BERT, which is what the native encoder computes/) as string,
  });
});
