// How long a CPU engine and a GPU engine take for each kind of computation, at a few numbers of queries: at sizes from
// where the CPU is surely faster to where the GPU is, and then closer and closer to where they are as fast, because
// between two sizes four times apart neither is a line. What lies near there is timed again after all other kinds, a
// few times, because what else a machine does comes and goes within seconds. What the choice between them begins with.
// Some ten seconds at most, of random rows.

import { SIDES, lowerQuartile, median, type Side, type TimeTables, type TimedSize } from '@shoal/core';
import type { CudaEngine } from '../engines/cuda-engine.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import { bytesOf } from '../engines/hybrid-engine.ts';
import type { Engine } from '../engines/kernels.ts';
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
/** From one size to the next. */
const GROWTH = 4;
/** The size at which both are as fast is known to lie between two that are so far apart. */
const CLOSE = 1.08;
const K = 10;
/**
 * Turns of both sides at a size, and of one that decides where they are as fast: medians of 5 were off by up to a half
 * (H200, 2026-11-22).
 */
const TURNS = 5;
const CLOSE_TURNS = 15;
const UNCOUNTED_TURNS = 3;
/** So often is timed again what is at most so many times from where both are as fast. */
const PASSES = 10;
const NEAR = 1.5;
/**
 * Sizes grow until the GPU is so many times faster, beyond which both go on in a line, and shrink until it is so many
 * times slower.
 */
const CLEARLY = 4;
const CLEARLY_SLOWER = 2;
/** One run of the CPU above this is long enough to know. */
const LONG_MS = 30;
/** All of it, about: each kind has its share of the first pass, and takes at least two sizes. */
const LIMIT_MS = 8_000;
const STEPS = 3;
const DEGREE = 20;

interface Run {
  readonly work: number;
  readonly what: Parameters<CudaEngine['keep']>[0];
  readonly run: (engine: Engine) => Promise<unknown>;
}

interface Measured {
  readonly kind: string;
  readonly queries: number;
  readonly mostRows: number;
  /** Rows, candidates of each query, or nodes. */
  readonly at: (size: number) => Run;
}

/** Milliseconds of one size. */
type Both = Readonly<Record<Side, number>>;

/** What is run at one size, and the medians of each visit. */
interface Sample {
  readonly run: Run;
  readonly visits: readonly Both[];
}

export async function measureEngines(options: MeasureOptions): Promise<TimeTables> {
  const { onProgress = () => undefined, mostRows = MOST_ROWS, nowMs = () => performance.now() } = options;
  const searches = [
    ...ROW_TYPES.flatMap((dtype) => rowMeasurements(randomRows(dtype, mostRows))),
    ...graphMeasurements(mostRows),
  ].map((measured) => new Search(options, measured));
  const tables: Record<string, Partial<Record<Side, TimedSize[]>>> = {
    upload: { gpu: await uploads(options, randomRows('f32', mostRows)) },
  };
  const startedMs = nowMs();
  for (const [at, search] of searches.entries()) {
    const endMs = startedMs + (LIMIT_MS * (at + 1)) / searches.length;
    await search.begin(() => nowMs() > endMs);
    onProgress((at + 1) / (searches.length * (PASSES + 1)));
  }
  for (let pass = 0; pass < PASSES; pass++) {
    for (const [at, search] of searches.entries()) {
      await search.again(() => nowMs() > startedMs + LIMIT_MS);
      onProgress(((pass + 1) * searches.length + at + 1) / (searches.length * (PASSES + 1)));
    }
  }
  for (const {
    measured: { kind, queries },
    samples,
  } of searches) {
    const table = (tables[kind] ??= { cpu: [], gpu: [] });
    for (const sample of samples)
      for (const side of SIDES) table[side]!.push({ queries, work: sample.run.work, ms: undisturbed(sample)[side] });
  }
  return tables;
}

/** For the size at which both sides are as fast. */
class Search {
  readonly measured: Measured;
  readonly #options: MeasureOptions;
  readonly #bySize = new Map<number, Sample>();

  constructor(options: MeasureOptions, measured: Measured) {
    this.#options = options;
    this.measured = measured;
  }

  get samples(): readonly Sample[] {
    return [...this.#bySize.values()];
  }

  /**
   * Sizes that grow to where the GPU is clearly faster, and shrink to where the CPU is, which takes no time: with less
   * of the CPU's a wrong reading, or what is learned later, would leave it nothing.
   */
  async begin(isLate: () => boolean): Promise<void> {
    const { mostRows } = this.measured;
    for (let size = FIRST_ROWS; size <= mostRows; size *= GROWTH) {
      const { cpu, gpu } = undisturbed(await this.#time(size, TURNS));
      if (cpu > CLEARLY * gpu || cpu > LONG_MS || (isLate() && this.#bySize.size > 1)) break;
    }
    for (
      let size = FIRST_ROWS / GROWTH;
      size >= 1 && !isCpuClearlyFaster(this.#bySize.get(size * GROWTH)!);
      size /= GROWTH
    )
      await this.#time(size, TURNS);
  }

  /**
   * What is near joins what was found before, and may say that it lies elsewhere; then half of what lies between the
   * last two that disagree.
   */
  async again(isLate: () => boolean): Promise<void> {
    const before = this.#lastGap();
    if (before === undefined) return;
    const near = [...this.#bySize.keys()].filter((size) => size >= before.low / NEAR && size <= before.high * NEAR);
    for (const size of near) if (!isLate()) await this.#time(size, CLOSE_TURNS);
    const gap = this.#lastGap();
    if (gap !== undefined && gap.high > gap.low * CLOSE && gap.high - gap.low > 1 && !isLate())
      await this.#time(Math.round(Math.sqrt(gap.low * gap.high)), CLOSE_TURNS);
  }

  async #time(size: number, turns: number): Promise<Sample> {
    const { run, visits } = this.#bySize.get(size) ?? { run: this.measured.at(size), visits: [] };
    const sample = { run, visits: [...visits, await inTurns(this.#options, run, turns)] };
    this.#bySize.set(size, sample);
    return sample;
  }

  /** Two sizes next to each other, at the smaller of which the CPU is faster and at the larger the GPU. */
  #lastGap(): { low: number; high: number } | undefined {
    const sizes = [...this.#bySize.keys()].sort((a, b) => a - b);
    const at = sizes.findLastIndex(
      (size, i) => i > 0 && isGpuFaster(this.#bySize.get(size)!) && !isGpuFaster(this.#bySize.get(sizes[i - 1]!)!),
    );
    return at === -1 ? undefined : { low: sizes[at - 1]!, high: sizes[at]! };
  }
}

function isGpuFaster(sample: Sample): boolean {
  const { cpu, gpu } = undisturbed(sample);
  return gpu < cpu;
}

function isCpuClearlyFaster(sample: Sample): boolean {
  const { cpu, gpu } = undisturbed(sample);
  return gpu > CLEARLY_SLOWER * cpu;
}

/** Of each side the lower quartile of its visits: whoever else wants the machine makes it slower, never faster. */
function undisturbed({ visits }: Sample): Both {
  const of = (side: Side): number => lowerQuartile(visits.map((both) => both[side]));
  return { cpu: of('cpu'), gpu: of('gpu') };
}

/**
 * Medians of both sides in turns, so that what disturbs one disturbs the other; after a few that do not count: the CUDA
 * library records what is asked for again.
 */
async function inTurns(
  { cpu, gpu, signal, nowMs = () => performance.now() }: MeasureOptions,
  { what, run }: Run,
  turns: number,
): Promise<Both> {
  gpu.keep(what);
  for (let turn = 0; turn < UNCOUNTED_TURNS; turn++) {
    const startedMs = nowMs();
    await run(gpu);
    await run(cpu);
    if (nowMs() - startedMs > LONG_MS) break;
  }
  const ms: Record<Side, number[]> = { cpu: [], gpu: [] };
  for (let turn = 0; turn < turns && (turn === 0 || ms.cpu[0]! < LONG_MS); turn++) {
    signal?.throwIfAborted();
    for (const [side, engine] of [
      ['gpu', gpu],
      ['cpu', cpu],
    ] as const) {
      const startedMs = nowMs();
      await run(engine);
      ms[side].push(Math.max(1e-6, nowMs() - startedMs));
    }
  }
  gpu.letGo(what);
  return { cpu: median(ms.cpu), gpu: median(ms.gpu) };
}

/** Median of a few of one side, after one that does not count. */
async function timed(
  { signal, nowMs = () => performance.now() }: MeasureOptions,
  run: () => Promise<unknown>,
): Promise<number> {
  await run();
  const times: number[] = [];
  for (let i = 0; i < TURNS && (times.length === 0 || times[0]! < LONG_MS); i++) {
    signal?.throwIfAborted();
    const startedMs = nowMs();
    await run();
    times.push(Math.max(1e-6, nowMs() - startedMs));
  }
  return median(times);
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

/** The way to the device, by bytes. */
async function uploads(options: MeasureOptions, rows: RowBlock): Promise<TimedSize[]> {
  const { gpu } = options;
  const table: TimedSize[] = [];
  for (let size = FIRST_ROWS; size <= rows.rows; size *= GROWTH) {
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
