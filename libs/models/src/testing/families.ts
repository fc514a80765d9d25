// Small models of random weights in the layouts that people have, with the vectors that sentence-transformers gives for
// them (fixtures/README.md). Weights are made here from names, shapes and a seed, byte for byte as they were in Python.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

const FOLDER = new URL('../../fixtures/families/', import.meta.url);

interface Family {
  readonly tokenizer: string;
  /** By path inside the model's folder. */
  readonly files: Readonly<Record<string, string>>;
  readonly tensors: SeededTensors;
}

interface SeededTensors {
  readonly seed: number;
  /** Name, shape, and what values are drawn from: centre ± scale. */
  readonly tensors: readonly (readonly [name: string, shape: readonly number[], scale: number, centre: number])[];
}

/** Writes the folder of this model; `rename` gives tensors other names, as older files have. */
export async function writeFamily(
  name: string,
  folder: string,
  { rename = (tensor: string): string => tensor } = {},
): Promise<void> {
  const { tokenizer, files, tensors } = JSON.parse(await read(`${name}.json`)) as Family;
  const all = { ...files, 'tokenizer.json': await read(`tokenizer-${tokenizer}.json`) };
  for (const [path, text] of Object.entries(all)) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
  await writeFile(join(folder, 'model.safetensors'), seededSafetensors(tensors, rename));
}

export async function familyTexts(): Promise<readonly string[]> {
  return JSON.parse(await read('texts.json')) as string[];
}

/** A vector a text; `kind` may be the name of a prompt. */
export async function familyVectors(name: string, dims: number, kind = 'vectors'): Promise<readonly Float32Array[]> {
  const bytes = await readFile(new URL(`${name}.${kind}.f32`, FOLDER));
  const values = new Float32Array(Uint8Array.from(bytes).buffer);
  return Array.from({ length: values.length / dims }, (_, row) => values.subarray(row * dims, (row + 1) * dims));
}

function read(path: string): Promise<string> {
  return readFile(new URL(path, FOLDER), 'utf8');
}

function seededSafetensors({ seed, tensors }: SeededTensors, rename: (tensor: string) => string): Uint8Array {
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  const sorted = tensors.toSorted(([a], [b]) => (a < b ? -1 : 1));
  let end = 0;
  for (const [name, shape] of sorted) {
    const start = end;
    end += 4 * sizeOf(shape);
    header[rename(name)] = { dtype: 'F32', shape, data_offsets: [start, end] };
  }
  const text = JSON.stringify(header);
  const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  const values = new Float32Array(end / 4);
  let at = 0;
  for (const [name, shape, scale, centre] of sorted) {
    const random = seededNumbers(seed, name);
    for (const stop = at + sizeOf(shape); at < stop; at++) values[at] = random() * scale + centre;
  }
  return Buffer.concat([length, head, Buffer.from(values.buffer)]);
}

function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** From -1 to 1: mulberry32, begun with the name's FNV-1a hash and the seed. */
function seededNumbers(seed: number, name: string): () => number {
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
