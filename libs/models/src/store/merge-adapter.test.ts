// Jina v3 as its authors lay it out, with made weights: each task gives the vectors of its adapter, merged by torch
// (fixtures/jina-lora), with the prompt of the task; what is not as the authors have it is refused.

import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { promptText } from '@shoal/contract';
import { openGraph } from '../graph/open-graph.ts';
import { madeFile, madeModel, madeTexts, seededSafetensors, type SeededTensors } from '../testing/made-models.ts';
import { GraphRunner } from '../testing/onnx-run.ts';
import { HubServer } from '../testing/hub-server.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { importModel, type ImportOptions, type ImportReport } from './import-model.ts';
import { openHubModel, openModel, pullModel } from './model-store.ts';

const TASKS = ['retrieval.query', 'retrieval.passage', 'separation', 'classification', 'text-matching'];
const RANK = 4;
const QUERY = 'Represent the query for retrieving evidence documents: ';
const INSTRUCTIONS = { ...Object.fromEntries(TASKS.map((task) => [task, ''])), 'retrieval.query': QUERY };
/** Every fourth of the made texts, which the reference vectors are of; tried are those that take no seconds. */
const texts = (await madeTexts()).filter((_, at) => at % 4 === 0);
const tried = texts.flatMap((text, at) => (text.length < 1000 ? [at] : []));

let folder: string;
let cacheDir: string;
let given: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-adapter-'));
  cacheDir = join(folder, 'cache');
  given = join(folder, 'jina');
  await writeAuthors();
});
afterEach(() => rm(folder, { recursive: true, force: true }));

type Tensor = SeededTensors['tensors'][number];

/** The made Jina v3 in its authors' files: parametrized weights, their config.json, their Transformer in modules.json. */
async function writeAuthors(change: (tensors: readonly Tensor[]) => readonly Tensor[] = (all) => all): Promise<void> {
  await madeModel('jina-v3', given);
  const { seed, tensors } = JSON.parse(await readFile(madeFile('jina-v3', 'tensors.json'), 'utf8')) as SeededTensors;
  const all = tensors.flatMap(([name, shape, scale, centre]): readonly Tensor[] => {
    const [rows, columns] = shape;
    if (rows === undefined || columns === undefined) return [[name, shape, scale, centre]];
    const stem = `${name.replace(/\.weight$/, '')}.parametrizations.weight.0.lora_`;
    const [a, b] = name.includes('embeddings.')
      ? [
          [rows, RANK],
          [RANK, columns],
        ]
      : [
          [RANK, columns],
          [rows, RANK],
        ];
    return [
      [name, shape, scale, centre],
      [`${stem}A`, [TASKS.length, ...a!], 0.5, 0],
      [`${stem}B`, [TASKS.length, ...b!], 0.5, 0],
    ];
  });
  const isMatrix = new Set(tensors.filter(([, shape]) => shape.length === 2).map(([name]) => name));
  const rename = (name: string): string =>
    `roberta.${isMatrix.has(name) ? name.replace(/\.weight$/, '.parametrizations.weight.original') : name}`;
  await writeFile(join(given, 'model.safetensors'), seededSafetensors({ seed, tensors: change(all) }, rename));
  await edit('config.json', ({ rope_parameters: _rope, dtype: _dtype, ...config }) => ({
    ...config,
    model_type: 'xlm-roberta',
    architectures: ['XLMRobertaLoRA'],
    auto_map: { AutoModel: 'jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA' },
    lora_adaptations: TASKS,
    lora_alpha: 1,
    lora_rank: RANK,
    lora_dropout_p: 0,
    lora_main_params_trainable: false,
    load_trained_adapters: true,
    task_instructions: INSTRUCTIONS,
    matryoshka_dimensions: [32, 64],
    position_embedding_type: 'rotary',
    rotary_emb_base: 20_000,
    emb_pooler: null,
    truncate_dim: null,
    torch_dtype: 'bfloat16',
    use_flash_attn: true,
    output_past: true,
  }));
  await edit('modules.json', (modules) =>
    (modules as unknown as { type: string }[]).map((module, at) =>
      at === 0 ? { ...module, type: 'custom_st.Transformer', kwargs: ['task'] } : module,
    ),
  );
  await edit('config_sentence_transformers.json', (json) => ({ ...json, prompts: INSTRUCTIONS }));
}

async function edit(path: string, change: (json: Record<string, unknown>) => unknown): Promise<void> {
  const json = JSON.parse(await readFile(join(given, path), 'utf8')) as Record<string, unknown>;
  await writeFile(join(given, path), JSON.stringify(change(json)));
}

const bring = (options: Partial<ImportOptions>): Promise<ImportReport> => importModel(given, { cacheDir, ...options });

async function reference(task: string): Promise<readonly Float32Array[]> {
  const bytes = await readFile(new URL(`../../fixtures/jina-lora/${task}.f32`, import.meta.url));
  const values = new Float32Array(Uint8Array.from(bytes).buffer);
  const dims = values.length / texts.length;
  return texts.map((_, at) => values.subarray(at * dims, (at + 1) * dims));
}

test.each(['retrieval.query', 'text-matching', 'none'])('the vectors of %s are those of torch', async (task) => {
  const { model } = await bring({ task, name: 'jina' });
  const tokenizer = await openTokenizer(model);
  const runner = await GraphRunner.open(await openGraph(model, { cacheDir }), model);
  const prompt = promptText(model, undefined);
  const found = await runner.run(tried.map((at) => [...tokenizer.encode(prompt + texts[at]!).ids]));
  await runner.release();
  const expected = await reference(task);
  const apart = found.flatMap((vector, at) =>
    [...vector].map((value, k) => Math.abs(value - expected[tried[at]!]![k]!)),
  );
  expect(apart.length).toBeGreaterThan(500);
  expect(Math.max(...apart)).toBeLessThan(2e-6);
});

test('two tasks are two models, each with its own prompt and nothing else left beside', async () => {
  const query = await bring({ task: 'retrieval.query', name: 'jina-query' });
  const matching = await bring({ task: 'text-matching', name: 'jina-matching' });
  expect(query.model).toMatchObject({ prompts: { 'retrieval.query': QUERY }, defaultPrompt: 'retrieval.query' });
  expect(matching.model.prompts).toEqual({});
  expect(matching.model.defaultPrompt).toBeUndefined();
  expect(query.model.weightsSha256).not.toBe(matching.model.weightsSha256);
  expect(query.notes).toContain('the adapter of its task "retrieval.query" is merged into its weights');
  const entries = await readdir(join(cacheDir, 'models'), { recursive: true });
  expect(entries.filter((entry) => entry.includes('.part'))).toEqual([]);
});

test('a pull merges the adapter of its task as an import does, and tells two tasks apart', async () => {
  const imported = (await bring({ task: 'text-matching', name: 'imported' })).model;
  const hub = await HubServer.start();
  try {
    const paths = (await readdir(given, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
    const read = async (path: string): Promise<[string, Buffer]> => [
      path.slice(given.length + 1),
      await readFile(path),
    ];
    const files = await Promise.all(paths.map((entry) => read(join(entry.parentPath, entry.name))));
    hub.publish('Org/jina', Object.fromEntries(files));
    const environment = { HOME: folder, HF_ENDPOINT: hub.endpoint };
    const prove = async (): Promise<{ ids: number[]; vector: Float32Array }> => ({
      ids: [1],
      vector: new Float32Array(imported.dims).fill(imported.dims ** -0.5),
    });
    const options = { cacheDir, environment, prove };
    await expect(pullModel('Org/jina', { ...options, task: 'query' })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(/--task query was asked for, and .*config\.json has retrieval\.query, /) as string,
    });
    expect(hub.seen.filter(({ host }) => host === 'cdn')).toEqual([]); // no weights were fetched
    const { model, notes } = await openHubModel('Org/jina', { ...options, task: 'text-matching' });
    expect(model.name).toBe('org--jina-text-matching');
    expect(model.weightsSha256).toBe(imported.weightsSha256);
    expect(notes).toContain(
      'the adapter of its task "text-matching" is merged into its weights, and that task has no prompt',
    );
    expect(await openModel('Org/jina', { cacheDir, allowFetch: false })).toEqual(model);
    const query = await pullModel('Org/jina', { ...options, task: 'retrieval.query' });
    expect(query).toMatchObject({ name: 'org--jina-retrieval-query', defaultPrompt: 'retrieval.query' });
    await expect(openModel('Org/jina', { cacheDir, allowFetch: false })).rejects.toMatchObject({ code: 'USAGE' });
    const taken = { ...options, task: 'text-matching', name: query.name };
    await expect(pullModel('Org/jina', taken)).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(/would be called .*-query, .* with the adapter of retrieval\.query/) as string,
    });
    await hub.stop();
    expect(await pullModel('Org/jina', { ...options, task: 'text-matching' })).toEqual(model); // from the store
  } finally {
    await hub.stop();
  }
});

test('without a task it is refused with the names of the tasks, and so is another', async () => {
  await expect(bring({})).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringMatching(
      /config\.json has an adapter for each of retrieval\.query, .*, text-matching: name one with --task, or take --task none/,
    ) as string,
  });
  await expect(bring({ task: 'query' })).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringMatching(/--task query was asked for, and .*config\.json has retrieval\.query, /) as string,
  });
  await madeModel('bert-mean', given);
  await expect(bring({ task: 'query' })).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringMatching(/--task query was asked for, and .*config\.json names no adapters/) as string,
  });
});

test.each<[string, Record<string, unknown>, RegExp]>([
  ['adapters that nobody trained', { load_trained_adapters: false }, /jina\/config\.json: "load_trained_adapters" is/],
  ['another rank', { lora_rank: 8 }, /jina\/model\.safetensors: tensor .*lora_A should have the shape \[5, /],
  ['a task too many', { lora_adaptations: [...TASKS, 'more'] }, /tensor .*lora_A should have the shape \[6, /],
  ['learned positions', { position_embedding_type: 'absolute' }, /"position_embedding_type" should be "rotary"/],
  ['no theta', { rotary_emb_base: undefined }, /"rotary_emb_base" should be a number above 0, found nothing/],
  ['a size that is left out', { layer_norm_eps: undefined }, /"layer_norm_eps" should be a number above 0/],
  ['a pooler', { emb_pooler: 'cls' }, /"emb_pooler" is set, and what it changes is not done here/],
  ['a key that nobody knows', { num_experts: 2 }, /jina\/config\.json: "num_experts" is 2: it is not known here/],
  [
    'two prompts of a task',
    { task_instructions: { ...INSTRUCTIONS, 'text-matching': 'Match: ' } },
    /"text-matching" is "", and "Match: " in config\.json/,
  ],
])('%s: refused by file and key, with nothing kept', async (_, values, message) => {
  await edit('config.json', (config) => ({ ...config, ...values }));
  await expect(bring({ task: 'text-matching' })).rejects.toMatchObject({
    code: 'MODEL_CORRUPT',
    message: expect.stringMatching(message) as string,
  });
  expect((await readdir(join(cacheDir, 'models'))).filter((entry) => entry !== '.import.lock')).toEqual([]);
});

test('an adapter with a part missing, or with nothing to adapt, is refused by its tensor', async () => {
  await writeAuthors((all) => all.filter(([name]) => !/layers\.0\.mlp\.fc1\..*lora_B$/.test(name)));
  await expect(bring({ task: 'none' })).rejects.toThrow(
    /tensor roberta\.encoder\.layers\.0\.mlp\.fc1\..*lora_B is missing/,
  );
  await writeAuthors((all) => all.filter(([name]) => name !== 'encoder.layers.0.mlp.fc1.weight'));
  await expect(bring({ task: 'none' })).rejects.toThrow(
    /lora_A adapts .*fc1\.parametrizations\.weight\.original, which is/,
  );
});
