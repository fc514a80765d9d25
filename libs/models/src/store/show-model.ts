// Everything that is known of one stored model, from its files and from where it came: what `shoal model show` prints.
// Opens it as a worker would, runs nothing and changes nothing.

import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isShoalError, queueOf } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { graphPaths } from '../graph/open-graph.ts';
import type { HubOrigin } from '../hub/hub-origin.ts';
import { knownHubModel } from '../hub/known-hub-models.ts';
import type { DerivedFacts } from './derived-facts.ts';
import { pinnedFiles } from './known-models.ts';
import { findModel, folderOf, isFolder, notStored, openKnown } from './model-store.ts';
import type { StoreOptions } from './store-folders.ts';
import { readDescription, type StoredModel } from './stored-model.ts';

export interface ModelDetails {
  readonly model: StoredModel;
  readonly description: string;
  readonly attribution: string;
  /** `model_type` of its config.json. */
  readonly architecture: string;
  /** Kind of its tokenizer, by tokenizer.json. */
  readonly tokenizer: string;
  readonly queue: string;
  /** Numbers in its tensors; undefined of a model that came as a graph. */
  readonly values: number | undefined;
  /** Of those, numbers in the table of its words; undefined of a model that came as a graph, and of a static one. */
  readonly wordValues: number | undefined;
  readonly files: readonly { readonly path: string; readonly bytes: number; readonly sha256: string }[];
  readonly graphs: readonly { readonly path: string; readonly bytes: number }[];
  readonly notes: readonly string[];
  /** Set for a model that was pulled. */
  readonly hub: HubOrigin | undefined;
  /** Set for the int8 or f16 form of another model: how near it comes. */
  readonly derived: DerivedFacts | undefined;
  /** The commit that Shoal knows of its repository. */
  readonly knownCommit: string | undefined;
}

/** Tensors of the largest models have names and shapes of some hundred kilobytes. */
const MOST_HEADER_BYTES = 100_000_000;

/** MODEL_UNAVAILABLE when it is not stored. */
export async function showModel(name: string, options: StoreOptions): Promise<ModelDetails> {
  const known = await findModel(name, options);
  const folder = folderOf(known, options);
  if (!(await isFolder(folder))) throw notStored(known, folder);
  const model = await openKnown(known, { ...options, allowFetch: false });
  const pins = pinnedFiles(known);
  const hub = known.origin === 'imported' ? known.hub : undefined;
  const weights = Object.keys(pins).filter((path) => path.endsWith('.safetensors'));
  const graphs = await graphPaths(known.name, options.cacheDir);
  return {
    model,
    description: known.description,
    attribution: known.attribution,
    architecture: await fact(join(folder, 'config.json'), (json) => json.string('model_type')),
    tokenizer: await fact(join(folder, 'tokenizer.json'), (json) => json.object('model').string('type')),
    queue: queueOf(model),
    values: weights.length === 0 ? undefined : await valuesOf(weights.map((path) => join(folder, path))),
    wordValues: weights.length === 0 ? undefined : await wordValuesOf(folder),
    files: Object.entries(pins).map(([path, pin]) => ({ path, ...pin })),
    graphs: await Promise.all(graphs.map(async (path) => ({ path, bytes: (await stat(path)).size }))),
    notes: known.origin === 'imported' ? known.notes : [],
    hub,
    derived: known.origin === 'imported' ? known.derived : undefined,
    knownCommit: hub === undefined ? undefined : knownHubModel(hub.repository)?.commit,
  };
}

async function fact(path: string, read: (json: CheckedJson) => string): Promise<string> {
  try {
    return read(CheckedJson.parse(await readFile(path, 'utf8'), path));
  } catch (error) {
    if (isShoalError(error) || (error instanceof Error && 'code' in error)) return 'not said';
    throw error;
  }
}

async function wordValuesOf(folder: string): Promise<number | undefined> {
  const { table, vocabularySize, embeddings } = await readDescription(folder);
  return table === undefined ? vocabularySize * embeddings.size : undefined;
}

/** By the shapes in the heads of the files. */
async function valuesOf(paths: readonly string[]): Promise<number> {
  let values = 0;
  for (const path of paths) {
    const header = CheckedJson.parse(await headerOf(path), path);
    for (const tensor of header.keys().filter((name) => name !== '__metadata__'))
      values += header
        .object(tensor)
        .integers('shape')
        .reduce((product, size) => product * size, 1);
  }
  return values;
}

/** Eight bytes with its length, then JSON. */
async function headerOf(path: string): Promise<string> {
  const file = await open(path, 'r');
  try {
    const length = Buffer.alloc(8);
    await file.read(length, 0, 8, 0);
    const bytes = Number(length.readBigUInt64LE());
    if (bytes > MOST_HEADER_BYTES) return '{}';
    const header = Buffer.alloc(bytes);
    await file.read(header, 0, bytes, 8);
    return header.toString();
  } finally {
    await file.close();
  }
}
