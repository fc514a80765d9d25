// What the modules of sentence-transformers (6.2) behind an encoder do, from their config.json: one SentenceHead. A
// setting that would give other vectors than those computed here is refused by its file, name and value.

import { join, posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import {
  ACTIVATIONS,
  POOLINGS,
  type Activation,
  type HeadModule,
  type HeadWeights,
  type Pooling,
  type SentenceHead,
} from '../graph/sentence-head.ts';
import type { PlacedModule } from './module-layout.ts';
import type { SourceFolder } from './source-folder.ts';

export const MODULE_WEIGHTS = 'model.safetensors';

/** `sha256Of`: of a file inside the folder, by its relative path. */
export async function readModules(
  source: SourceFolder,
  modules: readonly PlacedModule[],
  sha256Of: (path: string) => string,
): Promise<SentenceHead['modules']> {
  const read: HeadModule[] = [];
  for (const { kind, path } of modules) read.push(await readModule(source, kind, path, sha256Of));
  return read;
}

async function readModule(
  source: SourceFolder,
  kind: PlacedModule['kind'],
  path: string,
  sha256Of: (path: string) => string,
): Promise<HeadModule> {
  if (kind === 'Normalize') {
    await expectPlainNormalize(source, path);
    return { kind: 'normalize' };
  }
  const weights = await weightsOf(source, path, sha256Of);
  const json = await source.readJson(posix.join(path, 'config.json'));
  return kind === 'Dense' ? readDense(json, weights) : readLayerNorm(json, weights);
}

async function weightsOf(source: SourceFolder, path: string, sha256Of: (path: string) => string): Promise<HeadWeights> {
  const file = posix.join(path, MODULE_WEIGHTS);
  if (await source.has(file)) return { path: join(source.path, file), sha256: sha256Of(file) };
  const older = posix.join(path, 'pytorch_model.bin');
  const hint = (await source.has(older))
    ? `. There is ${older}: load the model with sentence-transformers and save it again, as safetensors`
    : '';
  throw corrupt(join(source.path, path), `has no ${MODULE_WEIGHTS}${hint}`);
}

function readDense(json: CheckedJson, weights: HeadWeights): HeadModule {
  json.expectKeys(
    [
      'in_features',
      'out_features',
      'bias',
      'activation_function',
      'module_input_name',
      'module_output_name',
      'use_residual',
    ],
    'a Dense that does more gives other vectors',
  );
  expectSentences(json);
  if (json.has('use_residual') && json.boolean('use_residual'))
    throw corrupt(json.where, '"use_residual" is true; only a Dense without a way around it is supported');
  return {
    kind: 'dense',
    inputs: json.integer('in_features', 1),
    outputs: json.integer('out_features', 1),
    hasBias: json.has('bias') ? json.boolean('bias') : true,
    activation: json.has('activation_function') ? readActivation(json) : 'Tanh',
    weights,
  };
}

/** By the class of torch.nn, whichever module of it is named. */
function readActivation(json: CheckedJson): Activation {
  const full = json.string('activation_function');
  const name = /^torch\.nn\.(?:modules\.)?(?:activation\.|linear\.)?([A-Za-z]+)$/.exec(full)?.[1];
  const known = ACTIVATIONS.find((activation) => activation === name);
  if (known !== undefined) return known;
  throw corrupt(
    json.where,
    `"activation_function" is ${JSON.stringify(full)}; supported are ${ACTIVATIONS.join(', ')} of torch.nn`,
  );
}

function readLayerNorm(json: CheckedJson, weights: HeadWeights): HeadModule {
  json.expectKeys(['dimension'], 'a LayerNorm that does more gives other vectors');
  return { kind: 'layer-norm', size: json.integer('dimension', 1), weights };
}

/** Since 5.4 a Normalize has a config, which may name another vector than the pooled one. */
async function expectPlainNormalize(source: SourceFolder, path: string): Promise<void> {
  const config = posix.join(path, 'config.json');
  if (path === '' || !(await source.has(config))) return;
  const json = await source.readJson(config);
  json.expectKeys(['module_input_name', 'module_output_name'], 'a Normalize that does more gives other vectors');
  expectSentences(json);
}

/** A module may be told to work on something else than the vector of the row. */
function expectSentences(json: CheckedJson): void {
  for (const key of ['module_input_name', 'module_output_name']) {
    const value = json.has(key) ? json.string(key) : 'sentence_embedding';
    if (value !== 'sentence_embedding') throw corrupt(json.where, `"${key}" is ${value}; only sentence_embedding is`);
  }
}

// ---- pooling ----------------------------------------------------------------------------------------------------

const POOLING_SWITCHES: Readonly<Record<string, Pooling>> = {
  pooling_mode_cls_token: 'cls',
  pooling_mode_max_tokens: 'max',
  pooling_mode_mean_tokens: 'mean',
  pooling_mode_mean_sqrt_len_tokens: 'mean_sqrt_len_tokens',
  pooling_mode_weightedmean_tokens: 'weightedmean',
  pooling_mode_lasttoken: 'lasttoken',
};
const POOLING_KEYS = [
  ...Object.keys(POOLING_SWITCHES),
  'pooling_mode',
  'include_prompt',
  'embedding_dimension',
  'word_embedding_dimension',
];

/** Of a pooling's config.json, as sentence-transformers reads it: by one name since 5.4, by a switch each before. */
export function readPoolings(json: CheckedJson): readonly Pooling[] {
  json.expectKeys(POOLING_KEYS, 'a pooling that does more would give other vectors');
  if (json.has('include_prompt') && !json.boolean('include_prompt'))
    throw corrupt(
      json.where,
      '"include_prompt": false is not supported: the tokens of a prompt are part of every pooling here, and other ' +
        'vectors would come out. Without prompts it changes nothing: then set it to true',
    );
  const chosen = json.has('pooling_mode') ? namedModes(json) : switchedModes(json);
  if (chosen.length === 0) throw corrupt(json.where, 'it has no pooling, and without one there is no vector');
  if (new Set(chosen).size < chosen.length)
    throw corrupt(json.where, `"pooling_mode" has ${chosen.join(', ')}: the same pooling twice is not supported`);
  return chosen;
}

/** The width that the pooling was made for; undefined where it does not say. */
export function pooledWidth(json: CheckedJson): number | undefined {
  const key = ['embedding_dimension', 'word_embedding_dimension'].find((name) => json.has(name));
  return key === undefined ? undefined : json.integer(key, 1);
}

/** One name or a list of them. */
function namedModes(json: CheckedJson): readonly Pooling[] {
  const mode = json.raw('pooling_mode');
  const names = Array.isArray(mode) ? mode.map(String) : [json.string('pooling_mode')];
  return names.map((name) => {
    const known = POOLINGS.find((pooling) => pooling === name);
    if (known !== undefined) return known;
    throw corrupt(json.where, `"pooling_mode" is ${JSON.stringify(name)}; supported are ${POOLINGS.join(', ')}`);
  });
}

/** Without any that is on, the mean, unless just that is said to be off. */
function switchedModes(json: CheckedJson): readonly Pooling[] {
  const chosen = Object.keys(POOLING_SWITCHES).filter((key) => json.has(key) && json.boolean(key));
  if (chosen.length === 0 && !json.has('pooling_mode_mean_tokens')) return ['mean'];
  return chosen.map((key) => POOLING_SWITCHES[key]!);
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
