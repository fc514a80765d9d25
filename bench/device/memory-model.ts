// How well the memory law says beforehand what a run will hold, on the real CPU provider: the law is fitted as the
// warm-up fits it, from six shapes, and held against whole executors: a fresh process per shape, one job of exactly
// that shape run twice, its high-water mark read from outside. None of the shapes is one that the law was fitted from.
//   node --conditions=@shoal/source bench/device/memory-model.ts [--shapes 54] [--graphs fused-fp32,int8,plain-fp32]
//   [--threads 2] [--equal-runs 5]
// Exit 1 when the 95th percentile of the error is above 10 % of the total or 15 % of the increment over the loaded
// state. Two processes that run the same shape differ by a MB or two; increments too small to be known to 15 % because
// of that are counted for the total, and apart for the increment (`incrementOfAll`). Fewer than 30 increments that can
// be known are not judged.

import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { liveBytes, noLog, type MemoryLaw, type RunShape } from '@shoal/core';
import { importModel, openGraph, openModel, type StoredModel } from '@shoal/models';
import { measureMemory } from '../../libs/worker/src/measure/measure-memory.ts';
import { cpuKind, profileKey, storeProfile } from '../../libs/worker/src/measure/profile-store.ts';
import { readArguments } from '../rig/arguments.ts';
import { forgetPeak, heldBytes, hostExecutors, rowOf } from '../rig/lone-executor.ts';
import { cacheDir, MAX_TOKENS } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  shapes: { type: 'string', default: '54' },
  graphs: { type: 'string', default: 'fused-fp32,int8,plain-fp32' },
  threads: { type: 'string', default: '2' },
  'equal-runs': { type: 'string', default: '5' },
});
const THREADS = Number(args.threads);
const MAX_TOTAL_ERROR = 0.1;
const MAX_INCREMENT_ERROR = 0.15;
const LEAST_SHAPES = 30;
/**
 * How often each of two small shapes runs, each time in a fresh process, to see how far equal runs differ: of five
 * alone all came within 0.1 MB now and then.
 */
const EQUAL_RUNS = Number(args['equal-runs']);
const EQUAL_SHAPES: readonly RunShape[] = [
  { rows: 1, width: 16 },
  { rows: 10, width: 16 },
];
/** 1 to 64 rows, 8 to 512 tokens: every pair, the largest of 32,768 tokens. */
const GRID: readonly RunShape[] = [1, 2, 5, 10, 20, 30, 40, 50, 64].flatMap((rows) =>
  [16, 40, 96, 160, 320, 512].map((width) => ({ rows, width })),
);

interface Held extends RunShape {
  readonly loadedBytes: number;
  readonly peakBytes: number;
}

const folder = mkdtempSync(join(tmpdir(), 'shoal-memory-'));
const host = await hostExecutors(folder);
try {
  const graphs = [];
  for (const name of args.graphs.split(',')) graphs.push(await judge(name, await modelOf(name)));
  const isJudged = graphs.every(({ increment }) => increment.count >= LEAST_SHAPES);
  const isHeld =
    isJudged &&
    graphs.every(({ total, increment }) => total.p95 <= MAX_TOTAL_ERROR && increment.p95 <= MAX_INCREMENT_ERROR);
  process.stdout.write(`${JSON.stringify({ bench: 'memory-model', threads: THREADS, isJudged, isHeld, graphs })}\n`);
  if (isJudged && !isHeld) process.exitCode = 1;
} finally {
  await host.stop();
  rmSync(folder, { recursive: true, force: true });
}

async function judge(
  graph: string,
  model: StoredModel,
): Promise<{
  graph: string;
  fitSeconds: number;
  equalRunsDifferByMb: number;
  total: Errors;
  increment: Errors;
  incrementOfAll: Errors;
}> {
  const graphPath = await openGraph(model, { cacheDir: folder });
  const backend = {
    graphPath,
    precision: model.precision,
    dims: model.dims,
    threads: THREADS,
    slotRows: 1024,
    slotTokens: 65_536,
  };
  const startedMs = performance.now();
  const law = await measureMemory({ backend, maxWidth: MAX_TOKENS, timeoutMs: 120_000 });
  const fitSeconds = (performance.now() - startedMs) / 1000;
  const key = profileKey({
    model,
    graphPath,
    provider: 'cpu',
    precision: model.precision,
    deviceKind: cpuKind(THREADS),
  });
  // or the executor would stay below the knee, and measure for itself
  await storeProfile(folder, key, { memory: law, kneeTokens: 65_536 }, noLog);
  const held: Held[] = [];
  for (const shape of someOf(GRID, Number(args.shapes))) {
    const point = await runInExecutor(model, shape);
    held.push(point);
    process.stderr.write(`${lineOf(graph, law, point)}\n`);
  }
  let noiseBytes = 0;
  for (const shape of EQUAL_SHAPES) noiseBytes = Math.max(noiseBytes, await equalRunsDifferBy(model, shape));
  const errorOf = (point: Held): number => Math.abs(predictedIncrement(law, point) / incrementOf(point) - 1);
  return {
    graph,
    fitSeconds: Number(fitSeconds.toFixed(1)),
    equalRunsDifferByMb: Number(megabytes(noiseBytes)),
    total: errorsOf(
      held.map((point) => Math.abs((point.loadedBytes + predictedIncrement(law, point)) / point.peakBytes - 1)),
    ),
    increment: errorsOf(held.filter((point) => incrementOf(point) * MAX_INCREMENT_ERROR >= noiseBytes).map(errorOf)),
    incrementOfAll: errorsOf(held.map(errorOf)),
  };
}

async function equalRunsDifferBy(model: StoredModel, shape: RunShape): Promise<number> {
  const increments: number[] = [];
  for (let run = 0; run < EQUAL_RUNS; run++) increments.push(incrementOf(await runInExecutor(model, shape)));
  return Math.max(...increments) - Math.min(...increments);
}

function incrementOf({ peakBytes, loadedBytes }: Held): number {
  return peakBytes - loadedBytes;
}

function predictedIncrement(law: MemoryLaw, shape: RunShape): number {
  return liveBytes(law, shape) - law.loadedBytes;
}

function lineOf(graph: string, law: MemoryLaw, { rows, width, loadedBytes, peakBytes }: Held): string {
  const [increment, predicted] = [peakBytes - loadedBytes, predictedIncrement(law, { rows, width })];
  return (
    `${graph} ${`${rows}×${width}`.padEnd(7)} ${String(rows * width).padStart(6)} tokens: loaded ` +
    `${megabytes(loadedBytes)}, run +${megabytes(increment)} MB, predicted +${megabytes(predicted)} MB, ` +
    `${((100 * predicted) / increment - 100).toFixed(1)} %`
  );
}

/** A fresh executor, told to run one job of this shape twice. */
async function runInExecutor(model: StoredModel, { rows, width }: RunShape): Promise<Held> {
  const executor = await host.start(model, {
    threads: THREADS,
    limits: { maxPaddedTokens: rows * width, maxRows: rows },
  });
  const shapes: string[] = [];
  executor.onMessage((message) => {
    if (message.kind === 'ran') shapes.push(`${message.rows}×${message.width}`);
  });
  const loadedBytes = heldBytes(executor.pid, 'VmRSS');
  forgetPeak(executor.pid); // opening the graph takes more than small runs do
  for (const jobId of ['first', 'second'])
    await executor.run(
      jobId,
      Array.from({ length: rows }, (_, row) => rowOf(width, row, model)),
    );
  const peakBytes = heldBytes(executor.pid, 'VmHWM');
  await executor.stop();
  if (shapes.join() !== `${rows}×${width},${rows}×${width}`)
    throw new Error(`asked for two runs of ${rows}×${width}, the executor ran ${shapes.join(', ')}`);
  return { rows, width, loadedBytes, peakBytes };
}

/** The bench's own cache: models are linked, the plain graph is imported as a model of its own. */
async function modelOf(graph: string): Promise<StoredModel> {
  const name = graph === 'int8' ? 'minilm-int8' : 'minilm';
  await openModel(name, { cacheDir });
  mkdirSync(join(folder, 'models'), { recursive: true });
  symlinkOnce(join(cacheDir, 'models', 'minilm'), join(folder, 'models', 'minilm'));
  const model = await openModel(name, { cacheDir: folder });
  if (graph === 'int8' || graph === 'fused-fp32') return model;
  const given = join(folder, graph);
  cpSync(model.folder, given, { recursive: true });
  cpSync(await openGraph(model, { cacheDir, kind: graph as 'plain-fp32' }), join(given, 'model.onnx'));
  return (await importModel(join(given, 'model.onnx'), { cacheDir: folder, name: graph })).model;
}

function symlinkOnce(target: string, path: string): void {
  try {
    symlinkSync(target, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

interface Errors {
  readonly count: number;
  readonly median: number;
  readonly p95: number;
  readonly max: number;
}

/** p95: the least value that 95 % of them do not exceed. */
function errorsOf(errors: readonly number[]): Errors {
  const sorted = errors.toSorted((a, b) => a - b);
  const at = (share: number): number =>
    Number(sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)]?.toFixed(3) ?? NaN);
  return { count: sorted.length, median: at(0.5), p95: at(0.95), max: at(1) };
}

/** Evenly over the grid. */
function someOf<T>(all: readonly T[], count: number): readonly T[] {
  const wanted = Math.min(count, all.length);
  return Array.from({ length: wanted }, (_, i) => all[Math.floor((i * all.length) / wanted)]!);
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}
