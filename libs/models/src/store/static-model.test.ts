// Static models in the layouts of model2vec and of sentence-transformers: what their texts become before a table is asked,
// and what is refused, by file, key or tensor, and value. That their vectors are those of the two packages is proven with
// all other families (import-families.test.ts).

import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { encoderGraph } from '../graph/encoder-graph.ts';
import { useTensors } from '../graph/named-tensors.ts';
import { plainHead } from '../graph/sentence-head.ts';
import { madeFile, madeModel, madeTexts, seededSafetensors, type SeededTensors } from '../testing/made-models.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { importModel, type ImportOptions, type ImportReport } from './import-model.ts';
import { readDescription } from './stored-model.ts';

let folder: string;
let given: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-static-'));
  given = join(folder, 'model');
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const bring = (options: Partial<ImportOptions> = {}): Promise<ImportReport> =>
  importModel(given, { cacheDir: join(folder, 'cache'), force: true, ...options });

type Json = Record<string, unknown>;
const set = async (path: string, values: Json): Promise<void> => {
  const json = JSON.parse(await readFile(join(given, path), 'utf8')) as Json;
  await writeFile(join(given, path), JSON.stringify({ ...json, ...values }));
};

type Tensors = SeededTensors['tensors'];
/** The same model with other tensors. */
const withTensors = async (name: string, change: (tensors: Tensors) => Tensors): Promise<void> => {
  const { seed, tensors } = JSON.parse(await readFile(madeFile(name, 'tensors.json'), 'utf8')) as SeededTensors;
  await writeFile(join(given, 'model.safetensors'), seededSafetensors({ seed, tensors: change(tensors) }));
};
const put =
  (...changed: Tensors) =>
  (tensors: Tensors): Tensors => [
    ...tensors.filter(([name]) => !changed.some(([other]) => other === name)),
    ...changed,
  ];

describe('texts', () => {
  test('without a known token become the one token whose row is zeros', async () => {
    await madeModel('static-wordpiece', given);
    const { model } = await bring();
    const tokenizer = await openTokenizer(model);
    expect(tokenizer.vocabularySize).toBe(1345);
    for (const text of ['', ' \n', 'x'.repeat(120)]) expect([...tokenizer.encode(text).ids]).toEqual([1344]);
    expect([...tokenizer.encode(`a ${'x'.repeat(120)}`).ids]).toEqual([...tokenizer.encode('a').ids]);
  });

  test('are cut by their characters before, as many as the median of the tokens has for each token of a row', async () => {
    await madeModel('static-unigram', given);
    const { model } = await bring();
    const tokenizer = await openTokenizer(model);
    expect(model.defaultMaxTokens).toBe(48);
    const long = `${'𝕋 '.repeat(144)}the queue`; // 288 characters of 6 × 48, and a word
    expect(tokenizer.encode(long)).toEqual({ ...tokenizer.encode('𝕋 '.repeat(144)), isTruncated: true });
    const steps = tokenizer.encodeSteps!(long);
    expect(steps.next()).toEqual({ done: true, value: tokenizer.encode(long) });
    const wider = await openTokenizer(model, { maxTokens: 60 });
    expect(wider.encode('the '.repeat(100)).ids.length).toBeGreaterThan(48);
  });

  test('of sentence-transformers are not cut, and their unknown tokens count', async () => {
    await madeModel('static-embedding', given);
    const { model } = await bring();
    const tokenizer = await openTokenizer(model);
    expect(tokenizer.encode('x'.repeat(120)).ids).toHaveLength(1);
    expect(tokenizer.encode('x'.repeat(120)).ids[0]).toBeLessThan(1494);
    expect(tokenizer.encode((await madeTexts())[40]!).isTruncated).toBe(false);
    expect(model.defaultMaxTokens).toBe(8192);
    await set('tokenizer.json', {
      truncation: { max_length: 7, strategy: 'LongestFirst', stride: 0, direction: 'Right' },
    });
    expect((await bring()).model.defaultMaxTokens).toBe(7);
  });
});

describe('an import', () => {
  test('finds a table in its own folder', async () => {
    await madeModel('static-embedding', given);
    const { model: before } = await bring();
    await mkdir(join(given, '0_StaticEmbedding'));
    for (const path of ['model.safetensors', 'tokenizer.json'])
      await rename(join(given, path), join(given, '0_StaticEmbedding', path));
    await writeFile(
      join(given, 'modules.json'),
      JSON.stringify([{ idx: 0, path: '0_StaticEmbedding', type: 'sentence_transformers.models.StaticEmbedding' }]),
    );
    const { model } = await bring();
    expect([model.weightsSha256, model.dims]).toEqual([before.weightsSha256, 16]);
  });

  test('says what is raw, and brings to length 1 what was asked for', async () => {
    await madeModel('static-unigram', given);
    const raw = await bring();
    expect(raw.model.isNormalized).toBe(false);
    expect(raw.notes.join()).toMatch(/every vector has its own length/);
    expect((await bring({ normalize: true })).model.isNormalized).toBe(true);
  });

  test('takes config.json where modules.json says otherwise, as model2vec does, and says so', async () => {
    await madeModel('static-wordpiece', given);
    await set('config.json', { normalize: false, head_config: { classes: ['a', 'b'] } });
    const { model, notes } = await bring();
    expect(model.isNormalized).toBe(false);
    expect(notes.join('\n')).toMatch(/"normalize": false, and modules\.json a Normalize.*\n?/);
    expect(notes.join('\n')).toMatch(/"head_config": the head of its classifier is left out/);
  });
});

describe('refused', () => {
  const cases: readonly (readonly [what: string, name: string, change: () => Promise<unknown>, message: RegExp])[] = [
    [
      'a table that is missing',
      'static-unigram',
      () => withTensors('static-unigram', (all) => all.filter(([name]) => name !== 'embeddings')),
      /model\.safetensors: it has the tensors mapping, weights; a static model has either "embeddings"/,
    ],
    [
      'two tables',
      'static-unigram',
      () => withTensors('static-unigram', put(['embedding.weight', [2, 2], 1, 0])),
      /it has the tensors embedding\.weight, embeddings, mapping, weights/,
    ],
    [
      'a tensor without a place',
      'static-unigram',
      () => withTensors('static-unigram', put(['bias', [24], 1, 0])),
      /tensor bias has no place beside "embeddings"/,
    ],
    [
      'a table without rows',
      'static-unigram',
      () => withTensors('static-unigram', put(['embeddings', [24], 1, 0, 'I8'])),
      /tensor embeddings has the shape \[24\], not \[rows, dims\]/,
    ],
    [
      'a mapping beyond the table',
      'static-unigram',
      () => withTensors('static-unigram', put(['mapping', [1539], 0, 200, 'I64'])),
      /tensor mapping has the row 200 for the token 0, and the table ends at 199/,
    ],
    [
      'a mapping before it',
      'static-unigram',
      () => withTensors('static-unigram', put(['mapping', [1539], 0, -1, 'I64'])),
      /tensor mapping has the row -1 for the token 0/,
    ],
    [
      'a mapping that is shorter than the vocabulary',
      'static-unigram',
      () => withTensors('static-unigram', put(['mapping', [9], 0, 1, 'I64'], ['weights', [9], 1, 0])),
      /tokenizer\.json: it has ids up to 1538, and .*model\.safetensors has only 9 tokens/,
    ],
    [
      'a mapping of fractions',
      'static-unigram',
      () => withTensors('static-unigram', put(['mapping', [1539], 0, 1, 'F32'])),
      /tensor mapping holds F32; I64 and I32 can be read/,
    ],
    [
      'weights of another length',
      'static-unigram',
      () => withTensors('static-unigram', put(['weights', [1538], 1, 0])),
      /tensor weights should have the shape \[1539\] and has \[1538\]/,
    ],
    [
      'weights that are whole numbers',
      'static-unigram',
      () => withTensors('static-unigram', put(['weights', [1539], 1, 0, 'I8'])),
      /tensor weights holds I8; F32, F16 and F64 can be read/,
    ],
    [
      'weights that are no numbers',
      'static-unigram',
      () => withTensors('static-unigram', put(['weights', [1539], NaN, 0])),
      /tensor weights has NaN as its value 0, which is no number/,
    ],
    [
      'a table of another type',
      'static-wordpiece',
      () => withTensors('static-wordpiece', put(['embeddings', [1344, 32], 1, 1, 'I64'])),
      /tensor embeddings holds I64; F32, F16, F64 and I8 can be read/,
    ],
    [
      'rows that are not as many as tokens',
      'static-wordpiece',
      () => withTensors('static-wordpiece', put(['embeddings', [1350, 32], 1, 0])),
      /tokenizer\.json: it has 1344 tokens, and .*model\.safetensors 1350 rows for them/,
    ],
    [
      'a key that is not known',
      'static-wordpiece',
      () => set('config.json', { subword_power: 3 }),
      /config\.json: "subword_power" is 3: it is not known here for a static model/,
    ],
    [
      'a length of nothing',
      'static-wordpiece',
      () => set('config.json', { max_length: 0 }),
      /config\.json: "max_length" should be a whole number ≥ 1, found 0/,
    ],
    [
      'a norm that is a word',
      'static-wordpiece',
      () => set('config.json', { normalize: 'yes' }),
      /config\.json: "normalize" should be true or false, found "yes"/,
    ],
    [
      'no config.json beside a table of model2vec',
      'static-wordpiece',
      () => rm(join(given, 'config.json')),
      /model\.safetensors: there is no config\.json beside it/,
    ],
    [
      'a pooling behind the table',
      'static-embedding',
      () =>
        writeFile(
          join(given, 'modules.json'),
          JSON.stringify(
            ['StaticEmbedding', 'Pooling'].map((kind) => ({ path: '', type: `sentence_transformers.models.${kind}` })),
          ),
        ),
      /modules\.json: a Pooling stands behind StaticEmbedding; only Dense, LayerNorm and Normalize may/,
    ],
    [
      'truncation on the left',
      'static-embedding',
      () =>
        set('tokenizer.json', {
          truncation: { max_length: 7, strategy: 'LongestFirst', stride: 0, direction: 'Left' },
        }),
      /tokenizer\.json: its truncation has "direction": "Left"; only "Right" is supported/,
    ],
  ];
  test.each(cases)('%s', async (_, name, change, message) => {
    await madeModel(name, given);
    await change();
    const report = bring();
    await expect(report).rejects.toThrow(message);
    await expect(report).rejects.toMatchObject({ code: 'MODEL_CORRUPT' });
  });

  test('another pooling, and a graph in place of the folder', async () => {
    await madeModel('static-wordpiece', given);
    await expect(bring({ pooling: 'cls' })).rejects.toMatchObject({ code: 'USAGE' });
    await writeFile(join(given, 'model.onnx'), '');
    const graph = importModel(join(given, 'model.onnx'), { cacheDir: join(folder, 'cache') });
    await expect(graph).rejects.toThrow(/is a static model: import the folder/);
  });

  test('every kind of graph but those in fp32', async () => {
    await madeModel('static-bytes', given);
    const { model } = await bring();
    const encoder = await readDescription(model.folder);
    await useTensors(model.folder, async (tensors) => {
      for (const kind of ['fused-fp16', 'plain-fp16', 'cuda-bf16', 'int8', 'int8-unsigned'] as const)
        expect(() => encoderGraph(encoder, tensors, { head: plainHead('mean'), kind })).toThrow(/added up in fp32/);
      encoderGraph(encoder, tensors, { head: plainHead('mean'), kind: 'plain-fp32' });
    });
  });
});
