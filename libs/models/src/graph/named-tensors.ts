// The tensors of a model by their names, wherever they lie: in one safetensors file, or in several that an index names.
// Refuses an index that does not say exactly what its files hold.

import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { readModelFile } from '../store/stored-model.ts';
import { Safetensors, type Dtype } from './safetensors.ts';

export const WEIGHTS_FILE = 'model.safetensors';
export const INDEX_FILE = 'model.safetensors.index.json';

export interface NamedTensors {
  /** Of the file that says what tensors there are; for messages. */
  readonly path: string;
  readonly names: readonly string[];
  has(name: string): boolean;
  /** Throws MODEL_CORRUPT unless the tensor exists, has this shape and holds floating point numbers. */
  expect(name: string, shape: readonly number[]): void;
  /** The tensor's values, row-major, as 32-bit floats. Call `expect` before. */
  read(name: string): Promise<Float32Array>;
  /** What the tensor is in the file, whatever it holds; MODEL_CORRUPT where there is none of this name. */
  stored(name: string): StoredTensor;
}

/** A tensor as it lies in a file. */
export interface StoredTensor {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Its bytes, row-major, little-endian. */
  readonly read: () => Promise<ArrayBuffer>;
}

/**
 * Opens model.safetensors of this folder, or else the files of its index, calls `work` and closes them again.
 * MODEL_CORRUPT, naming file and tensor, for a file that is missing, a tensor that the index places wrongly, that it
 * leaves out, or that two files hold.
 */
export async function useTensors<T>(folder: string, work: (tensors: NamedTensors) => Promise<T>): Promise<T> {
  const single = join(folder, WEIGHTS_FILE);
  const index = join(folder, INDEX_FILE);
  if ((await isThere(single)) || !(await isThere(index))) return Safetensors.use(single, work);
  const places = await readIndex(index);
  return useFiles(folder, [...new Set(places.values())].sort(), async (files) => {
    const tensors = new ShardedTensors(index, files, places);
    return work(tensors);
  });
}

/** File names by tensor. They lie beside the index: names with a path are refused. */
export async function readIndex(path: string): Promise<ReadonlyMap<string, string>> {
  return placesIn(CheckedJson.parse((await readModelFile(path)).toString(), path));
}

/** The same of an index that was read. */
export function placesIn(json: CheckedJson): ReadonlyMap<string, string> {
  const path = json.where;
  const map = json.object('weight_map');
  const places = new Map(map.keys().map((name) => [name, map.string(name)]));
  for (const [name, file] of places)
    if (!/^[\w.-]+\.safetensors$/.test(file))
      throw corrupt(path, `tensor ${name} is said to lie in ${JSON.stringify(file)}, not in a file beside the index`);
  if (places.size === 0) throw corrupt(path, 'its weight_map names no tensor');
  return places;
}

/** Opens one after the other, so that each is closed whatever happens to the next. */
function useFiles<T>(
  folder: string,
  names: readonly string[],
  work: (files: ReadonlyMap<string, Safetensors>) => Promise<T>,
): Promise<T> {
  const opened = new Map<string, Safetensors>();
  const next = (at: number): Promise<T> =>
    at === names.length
      ? work(opened)
      : Safetensors.use(join(folder, names[at]!), (file) => {
          opened.set(names[at]!, file);
          return next(at + 1);
        });
  return next(0);
}

class ShardedTensors implements NamedTensors {
  readonly path: string;
  readonly #files: ReadonlyMap<string, Safetensors>;
  readonly #places: ReadonlyMap<string, string>;

  constructor(path: string, files: ReadonlyMap<string, Safetensors>, places: ReadonlyMap<string, string>) {
    this.path = path;
    this.#files = files;
    this.#places = places;
    for (const [name, file] of places)
      if (!files.get(file)!.has(name)) throw corrupt(path, `tensor ${name} is not in ${file}, as the index says`);
    for (const [file, { names }] of files)
      for (const name of names)
        if (places.get(name) !== file)
          throw corrupt(
            path,
            `tensor ${name} is in ${file}, and the index ${places.has(name) ? `has it in ${places.get(name)} as well` : 'does not name it'}`,
          );
  }

  get names(): readonly string[] {
    return [...this.#places.keys()];
  }

  has(name: string): boolean {
    return this.#places.has(name);
  }

  expect(name: string, shape: readonly number[]): void {
    this.#fileOf(name).expect(name, shape);
  }

  read(name: string): Promise<Float32Array> {
    return this.#fileOf(name).read(name);
  }

  stored(name: string): StoredTensor {
    return this.#fileOf(name).stored(name);
  }

  #fileOf(name: string): Safetensors {
    const file = this.#places.get(name);
    if (file === undefined) throw corrupt(this.path, `tensor ${name} is missing`);
    return this.#files.get(file)!;
  }
}

async function isThere(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

function corrupt(path: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${path}: ${problem}`, { path });
}
