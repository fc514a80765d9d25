// Where the parts of a model lie, as sentence-transformers (6.2) takes it from modules.json: the folder of the encoder
// and the modules behind it, in their order. What modules.json names is followed or refused; a part that no graph of
// ours has is refused by its type. Without modules.json the parts are assumed as sentence-transformers assumes them.

import { posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { SourceFolder } from './source-folder.ts';

export interface ModuleLayout {
  /** Folder of the encoder's own files, relative; '' is the model's. */
  readonly encoder: string;
  /** The pooling's config.json, relative; undefined where none is there and nobody named one, and of a reranker. */
  readonly pooling: string | undefined;
  /** Behind the pooling, in this order; paths are relative. */
  readonly modules: readonly PlacedModule[];
  readonly hasModules: boolean;
  /** It is a static model: a table in place of an encoder, without a pooling of its own. */
  readonly isStatic: boolean;
}

export interface PlacedModule {
  readonly kind: 'Dense' | 'LayerNorm' | 'Normalize';
  readonly path: string;
}

export const MODULES = 'modules.json';
const USUAL_POOLING = '1_Pooling/config.json';
/** sentence_transformers.models.Pooling, and since 5.4 sentence_transformers.….modules.pooling.Pooling. */
const TYPE =
  /^sentence_transformers\.(?:[a-z_]+\.)*(Transformer|StaticEmbedding|Pooling|Dense|LayerNorm|Normalize|Dropout)$/;
const SUPPORTED = 'Transformer, StaticEmbedding, Pooling, Dense, LayerNorm, Normalize and Dropout';
const CONFIG = 'config.json';
/** In the config.json of a static model, whatever version of model2vec wrote it. */
const STATIC_KEYS = ['embedding_dtype', 'normalize', 'apply_pca'];

export async function readLayout(source: SourceFolder): Promise<ModuleLayout> {
  if (!(await source.has(MODULES))) {
    const pooling = (await source.has(USUAL_POOLING)) ? USUAL_POOLING : undefined;
    const isStatic =
      pooling === undefined && (await source.has(CONFIG)) && isStaticConfig(await source.readJson(CONFIG));
    return { encoder: '', pooling, modules: [], hasModules: false, isStatic };
  }
  // the file is a list
  const where = posix.join(source.path, MODULES);
  const list = CheckedJson.parse(`{ "modules": ${await source.readText(MODULES)} }`, where).list('modules');
  const all = list
    .map((value, at) => readModule(CheckedJson.of(value, `${where}: module ${at}`)))
    .filter(({ kind }) => kind !== 'Dropout'); // it drops nothing but in training
  if (all[0]?.kind === 'StaticEmbedding') return staticLayout(source, where, all);
  const [encoder, pooling, ...rest] = all;
  const kinds = [encoder, pooling, ...rest].flatMap((module) => module?.kind ?? []);
  if (encoder?.kind === 'Transformer' && pooling === undefined)
    return { encoder: encoder.path, pooling: undefined, modules: [], hasModules: true, isStatic: false };
  const modules = rest.filter((module) => isPlaced(module));
  if (encoder?.kind !== 'Transformer' || pooling?.kind !== 'Pooling' || modules.length < rest.length)
    throw otherModules(where, kinds);
  const config = posix.join(pooling.path, CONFIG);
  await expectNamed(source, where, config);
  await expectConfigs(source, where, modules);
  return { encoder: encoder.path, pooling: config, modules, hasModules: true, isStatic: false };
}

/** MODEL_CORRUPT for a modules.json without Pooling, which is that of a reranker. */
export function expectPooling(source: SourceFolder, { pooling, hasModules }: ModuleLayout): void {
  if (hasModules && pooling === undefined) throw otherModules(posix.join(source.path, MODULES), ['Transformer']);
}

function otherModules(where: string, kinds: readonly string[]): ShoalError {
  return corrupt(
    where,
    `its modules are ${kinds.join(', ') || 'none'}; supported are a Transformer, then a Pooling, then any of Dense, ` +
      `LayerNorm and Normalize${kinds.includes('Pooling') ? '' : '. Without Pooling there is no vector for a text'}`,
  );
}

/** Whether the config.json is one of model2vec, whose early versions name no model_type. */
export function isStaticConfig(json: CheckedJson): boolean {
  if (json.has('model_type')) return json.raw('model_type') === 'model2vec';
  return STATIC_KEYS.some((key) => json.has(key));
}

/** A table, whose rows are averaged, and what comes behind. */
async function staticLayout(
  source: SourceFolder,
  where: string,
  [table, ...rest]: readonly FoundModule[],
): Promise<ModuleLayout> {
  const modules = rest.filter((module) => isPlaced(module));
  const odd = rest.find((module) => !isPlaced(module));
  if (odd !== undefined)
    throw corrupt(where, `a ${odd.kind} stands behind StaticEmbedding; only Dense, LayerNorm and Normalize may`);
  await expectConfigs(source, where, modules);
  return { encoder: table!.path, pooling: undefined, modules, hasModules: true, isStatic: true };
}

async function expectConfigs(source: SourceFolder, where: string, modules: readonly PlacedModule[]): Promise<void> {
  for (const { kind, path } of modules)
    if (kind !== 'Normalize') await expectNamed(source, where, posix.join(path, CONFIG));
}

interface FoundModule {
  readonly kind: string;
  readonly path: string;
}

function isPlaced(module: FoundModule): module is PlacedModule {
  return module.kind === 'Dense' || module.kind === 'LayerNorm' || module.kind === 'Normalize';
}

function readModule(json: CheckedJson): FoundModule {
  const type = json.string('type');
  const kind = TYPE.exec(type)?.[1];
  if (kind === undefined) throw corrupt(json.where, `type ${type} is not supported, only ${SUPPORTED}`);
  const path = json.string('path');
  if (posix.isAbsolute(path) || path.split(/[/\\]/).includes('..'))
    throw corrupt(json.where, `its path ${JSON.stringify(path)} leads out of the folder`);
  return { kind, path: path === '.' ? '' : path };
}

async function expectNamed(source: SourceFolder, where: string, path: string): Promise<void> {
  if (await source.has(path)) return;
  throw corrupt(where, `it names ${path}, which is not there`);
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
