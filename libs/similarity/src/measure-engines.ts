// How long a CPU engine and a GPU engine take for each kind of computation, at a few numbers of queries and at sizes from where the
// CPU is surely faster to where the GPU is: what the choice between them begins with. Some ten seconds at most, of random rows.

import { median, type Side, type TimeTables, type TimedSize } from '@shoal/core';
import type { CudaEngine } from './cuda-engine.ts';
import { graphFromEdges } from './graph.ts';
import { bytesOf } from './hybrid-engine.ts';
import type { Engine } from './kernels.ts';
import { BYTES_OF, matrixOf, sliceRows, ROW_TYPES, type Matrix, type RowBlock, type RowType } from './vectors.ts';

export interface MeasureOptions {
  readonly cpu: Engine;
  readonly gpu: CudaEngine;
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
  readonly nowMs?: () => number;
  /** Rows of the largest block; less is for tests. */
  readonly mostRows?: number;
}

const DIMS = 384;
const QUERIES = [1, 8, 64] as const;
const LEAST_ROWS = 64;
const MOST_ROWS = 1 << 16;
/** From one size to the next. */
const GROWTH = 4;
const K = 10;
const REPEATS = 5;
/** Sizes grow until the GPU is so many times faster; beyond, both go on in a line. */
const CLEARLY = 4;
/** One run of the CPU above this is long enough to know. */
const LONG_MS = 30;
/** All of it, about: each kind has its share, and takes at least two sizes. */
const LIMIT_MS = 8_000;
const STEPS = 3;
const DEGREE = 8;

interface Measured {
  readonly kind: string;
  readonly queries: number;
  /** The run at each size, smallest first. */
  readonly sizes: readonly { readonly work: number; readonly what: Parameters<CudaEngine['keep']>[0]; readonly run: (engine: Engine) => Promise<unknown> }[];
}

export async function measureEngines(options: MeasureOptions): Promise<TimeTables> {
  const { gpu, onProgress = () => undefined, mostRows = MOST_ROWS } = options;
  const tables: Record<string, Partial<Record<Side, TimedSize[]>>> = {};
  const all = [...ROW_TYPES.flatMap((dtype) => rowMeasurements(randomRows(dtype, mostRows))), ...graphMeasurements(mostRows)];
  tables['upload'] = { gpu: await uploads(options, randomRows('f32', mostRows)) };
  const { nowMs = () => performance.now() } = options;
  const startedMs = nowMs();
  for (const [at, measured] of all.entries()) {
    const { kind, queries, sizes } = measured;
    const endMs = startedMs + (LIMIT_MS * (at + 1)) / all.length;
    const table = (tables[kind] ??= { cpu: [], gpu: [] });
    for (const { work, what, run } of sizes) {
      gpu.keep(what);
      const gpuMs = await timed(options, () => run(gpu));
      const cpuMs = await timed(options, () => run(options.cpu));
      gpu.letGo(what);
      table.gpu!.push({ queries, work, ms: gpuMs });
      table.cpu!.push({ queries, work, ms: cpuMs });
      if (cpuMs > CLEARLY * gpuMs || cpuMs > LONG_MS || (nowMs() > endMs && table.cpu!.filter((point) => point.queries === queries).length > 1)) break;
    }
    onProgress((at + 1) / all.length);
  }
  return tables;
}

/** Median of a few, after one that does not count. */
async function timed({ signal, nowMs = () => performance.now() }: MeasureOptions, run: () => Promise<unknown>): Promise<number> {
  await run();
  const times: number[] = [];
  for (let i = 0; i < REPEATS && (times.length === 0 || times[0]! < LONG_MS); i++) {
    signal?.throwIfAborted();
    const startedMs = nowMs();
    await run();
    times.push(Math.max(1e-6, nowMs() - startedMs));
  }
  return median(times);
}

function rowMeasurements(rows: RowBlock): Measured[] {
  const counts = sizesUpTo(rows.rows);
  return QUERIES.flatMap((count): Measured[] => {
    const queries = randomQueries(count);
    const blocks = counts.map((size) => sliceRows(rows, 0, size));
    const topK = blocks.map((what) => ({ work: what.rows * DIMS, what, run: (engine: Engine) => engine.topK(queries, what, 'cosine', Math.min(K, what.rows)) }));
    if (rows.dtype !== 'f32') return [{ kind: `topk/${rows.dtype}`, queries: count, sizes: topK }];
    const matrices = blocks.filter((what) => what.rows * count <= 1 << 20).map((what) => ({ work: what.rows * DIMS, what, run: (engine: Engine) => engine.matrix(queries, what, 'cosine') }));
    const rescores = counts.filter((size) => size <= rows.rows / GROWTH).map((size) => rescore(rows, queries, size));
    return [{ kind: 'topk/f32', queries: count, sizes: topK }, { kind: 'cosine/f32', queries: count, sizes: matrices }, { kind: 'rescore/f32', queries: count, sizes: rescores }];
  });
}

/** So many candidates for each query, anywhere among the rows. */
function rescore(what: RowBlock, queries: Matrix, size: number): Measured['sizes'][number] {
  const begin = Uint32Array.from({ length: queries.rows + 1 }, (_, query) => query * size);
  const candidates = Uint32Array.from({ length: queries.rows * size }, (_, i) => Math.imul(i, 0x9e3779b1) >>> 0).map((at) => at % what.rows);
  return { work: size * DIMS, what, run: (engine) => engine.rescore(queries, what, 'cosine', begin, candidates) };
}

function graphMeasurements(mostRows: number): Measured[] {
  const graphs = sizesUpTo(mostRows).map((nodes) => {
    const edges = nodes * DEGREE;
    return graphFromEdges({ from: Uint32Array.from({ length: edges }, (_, i) => (Math.imul(i, 0x9e3779b1) >>> 0) % nodes), to: Uint32Array.from({ length: edges }, (_, i) => i % nodes) }, nodes);
  });
  return [1, 16].map((lanes) => ({
    kind: 'spread', queries: lanes,
    sizes: graphs.map((graph) => ({
      work: STEPS * (graph.nodes + graph.source.length), what: graph,
      run: (engine: Engine) => engine.spread(graph, lanes, new Float32Array(graph.nodes * lanes).fill(1), { steps: STEPS, decay: 0.1, threshold: 0, k: 1 }),
    })),
  }));
}

/** The way to the device, by bytes. */
async function uploads(options: MeasureOptions, rows: RowBlock): Promise<TimedSize[]> {
  const { gpu } = options;
  const table: TimedSize[] = [];
  for (const size of sizesUpTo(rows.rows)) {
    const what = sliceRows(rows, 0, size);
    const query = randomQueries(1);
    gpu.keep(what);
    const thereMs = await timed(options, () => gpu.topK(query, what, 'cosine', 1));
    const wayMs = await timed(options, async () => {
      gpu.letGo(what);
      gpu.keep(what);
      await gpu.topK(query, what, 'cosine', 1);
    });
    gpu.letGo(what);
    table.push({ queries: 1, work: bytesOf(what), ms: Math.max(1e-3, wayMs - thereMs) });
  }
  return table;
}

function sizesUpTo(most: number): number[] {
  const sizes: number[] = [];
  for (let size = LEAST_ROWS; size <= most; size *= GROWTH) sizes.push(size);
  return sizes;
}

function randomQueries(count: number): Matrix {
  return matrixOf(Float32Array.from({ length: count * DIMS }, (_, i) => Math.sin(i + 1)), DIMS);
}

/** Numbers of every type from the same bits; halves between 0.25 and 2 with both signs. */
function randomRows(dtype: RowType, rows: number): RowBlock {
  const strideBytes = DIMS * BYTES_OF[dtype];
  const data = new Uint8Array(rows * strideBytes);
  let state = 1;
  const next = (): number => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0);
  if (dtype === 'f32') {
    const values = new Float32Array(data.buffer);
    for (let i = 0; i < values.length; i++) values[i] = next() / 2 ** 31 - 1;
  } else if (dtype === 'f16') {
    const halves = new Uint16Array(data.buffer);
    for (let i = 0; i < halves.length; i++) halves[i] = 0x3400 + ((next() >>> 16) & 0x8bff);
  } else {
    for (let i = 0; i < data.length; i++) data[i] = next() >>> 24;
  }
  return { dtype, data, rows, dims: DIMS, strideBytes, ...(dtype === 'i8' ? { scales: new Float32Array(rows).fill(1 / 127) } : {}) };
}
