// From which size on a GPU engine is faster than a CPU engine, for each kind of computation at a few numbers of
// queries: sizes grow from where the CPU is surely faster until the GPU is, and the place between the last two is
// halved until it is known. And from how many queries on it pays to bring rows to the device for one search. Some
// seconds, of random rows.

import { lowerQuartile } from '@shoal/core/base';
import type { MeasuredThresholds, Side, Threshold } from '@shoal/core/similarity';
import type { CudaEngine } from '../engines/cuda-engine.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import type { Engine } from '../engines/engine.ts';
import {
  BYTES_OF,
  matrixOf,
  sliceRows,
  ROW_TYPES,
  type Matrix,
  type RowBlock,
  type RowType,
} from '../engines/vectors.ts';

export interface MeasureOptions {
  readonly cpu: Engine;
  readonly gpu: CudaEngine;
  /** From 0 to 1. */
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
  readonly nowMs?: () => number;
  /** Rows of the largest block; less is for tests. */
  readonly mostRows?: number;
}

const DIMS = 384;
const QUERIES = [1, 8, 64] as const;
const FIRST_ROWS = 64;
const MOST_ROWS = 1 << 16;
/** From one size to the next while it is looked for. */
const GROWTH = 4;
/** The threshold is known when it lies between two sizes that are so far apart. */
const CLOSE = 1.15;
const K = 10;
/** Turns of both sides at a size, after a few that do not count: the CUDA library records what is asked for again. */
const TURNS = 15;
const UNCOUNTED_TURNS = 3;
/** One run above this is long enough to know. */
const LONG_MS = 30;
/** All turns of a size end after so long. */
const SIZE_MS = 250;
const STEPS = 3;
const DEGREE = 20;
/** Numbers of queries at which rows are brought to the device for one search, and how many rows. */
const PASSING_QUERIES = [1, 8, 64, 512] as const;
const PASSING_ROWS = 1 << 14;

interface Run {
  readonly work: number;
  readonly what: Parameters<CudaEngine['keep']>[0];
  readonly run: (engine: Engine) => Promise<unknown>;
}

interface Measured {
  readonly kind: string;
  readonly queries: number;
  readonly mostRows: number;
  /** A run over so many rows, candidates of each query, or nodes. */
  readonly at: (size: number) => Run;
}

/** Rejects with the reason of `signal` when that is aborted. */
export async function measureThresholds(options: MeasureOptions): Promise<MeasuredThresholds> {
  const { onProgress = () => undefined, mostRows = MOST_ROWS } = options;
  const blocks = ROW_TYPES.map((dtype) => randomRows(dtype, mostRows));
  const kinds = [...blocks.flatMap(rowMeasurements), ...graphMeasurements(mostRows)];
  const thresholds: Threshold[] = [];
  for (const measured of kinds) {
    thresholds.push({ kind: measured.kind, queries: measured.queries, work: await thresholdOf(options, measured) });
    onProgress(thresholds.length / (kinds.length + blocks.length));
  }
  const passingQueries: Record<string, number> = {};
  for (const [at, rows] of blocks.entries()) {
    const queries = await passingQueriesOf(options, sliceRows(rows, 0, Math.min(rows.rows, PASSING_ROWS)));
    if (queries !== undefined) passingQueries[rows.dtype] = queries;
    onProgress((kinds.length + at + 1) / (kinds.length + blocks.length));
  }
  return { thresholds, passingQueries };
}

/**
 * Where both sides take nearly as long over many sizes, one wrong reading leads far away: so often it is looked again.
 */
const LOOKS = 3;

/**
 * The work from which on the GPU is faster; undefined where it is not even at the largest size. What was found counts
 * when the CPU is the faster side at half of it and the GPU at twice; else it is looked for on the side that disagrees.
 */
async function thresholdOf(options: MeasureOptions, { at, mostRows }: Measured): Promise<number | undefined> {
  const isFaster = async (size: number): Promise<boolean> => isGpuFaster(options, at(size));
  let found = await crossingFrom(Math.min(FIRST_ROWS, mostRows), isFaster, mostRows);
  for (let look = 1; look < LOOKS && found !== undefined; look++) {
    const { low, high } = found;
    if (2 * high <= mostRows && !(await isFaster(2 * high))) found = await crossingFrom(2 * high, isFaster, mostRows);
    else if (low >= 2 && (await isFaster(Math.floor(low / 2))))
      found = await crossingFrom(Math.floor(low / 2), isFaster, mostRows);
    else break;
  }
  return found === undefined ? undefined : Math.sqrt(at(Math.max(1, found.low)).work * at(found.high).work);
}

/** Two sizes close together, at the smaller of which the CPU is faster (0: nowhere) and at the larger the GPU. */
async function crossingFrom(
  first: number,
  isFaster: (size: number) => Promise<boolean>,
  mostRows: number,
): Promise<{ readonly low: number; readonly high: number } | undefined> {
  let low = 0;
  let high = first;
  while (!(await isFaster(high))) {
    if (high * GROWTH > mostRows) return undefined;
    low = high;
    high *= GROWTH;
  }
  for (let size = Math.floor(high / GROWTH); low === 0 && size >= 1; size = Math.floor(size / GROWTH)) {
    if (await isFaster(size)) high = size;
    else low = size;
  }
  while (low > 0 && high > low * CLOSE && high - low > 1) {
    const middle = Math.round(Math.sqrt(low * high));
    if (await isFaster(middle)) high = middle;
    else low = middle;
  }
  return { low, high };
}

/** Of the lower quartiles of both sides, because whoever else wants the machine makes a side slower, never faster. */
async function isGpuFaster(options: MeasureOptions, { what, run }: Run): Promise<boolean> {
  options.gpu.keep(what);
  const ms = await interleaved(options, run, async () => undefined);
  options.gpu.letGo(what);
  return lowerQuartile(ms.gpu) < lowerQuartile(ms.cpu);
}

/** The first of PASSING_QUERIES at which the way there and the search take less than the search on the CPU. */
async function passingQueriesOf(options: MeasureOptions, rows: RowBlock): Promise<number | undefined> {
  const { gpu } = options;
  for (const count of PASSING_QUERIES) {
    const queries = randomQueries(count);
    const ms = await interleaved(
      options,
      (engine) => engine.topK(queries, rows, 'cosine', Math.min(K, rows.rows)),
      async () => {
        gpu.letGo(rows);
        gpu.keep(rows);
      },
    );
    gpu.letGo(rows);
    if (lowerQuartile(ms.gpu) < lowerQuartile(ms.cpu)) return count;
  }
  return undefined;
}

/** Milliseconds of both sides in turns, so that what disturbs one disturbs the other. `prepare` is off the clock. */
async function interleaved(
  { cpu, gpu, signal, nowMs = () => performance.now() }: MeasureOptions,
  run: (engine: Engine) => Promise<unknown>,
  prepare: () => Promise<void>,
): Promise<Readonly<Record<Side, number[]>>> {
  const ms: Record<Side, number[]> = { cpu: [], gpu: [] };
  const startedMs = nowMs();
  for (let turn = -UNCOUNTED_TURNS; turn < TURNS; turn++) {
    signal?.throwIfAborted();
    const longest = Math.max(0, ...ms.cpu, ...ms.gpu);
    const isLate = nowMs() - startedMs > SIZE_MS || longest > LONG_MS;
    if (isLate && ms.cpu.length > 0) break;
    for (const [side, engine] of [
      ['gpu', gpu],
      ['cpu', cpu],
    ] as const) {
      await prepare();
      const begunMs = nowMs();
      await run(engine);
      // Of a size that takes long even the first turns count.
      if (turn >= 0 || nowMs() - startedMs > SIZE_MS) ms[side].push(nowMs() - begunMs);
    }
  }
  return ms;
}

function rowMeasurements(rows: RowBlock): Measured[] {
  return QUERIES.flatMap((count): Measured[] => {
    const queries = randomQueries(count);
    const topK: Measured = {
      kind: `topk/${rows.dtype}`,
      queries: count,
      mostRows: rows.rows,
      at: (size) => ofRows(rows, size, (engine, what) => engine.topK(queries, what, 'cosine', Math.min(K, size))),
    };
    if (rows.dtype !== 'f32') return [topK];
    const matrix: Measured = {
      kind: 'cosine/f32',
      queries: count,
      mostRows: Math.min(rows.rows, (1 << 20) / count),
      at: (size) => ofRows(rows, size, (engine, what) => engine.matrix(queries, what, 'cosine')),
    };
    return [
      topK,
      matrix,
      { kind: 'rescore/f32', queries: count, mostRows: rows.rows / GROWTH, at: (size) => rescore(rows, queries, size) },
    ];
  });
}

function ofRows(rows: RowBlock, size: number, run: (engine: Engine, what: RowBlock) => Promise<unknown>): Run {
  const what = sliceRows(rows, 0, size);
  return { work: size * DIMS, what, run: (engine) => run(engine, what) };
}

/** So many candidates for each query, anywhere among the rows. */
function rescore(what: RowBlock, queries: Matrix, size: number): Run {
  const begin = Uint32Array.from({ length: queries.rows + 1 }, (_, query) => query * size);
  const candidates = Uint32Array.from({ length: queries.rows * size }, (_, i) => Math.imul(i, 0x9e3779b1) >>> 0).map(
    (at) => at % what.rows,
  );
  return { work: size * DIMS, what, run: (engine) => engine.rescore(queries, what, 'cosine', begin, candidates) };
}

function graphMeasurements(mostRows: number): Measured[] {
  return [1, 16].map((lanes) => ({ kind: 'spread', queries: lanes, mostRows, at: (size) => spread(lanes, size) }));
}

function spread(lanes: number, nodes: number): Run {
  const edges = nodes * DEGREE;
  const graph = graphFromEdges(
    {
      from: Uint32Array.from({ length: edges }, (_, i) => (Math.imul(i, 0x9e3779b1) >>> 0) % nodes),
      to: Uint32Array.from({ length: edges }, (_, i) => i % nodes),
    },
    nodes,
  );
  const seeds = new Float32Array(nodes * lanes); // new memory for each run would take longer than a GPU
  return {
    work: STEPS * (nodes + edges),
    what: graph,
    run: (engine) => engine.spread(graph, lanes, seeds.fill(1), { steps: STEPS, decay: 0.1, threshold: 0, k: 1 }),
  };
}

function randomQueries(count: number): Matrix {
  return matrixOf(
    Float32Array.from({ length: count * DIMS }, (_, i) => Math.sin(i + 1)),
    DIMS,
  );
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
  return {
    dtype,
    data,
    rows,
    dims: DIMS,
    strideBytes,
    ...(dtype === 'i8' ? { scales: new Float32Array(rows).fill(1 / 127) } : {}),
  };
}
