// What the files beside a model say of how it embeds: the longest row, prompts, and whether it is an embedder at all.
// Taken as sentence-transformers 6.2 takes it. A switch that would give other vectors than those computed here is
// refused by its name and value; a model with a head, an adapter or another task is no embedder and is refused as what
// it is.

import { join, posix } from 'node:path';
import { ShoalError, type ModelKind } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { isSequenceClassifier, labelsOf } from '../encoder/score-head.ts';
import type { SourceFolder } from './source-folder.ts';
import { SAVED_BESIDE } from './stored-model.ts';

/** The first that is there is read. */
const LIMIT_FILES = ['bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta', 'xlnet'].map(
  (kind) => `sentence_${kind}_config.json`,
);
const ADAPTER_FILES = ['adapter_config.json', 'adapter_model.safetensors', 'adapter_model.bin'];
/** Positions of these begin behind the padding's own id. */
const POSITIONS_AFTER_PADDING = ['roberta', 'xlm-roberta', 'camembert', 'mpnet'];

/** Without influence on vectors, or with the one value that has none. */
const NEUTRAL_LIMIT_KEYS = [
  'max_seq_length',
  'do_lower_case',
  'unpad_inputs',
  'model_args',
  'model_kwargs',
  'transformer_task',
  'modality_config',
  'module_output_name',
];
/** Taken when they say nothing. */
const EMPTY_LIMIT_KEYS = [
  'tokenizer_args',
  'processor_kwargs',
  'config_args',
  'config_kwargs',
  'processing_kwargs',
  'query_length',
  'document_length',
  'query_expansion',
  'tokenizer_name_or_path',
];

export interface Limits {
  /** Tokens, special ones included. */
  readonly maxTokens: number;
  /** A lowercasing before the tokenizer was asked for. */
  readonly lowercases: boolean;
  readonly notes: readonly string[];
}

export interface LimitFacts {
  /** All that the model has positions for. */
  readonly positions: number;
  /** model_max_length of tokenizer_config.json, where it says one. */
  readonly tokenizerLimit: number | undefined;
  readonly kind: ModelKind;
}

/**
 * sentence_bert_config.json decides where it says a length; else the smaller of what the tokenizer and the positions
 * say. A length beyond the positions is cut to them: sentence-transformers fails on the texts between.
 */
export async function readLimits(source: SourceFolder, encoder: string, facts: LimitFacts): Promise<Limits> {
  const { positions, tokenizerLimit, kind } = facts;
  const path = await firstOf(source, encoder, LIMIT_FILES);
  const json = path === undefined ? undefined : await source.readJson(path);
  if (json !== undefined) refuseOtherInputs(json, kind);
  const lowercases = json !== undefined && json.has('do_lower_case') && json.boolean('do_lower_case');
  if (json?.has('max_seq_length') === true) {
    const asked = json.integer('max_seq_length', 1);
    const notes =
      asked <= positions
        ? []
        : [`${path} allows rows of ${asked} tokens; the model has positions for ${positions}, and those are taken`];
    return { maxTokens: Math.min(asked, positions), lowercases, notes };
  }
  const maxTokens = Math.min(tokenizerLimit ?? positions, positions);
  const why = maxTokens === tokenizerLimit ? 'as tokenizer_config.json says' : 'all that the model has positions for';
  const notes = [`no max_seq_length in ${LIMIT_FILES[0]}: rows of up to ${maxTokens} tokens, ${why}`];
  return { maxTokens, lowercases, notes };
}

/** What the file calls that which the encoder is asked for, and what comes out of it. */
const OUTPUTS: Readonly<Record<ModelKind, readonly [task: string, module: string, method: string]>> = {
  embedder: ['feature-extraction', 'token_embeddings', 'last_hidden_state'],
  reranker: ['sequence-classification', 'scores', 'logits'],
};

function refuseOtherInputs(json: CheckedJson, kind: ModelKind): void {
  const [task, module, method] = OUTPUTS[kind];
  json.expectKeys([...NEUTRAL_LIMIT_KEYS, ...EMPTY_LIMIT_KEYS], 'what it changes about texts or vectors neither');
  for (const key of EMPTY_LIMIT_KEYS)
    if (!isEmpty(json.raw(key)))
      throw corrupt(
        json.where,
        `"${key}" is set, and what it changes is not computed here: only empty it is supported`,
      );
  expectValue(json, 'transformer_task', task);
  expectValue(json, 'module_output_name', module);
  if (!json.has('modality_config')) return;
  const modalities = json.object('modality_config');
  const text = modalities.object('text');
  expectValue(text, 'method', 'forward');
  expectValue(text, 'method_output_name', method);
}

export interface Embedder {
  /** By name, as the file has them. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Name of the one that is put before a text whose job asks for none. */
  readonly defaultPrompt: string | undefined;
  readonly notes: readonly string[];
}

/** What the folder says of prompts and of the kind of model. */
export async function readEmbedder(source: SourceFolder): Promise<Embedder> {
  if (!(await source.has(SAVED_BESIDE))) return { prompts: {}, defaultPrompt: undefined, notes: [] };
  const json = await source.readJson(SAVED_BESIDE);
  expectValue(json, 'model_type', 'SentenceTransformer');
  if (json.has('truncate_dim'))
    throw corrupt(
      json.where,
      `"truncate_dim" cuts vectors to ${String(json.raw('truncate_dim'))} values, which is not done here: ask for ` +
        'fewer dimensions in the job, and take "truncate_dim" out of the file',
    );
  const named = json.has('prompts') ? json.object('prompts') : CheckedJson.of({}, json.where);
  const prompts = Object.fromEntries(named.keys().map((key) => [key, named.has(key) ? named.string(key) : '']));
  const defaultPrompt = json.has('default_prompt_name') ? json.string('default_prompt_name') : undefined;
  const notes: string[] = [];
  if (defaultPrompt !== undefined) {
    if (!Object.hasOwn(prompts, defaultPrompt))
      throw corrupt(
        json.where,
        `"default_prompt_name" is ${JSON.stringify(defaultPrompt)}, which is none of "prompts"`,
      );
    notes.push(
      `its default prompt ${JSON.stringify(defaultPrompt)} (${JSON.stringify(prompts[defaultPrompt])}) goes before ` +
        'every text whose job asks for none, as in sentence-transformers; the prompt "none" leaves it out',
    );
  }
  if (json.has('similarity_fn_name') && json.string('similarity_fn_name') !== 'cosine')
    notes.push(`its authors compare its vectors by ${json.string('similarity_fn_name')}, not by cosine`);
  return { prompts, defaultPrompt, notes };
}

/**
 * Refuses what sentence-transformers saved of a reranker and is not computed here. Prompts that no pair has by itself are
 * left out, with a note.
 */
export async function readReranker(source: SourceFolder): Promise<{ readonly notes: readonly string[] }> {
  if (!(await source.has(SAVED_BESIDE))) return { notes: [] };
  const json = await source.readJson(SAVED_BESIDE);
  expectValue(json, 'model_type', 'CrossEncoder');
  if (json.has('default_prompt_name'))
    throw corrupt(
      json.where,
      `"default_prompt_name" is ${JSON.stringify(json.raw('default_prompt_name'))}: a prompt before every pair is not ` +
        'supported for rerankers. Take "default_prompt_name" out of the file if pairs shall have none',
    );
  const prompts = json.has('prompts') ? json.object('prompts') : CheckedJson.of({}, json.where);
  const named = prompts.keys().filter((key) => prompts.has(key) && prompts.string(key) !== '');
  return {
    notes:
      named.length === 0 ? [] : [`its prompts (${named.join(', ')}) are left out: pairs have none, as its authors say`],
  };
}

/**
 * Which of the kinds that are served it is. Refuses adapters, other classifiers and other tasks: their files hold an
 * encoder, whose vectors nobody trained for texts.
 */
export async function modelKindOf(
  source: SourceFolder,
  encoder: string,
  config: CheckedJson,
  isPoolingNamed: boolean,
): Promise<ModelKind> {
  for (const path of ADAPTER_FILES.flatMap((name) => [name, posix.join(encoder, name)])) {
    if (!(await source.has(path))) continue;
    const base = path.endsWith('.json') ? (await source.readJson(path)).raw('base_model_name_or_path') : undefined;
    throw corrupt(
      join(source.path, path),
      `it belongs to an adapter (LoRA or the like)${typeof base === 'string' ? ` of ${base}` : ''}, not to a whole ` +
        'model: merge it into its model (merge_and_unload() of peft) and import what that saves',
    );
  }
  for (const name of config.has('architectures') ? config.list('architectures').map(String) : []) {
    if (/(?:Model|ForPreTraining)$/.test(name)) continue;
    if (name.endsWith('ForMaskedLM')) {
      if (isPoolingNamed) continue;
      throw corrupt(
        config.where,
        `its architecture is ${name}, and nothing beside it says how its tokens become one vector: it fills in ` +
          'words, or gives sparse vectors (SPLADE). To embed with it all the same, name the pooling: --pooling mean, ' +
          'as sentence-transformers would, or --pooling cls',
      );
    }
    if (isSequenceClassifier(config) && labelsOf(config) === 1) {
      if (!isPoolingNamed) return 'reranker';
      throw corrupt(
        config.where,
        `its architecture is ${name} with one label: it is a reranker (a cross-encoder), which gives scores of pairs, ` +
          'and a pooling is named for it. Its encoder alone gives vectors that nobody trained to be compared: leave the ' +
          'pooling out',
      );
    }
    throw corrupt(
      config.where,
      `its architecture is ${name}: a model with a head for another task (${taskOf(config)}), no embedder. Its encoder ` +
        'alone gives vectors that nobody trained to be compared',
    );
  }
  return 'embedder';
}

function taskOf(config: CheckedJson): string {
  return isSequenceClassifier(config) ? `a classifier with ${labelsOf(config)} labels` : 'of its name';
}

/**
 * Tokens that a row of a graph may have, whose encoder may be one that is not described here: max_position_embeddings
 * under either name, less those that this family never reaches.
 */
export function positionsOf(config: CheckedJson): number {
  const key = ['max_position_embeddings', 'n_positions'].find((name) => config.has(name));
  const all = key === undefined ? 512 : config.integer(key, 1);
  if (!config.has('model_type') || !POSITIONS_AFTER_PADDING.includes(config.string('model_type'))) return all;
  return all - (config.has('pad_token_id') ? config.integer('pad_token_id') : 1) - 1;
}

async function firstOf(source: SourceFolder, folder: string, names: readonly string[]): Promise<string | undefined> {
  for (const name of names) if (await source.has(posix.join(folder, name))) return posix.join(folder, name);
  return undefined;
}

function expectValue(json: CheckedJson, key: string, supported: string): void {
  if (!json.has(key) || json.string(key) === supported) return;
  throw corrupt(
    json.where,
    `"${key}" is ${JSON.stringify(json.string(key))}; only ${JSON.stringify(supported)} is supported`,
  );
}

function isEmpty(value: unknown): boolean {
  return value === undefined || value === null || (typeof value === 'object' && Object.keys(value).length === 0);
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
