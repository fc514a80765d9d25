// A few texts whose vectors are known: what a device gives for them is compared with what the CPU gives in fp32 before
// a worker claims its first job. The reference is computed once for a model and kept beside its graphs.

import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { invariant, ShoalError } from '@shoal/contract';
import type { InferenceBackend, Tokenizer } from '@shoal/core';
import { OrtBackend } from '@shoal/inference';
import { openGraph, type StoredModel } from '@shoal/models';

/** Short and long, plain and odd; the last two are as long as the model takes. */
const TEXTS: readonly string[] = [
  'a',
  'The cat sat on the mat.',
  'Embedding jobs wait in a queue until a device has room for them.',
  'naïve café, 中文, Straße, 𝟘 — and [MASK]',
  "SELECT id FROM jobs WHERE state = 'waiting' ORDER BY priority, id LIMIT 64;",
  '3.14159 26535 89793 23846 26433 83279 50288 41971',
  'The quick brown fox jumps over the lazy dog. '.repeat(4),
  'How long does a claim last without renewal? '.repeat(12),
  'Rows of like length run together, so that little of a run is padding. '.repeat(64),
  'zebra quantum harbour velvet kettle '.repeat(160),
];

export interface CanaryOptions {
  readonly model: StoredModel;
  readonly tokenizer: Pick<Tokenizer, 'encode'>;
  readonly cacheDir: string;
  readonly threads: number;
}

export type Canary = (backend: InferenceBackend) => Promise<number>;

/** A check that gives the least cosine between a backend's vectors and those of the CPU in fp32; NaN counts as -1. */
export async function openCanary({ model, tokenizer, cacheDir, threads }: CanaryOptions): Promise<Canary> {
  const rows = TEXTS.map((text) => tokenizer.encode(text).ids);
  const graphPath = await openGraph(model, { cacheDir });
  const hash = createHash('sha256')
    .update(JSON.stringify(rows.map((row) => [...row])))
    .digest('hex')
    .slice(0, 12);
  const path = `${graphPath.replace(/\.onnx$/, '')}.canary-${hash}.f32`;
  const reference =
    (await readReference(path, rows.length * model.dims)) ??
    (await makeReference(path, rows, { graphPath, dims: model.dims, threads }));
  return async (backend) => leastCosine(await vectorsOf(backend, rows), reference, model.dims);
}

type Ids = ArrayLike<number>;

async function readReference(path: string, values: number): Promise<Float32Array | undefined> {
  const bytes = await readFile(path).catch(() => undefined);
  return bytes === undefined || bytes.length !== values * 4
    ? undefined
    : new Float32Array(Uint8Array.from(bytes).buffer);
}

async function makeReference(
  path: string,
  rows: readonly Ids[],
  { graphPath, dims, threads }: { graphPath: string; dims: number; threads: number },
): Promise<Float32Array> {
  const width = widthOf(rows);
  const cpu = await OrtBackend.open({ graphPath, dims, threads, slotRows: 1, slotTokens: width });
  const vectors = await vectorsOf(cpu, rows);
  await cpu.stop();
  // a cache that cannot be written costs a second at the next start
  await writeFile(path, new Uint8Array(vectors.buffer)).catch(() => undefined);
  return vectors;
}

/** Runs them in as few runs as the slots allow: neighbours and padding are a part of what is checked. */
async function vectorsOf(backend: InferenceBackend, rows: readonly Ids[]): Promise<Float32Array> {
  const width = widthOf(rows);
  const atOnce = Math.max(1, Math.min(backend.slotRows, Math.floor(backend.slotTokens / width)));
  const vectors = new Float32Array(rows.length * backend.dims);
  for (let first = 0; first < rows.length; first += atOnce)
    vectors.set(await runRows(backend, rows.slice(first, first + atOnce), width), first * backend.dims);
  return vectors;
}

async function runRows(backend: InferenceBackend, rows: readonly Ids[], width: number): Promise<Float32Array> {
  const slot = backend.lend();
  invariant(slot !== undefined, 'a backend that nobody uses yet has a free slot');
  slot.ids.fill(0, 0, rows.length * width);
  for (const [at, row] of rows.entries()) {
    slot.ids.set(row, at * width);
    slot.lengths[at] = row.length;
  }
  const result = await backend.run(slot, { rows: rows.length, width });
  const vectors = slot.embeddings.slice(0, rows.length * backend.dims);
  backend.giveBack(slot);
  if (!result.ok)
    throw new ShoalError(
      'OUT_OF_VRAM',
      `the device has no room for ${rows.length} × ${width} tokens: ${result.outOfVram.message}`,
    );
  return vectors;
}

function widthOf(rows: readonly Ids[]): number {
  return Math.ceil(Math.max(...rows.map((row) => row.length)) / 8) * 8;
}

function leastCosine(found: Float32Array, expected: Float32Array, dims: number): number {
  let least = 1;
  for (let at = 0; at < found.length; at += dims) {
    const cosine = cosineOf(found.subarray(at, at + dims), expected.subarray(at, at + dims));
    least = Number.isNaN(cosine) ? -1 : Math.min(least, cosine);
  }
  return least;
}

function cosineOf(a: Float32Array, b: Float32Array): number {
  let [dot, aa, bb] = [0, 0, 0];
  for (let at = 0; at < a.length; at++) {
    dot += a[at]! * b[at]!;
    aa += a[at]! ** 2;
    bb += b[at]! ** 2;
  }
  return dot / Math.sqrt(aa * bb);
}
