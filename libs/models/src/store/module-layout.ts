// Where the parts of a model lie and what is made of them, as sentence-transformers (6.2) takes it from modules.json:
// the folder of the encoder, the folder of the pooling, whether vectors are brought to length 1. What modules.json
// names is followed or refused; a part that no graph of ours has is refused by its type. Without modules.json the parts
// are assumed as sentence-transformers assumes them.

import { posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { SourceFolder } from './source-folder.ts';

export interface ModuleLayout {
  /** Folder of the encoder's own files, relative; '' is the model's. */
  readonly encoder: string;
  /** The pooling's config.json, relative; undefined where none is there and nobody named one. */
  readonly pooling: string | undefined;
  readonly isNormalized: boolean;
  readonly hasModules: boolean;
}

const MODULES = 'modules.json';
const USUAL_POOLING = '1_Pooling/config.json';
/** sentence_transformers.models.Pooling, and since 5.4 sentence_transformers.….modules.pooling.Pooling. */
const TYPE = /^sentence_transformers\.(?:[a-z_]+\.)*(Transformer|Pooling|Normalize)$/;
const ORDER = ['Transformer', 'Pooling', 'Normalize'];

export async function readLayout(source: SourceFolder): Promise<ModuleLayout> {
  if (!(await source.has(MODULES))) {
    const pooling = (await source.has(USUAL_POOLING)) ? USUAL_POOLING : undefined;
    return { encoder: '', pooling, isNormalized: false, hasModules: false };
  }
  // the file is a list
  const where = posix.join(source.path, MODULES);
  const list = CheckedJson.parse(`{ "modules": ${await source.readText(MODULES)} }`, where).list('modules');
  const modules = list.map((value, at) => readModule(CheckedJson.of(value, `${where}: module ${at}`)));
  const kinds = modules.map(({ kind }) => kind);
  const expected = ORDER.slice(0, kinds.length).join();
  if (kinds.length < 2 || kinds.join() !== expected)
    throw corrupt(
      where,
      `its modules are ${kinds.join(', ') || 'none'}; supported are Transformer, Pooling and perhaps Normalize, ` +
        `in this order${kinds.includes('Pooling') ? '' : '. Without Pooling there is no vector for a text'}`,
    );
  const [encoder, pooling, normalize] = modules;
  if (normalize !== undefined) await expectPlainNormalize(source, normalize.path);
  const config = posix.join(pooling!.path, 'config.json');
  await expectNamed(source, where, config);
  return { encoder: encoder!.path, pooling: config, isNormalized: normalize !== undefined, hasModules: true };
}

function readModule(json: CheckedJson): { readonly kind: string; readonly path: string } {
  const type = json.string('type');
  const kind = TYPE.exec(type)?.[1];
  if (kind === undefined)
    throw corrupt(json.where, `type ${type} is not supported, only Transformer, Pooling and Normalize`);
  const path = json.string('path');
  if (posix.isAbsolute(path) || path.split(/[/\\]/).includes('..'))
    throw corrupt(json.where, `its path ${JSON.stringify(path)} leads out of the folder`);
  return { kind, path };
}

/** Since 5.4 a Normalize has a config, which may name another vector than the pooled one. */
async function expectPlainNormalize(source: SourceFolder, path: string): Promise<void> {
  const config = posix.join(path, 'config.json');
  if (path === '' || !(await source.has(config))) return;
  const json = await source.readJson(config);
  json.expectKeys(['module_input_name', 'module_output_name'], 'a Normalize that does more gives other vectors');
  for (const key of json.keys()) {
    const value = json.string(key);
    if (value !== 'sentence_embedding') throw corrupt(json.where, `"${key}" is ${value}; only sentence_embedding is`);
  }
}

async function expectNamed(source: SourceFolder, where: string, path: string): Promise<void> {
  if (await source.has(path)) return;
  throw corrupt(where, `it names ${path}, which is not there`);
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
