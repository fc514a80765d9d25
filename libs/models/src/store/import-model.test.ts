// Importing: folders and .onnx files that become models like any other, and everything that is refused by name with
// nothing left in the cache. Models are tiny and random; the .onnx files are written here.

import { cp, mkdir, mkdtemp, open, readFile, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { parseBertConfig } from '../graph/bert-config.ts';
import { BertParts } from '../graph/bert-parts.ts';
import { GraphParts } from '../graph/graph-parts.ts';
import { EncoderTensors } from '../graph/encoder-tensors.ts';
import { OnnxFile, TYPE, type ElementType } from '../graph/onnx-file.ts';
import { openGraph } from '../graph/open-graph.ts';
import { addPlainEncoder } from '../graph/plain-encoder.ts';
import { Safetensors } from '../graph/safetensors.ts';
import { GraphRunner, cosine } from '../testing/onnx-run.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { importModel } from './import-model.ts';
import { listModels, openModel, pullModel, verifyModel } from './model-store.ts';
import type { StoredModel } from './stored-model.ts';
import { writeTinyModel } from './tiny-model.ts';

const TEXTS = ['the cat and the dog', 'a', 'batch of text through the queue, token after token', 'Hello [MASK] 中文!'];

let folder: string;
let cacheDir: string;
let given: string;
let original: StoredModel;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-import-'));
  cacheDir = join(folder, 'cache');
  given = join(folder, 'My Model_v2');
  original = await writeTinyModel(given, { seed: 7, pooling: 'cls' });
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const refusal = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as unknown });
const cached = async (): Promise<readonly string[]> =>
  (await readdir(join(cacheDir, 'models')).catch(() => [])).filter((entry) => !entry.startsWith('.'));
const change = async (file: string, edit: (text: string) => string): Promise<void> =>
  writeFile(join(given, file), edit(await readFile(join(given, file), 'utf8')));

async function vectorsOf(model: StoredModel): Promise<readonly Float32Array[]> {
  const [tokenizer, runner] = [
    await openTokenizer(model),
    await GraphRunner.open(await openGraph(model, { cacheDir }), model),
  ];
  const vectors = await runner.run(TEXTS.map((text) => [...tokenizer.encode(text).ids]));
  await runner.release();
  return vectors;
}

async function expectVectorsOfOriginal(model: StoredModel): Promise<void> {
  const [expected, found] = [await vectorsOf(original), await vectorsOf(model)];
  for (const [at, vector] of found.entries()) expect(cosine(vector, expected[at]!)).toBeGreaterThan(0.9999999);
}

describe('a folder', () => {
  test('becomes a model that opens, lists and verifies by its name, and gives the same vectors', async () => {
    const { model, notes } = await importModel(given, { cacheDir });
    expect(model).toMatchObject({
      name: 'my-model-v2',
      dims: 32,
      head: { poolings: ['cls'], modules: [] },
      isNormalized: false,
      defaultMaxTokens: 256,
      graphKind: 'fused-fp32',
      precision: 'fp32',
      licence: 'unknown',
      prompts: {},
    });
    expect(notes).toEqual([expect.stringMatching(/^no modules\.json: every vector has its own length, .*--normalize/)]);
    expect(await openModel('my-model-v2', { cacheDir, allowFetch: false })).toEqual(model);
    expect((await verifyModel('my-model-v2', { cacheDir })).files.map(({ path }) => path)).toContain(
      'model.safetensors',
    );
    expect((await listModels({ cacheDir })).find(({ name }) => name === 'my-model-v2')).toMatchObject({
      revision: model.revision,
      isStored: true,
      isForTests: false,
    });
    await expectVectorsOfOriginal(model);
    await rm(given, { recursive: true });
    expect(await pullModel('my-model-v2', { cacheDir })).toEqual(model);
  });

  test('says more in the files of sentence-transformers: prompts, longest row, pooling, licence', async () => {
    await writeFile(
      join(given, 'config_sentence_transformers.json'),
      JSON.stringify({ prompts: { query: 'q: ', document: 'd: ' }, default_prompt_name: 'query' }),
    );
    await writeFile(
      join(given, 'modules.json'),
      JSON.stringify([
        { idx: 0, path: '', type: 'sentence_transformers.models.Transformer' },
        { idx: 1, path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
      ]),
    );
    await writeFile(join(given, 'README.md'), '---\ntags: [x]\nlicense: mit\n---\n# A model\n');
    await change('sentence_bert_config.json', (text) => text.replace('256', '100'));
    const { model, notes } = await importModel(given, { cacheDir, name: 'mine' });
    expect(model).toMatchObject({
      name: 'mine',
      prompts: { query: 'q: ', document: 'd: ' },
      defaultPrompt: 'query',
      defaultMaxTokens: 100,
      licence: 'mit',
    });
    expect(notes).toEqual([
      expect.stringContaining('default prompt "query" ("q: ") goes before every text'),
      expect.stringContaining('no Normalize at its end: every vector has its own length'),
    ]);
  });

  test('without them gets the mean, all positions, and notes that say so', async () => {
    await rm(join(given, '1_Pooling'), { recursive: true });
    await rm(join(given, 'sentence_bert_config.json'));
    const { model, notes } = await importModel(given, { cacheDir });
    expect(model).toMatchObject({ head: { poolings: ['mean'] }, defaultMaxTokens: 512 });
    expect(notes).toEqual([
      expect.stringContaining('1_Pooling/config.json: the mean'),
      expect.stringContaining('up to 512 tokens'),
      expect.stringContaining('modules.json'),
    ]);
  });

  test('is imported once however often, and never replaced by other files unless forced', async () => {
    const { model: first } = await importModel(given, { cacheDir, name: 'mine' });
    expect((await importModel(given, { cacheDir, name: 'mine' })).model).toEqual(first);
    await change('sentence_bert_config.json', (text) => text.replace('256', '100'));
    await expect(importModel(given, { cacheDir, name: 'mine' })).rejects.toEqual(
      refusal(
        'USAGE',
        new RegExp(
          `"mine": other files were imported under this name before \\(revision ${first.revision}\\).*--force`,
        ),
      ),
    );
    expect((await openModel('mine', { cacheDir })).revision).toBe(first.revision);
    const { model: second } = await importModel(given, { cacheDir, name: 'mine', force: true });
    expect(second.revision).not.toBe(first.revision);
    expect(await openModel('mine', { cacheDir })).toEqual(second);
    expect(await readdir(join(cacheDir, 'models', 'mine'))).toEqual([second.revision]);
  });

  test('that was changed after the import is found out', async () => {
    const { model } = await importModel(given, { cacheDir, name: 'mine' });
    await truncate(join(model.folder, 'model.safetensors'), 1_000);
    await expect(openModel('mine', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /model\.safetensors has 1000 bytes/),
    );
    await expect(pullModel('mine', { cacheDir, force: true })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /mine was imported and can be fetched from nowhere: shoal model import/),
    );
  });
});

describe('a folder that is no supported model is refused by name, and nothing is cached', () => {
  test.each<[string, () => Promise<unknown>, string, RegExp]>([
    ['nothing there', () => rm(given, { recursive: true }), 'FILE_UNREADABLE', /My Model_v2 cannot be read: ENOENT/],
    [
      'no tokenizer and no weights',
      async () => Promise.all([rm(join(given, 'tokenizer.json')), rm(join(given, 'model.safetensors'))]),
      'MODEL_CORRUPT',
      /My Model_v2 has no tokenizer\.json, no model\.safetensors$/,
    ],
    [
      'weights of another kind',
      async () => {
        await rm(join(given, 'model.safetensors'));
        await writeFile(join(given, 'pytorch_model.bin'), '');
      },
      'MODEL_CORRUPT',
      /no model\.safetensors\. There is pytorch_model\.bin: save the model as one safetensors file/,
    ],
    [
      'another architecture',
      () => change('config.json', (text) => text.replace('"bert"', '"squeezebert"')),
      'MODEL_CORRUPT',
      /My Model_v2\/config\.json: "?model_type"? .*"squeezebert"/,
    ],
    [
      'a config that is not JSON',
      () => writeFile(join(given, 'config.json'), 'nonsense'),
      'MODEL_CORRUPT',
      /config\.json is not JSON/,
    ],
    [
      'shapes that the config does not describe',
      () => change('config.json', (text) => text.replace('"intermediate_size": 64', '"intermediate_size": 96')),
      'MODEL_CORRUPT',
      /tensor encoder\.layer\.0\.intermediate\.dense\.weight should have the shape \[96, 32\] and has \[64, 32\]/,
    ],
    [
      'weights cut off',
      () => truncate(join(given, 'model.safetensors'), 100_000),
      'MODEL_CORRUPT',
      /My Model_v2\/model\.safetensors: the file is cut off inside tensor/,
    ],
    [
      'a header of 4 GB',
      async () => {
        const file = await open(join(given, 'model.safetensors'), 'r+');
        await file.write(Buffer.from([0, 0, 0, 0, 1, 0, 0, 0]), 0, 8, 0);
        await file.close();
      },
      'MODEL_CORRUPT',
      /header claims 4294967296 bytes/,
    ],
    [
      'another tokenizer',
      () => change('tokenizer.json', (text) => text.replaceAll('"WordPiece"', '"WordLevel"')),
      'MODEL_CORRUPT',
      /My Model_v2\/tokenizer\.json: model: .*"WordLevel"/,
    ],
    [
      'more tokens than the model has rows',
      () => change('tokenizer.json', (text) => text.replace('"vocab": {', '"vocab": { "extra": 5000,')),
      'MODEL_CORRUPT',
      /ids up to 5000, but the model has only/,
    ],
    [
      'a pooling that nobody knows',
      () => writeFile(join(given, '1_Pooling/config.json'), '{ "pooling_mode": ["cls", "median"] }'),
      'MODEL_CORRUPT',
      /1_Pooling\/config\.json: "pooling_mode" is "median"; supported are cls, max, mean/,
    ],
    [
      'a pooling without the prompt',
      () => change('1_Pooling/config.json', (text) => text.replace('{', '{ "include_prompt": false,')),
      'MODEL_CORRUPT',
      /1_Pooling\/config\.json: "include_prompt": false is not supported/,
    ],
    [
      'a module of another kind',
      () => writeFile(join(given, 'modules.json'), '[{ "type": "sentence_transformers.models.LSTM" }]'),
      'MODEL_CORRUPT',
      /type sentence_transformers\.models\.LSTM is not supported/,
    ],
    [
      'modules that are no list',
      () => writeFile(join(given, 'modules.json'), '"x"'),
      'MODEL_CORRUPT',
      /modules\.json: "modules" should be a list/,
    ],
    [
      'a file of another kind',
      async () => {
        await rm(given, { recursive: true });
        await writeFile(given, 'text');
      },
      'FILE_UNREADABLE',
      /neither a folder with a model's files nor an \.onnx file/,
    ],
  ])('%s', async (_, damage, code, message) => {
    await damage();
    await expect(importModel(given, { cacheDir })).rejects.toEqual(refusal(code, message));
    expect(await cached()).toEqual([]);
  });

  test.each([
    ['minilm', /Shoal knows a model of this name/],
    ['minilm-int8', /Shoal knows/],
    ['../evil', /cannot be the name of a model/],
    ['mine-cpu', /not ending in "-cpu"/],
    ['mine-quarantine', /its queue embed-mine-quarantine would be that of mine \(its quarantine/],
    ['', /cannot be the name/],
    ['A', /cannot be the name/],
  ])('the name %j', async (name, message) => {
    await expect(importModel(given, { cacheDir, name })).rejects.toEqual(refusal('USAGE', message));
    expect(await cached()).toEqual([]);
  });
});

/**
 * The original as others export it: int64 inputs, an attention mask, hidden states out. Its inner names are as ours on
 * purpose.
 */
async function exportUsual(
  path: string,
  { type = TYPE.INT64 as ElementType, output = 'last_hidden_state' } = {},
): Promise<void> {
  await Safetensors.use(join(given, 'model.safetensors'), async (weights) => {
    const graph = new OnnxFile('usual', { '': 17 });
    graph.input('input_ids', type, ['batch', 'sequence']);
    graph.input('attention_mask', type, ['batch', 'sequence']);
    graph.input('token_type_ids', type, ['batch', 'sequence']);
    graph.node('Cast', ['attention_mask'], 'is_token', { integers: { to: 9 } });
    const config = parseBertConfig(await readFile(join(given, 'config.json'), 'utf8'), 'config.json');
    const parts = new BertParts(config, new GraphParts(graph, new EncoderTensors(weights), 'fp32'));
    graph.once('is_token_key', (name) => graph.node('Unsqueeze', ['is_token', graph.integers(1, 2)], name));
    const types = graph.node(
      'Cast',
      [graph.node('Unsqueeze', ['token_type_ids', graph.integers(2)], 'types3')],
      'types',
      { integers: { to: TYPE.FLOAT } },
    );
    graph.node('Add', [addPlainEncoder(parts), types], output); // wrong vectors unless every type is 0
    graph.output(output, TYPE.FLOAT, ['batch', 'sequence', 32]);
    await graph.write(path);
  });
}

describe('an .onnx file', () => {
  test('with our inputs and output is taken as it is', async () => {
    const graph = join(given, 'encoder.onnx');
    await cp(await openGraph(original, { cacheDir }), graph);
    const { model, notes } = await importModel(graph, { cacheDir });
    expect(model).toMatchObject({
      name: 'encoder',
      dims: 32,
      graphKind: 'imported',
      precision: 'fp32',
      positionLimit: 512,
      vocabularySize: original.vocabularySize,
    });
    expect(notes).toHaveLength(1);
    expect(await openModel('encoder', { cacheDir })).toEqual(model);
    expect(await readFile(await openGraph(model, { cacheDir }))).toEqual(await readFile(graph));
    await expectVectorsOfOriginal(model);
    await expect(openGraph(model, { cacheDir, kind: 'int8' })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /imported as a graph; it cannot be had as int8/),
    );
  });

  test('as encoders are usually exported gets mask, pooling and norm around it', async () => {
    await exportUsual(join(given, 'usual.onnx'));
    const { model, notes } = await importModel(join(given, 'usual.onnx'), { cacheDir });
    expect(model).toMatchObject({ name: 'usual', dims: 32, head: { poolings: ['cls'] }, graphKind: 'imported' });
    expect(notes).toContain('mask, pooling and norm were put around the graph');
    await expectVectorsOfOriginal(model);
  });

  test.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'no config beside it',
      async () => {
        await exportUsual(join(given, 'x.onnx'));
        await rm(join(given, 'config.json'));
      },
      /My Model_v2 has no config\.json/,
    ],
    [
      'not ONNX',
      () => writeFile(join(given, 'x.onnx'), 'this is not a graph'),
      /x\.onnx is not (a whole|an) ONNX file/,
    ],
    ['empty', () => writeFile(join(given, 'x.onnx'), ''), /x\.onnx is not an ONNX file: it has 0 graphs/],
    [
      'cut off',
      async () => {
        await exportUsual(join(given, 'x.onnx'));
        await truncate(join(given, 'x.onnx'), 50_000);
      },
      /x\.onnx is not a whole ONNX file/,
    ],
    [
      'other outputs',
      () => exportUsual(join(given, 'x.onnx'), { output: 'logits' }),
      /x\.onnx has the inputs input_ids int64 \[\?, \?\], .* the outputs logits float32 \[\?, \?, 32\]\. Needed are/,
    ],
    ['inputs of another type', () => exportUsual(join(given, 'x.onnx'), { type: TYPE.FLOAT }), /input_ids float32/],
    [
      'an opset from another time',
      async () => {
        await exportUsual(join(given, 'x.onnx'));
        await writeFile(join(given, 'x.onnx'), withOpset(await readFile(join(given, 'x.onnx')), 9));
      },
      /uses opset 9; 13 to 23 can be adapted/,
    ],
  ])('is refused by name, and nothing is cached: %s', async (_, make, message) => {
    await mkdir(given, { recursive: true });
    await make();
    await expect(importModel(join(given, 'x.onnx'), { cacheDir })).rejects.toEqual(refusal('MODEL_CORRUPT', message));
    expect(await cached()).toEqual([]);
  });
});

/** Field 8 of the model holds domain "" and version 17: 42 04 0a 00 10 11. */
function withOpset(file: Buffer, opset: number): Buffer {
  const at = file.indexOf(Buffer.from([0x42, 4, 0x0a, 0, 0x10, 17]));
  file[at + 5] = opset;
  return file;
}
