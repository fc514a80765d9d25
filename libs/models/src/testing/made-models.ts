// Small models of every family in the layouts that people have, with random weights and the vectors that
// sentence-transformers gives for them (fixtures/README.md). A fixture is configs, a tokenizer and the names and shapes
// of its tensors; weights are made here from those and a seed, byte for byte as they were in Python.

import { mkdir, readFile, readdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { toHalves } from '@shoal/contract';
import { safetensorsHead } from '../graph/safetensors.ts';

const MADE = new URL('../../fixtures/made/', import.meta.url);
/** Of a fixture, and no part of the model's folder. */
const BESIDE = /(?:\.f32|facts\.json|config-older\.json)$/;

export interface MadeFacts {
  readonly name: string;
  readonly kind: 'embedder' | 'cross-encoder' | 'sparse';
  readonly model_type: string;
  /** File in fixtures/made/tokenizers, without its ending. */
  readonly tokenizer: string;
  readonly pooling: string | readonly string[];
  /** Values of a reference vector. */
  readonly dims: number;
  readonly max_seq_length?: number;
}

export interface SeededTensors {
  readonly seed: number;
  /** Name, shape, and what values are drawn from: centre ± scale. Whole numbers are rounded downwards. */
  readonly tensors: readonly (readonly [
    name: string,
    shape: readonly number[],
    scale: number,
    centre: number,
    type?: keyof typeof TYPES,
  ])[];
}

/** What values of this type lie in. */
const TYPES = {
  F32: (values: readonly number[]) => Float32Array.from(values),
  F16: (values: readonly number[]) => toHalves(Float32Array.from(values)),
  I8: (values: readonly number[]) => Int8Array.from(values, Math.floor),
  I64: (values: readonly number[]) => BigInt64Array.from(values, (value) => BigInt(Math.floor(value))),
} as const;

export interface MadeOptions {
  /** config.json as the hub spells it: that of transformers 4 or of the authors' own code. Refused where there is none. */
  readonly older?: boolean;
  /** Gives tensors of the encoder other names, as older files have. */
  readonly rename?: (tensor: string) => string;
}

/** Writes the folder of this model, which is created. */
export async function madeModel(
  name: string,
  folder: string,
  { older = false, rename = (tensor) => tensor }: MadeOptions = {},
): Promise<MadeFacts> {
  const facts = await madeFacts(name);
  for (const path of await filesOf(name)) {
    if (BESIDE.test(path)) continue;
    const bytes = await readFile(new URL(`${name}/${path}`, MADE));
    const target = join(folder, path);
    await mkdir(dirname(target), { recursive: true });
    if (!path.endsWith('tensors.json')) await writeFile(target, bytes);
    else
      await writeFile(
        join(dirname(target), 'model.safetensors'),
        seededSafetensors(JSON.parse(bytes.toString()) as SeededTensors, path === 'tensors.json' ? rename : undefined),
      );
  }
  if (older) await writeFile(join(folder, 'config.json'), await readFile(new URL(`${name}/config-older.json`, MADE)));
  await writeFile(join(folder, 'tokenizer.json'), await madeTokenizer(facts.tokenizer));
  return facts;
}

export async function madeFacts(name: string): Promise<MadeFacts> {
  return JSON.parse(await readFile(new URL(`${name}/facts.json`, MADE), 'utf8')) as MadeFacts;
}

/** A file of the fixture, as it lies there. */
export function madeFile(name: string, path: string): URL {
  return new URL(`${name}/${path}`, MADE);
}

/** Names of all of these models. */
export async function madeNames(): Promise<readonly string[]> {
  return (await readdir(MADE, { withFileTypes: true }))
    .filter((entry) => entry.isDirectory() && entry.name !== 'tokenizers')
    .map(({ name }) => name)
    .sort();
}

/** Whether config.json comes in a second spelling. */
export async function hasOlderConfig(name: string): Promise<boolean> {
  return (await filesOf(name)).includes('config-older.json');
}

/** Text of a tokenizer.json by its name in the facts. */
export function madeTokenizer(tokenizer: string): Promise<string> {
  return readFile(new URL(`tokenizers/${tokenizer}.json`, MADE), 'utf8');
}

/** The 43 texts that the reference vectors are of. */
export async function madeTexts(): Promise<readonly string[]> {
  return JSON.parse(await readFile(new URL('texts.json', MADE), 'utf8')) as string[];
}

/** Rows of `facts.dims` values, one a text; `kind` is the name of another .f32 file: a prompt, scores, sparse. */
export async function madeVectors(name: string, kind = 'vectors'): Promise<readonly Float32Array[]> {
  const { dims } = await madeFacts(name);
  const bytes = await readFile(new URL(`${name}/${kind}.f32`, MADE));
  const values = new Float32Array(Uint8Array.from(bytes).buffer);
  return Array.from({ length: values.length / dims }, (_, row) => values.subarray(row * dims, (row + 1) * dims));
}

async function filesOf(name: string): Promise<readonly string[]> {
  const entries = await readdir(new URL(`${name}/`, MADE), { recursive: true, withFileTypes: true });
  const start = new URL(`${name}/`, MADE).pathname;
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.slice(start.length).replace(/^\//, ''));
}

/** Bytes of a model.safetensors with these tensors, in the order of their names. */
export function seededSafetensors(
  { seed, tensors }: SeededTensors,
  rename: (tensor: string) => string = (tensor) => tensor,
): Uint8Array {
  const sorted = tensors.toSorted(([a], [b]) => (a < b ? -1 : 1));
  const plan = sorted.map(([name, shape, , , dtype = 'F32']) => ({ name: rename(name), dtype, shape }));
  const values = sorted.map(([name, shape, scale, centre, dtype = 'F32']) => {
    const random = seededNumbers(seed, name);
    const numbers = Array.from({ length: sizeOf(shape) }, () => random() * scale + centre);
    return Buffer.from(TYPES[dtype](numbers).buffer);
  });
  return Buffer.concat([safetensorsHead(plan, { format: 'pt' }), ...values]);
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** From -1 to 1: mulberry32, begun with the name's FNV-1a hash and the seed. */
export function seededNumbers(seed: number, name: string): () => number {
  let state = 2_166_136_261;
  for (const byte of Buffer.from(name)) state = Math.imul(state ^ byte, 16_777_619) >>> 0;
  state = (state ^ seed) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 31 - 1;
  };
}
