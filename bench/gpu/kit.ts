// What every part of this bench shares: its arguments, the model, the corpus as token ids, and a line of JSON per
// result. A part runs in a process of its own, so that a device it wrecked, or memory it keeps, is not the next part's.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { parseArgs, type ParseArgsOptionsConfig } from 'node:util';
import { cacheFolder, type InferenceBackend } from '@shoal/core';
import { ENCODER_LIBRARIES, EncoderBackend, OrtBackend } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, readEncoder, type GraphKind, type StoredModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';

const SHARED = {
  device: { type: 'string', default: 'gpu:0' },
  /** Sizes for a machine without a GPU: the paths are walked, the figures mean nothing. */
  small: { type: 'boolean', default: false },
  model: { type: 'string', default: 'minilm' },
  /** Where torch_loops.py and others find the corpus. */
  scratch: { type: 'string', default: '/tmp' },
} as const;
// Not strict: what else there is, each part knows.
const { values } = parseArgs({ strict: false, options: SHARED });
export const device = String(values.device);
export const isSmall = values.small === true;
export const scratch = String(values.scratch);
export const provider = device === 'cpu' ? 'cpu' : 'cuda';
export const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
export const MAX_TOKENS = 512;
/** Texts of the corpus: 2.7 M tokens. */
export const CORPUS_TEXTS = isSmall ? 96 : 32_768;
export const CORPUS_SEED = 1;

/** A part's own arguments, and those that all have. `file`: the part's own, as import.meta.url. */
export function partArguments<const T extends ParseArgsOptionsConfig>(file: string, own: T) {
  return readArguments(file, { ...SHARED, ...own });
}

export interface Corpus {
  readonly model: StoredModel;
  readonly texts: readonly string[];
  readonly rows: readonly ArrayLike<number>[];
  readonly tokens: number;
}

export async function openCorpus(count = CORPUS_TEXTS, seed = CORPUS_SEED): Promise<Corpus> {
  const model = await openModel(String(values.model), { cacheDir });
  const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
  const texts = raggedCorpus(join(model.folder, 'tokenizer.json'), count, seed).map(({ text }) => text);
  const rows = texts.map((text) => tokenizer.encode(text).ids);
  return { model, texts, rows, tokens: rows.reduce((sum, ids) => sum + ids.length, 0) };
}

/** `first`: names, between commas; `count`: so many from it on, or so many of it where it has no index. */
export function devicesFrom(first: string, count: string | undefined): string[] {
  if (count === undefined) return first.split(',');
  const [, index] = /^gpu:(\d+)$/.exec(first) ?? [];
  return Array.from({ length: Number(count) }, (_, at) => (index === undefined ? first : `gpu:${Number(index) + at}`));
}

/** What computes: a graph in ONNX Runtime, or the native encoder (`native-erf`: with GELU by the error function). */
export type Side = GraphKind | 'native' | 'native-erf';

export interface SideOptions {
  /** Default: the one of the command line. */
  readonly on?: string;
  readonly sessions?: number;
  readonly slotRows: number;
  readonly slotTokens: number;
}

/** Without a GPU the native encoder is its reference, which is slow. */
export async function openSide(
  model: StoredModel,
  side: Side,
  { on = device, sessions = 1, ...slots }: SideOptions,
): Promise<InferenceBackend> {
  if (side !== 'native' && side !== 'native-erf')
    return OrtBackend.open({
      ...slots,
      graphPath: await openGraph(model, { cacheDir, kind: side }),
      provider,
      sessions,
      dims: model.dims,
      threads: 1,
    });
  const library = provider === 'cpu' ? ENCODER_LIBRARIES.reference : ENCODER_LIBRARIES.cuda;
  return EncoderBackend.open({
    ...slots,
    model: await readEncoder(model),
    library,
    device: on,
    lanes: sessions,
    hasExactGelu: side === 'native-erf',
  });
}

export interface Batch {
  readonly rows: readonly number[];
  readonly width: number;
}

/** Indices of rows, sorted by length and cut by a budget of padded tokens; widths are multiples of 8. */
export function sortedBatches(rows: readonly ArrayLike<number>[], budget: number): Batch[] {
  const order = rows.map((_, index) => index).sort((a, b) => rows[b]!.length - rows[a]!.length);
  const batches: Batch[] = [];
  for (let at = 0; at < order.length;) {
    const width = widthOf(rows[order[at]!]!.length);
    const count = Math.max(1, Math.floor(budget / width));
    batches.push({ rows: order.slice(at, at + count), width });
    at += count;
  }
  return batches;
}

/** Every batch once, `sessions` running and one queued behind each; vectors in the order of the rows. */
export async function runBatches(
  backend: InferenceBackend,
  sessions: number,
  rows: readonly ArrayLike<number>[],
  batches: readonly Batch[],
): Promise<Float32Array> {
  const { dims } = backend;
  const vectors = new Float32Array(rows.length * dims);
  let next = 0;
  const lane = async (): Promise<void> => {
    for (let batch = batches[next++]; batch !== undefined; batch = batches[next++]) {
      const slot = backend.lend()!;
      const { width } = batch;
      slot.ids.fill(0, 0, batch.rows.length * width);
      for (const [at, index] of batch.rows.entries()) {
        slot.ids.set(rows[index]!, at * width);
        slot.lengths[at] = rows[index]!.length;
      }
      const result = await backend.run(slot, { rows: batch.rows.length, width });
      if (!result.ok) throw new Error(result.outOfVram.message);
      for (const [at, index] of batch.rows.entries())
        vectors.set(slot.embeddings.subarray(at * dims, (at + 1) * dims), index * dims);
      backend.giveBack(slot);
    }
  };
  await Promise.all(Array.from({ length: sessions + 1 }, lane));
  return vectors;
}

export function widthOf(tokens: number): number {
  return Math.ceil(tokens / 8) * 8;
}

export function median(figures: readonly number[]): number {
  const sorted = [...figures].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

export function quantile(figures: readonly number[], share: number): number {
  const sorted = [...figures].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export function round(value: number, digits = 0): number {
  return Number(value.toFixed(digits));
}

/** Device memory in use as the driver tells it, MiB; NaN without a driver. */
export function usedMebibytes(index = 0): number {
  try {
    return Number(
      execFileSync('nvidia-smi', ['--query-gpu=memory.used', '--format=csv,noheader,nounits', `--id=${index}`], {
        encoding: 'utf8',
        timeout: 10_000,
      }).trim(),
    );
  } catch {
    return Number.NaN;
  }
}

/** A result. */
export function row(facts: object): void {
  process.stdout.write(`${JSON.stringify(facts)}\n`);
}
