// Cross-encoders as people have them: imported with what makes their scores, or refused by file, key and value.

import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openGraph } from '../graph/open-graph.ts';
import { madeModel } from '../testing/made-models.ts';
import { encodePairs, openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { encodeCanary } from './canaries.ts';
import { importModel, type ImportOptions } from './import-model.ts';
import { MANIFEST } from './imported-models.ts';
import { listModels, openModel, queueOfNamed } from './model-store.ts';
import { showModel } from './show-model.ts';
import { expectEmbedder, expectReranker, type StoredModel, type StoredReranker } from './stored-model.ts';

const IDENTITY = 'torch.nn.modules.linear.Identity';
const SIGMOID = 'torch.nn.modules.activation.Sigmoid';

let folder: string;
let cacheDir: string;
let given: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-reranker-'));
  cacheDir = join(folder, 'cache');
  given = join(folder, 'model');
  await madeModel('cross-encoder-bert', given);
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const bring = async (options: Partial<ImportOptions> = {}): Promise<StoredReranker> =>
  expectReranker((await importModel(given, { cacheDir, name: 'scorer', ...options })).model);
const put = (path: string, json: unknown): Promise<void> => writeFile(join(given, path), JSON.stringify(json));
const edit = async (path: string, change: (json: Record<string, unknown>) => unknown): Promise<void> =>
  put(path, change(JSON.parse(await readFile(join(given, path), 'utf8')) as Record<string, unknown>));
const corrupt = (message: RegExp): unknown =>
  expect.objectContaining({ code: 'MODEL_CORRUPT', message: expect.stringMatching(message) as unknown });

/** As CrossEncoder.save_pretrained of sentence-transformers 6.2 writes it beside the model's own files. */
async function saveAsOf62(saved: Record<string, unknown> = {}): Promise<void> {
  const type = 'sentence_transformers.base.modules.transformer.Transformer';
  await put('modules.json', [{ idx: 0, name: '0', path: '', type }]);
  await put('sentence_bert_config.json', {
    transformer_task: 'sequence-classification',
    modality_config: { text: { method: 'forward', method_output_name: 'logits' } },
    module_output_name: 'scores',
  });
  await put('config_sentence_transformers.json', {
    __version__: { pytorch: '2.15.0', sentence_transformers: '6.2.0', transformers: '5.24.0' },
    activation_fn: SIGMOID,
    default_prompt_name: null,
    model_type: 'CrossEncoder',
    prompts: {},
    ...saved,
  });
}

describe('a cross-encoder is imported', () => {
  test('as a reranker, with a queue of its own, and every word about it says so', async () => {
    const model = await bring();
    expect(model).toMatchObject({ kind: 'reranker', dims: 1, hidden: 64, isNormalized: false, defaultMaxTokens: 512 });
    expect(model.head).toMatchObject({ hasSigmoid: true, hasTypes: true });
    expect(await openModel('scorer', { cacheDir })).toEqual(model);
    expect((await showModel('scorer', { cacheDir })).queue).toBe('rerank-scorer');
    expect(await queueOfNamed('scorer', { cacheDir })).toBe('rerank-scorer');
    expect(await queueOfNamed('minilm', { cacheDir })).toBe('embed-minilm');
    expect(await queueOfNamed('nobody', { cacheDir })).toBe('embed-nobody');
    const listed = (await listModels({ cacheDir })).filter(({ kind }) => kind === 'reranker');
    expect(listed.map(({ name }) => name)).toEqual(['scorer']);
    expect(() => expectEmbedder(model)).toThrow(/scorer is a reranker, which gives scores of pairs/);
  });

  test.each([
    [SIGMOID, true],
    [IDENTITY, false],
  ])('as sentence-transformers 6.2 saves it, with %s', async (activation, hasSigmoid) => {
    await saveAsOf62({ activation_fn: activation });
    expect((await bring()).head.hasSigmoid).toBe(hasSigmoid);
  });

  test('with the function that config.json names; what nobody reads without modules.json is not read', async () => {
    await edit('config.json', (config) => ({ ...config, sentence_transformers: { activation_fn: IDENTITY } }));
    await put('config_sentence_transformers.json', { model_type: 'CrossEncoder', activation_fn: SIGMOID });
    expect((await bring()).head.hasSigmoid).toBe(false);
  });

  test('with another revision and another graph where scores are others', async () => {
    const sigmoid = await bring();
    const path = await openGraph(sigmoid, { cacheDir });
    await edit('config.json', (config) => ({ ...config, sentence_transformers: { activation_fn: IDENTITY } }));
    const raw = await bring({ force: true });
    expect(raw.revision).not.toBe(sigmoid.revision);
    expect(await openGraph(raw, { cacheDir })).not.toBe(path);
  });

  test('with a known pair, which is kept as it was', async () => {
    const rows: unknown[] = [];
    const prove = async (model: StoredModel) => {
      const { ids, second } = encodeCanary(model, await openTokenizer(model));
      rows.push([...ids]);
      return { ids: [...ids], second, vector: Float32Array.of(0.25) };
    };
    const { canary } = await bring({ prove });
    expect(canary).toEqual({ ids: rows[0], second: expect.any(Number) as unknown, vector: Float32Array.of(0.25) });
    expect(canary!.ids[canary!.second! - 1]).toBe(3); // [SEP]
    expect((await openModel('scorer', { cacheDir })).canary).toEqual(canary);
  });

  test('with a tokenizer that takes pairs, which that of an embedder does not', async () => {
    const tokenizer = await openTokenizer(await bring());
    const [pair] = encodePairs(tokenizer, 'the queue', ['a worker']);
    expect(pair).toMatchObject({ isTruncated: false });
    expect(pair!.ids[pair!.second - 1]).toBe(pair!.ids.at(-1));
    const embedder = join(folder, 'embedder');
    await madeModel('bert-mean', embedder);
    const { model } = await importModel(embedder, { cacheDir });
    expect((await openTokenizer(model)).encodePair).toBeUndefined();
    expect(() => expectReranker(model)).toThrow(/is an embedder, which gives vectors of texts/);
  });
});

describe('is refused', () => {
  test.each<[string, Partial<ImportOptions>, RegExp]>([
    ['--normalize', { normalize: true }, /leave --normalize out/],
    ['prompts', { prompts: { query: 'q: ' } }, /leave --query-prompt out/],
  ])('with %s, which scores have not', async (_, options, message) => {
    await expect(bring(options)).rejects.toMatchObject({ code: 'USAGE', message: expect.stringMatching(message) });
  });

  test.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'a pooling beside it',
      async () => {
        await mkdir(join(given, '1_Pooling'));
        await put('1_Pooling/config.json', { pooling_mode: 'mean' });
      },
      /config\.json: its architecture is BertForSequenceClassification with one label: .* leave the pooling out/,
    ],
    [
      'a function that is not computed',
      () => saveAsOf62({ activation_fn: 'torch.nn.modules.activation.Tanh' }),
      /config_sentence_transformers\.json: "activation_fn" is "torch\.nn\.modules\.activation\.Tanh"/,
    ],
    [
      'a prompt before every pair',
      () => saveAsOf62({ default_prompt_name: 'query', prompts: { query: 'q: ' } }),
      /config_sentence_transformers\.json: "default_prompt_name" is "query": a prompt before every pair/,
    ],
    [
      'another kind of model in its words',
      () => saveAsOf62({ model_type: 'SentenceTransformer' }),
      /"model_type" is "SentenceTransformer"; only "CrossEncoder" is supported/,
    ],
    [
      'the task of an embedder',
      async () => {
        await saveAsOf62();
        await edit('sentence_bert_config.json', (json) => ({ ...json, transformer_task: 'feature-extraction' }));
      },
      /"transformer_task" is "feature-extraction"; only "sequence-classification"/,
    ],
    [
      'a tokenizer that gives second texts no type',
      () =>
        edit('tokenizer.json', (json) => ({
          ...json,
          post_processor: { type: 'RobertaProcessing', cls: ['[CLS]', 2], sep: ['[SEP]', 3] },
        })),
      /tokenizer\.json: post_processor: "pair" does not give type 1 to the second text/,
    ],
    [
      'a graph alone',
      () => rename(join(given, 'model.safetensors'), join(given, 'model.onnx')),
      /model\.onnx is the graph of a reranker, and rerankers are served from their weights alone/,
    ],
    [
      'an encoder without a head here',
      () =>
        edit('config.json', (config) => ({
          ...config,
          architectures: ['ElectraForSequenceClassification'],
          model_type: 'electra',
        })),
      /"model_type" is "electra": of rerankers only "bert", /,
    ],
  ])('with %s', async (_, change, message) => {
    await change();
    await expect(bring()).rejects.toEqual(corrupt(message));
  });

  test('by name when it was imported by a version that knew another kind', async () => {
    const model = await bring();
    const path = join(model.folder, MANIFEST);
    const manifest = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
    await writeFile(path, JSON.stringify({ ...manifest, kind: 'painter' }));
    await expect(openModel('scorer', { cacheDir })).rejects.toEqual(
      corrupt(/import\.json: "kind" is "painter"; this version serves "embedder" and "reranker"/),
    );
  });
});
