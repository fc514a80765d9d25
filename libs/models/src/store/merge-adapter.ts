// Jina v3 as its authors publish it: one encoder and an adapter (LoRA) for each task, in one file. One task's adapter is
// added to the weights once, when the model is imported; what is imported is a plain encoder in the spelling of
// transformers, with the prompt of the task before every text. Another task is another import, with a queue of its own.
//   linear layers  W [out, in] + alpha ÷ rank · B [out, rank] · A [rank, in]
//   tables         W [rows, size] + alpha ÷ rank · A [rows, rank] · B [rank, size]
// As the authors' code has it (jinaai/xlm-roberta-flash-implementation), which adds it in every run.

import { mkdir, open, writeFile, type FileHandle } from 'node:fs/promises';
import { dirname, join, posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson, quoted } from '../checked-json.ts';
import { WEIGHTS_FILE } from '../graph/named-tensors.ts';
import { Safetensors, safetensorsHead } from '../graph/safetensors.ts';
import type { SourceFolder } from './source-folder.ts';

const CONFIG = 'config.json';
const MODULES = 'modules.json';
const PROMPTS = 'config_sentence_transformers.json';
/** What an import reads beside config, modules, prompts and weights. */
const BESIDE =
  /^(?:tokenizer.*\.json|special_tokens_map\.json|added_tokens\.json|sentence_\w+_config\.json|README\.md|LICEN[CS]E)$/;
/** The encoder without any adapter: what sentence-transformers computes where nobody names a task. */
const NO_TASK = 'none';

/** Of the authors' config.json: read here, or without influence on a merged model. */
const OF_ADAPTERS = [
  'model_type',
  'architectures',
  'auto_map',
  'lora_adaptations',
  'lora_alpha',
  'lora_rank',
  'lora_dropout_p',
  'lora_main_params_trainable',
  'load_trained_adapters',
  'task_instructions',
  'matryoshka_dimensions',
  'position_embedding_type',
  'rotary_emb_base',
  'emb_pooler',
  'truncate_dim',
];
/** What the authors' code takes for these where they are left out is something else than transformers takes. */
const SIZES = [
  'vocab_size',
  'hidden_size',
  'num_hidden_layers',
  'num_attention_heads',
  'intermediate_size',
  'max_position_embeddings',
  'type_vocab_size',
];

interface Adapters {
  readonly tasks: readonly string[];
  readonly rank: number;
  readonly scale: number;
}

/** Whether this config.json is of a model with an adapter for each task. */
export function hasAdapters(config: CheckedJson): boolean {
  return config.has('lora_adaptations');
}

/**
 * Fills the folder `into`, which is made, with the model that this task's adapter makes, and resolves to notes about it;
 * undefined, with nothing made, for a model without adapters. USAGE where no task is named, or one that the model has
 * not; MODEL_CORRUPT for files that are not as the authors have them.
 */
export async function mergeAdapter(
  source: SourceFolder,
  task: string | undefined,
  into: string,
): Promise<readonly string[] | undefined> {
  const begun = await mergeSmallFiles(source, task, into);
  if (begun === undefined) return undefined;
  await mergeWeights(source, into, begun);
  return begun.notes;
}

export interface BegunMerge {
  readonly adapters: Adapters;
  readonly task: string;
  readonly notes: readonly string[];
}

/** As `mergeAdapter`, all but the weights. */
export async function mergeSmallFiles(
  source: SourceFolder,
  task: string | undefined,
  into: string,
): Promise<BegunMerge | undefined> {
  const config = (await source.has(CONFIG)) ? await source.readJson(CONFIG) : CheckedJson.of({}, CONFIG);
  if (!hasAdapters(config)) {
    if (task === undefined) return undefined;
    throw usage(
      `--task ${task} was asked for, and ${join(source.path, CONFIG)} names no adapters: leave it out`,
      source,
    );
  }
  const adapters = readAdapters(config);
  if (task === undefined)
    throw usage(
      `${config.where} has an adapter for each of ${adapters.tasks.join(', ')}: name one with --task, or take ` +
        `--task ${NO_TASK} for the encoder without any, as sentence-transformers does where no task is named. Each ` +
        'import is a model of its own, with a queue of its own (--name)',
      source,
    );
  if (task !== NO_TASK && !adapters.tasks.includes(task))
    throw usage(
      `--task ${task} was asked for, and ${config.where} has ${adapters.tasks.join(', ')} and ${NO_TASK}`,
      source,
    );
  await source.refusePointers([CONFIG, MODULES, PROMPTS, WEIGHTS_FILE]);
  await mkdir(into, { recursive: true });
  await writeJson(join(into, CONFIG), plainConfig(config));
  await copySmallFiles(source, into);
  const prompt = await writePrompts(source, config, task, into);
  const note =
    task === NO_TASK
      ? 'its adapters are left out, as in sentence-transformers where no task is named'
      : `the adapter of its task ${quoted(task)} is merged into its weights` +
        (prompt === '' ? ', and that task has no prompt' : '');
  return { adapters, task, notes: [note] };
}

function readAdapters(config: CheckedJson): Adapters {
  if (config.string('model_type') !== 'xlm-roberta')
    throw corrupt(config.where, '"lora_adaptations" is known here beside the "model_type" "xlm-roberta" alone');
  if (config.string('position_embedding_type') !== 'rotary')
    throw corrupt(config.where, '"position_embedding_type" should be "rotary" beside "lora_adaptations"');
  if (!config.boolean('load_trained_adapters'))
    throw corrupt(config.where, '"load_trained_adapters" is false: its file holds adapters that nobody trained');
  for (const key of ['emb_pooler', 'truncate_dim'])
    if (config.has(key)) throw corrupt(config.where, `${quoted(key)} is set, and what it changes is not done here`);
  const tasks = config.list('lora_adaptations').map(String);
  if (tasks.length === 0 || new Set(tasks).size < tasks.length || tasks.includes(NO_TASK))
    throw corrupt(config.where, '"lora_adaptations" should be names of tasks, each once');
  const rank = config.integer('lora_rank', 1);
  return { tasks, rank, scale: config.positive('lora_alpha') / rank };
}

/** The same encoder without adapters, as transformers spells it. */
function plainConfig(config: CheckedJson): object {
  for (const key of SIZES) config.integer(key, 1);
  config.positive('layer_norm_eps');
  config.string('hidden_act');
  const kept = config.keys().filter((key) => !OF_ADAPTERS.includes(key));
  return {
    ...Object.fromEntries(kept.map((key) => [key, config.raw(key)])),
    model_type: 'jina_embeddings_v3',
    architectures: ['JinaEmbeddingsV3Model'],
    rope_parameters: { rope_type: 'default', rope_theta: config.positive('rotary_emb_base') },
  };
}

/** modules.json names the authors' own Transformer, which takes a task in each call and is a Transformer otherwise. */
async function copySmallFiles(source: SourceFolder, into: string): Promise<void> {
  for (const name of await source.list()) if (BESIDE.test(name)) await source.copy(name, join(into, name));
  if (!(await source.has(MODULES))) return;
  const where = join(source.path, MODULES);
  const modules = CheckedJson.parse(`{ "modules": ${await source.readText(MODULES)} }`, where)
    .list('modules')
    .map((module, at) => CheckedJson.of(module, `${where}: module ${at}`));
  const plain = modules.map((module) => {
    const type = module.string('type');
    const isAuthors = type === 'custom_st.Transformer';
    return { path: module.string('path'), type: isAuthors ? 'sentence_transformers.models.Transformer' : type };
  });
  await writeJson(join(into, MODULES), plain);
  for (const { path } of plain)
    for (const file of [CONFIG, WEIGHTS_FILE].map((name) => posix.join(path, name)))
      if (path !== '' && (await source.has(file))) await source.copy(file, join(into, file));
}

/** The prompt of the task alone, before every text; '' for none. Without a task those of the file, as they are. */
async function writePrompts(source: SourceFolder, config: CheckedJson, task: string, into: string): Promise<string> {
  const json = (await source.has(PROMPTS)) ? await source.readJson(PROMPTS) : CheckedJson.of({}, PROMPTS);
  const rest = Object.fromEntries(json.keys().map((key) => [key, json.raw(key)]));
  if (task === NO_TASK) {
    await writeJson(join(into, PROMPTS), rest);
    return '';
  }
  const found = [
    ...(config.has('task_instructions') ? [config.object('task_instructions')] : []),
    ...(json.has('prompts') ? [json.object('prompts')] : []),
  ].filter((prompts) => prompts.has(task));
  const said = new Set(found.map((prompts) => prompts.string(task)));
  if (said.size > 1)
    throw corrupt(
      found[1]!.where,
      `${quoted(task)} is ${quoted(found[1]!.string(task))}, and ${quoted(found[0]!.string(task))} in ${CONFIG}`,
    );
  const [prompt = ''] = said;
  await writeJson(join(into, PROMPTS), {
    ...rest,
    prompts: prompt === '' ? {} : { [task]: prompt },
    default_prompt_name: prompt === '' ? null : task,
  });
  return prompt;
}

const ORIGINAL = '.parametrizations.weight.original';
const PART = /\.parametrizations\.weight\.0\.lora_[AB]$/;

/** One file of F32, tensor by tensor, in the memory of the largest. */
async function mergeWeights(source: SourceFolder, into: string, { adapters, task }: BegunMerge): Promise<void> {
  if (!(await source.has(WEIGHTS_FILE)))
    throw corrupt(join(source.path, WEIGHTS_FILE), 'is not there; adapters are merged out of this one file');
  const path = join(source.path, WEIGHTS_FILE);
  await Safetensors.use(path, async (file) => {
    const names = file.names.filter((name) => !PART.test(name)).toSorted();
    for (const part of file.names.filter((name) => PART.test(name)))
      if (!file.has(part.replace(PART, ORIGINAL)))
        throw corrupt(path, `tensor ${part} adapts ${part.replace(PART, ORIGINAL)}, which is not there`);
    if (!names.some((name) => name.endsWith(ORIGINAL)))
      throw corrupt(path, `no tensor ends in ${ORIGINAL}, and ${CONFIG} says that there are adapters`);
    const target = await open(join(into, WEIGHTS_FILE), 'wx');
    try {
      const tensors = names.map((name) => ({
        name: name.replace(ORIGINAL, '.weight'),
        dtype: 'F32' as const,
        shape: file.shape(name),
      }));
      await target.writeFile(safetensorsHead(tensors, { format: 'pt' }));
      for (const name of names) await writeValues(target, await merged(file, name, adapters, task));
    } finally {
      await target.close();
    }
  });
}

async function merged(file: Safetensors, name: string, adapters: Adapters, task: string): Promise<Float32Array> {
  const shape = file.shape(name);
  file.expect(name, shape);
  const values = await file.read(name);
  if (!name.endsWith(ORIGINAL)) return values;
  const [rows, columns, ...more] = shape;
  if (rows === undefined || columns === undefined || more.length > 0)
    throw corrupt(file.path, `tensor ${name} has the shape [${shape.join(', ')}]; adapters are for matrices`);
  const { tasks, rank, scale } = adapters;
  const part = (letter: string): string => name.replace(ORIGINAL, `.parametrizations.weight.0.lora_${letter}`);
  const isTable = /(?:^|\.)embeddings\.\w+\.parametrizations\./.test(name);
  const [left, right] = isTable ? [part('A'), part('B')] : [part('B'), part('A')];
  file.expect(left, [tasks.length, rows, rank]);
  file.expect(right, [tasks.length, rank, columns]);
  if (task === NO_TASK) return values;
  const at = tasks.indexOf(task);
  const ofTask = async (full: string, size: number): Promise<Float32Array> =>
    (await file.read(full)).subarray(at * size, (at + 1) * size);
  addProduct(values, await ofTask(left, rows * rank), await ofTask(right, rank * columns), { rank, columns, scale });
  return values;
}

/** values [rows, columns] += scale · left [rows, rank] · right [rank, columns]. */
function addProduct(
  values: Float32Array,
  left: Float32Array,
  right: Float32Array,
  { rank, columns, scale }: { readonly rank: number; readonly columns: number; readonly scale: number },
): void {
  for (let row = 0; row < values.length / columns; row++)
    for (let column = 0; column < columns; column++) {
      let sum = 0;
      for (let at = 0; at < rank; at++) sum += left[row * rank + at]! * right[at * columns + column]!;
      values[row * columns + column]! += Math.fround(sum) * scale;
    }
}

function writeValues(file: FileHandle, values: Float32Array): Promise<void> {
  return file.writeFile(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

async function writeJson(path: string, value: unknown): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, `${JSON.stringify(value)}\n`);
}

function usage(message: string, { path }: SourceFolder): ShoalError {
  return new ShoalError('USAGE', message, { folder: path });
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
