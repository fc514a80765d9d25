// What benches hold against each other: the bare engine on a graph, and the same model through queue and worker. Both
// cut micro-batches by the worker's own rules. Sides are opened once, run alternately, and closed.

import { fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ShoalClient } from '@shoal/client';
import { Pool, cacheFolder, fixedBudget, resolveSettings, sizesOf } from '@shoal/core';
import { median } from '@shoal/core/base';
import { programOf } from '@shoal/core/testing';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import type { MicroBatch } from '../../libs/core/src/executor/pool.ts';
import { leastCosine } from '../similarity/cosine.ts';

export const MAX_TOKENS = 512;
/** The preset of a worker on the CPU. */
export const MAX_PADDED_TOKENS = 1_024;
const settings = resolveSettings({ environment: process.env });
export const cacheDir = cacheFolder(settings.cacheDir);
const sizes = sizesOf(settings, 'cpu');

export interface Side {
  readonly name: string;
  /** Vectors of the texts, rows × dims. */
  run(texts: readonly string[]): Promise<Float32Array>;
  close(): Promise<void>;
}

/** Tokenizes and runs in this process, two micro-batches queued at the device. */
export async function openBare(
  name: string,
  model: StoredModel,
  threads: number,
  kind?: StoredModel['graphKind'],
): Promise<Side> {
  const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
  const backend = await openBackend(model, threads, kind);
  const run = async (texts: readonly string[]): Promise<Float32Array> =>
    (
      await runRows(
        backend,
        texts.map((text) => tokenizer.encode(text).ids),
      )
    ).vectors;
  return { name, run, close: () => backend.stop() };
}

/** The engine with slots for runs of so many padded tokens; `threads` for each session. */
export async function openBackend(
  model: StoredModel,
  threads: number,
  kind?: StoredModel['graphKind'],
  slotTokens = MAX_PADDED_TOKENS,
  sessions = 1,
): Promise<OrtBackend> {
  const graphPath = await openGraph(model, { cacheDir, kind });
  return OrtBackend.open({
    graphPath,
    dims: model.dims,
    threads,
    sessions,
    slotRows: sizes.maxRows,
    slotTokens: Math.max(slotTokens, MAX_TOKENS),
  });
}

interface IdRow {
  readonly ids: ArrayLike<number>;
  readonly index: number;
  readonly tokens: number;
  readonly enteredMs: number;
  readonly isInteractive: boolean;
}

export interface Limits {
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
}

/** The micro-batches of these rows when all of them wait at once, by the worker's own rules. */
export function cutRows(
  ids: readonly ArrayLike<number>[],
  { maxPaddedTokens, maxRows }: Limits,
): readonly MicroBatch<IdRow>[] {
  const pool = new Pool<IdRow>();
  const { rowsAt } = fixedBudget({ maxPaddedTokens, maxRows });
  for (const [index, row] of ids.entries())
    pool.add({ ids: row, index, tokens: row.length, enteredMs: 0, isInteractive: false });
  const cut = (): MicroBatch<IdRow> | undefined => pool.cut({ rowsAt, maxRowAgeMs: Infinity }, 0);
  const batches: MicroBatch<IdRow>[] = [];
  for (let batch = cut(); batch !== undefined; batch = cut()) batches.push(batch);
  return batches;
}

/** One micro-batch; its rows' vectors go to their places. */
export async function runBatch(
  backend: OrtBackend,
  { rows, width }: MicroBatch<IdRow>,
  vectors: Float32Array,
): Promise<void> {
  const slot = backend.lend()!;
  slot.ids.fill(0, 0, rows.length * width);
  for (const [at, row] of rows.entries()) {
    slot.ids.set(row.ids, at * width);
    slot.lengths[at] = row.tokens;
  }
  const result = await backend.run(slot, { rows: rows.length, width });
  if (!result.ok) throw new Error(result.outOfVram.message);
  for (const [at, row] of rows.entries())
    vectors.set(slot.embeddings.subarray(at * backend.dims, (at + 1) * backend.dims), row.index * backend.dims);
  backend.giveBack(slot);
}

/** Runs token ids, one micro-batch more queued at the device than it has sessions. */
export async function runRows(
  backend: OrtBackend,
  ids: readonly ArrayLike<number>[],
  limits: Limits = { maxPaddedTokens: MAX_PADDED_TOKENS, maxRows: sizes.maxRows },
): Promise<{ readonly vectors: Float32Array; readonly paddingEfficiency: number }> {
  const vectors = new Float32Array(ids.length * backend.dims);
  const batches = cutRows(ids, limits);
  const waiting = batches.values();
  const lane = async (): Promise<void> => {
    for (const batch of waiting) await runBatch(backend, batch, vectors);
  };
  await Promise.all(Array.from({ length: backend.sessions + 1 }, lane));
  const paddedTokens = batches.reduce((sum, { rows, width }) => sum + rows.length * width, 0);
  return { vectors, paddingEfficiency: ids.reduce((sum, row) => sum + row.length, 0) / paddedTokens };
}

export interface QueuedSide extends Side {
  readonly client: ShoalClient;
  readonly worker: ChildProcess;
}

/**
 * A queue server with an append-only file, a CPU worker and a client: texts in, vectors out. `environment` adds
 * settings of the worker.
 */
export async function openQueued(
  name: string,
  modelName: string,
  threads: number,
  jobTexts: number,
  environment: Readonly<Record<string, string>> = {},
): Promise<QueuedSide> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
  const model = await openModel(modelName, { cacheDir });
  const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
  const server = await startTestServer({ args: ['--appendonly', 'yes', '--appendfsync', 'everysec', '--dir', folder] });
  const worker = await startWorker(server.url, modelName, threads, environment);
  const client = await ShoalClient.connect({ redisUrl: server.url, model, tokenizer, jobTexts });
  const run = (texts: readonly string[]): Promise<Float32Array> => runStream(client, texts, model.dims);
  const close = async (): Promise<void> => {
    await client.close();
    await stopWorker(worker);
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  return { name, run, close, client, worker };
}

/** Texts through the queue, vectors in their order. */
export async function runStream(client: ShoalClient, texts: readonly string[], dims: number): Promise<Float32Array> {
  const vectors = new Float32Array(texts.length * dims);
  for await (const block of client.embedStream(texts.map((text) => ({ text })))) {
    if (block.kind === 'skipped') throw block.error;
    vectors.set(block.vectors, block.first * dims);
  }
  return vectors;
}

/** A CPU worker that is ready; `environment` adds settings. */
export function startWorker(
  redisUrl: string,
  model: string,
  threads: number,
  environment: Readonly<Record<string, string>> = {},
): Promise<ChildProcess> {
  const { main } = programOf('cpu-worker');
  const env = {
    ...process.env,
    SHOAL_REDIS_URL: redisUrl,
    REDIS_URL: redisUrl,
    SHOAL_MODEL: model,
    SHOAL_MAX_TOKENS: String(MAX_TOKENS),
    SHOAL_THREADS: String(threads),
    SHOAL_LOG_LEVEL: 'warn',
    ...environment,
  };
  const child = fork(main, [], { env, stdio: ['ignore', 2, 2, 'ipc'] });
  return new Promise((resolve, reject) => {
    child.once('message', (message: { kind: string; failure?: { message: string } }) =>
      message.kind === 'ready' ? resolve(child) : reject(new Error(message.failure?.message)),
    );
    child.once('exit', (code) => reject(new Error(`worker exit ${code}`)));
  });
}

export async function stopWorker(worker: ChildProcess): Promise<void> {
  const exited = new Promise((resolve) => worker.once('exit', resolve));
  worker.kill('SIGTERM');
  await exited;
}

export interface Measured {
  readonly name: string;
  /** Texts per second of each round. */
  readonly rates: readonly number[];
  readonly vectors: Float32Array;
}

/** One run of each side to warm it, whose vectors `check` may refuse; then rounds in alternating order. */
export async function alternate(
  sides: readonly Side[],
  texts: readonly string[],
  rounds: number,
  check: (first: readonly Measured[]) => void,
): Promise<readonly Measured[]> {
  const measured: { name: string; rates: number[]; vectors: Float32Array }[] = [];
  for (const { name, run } of sides) measured.push({ name, rates: [], vectors: await run(texts) });
  check(measured);
  for (let round = 0; round < rounds; round++) {
    const order = sides.map((side, at) => ({ side, at }));
    for (const { side, at } of round % 2 === 0 ? order : order.toReversed()) {
      const startedMs = performance.now();
      await side.run(texts);
      measured[at]!.rates.push((texts.length * 1000) / (performance.now() - startedMs));
    }
  }
  return measured;
}

export interface SideReport {
  readonly name: string;
  readonly textsPerSecond: readonly number[];
  /** Median rate over that of the first side. */
  readonly ratio: number;
  /** Lowest cosine of one text's vector to the first side's. */
  readonly leastCosine: number;
}

/**
 * Runs the sides alternately over the same texts, and holds their rates and vectors against the first side's. Before
 * the clock starts, a side whose least cosine is below what `leastAllowed` gives for its name is an error.
 */
export async function compareSides(
  sides: readonly Side[],
  texts: readonly string[],
  rounds: number,
  dims: number,
  leastAllowed: (name: string) => number,
): Promise<readonly SideReport[]> {
  const check = (first: readonly Measured[]): void => {
    for (const { name, vectors } of first) {
      const least = leastCosine(first[0]!.vectors, vectors, dims);
      if (!(least >= leastAllowed(name)))
        throw new Error(`${name} disagrees with ${first[0]!.name}: least cosine ${least}`);
    }
  };
  const measured = await alternate(sides, texts, rounds, check);
  const base = median(measured[0]!.rates);
  return measured.map(({ name, rates, vectors }) => ({
    name,
    textsPerSecond: rates.map((rate) => Number(rate.toFixed(1))),
    ratio: Number((median(rates) / base).toFixed(3)),
    leastCosine: Number(leastCosine(measured[0]!.vectors, vectors, dims).toFixed(7)),
  }));
}
