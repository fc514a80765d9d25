// Texts whose vectors are known: what a device gives for them is looked at before a worker claims its first job.
// On every device and in every precision one text, whose vector was known before this machine (frozen in the project for
// models that Shoal knows, computed at the import for others): a wrong file, tokenizer, driver, runtime or card shows.
// On a GPU also ten texts of all lengths, compared with what the CPU gives for them in fp32; that reference is computed
// once for a model and kept beside its graphs, with its digest.

import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import type { InferenceBackend, Logger, Tokenizer } from '@shoal/core';
import { OrtBackend, type ProveExact } from '@shoal/inference';
import {
  digestProblem,
  encodeCanary,
  encodePairs,
  keepDigest,
  likenessOf,
  openGraph,
  type Canary,
  type StoredModel,
} from '@shoal/models';
import type { SlotSizes } from './device-options.ts';
import { fillRows, vectorsOf, widthOf, type KnownRow } from './run-rows.ts';

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
  readonly tokenizer: Pick<Tokenizer, 'encode' | 'encodePair'>;
  readonly cacheDir: string;
  readonly threads: number;
  readonly log: Logger;
}

/**
 * Least likeness of a vector and the known one, see `likenessOf`. In fp32 on a CPU: one value in 384 may be off by 1e-4, where
 * processors differ by 1e-6. Reduced precisions: as in the truth gate. Int8 graphs of others take one scale for a whole
 * run and saturate on processors without VNNI.
 */
const LEAST = { exact: 1 - 5e-9, reduced: 0.9999, coarse: 0.99 } as const;

/** Throws CANARY_FAILED, with the backend closed, unless it gives the known text its known vector. */
export async function expectCanary<Backend extends InferenceBackend>(
  backend: Backend,
  { model, tokenizer, log }: Pick<CanaryOptions, 'model' | 'tokenizer' | 'log'>,
): Promise<Backend> {
  const { canary } = model;
  const { device, precision } = backend;
  if (canary === undefined || widthOf([canary]) > backend.slotTokens) {
    const reason = canary === undefined ? 'no vector is known for this model' : 'its runs are shorter than the text';
    log.info({ device, precision, reason }, 'no canary text is compared');
    return backend;
  }
  try {
    expectIds(model.name, encodeCanary(model, tokenizer), canary);
    const startedMs = performance.now();
    const cosine = leastLikeness(await vectorsOf(backend, [canary]), canary.vector, model);
    const least = LEAST[toleranceOf(backend, model)];
    if (!(cosine >= least)) throw otherVector(backend, model, cosine, least);
    const durationMs = Math.round(performance.now() - startedMs);
    log.info({ device, precision, leastCosine: cosine, durationMs }, 'the canary text has its vector');
    return backend;
  } catch (error) {
    await backend.stop();
    throw error;
  }
}

/**
 * The same for what runs rows again in fp32, whose session opens with the first of them: the known text runs before it,
 * in its slot. Throws CANARY_FAILED, each time anew. Undefined where no vector is known or a slot is too small.
 */
export function exactCanary(
  model: StoredModel,
  { device, slots, log }: { readonly device: string; readonly slots: SlotSizes; readonly log: Logger },
): ProveExact | undefined {
  const { canary } = model;
  if (canary === undefined) return undefined;
  const width = widthOf([canary]);
  if (width > slots.slotTokens) return undefined;
  return async (slot, run) => {
    const kept = [slot.ids.slice(0, width), slot.lengths.slice(0, 1), slot.secondFrom.slice(0, 1)] as const;
    fillRows(slot, [canary], width);
    const result = await run({ rows: 1, width });
    const vector = slot.embeddings.slice(0, model.dims);
    for (const [at, buffer] of [slot.ids, slot.lengths, slot.secondFrom].entries()) buffer.set(kept[at]!);
    if (!result.ok) return result;
    const cosine = leastLikeness(vector, canary.vector, model);
    if (!(cosine >= LEAST.reduced)) throw otherVector({ device, precision: 'fp32' }, model, cosine, LEAST.reduced);
    log.info({ device, precision: 'fp32', leastCosine: cosine }, 'the canary text has its vector in exact runs');
    return result;
  };
}

function toleranceOf({ device, precision }: InferenceBackend, model: StoredModel): keyof typeof LEAST {
  if (precision === 'bf16') return 'coarse';
  if (model.graphKind === 'imported' && model.precision === 'int8') return 'coarse';
  return device === 'cpu' && precision === 'fp32' ? 'exact' : 'reduced';
}

/** The tokenizer may be told to cut rows shorter than the text is; then the beginning is compared. */
function expectIds(
  model: string,
  { ids, second, isTruncated }: ReturnType<typeof encodeCanary>,
  { ids: known, second: knownSecond }: Canary,
): void {
  // of a pair that was cut, both texts end elsewhere
  if (second !== undefined && isTruncated && ids.length < known.length) return;
  const compared = isTruncated && ids.length < known.length ? ids.length - 1 : known.length;
  const isSame = compared < known.length ? true : ids.length === known.length;
  if (
    isSame &&
    second === knownSecond &&
    Array.from(known)
      .slice(0, compared)
      .every((id, at) => ids[at] === id)
  )
    return;
  throw failed(
    `the tokenizer of ${model} gives the canary text the ids ${Array.from(ids).join(' ')}, and should give ` +
      `${Array.from(known).join(' ')}: "shoal model verify ${model}" says whether its files are whole`,
    { model },
  );
}

function otherVector(
  { device, precision }: Pick<InferenceBackend, 'device' | 'precision'>,
  { name, revision, kind }: StoredModel,
  cosine: number,
  least: number,
): ShoalError {
  return failed(
    `${name}@${revision} on ${device} in ${precision} gives the canary ` +
      `${kind === 'reranker' ? 'pair another score' : 'text another vector'} than the model should: ` +
      `${kind === 'reranker' ? 'likeness' : 'cosine'} ${cosine.toFixed(9)}, at least ${least} is asked for. Its graph, the runtime, the driver or the device ` +
      `does not compute what it should; nothing is claimed. Delete ${name}-* in the cache's folder graphs and start ` +
      `again; "shoal model verify ${name}" looks at the files, "shoal doctor" at the device`,
    { model: name, device, precision, cosine, least },
  );
}

function failed(message: string, fields: Readonly<Record<string, unknown>>): ShoalError {
  return new ShoalError('CANARY_FAILED', message, fields);
}

export type CanaryCheck = (backend: InferenceBackend) => Promise<number>;

/** A check that gives the least likeness of a backend's rows and those of the CPU in fp32; NaN counts as -1. */
export async function openCanary({ model, tokenizer, cacheDir, threads, log }: CanaryOptions): Promise<CanaryCheck> {
  const rows = TEXTS.map((text, at): KnownRow =>
    model.kind === 'reranker'
      ? encodePairs(tokenizer, text, [TEXTS[(at + 1) % TEXTS.length]!])[0]!
      : tokenizer.encode(text),
  );
  const graphPath = await openGraph(model, { cacheDir, log });
  const hash = createHash('sha256')
    .update(
      JSON.stringify(rows.map(({ ids, second = 0 }) => [...Array.from(ids), ...(second === 0 ? [] : [{ second }])])),
    )
    .digest('hex')
    .slice(0, 12);
  const path = `${graphPath.replace(/\.onnx$/, '')}.canary-${hash}.f32`;
  const reference =
    (await readReference(path, rows.length * model.dims)) ??
    (await makeReference(path, rows, { graphPath, dims: model.dims, threads }));
  return async (backend) => leastLikeness(await vectorsOf(backend, rows), reference, model);
}

async function readReference(path: string, values: number): Promise<Float32Array | undefined> {
  const bytes = await readFile(path).catch(() => undefined);
  return bytes === undefined || bytes.length !== values * 4 || (await digestProblem(path)) !== undefined
    ? undefined
    : new Float32Array(Uint8Array.from(bytes).buffer);
}

async function makeReference(
  path: string,
  rows: readonly KnownRow[],
  { graphPath, dims, threads }: { graphPath: string; dims: number; threads: number },
): Promise<Float32Array> {
  const width = widthOf(rows);
  const cpu = await OrtBackend.open({ graphPath, dims, threads, slotRows: 1, slotTokens: width });
  const vectors = await vectorsOf(cpu, rows);
  await cpu.stop();
  // a cache that cannot be written costs a second at the next start
  await writeFile(path, new Uint8Array(vectors.buffer))
    .then(() => keepDigest(path))
    .catch(() => undefined);
  return vectors;
}

function leastLikeness(found: Float32Array, expected: Float32Array, { kind, dims }: StoredModel): number {
  let least = 1;
  for (let at = 0; at < found.length; at += dims) {
    const cosine =
      kind === 'reranker'
        ? likenessOfScores(found[at]!, expected[at]!)
        : likenessOf(found.subarray(at, at + dims), expected.subarray(at, at + dims));
    least = Number.isNaN(cosine) ? -1 : Math.min(least, cosine);
  }
  return least;
}

/**
 * 1 − d² ÷ 2, with d the difference of two scores, beyond 1 in parts of the larger: as the cosine of vectors of length 1
 * says how far they are apart. 1 − 5e-9 are 1e-4 of difference.
 */
function likenessOfScores(a: number, b: number): number {
  const difference = (a - b) / Math.max(1, Math.abs(a), Math.abs(b));
  return 1 - difference ** 2 / 2;
}
