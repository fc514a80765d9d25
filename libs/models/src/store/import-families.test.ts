// Folders as sentence-transformers and others lay them out: imported with the vectors that sentence-transformers 6.2
// gives for them, or refused by the name of what is not computed here.

import { cp, mkdir, mkdtemp, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { execFileSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openGraph } from '../graph/open-graph.ts';
import { promptText } from '@shoal/contract';
import {
  hasOlderConfig,
  madeFile,
  madeModel,
  madeNames,
  madeTexts,
  madeVectors,
  seededSafetensors,
  type SeededTensors,
} from '../testing/made-models.ts';
import { RememberingRunner } from '../testing/onnx-run.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { importModel, type ImportOptions } from './import-model.ts';
import { expectEmbedder, type StoredModel } from './stored-model.ts';

/** Of a value of a vector of length 1: right code differs by 1e-7 to 9e-7, the tanh form of GELU by more than 1e-5. */
const MOST_DIFFERENCE = 2e-6;

let folder: string;
let cacheDir: string;
let given: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-family-'));
  cacheDir = join(folder, 'cache');
  given = join(folder, 'model');
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const bring = (options: Partial<ImportOptions> = {}): Promise<StoredModel> =>
  importModel(given, { cacheDir, ...options }).then(({ model }) => model);
const notesOf = async (options: Partial<ImportOptions> = {}): Promise<string> =>
  (await importModel(given, { cacheDir, ...options })).notes.join('\n');
const edit = async (path: string, change: (json: Record<string, unknown>) => unknown): Promise<void> => {
  const json = JSON.parse(await readFile(join(given, path), 'utf8').catch(() => '{}')) as Record<string, unknown>;
  await writeFile(join(given, path), JSON.stringify(change(json)));
};
const set = (path: string, values: Record<string, unknown>): Promise<void> =>
  edit(path, (json) => ({ ...json, ...values }));
const corrupt = (message: RegExp): unknown =>
  expect.objectContaining({ code: 'MODEL_CORRUPT', message: expect.stringMatching(message) as unknown });

const without =
  (...keys: readonly string[]) =>
  (json: Record<string, unknown>): unknown =>
    Object.fromEntries(Object.entries(json).filter(([key]) => !keys.includes(key)));
/** A classifier's tensors under the architecture of a plain encoder. */
const hideHead = async (): Promise<void> => {
  await madeModel('cross-encoder-bert', given);
  await set('config.json', { architectures: ['BertModel'] });
};

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const texts = await madeTexts();
/** By day every fourth, "<pad>" spelled out, and the longest. */
const places = texts.flatMap((text, at) =>
  isNightly || at % 4 === 0 || text.includes('<pad>') || text.length > 3600 ? [at] : [],
);

/**
 * Largest difference of any value to what sentence-transformers gives, alone and among others, divided by the length of
 * the vector where that is more than 1. `kind`: the file of reference vectors; `prompt`: what a job asks for.
 */
async function difference(model: StoredModel, family: string, kind = 'vectors', prompt?: string): Promise<number> {
  const expected = await madeVectors(family, kind);
  const tokenizer = await openTokenizer(model);
  const before = promptText(model, prompt);
  const rows = places.map((at) => [...tokenizer.encode(before + texts[at]!).ids]);
  const runner = await RememberingRunner.open(await openGraph(model, { cacheDir }), model);
  let most = 0;
  const together = await runner.run(rows);
  for (const [at, place] of places.entries()) {
    const [alone] = await runner.run([rows[at]!]);
    const length = Math.max(1, Math.hypot(...expected[place]!));
    for (const vector of [alone!, together[at]!])
      for (const [index, value] of vector.entries())
        most = Math.max(most, Math.abs(value - expected[place]![index]!) / length);
  }
  await runner.release();
  return most;
}

/** 700 times one word, which nothing cuts: the sum of sentence-transformers in fp32 is itself 9.5e-6 from the mean. */
const mostByNight = (family: string): number => (family === 'static-embedding' ? 1e-5 : MOST_DIFFERENCE);

const embedders = (await madeNames()).filter((name) => !/^(?:cross-encoder|splade)-/.test(name));
/** By day every BERT, and of the others one of each tokenizer and of each head; graph/families.test.ts has them all. */
const OTHERS = ['e5-multilingual-small', 'gemma3-embedding', 'modernbert-cls', 'mpnet', 'qwen3-last', 'roberta'];
const tried = embedders.filter((name) => isNightly || /^(?:bert|static)-/.test(name) || OTHERS.includes(name));

/** By day one whose longest row is spelled otherwise as well: descriptions of both spellings are compared elsewhere. */
async function olderOnes(): Promise<readonly string[]> {
  if (!isNightly) return ['nomic-bert'];
  const found = await Promise.all(embedders.map(async (name) => ((await hasOlderConfig(name)) ? [name] : [])));
  return found.flat();
}

const older = await olderOnes();

describe('gives the vectors of sentence-transformers', () => {
  test.each(tried)('%s', async (family) => {
    const { dims } = await madeModel(family, given);
    const model = await bring();
    expect(model.dims).toBe(dims);
    expect(await difference(model, family)).toBeLessThan(isNightly ? mostByNight(family) : MOST_DIFFERENCE);
  });

  test.each(older)('%s, its config.json as the hub spells it', async (family) => {
    await madeModel(family, given, { older: true });
    expect(await difference(await bring(), family)).toBeLessThan(MOST_DIFFERENCE);
  });

  test('a pooling that lies elsewhere is found by its path, whatever lies in the usual place', async () => {
    await madeModel('bert-pooling-elsewhere', given);
    await mkdir(join(given, '1_Pooling'));
    await writeFile(join(given, '1_Pooling/config.json'), '{ "pooling_mode": "mean" }');
    const model = await bring();
    expect(expectEmbedder(model).head.poolings).toEqual(['cls']);
    expect(await difference(model, 'bert-pooling-elsewhere')).toBeLessThan(MOST_DIFFERENCE);
  });

  test('an encoder in a folder of its own is followed', async () => {
    await madeModel('bert-mean', given);
    await mkdir(join(given, '0_Transformer'));
    for (const path of ['config.json', 'tokenizer.json', 'model.safetensors', 'tokenizer_config.json'])
      await rename(join(given, path), join(given, '0_Transformer', path));
    await rename(join(given, 'sentence_bert_config.json'), join(given, '0_Transformer/sentence_bert_config.json'));
    await edit('modules.json', (json) =>
      (json as unknown as { path: string }[]).map((module, at) =>
        at === 0 ? { ...module, path: '0_Transformer' } : module,
      ),
    );
    expect(await difference(await bring(), 'bert-mean')).toBeLessThan(MOST_DIFFERENCE);
  });

  test.each(['bert-config-lowercases', 'bert-config-keeps-accents'])(
    '%s: tokenizer_config.json decides, and a note says so',
    async (family) => {
      await madeModel(family, given);
      expect(await notesOf()).toMatch(/tokenizer\.json has "\w+": (?:true|false), .*and transformers takes/);
      expect(await difference(await bring(), family)).toBeLessThan(MOST_DIFFERENCE);
    },
  );

  test('tensors by their names of before 2019 and a config that leaves out what transformers assumes', async () => {
    await madeModel('bert-mean', given, {
      rename: (name) => name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'),
    });
    await edit('config.json', without('hidden_act', 'layer_norm_eps', 'type_vocab_size'));
    expect(await difference(await bring(), 'bert-mean')).toBeLessThan(MOST_DIFFERENCE);
  });

  test('with the prompts that its files name, and with those that an import gives', async () => {
    await madeModel('bert-prompts', given);
    const model = await bring();
    for (const prompt of ['query', 'passage'])
      expect(await difference(model, 'bert-prompts', prompt, prompt)).toBeLessThan(MOST_DIFFERENCE);
    await rm(join(given, 'config_sentence_transformers.json'));
    const prompts = { query: 'search query: ', passage: 'search passage: ' };
    const chosen = await bring({ name: 'chosen', prompts });
    expect(chosen).toMatchObject({ prompts });
    expect(chosen.revision).not.toBe((await bring({ name: 'without' })).revision);
  });

  test('with a default prompt, which is there unless another is asked for, or none', async () => {
    await madeModel('bert-default-prompt', given);
    const { model, notes } = await importModel(given, { cacheDir });
    expect(model).toMatchObject({ defaultPrompt: 'document' });
    expect(notes.join()).toMatch(/its default prompt "document" \("search document: "\) goes before every text whose/);
    for (const [kind, prompt] of [
      ['document', 'document'],
      ['document', 'passage'],
      ['query', 'query'],
      ['no-prompt', 'none'],
    ] as const)
      expect(await difference(model, 'bert-default-prompt', kind, prompt)).toBeLessThan(MOST_DIFFERENCE);
    await set('config_sentence_transformers.json', { default_prompt_name: null });
    expect((await bring({ name: 'other' })).revision).not.toBe(model.revision);
    await set('config_sentence_transformers.json', { default_prompt_name: 'absent' });
    await expect(bring({ name: 'absent' })).rejects.toEqual(
      corrupt(/"default_prompt_name" is "absent", which is none/),
    );
  });

  test('with prompts of any name', async () => {
    await madeModel('bert-other-prompts', given);
    const model = await bring();
    for (const prompt of ['retrieval.query', 's2p_query'])
      expect(await difference(model, 'bert-other-prompts', prompt, prompt)).toBeLessThan(MOST_DIFFERENCE);
    expect(promptText(model, 'query')).toBeUndefined();
  });
});

describe('the longest row is that of sentence-transformers', () => {
  test.each<[string, number | null | undefined, number | undefined, number, RegExp]>([
    ['sentence_bert_config.json decides', 100, 32, 100, /^$/],
    ['without it, tokenizer_config.json', undefined, 32, 32, /rows of up to 32 tokens, as tokenizer_config\.json says/],
    ['with null in it, tokenizer_config.json', null, 32, 32, /up to 32 tokens/],
    [
      'no more than there are positions',
      undefined,
      1e30,
      512,
      /up to 512 tokens, all that the model has positions for/,
    ],
    ['cut to the positions', 4_096, 32, 512, /allows rows of 4096 tokens; the model has positions for 512/],
  ])('%s', async (_, limit, tokenizerLimit, expected, note) => {
    await madeModel('bert-mean', given);
    await edit('sentence_bert_config.json', () => (limit === undefined ? {} : { max_seq_length: limit }));
    await set('tokenizer_config.json', { model_max_length: tokenizerLimit });
    const { model, notes } = await importModel(given, { cacheDir });
    expect(model.defaultMaxTokens).toBe(expected);
    expect(notes.join('\n')).toMatch(note);
  });
});

describe('what is not computed here is refused by its name', () => {
  test.each<[string, RegExp]>([['splade-bert', /architecture is BertForMaskedLM, .*name the pooling: --pooling mean/]])(
    '%s',
    async (family, message) => {
      await madeModel(family, given);
      await expect(bring()).rejects.toEqual(corrupt(message));
    },
  );

  test('a classifier of several labels', async () => {
    await madeModel('cross-encoder-bert', given);
    await set('config.json', { id2label: { 0: 'contradiction', 1: 'entailment', 2: 'neutral' } });
    await expect(bring()).rejects.toEqual(
      corrupt(/BertForSequenceClassification: a model with a head for another task \(a classifier with 3 labels\)/),
    );
  });

  test('a masked language model is taken where somebody names the pooling', async () => {
    await madeModel('splade-bert', given);
    expect(expectEmbedder(await bring({ pooling: 'cls' })).head.poolings).toEqual(['cls']);
  });

  test.each<[string, () => Promise<unknown>, RegExp]>([
    ['a head in the weights', hideHead, /tensor classifier\..* is no part of an encoder/],
    [
      'an adapter',
      () => set('adapter_config.json', { base_model_name_or_path: 'a/b' }),
      /adapter_config\.json: it belongs to an adapter .*of a\/b/,
    ],
    [
      'another kind of model',
      () => set('config_sentence_transformers.json', { model_type: 'CrossEncoder' }),
      /"model_type" is "CrossEncoder"/,
    ],
    [
      'vectors cut to some values',
      () => set('config_sentence_transformers.json', { truncate_dim: 16 }),
      /"truncate_dim" cuts vectors to 16/,
    ],
    [
      'another task',
      () => set('sentence_bert_config.json', { transformer_task: 'fill-mask' }),
      /"transformer_task" is "fill-mask"/,
    ],
    [
      'settings of the tokenizer in another file',
      () => set('sentence_bert_config.json', { tokenizer_args: { a: 1 } }),
      /"tokenizer_args" is set/,
    ],
    [
      'a key that nobody knows',
      () => set('sentence_bert_config.json', { new_thing: 1 }),
      /"new_thing" is not known here/,
    ],
    [
      'a pooling named and not there',
      () => rm(join(given, '1_Pooling'), { recursive: true }),
      /modules\.json: it names 1_Pooling\/config\.json, which is not there/,
    ],
    [
      'a pooling of other width',
      () => set('1_Pooling/config.json', { word_embedding_dimension: 65 }),
      /made for 65 dimensions, and its encoder gives 64/,
    ],
    [
      'a pooling switch of another time',
      () => set('1_Pooling/config.json', { pooling_mode_new: true }),
      /"pooling_mode_new" is not known/,
    ],
    [
      'modules in another order',
      () => edit('modules.json', (json) => (json as unknown as unknown[]).toReversed()),
      /its modules are Normalize, Pooling, Transformer; supported are a Transformer, then a Pooling, then any of/,
    ],
    [
      'no pooling among the modules',
      () => edit('modules.json', (json) => (json as unknown as unknown[]).slice(0, 1)),
      /there is no vector for a text/,
    ],
    [
      'a path that leads out',
      () =>
        edit('modules.json', (json) =>
          (json as unknown as object[]).map((module, at) => (at === 1 ? { ...module, path: '../x' } : module)),
        ),
      /"\.\.\/x" leads out of the folder/,
    ],
    [
      'a module in code of its own',
      () =>
        edit('modules.json', (json) =>
          (json as unknown as object[]).map((module, at) =>
            at === 1 ? { ...module, type: 'custom.Pooling' } : module,
          ),
        ),
      /type custom\.Pooling is not supported/,
    ],
    [
      'another activation',
      () => set('config.json', { hidden_act: 'quick_gelu' }),
      /"hidden_act" is "quick_gelu": only "gelu"/,
    ],
    [
      'weights in few bits',
      () => set('config.json', { quantization_config: { bits: 4 } }),
      /"quantization_config" is \{"bits":4\}/,
    ],
    [
      'padding on no side',
      () => set('tokenizer_config.json', { padding_side: 'middle' }),
      /"padding_side" is "middle", which is no side/,
    ],
    [
      'truncation on the left',
      () => set('tokenizer_config.json', { truncation_side: 'left' }),
      /"truncation_side" is "left"/,
    ],
    [
      'another tokenizer by name',
      () => set('tokenizer_config.json', { tokenizer_class: 'RobertaTokenizerFast' }),
      /"tokenizer_class" is RobertaTokenizerFast/,
    ],
    [
      'a tokenizer in code of its own',
      () => set('tokenizer_config.json', { auto_map: { AutoTokenizer: ['x', null] } }),
      /"auto_map" names a tokenizer/,
    ],
    [
      'another first token',
      () => set('tokenizer_config.json', { cls_token: '[SEP]' }),
      /"cls_token" is "\[SEP\]", whose id is/,
    ],
    [
      'a token that nobody has an id for',
      () => set('tokenizer_config.json', { additional_special_tokens: ['<new>'] }),
      /"<new>", for which .*tokenizer\.json has no id/,
    ],
    [
      'words that are never split',
      () => set('tokenizer_config.json', { never_split: ['a'] }),
      /"never_split" is not empty/,
    ],
    [
      'special tokens that are split',
      () => set('tokenizer_config.json', { split_special_tokens: true }),
      /"split_special_tokens" is true/,
    ],
    [
      'longer words than transformers takes',
      () =>
        edit('tokenizer.json', (json) => ({
          ...json,
          model: { ...(json['model'] as object), max_input_chars_per_word: 200 },
        })),
      /"max_input_chars_per_word" 200; transformers takes "##" and 100/,
    ],
    [
      'capitals that one file keeps and none mentions',
      async () => {
        await madeModel('bert-cased', given);
        await rm(join(given, 'tokenizer_config.json'));
      },
      /"lowercase": false, there is no tokenizer_config\.json, and transformers takes true: say in/,
    ],
    [
      'a key of tokenizer.json that nobody knows',
      () => set('tokenizer.json', { new_thing: 1 }),
      /"new_thing" is not known here/,
    ],
    [
      'an end token with an id of its own',
      () =>
        edit('tokenizer.json', (json) => ({
          ...json,
          post_processor: { type: 'BertProcessing', cls: ['[CLS]', 4_294_967_296], sep: ['[SEP]', 3] },
        })),
      /"\[CLS\]" stands for the id 4294967296, and in the vocabulary for/,
    ],
    [
      'an added token with another id',
      () =>
        edit('tokenizer.json', (json) => ({
          ...json,
          added_tokens: (json['added_tokens'] as { content: string }[]).map((token) =>
            token.content === '[MASK]' ? { ...token, id: 9 } : token,
          ),
        })),
      /"\[MASK\]" has the id 9, and by its place/,
    ],
    [
      'JSON that nests without end',
      () => writeFile(join(given, 'tokenizer.json'), '['.repeat(200_000) + ']'.repeat(200_000)),
      /tokenizer\.json nests deeper than 64 levels/,
    ],
  ])('%s', async (_, damage, message) => {
    await madeModel('bert-mean', given);
    await damage();
    await expect(bring()).rejects.toEqual(corrupt(message));
  });

  test('but a tokenizer that is read as it is keeps longer words, and its capitals', async () => {
    await madeModel('bert-cased', given);
    await set('tokenizer_config.json', { tokenizer_class: 'PreTrainedTokenizerFast', do_lower_case: true });
    await edit('tokenizer.json', (json) => ({
      ...json,
      model: { ...(json['model'] as object), max_input_chars_per_word: 200 },
    }));
    expect(await notesOf()).toMatch(
      /"do_lower_case": true beside a "tokenizer_class" that reads tokenizer\.json as it is; capitals are kept/,
    );
  });
});

/** The one file of weights as two, by an index. */
async function shard(): Promise<void> {
  const { tensors, seed } = JSON.parse(await readFile(madeFile('bert-mean', 'tensors.json'), 'utf8')) as SeededTensors;
  const weightMap: Record<string, string> = {};
  for (const part of [0, 1]) {
    const own = tensors.filter((_, at) => at % 2 === part);
    const name = `model-0000${part + 1}-of-00002.safetensors`;
    await writeFile(join(given, name), seededSafetensors({ seed, tensors: own }));
    for (const [tensor] of own) weightMap[tensor] = name;
  }
  await rm(join(given, 'model.safetensors'));
  await writeFile(join(given, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: weightMap }));
}

describe('weights in several files', () => {
  beforeEach(async () => {
    await madeModel('bert-mean', given);
    await shard();
  });

  test('are read by their index, and the digest of all of them names the graph', async () => {
    const model = await bring();
    expect(await difference(model, 'bert-mean')).toBeLessThan(MOST_DIFFERENCE);
    await madeModel('bert-mean', given);
    const single = await bring({ name: 'single' });
    expect(model.weightsSha256).not.toBe(single.weightsSha256);
  });

  test.each<[string, () => Promise<unknown>, RegExp]>([
    ['one that is not there', () => rm(join(given, 'model-00002-of-00002.safetensors')), /has no model-00002-of-00002/],
    [
      'one that is a pointer',
      () => writeFile(join(given, 'model-00002-of-00002.safetensors'), POINTER),
      /model-00002-of-00002\.safetensors is a Git LFS pointer/,
    ],
    [
      'an index that is a pointer',
      () => writeFile(join(given, 'model.safetensors.index.json'), POINTER),
      /model\.safetensors\.index\.json is a Git LFS pointer/,
    ],
    [
      'one outside of the folder',
      () => set('model.safetensors.index.json', { weight_map: { a: '../secret.safetensors' } }),
      /index\.json: tensor a is said to lie in "\.\.\/secret\.safetensors"/,
    ],
  ])('are refused with %s', async (_, damage, message) => {
    await damage();
    await expect(bring()).rejects.toEqual(corrupt(message));
  });
});

const vocabularyAlone = async (): Promise<void> => {
  const { model } = JSON.parse(await readFile(join(given, 'tokenizer.json'), 'utf8')) as {
    model: { vocab: Record<string, number> };
  };
  const words = Object.entries(model.vocab).toSorted(([, a], [, b]) => a - b);
  expect(words.every(([, id], at) => id === at)).toBe(true);
  await writeFile(join(given, 'vocab.txt'), `${words.map(([word]) => word).join('\n')}\n`);
  await rm(join(given, 'tokenizer.json'));
};

describe('vocab.txt without a tokenizer.json', () => {
  test.each(['bert-mean', 'bert-cased', 'bert-config-keeps-accents'])(
    'gives the same tokens as transformers, by tokenizer_config.json: %s',
    async (family) => {
      await madeModel(family, given);
      await vocabularyAlone();
      const { model, notes } = await importModel(given, { cacheDir });
      expect(notes.join()).toMatch(/no tokenizer\.json: the tokenizer is built from vocab\.txt/);
      expect(await difference(model, family)).toBeLessThan(MOST_DIFFERENCE);
    },
  );

  test.each<[string, () => Promise<unknown>, RegExp]>([
    [
      'of another class',
      () => set('tokenizer_config.json', { tokenizer_class: 'PhobertTokenizer' }),
      /vocab\.txt: there is no tokenizer\.json, and vocab\.txt alone is read of .*is PhobertTokenizer/,
    ],
    [
      'without a word that every text needs',
      () => set('tokenizer_config.json', { cls_token: '<start>' }),
      /vocab\.txt: it has no "<start>", which a text needs \("cls_token"\)/,
    ],
  ])('is refused %s', async (_, damage, message) => {
    await madeModel('bert-mean', given);
    await vocabularyAlone();
    await damage();
    await expect(bring()).rejects.toEqual(corrupt(message));
  });
});

const POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 90868376\n';

describe('files that are not what their names say', () => {
  test('pointers of Git LFS are named all at once, with what fetches them', async () => {
    await madeModel('bert-mean', given);
    for (const path of ['model.safetensors', 'tokenizer.json', '1_Pooling/config.json'])
      await writeFile(join(given, path), POINTER);
    await expect(bring()).rejects.toEqual(
      corrupt(/tokenizer\.json, .*model\.safetensors, .*1_Pooling\/config\.json are Git LFS pointers .*"git lfs pull"/),
    );
  });

  test('a link that leads out of the folder is refused, and nothing of what it leads to is shown', async () => {
    await madeModel('bert-mean', given);
    await writeFile(join(folder, 'secret'), 'hunter2');
    for (const path of ['config.json', 'README.md', '1_Pooling/config.json', 'model.safetensors']) {
      const kept = await readFile(join(given, path)).catch(() => undefined);
      await rm(join(given, path), { force: true });
      await symlink(join(folder, 'secret'), join(given, path));
      const error = await bring().catch((caught: unknown) => caught as Error);
      expect(error).toEqual(corrupt(/is a link that leads out of the folder/));
      expect(String(error)).not.toContain('hunter2');
      await rm(join(given, path));
      if (kept !== undefined) await writeFile(join(given, path), kept);
    }
  });

  test.each<[string, (path: string) => Promise<unknown> | void, RegExp]>([
    ['a link to nothing', (path) => symlink(join(folder, 'nothing'), path), /cannot be followed: ENOENT/],
    ['a link to itself', (path) => symlink(path, path), /cannot be followed: ELOOP/],
    ['a fifo', (path) => void execFileSync('mkfifo', [path]), /is no regular file/],
    ['a folder', (path) => mkdir(path), /is no regular file/],
  ])('%s', async (_, make, message) => {
    await madeModel('bert-mean', given);
    await rm(join(given, 'config.json'));
    await make(join(given, 'config.json'));
    await expect(bring()).rejects.toEqual(corrupt(message));
  });

  test('the links of a snapshot in the hub’s cache are followed into its blobs', async () => {
    await madeModel('bert-mean', given);
    const snapshot = join(folder, 'models--a--b/snapshots/0123');
    await cp(given, snapshot, { recursive: true });
    await mkdir(join(folder, 'models--a--b/blobs'));
    for (const path of ['config.json', 'model.safetensors']) {
      await rename(join(snapshot, path), join(folder, 'models--a--b/blobs', path));
      await symlink(join('../../blobs', path), join(snapshot, path));
    }
    expect((await importModel(snapshot, { cacheDir, name: 'mine' })).model.dims).toBe(64);
  });
});

describe('a graph in onnx/', () => {
  beforeEach(async () => {
    await madeModel('bert-mean', given);
    const plain = await openGraph(await bring({ name: 'plain' }), { cacheDir, kind: 'plain-fp32' });
    await mkdir(join(given, 'onnx'));
    await cp(plain, join(given, 'onnx/model.onnx'));
  });

  test('has its config and tokenizer one folder up', async () => {
    const { model } = await importModel(join(given, 'onnx/model.onnx'), { cacheDir, name: 'graph' });
    expect(model.graphKind).toBe('imported');
    expect(await difference(model, 'bert-mean')).toBeLessThan(MOST_DIFFERENCE);
  });

  test('is taken where a folder has no weights, and said, with those that lie beside it', async () => {
    await rm(join(given, 'model.safetensors'));
    await writeFile(join(given, 'onnx/model_quantized.onnx'), 'another graph');
    const { model, notes } = await importModel(given, { cacheDir, name: 'folder' });
    expect(model.graphKind).toBe('imported');
    expect(notes.join()).toMatch(
      /no model\.safetensors: the graph onnx\/model\.onnx is taken\. There is onnx\/model_quantized\.onnx as well: name/,
    );
    expect(await difference(model, 'bert-mean')).toBeLessThan(MOST_DIFFERENCE);
  });

  test('is named where there are several, and none by the usual name', async () => {
    await rm(join(given, 'model.safetensors'));
    await rename(join(given, 'onnx/model.onnx'), join(given, 'onnx/model_fp32.onnx'));
    await writeFile(join(given, 'onnx/model_quantized.onnx'), 'another graph');
    await expect(bring({ name: 'other' })).rejects.toEqual(
      corrupt(
        /has no model\.safetensors\. There are onnx\/model_fp32\.onnx, onnx\/model_quantized\.onnx: name the graph/,
      ),
    );
  });
});
