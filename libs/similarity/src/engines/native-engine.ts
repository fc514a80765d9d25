// The kernels in native code, on libuv's threads: the event loop only waits, but for what is over sooner than a thread
// wakes. What the library wants beside the rows (1/‖row‖ for cosine, the longest row for the bounds of its proof) is
// worked out once for each block of rows.
//
// Why: docs/decisions/similarity-cpu.md#what-is-little-is-computed-in-the-callers-thread

import { invariant, ShoalError } from '@shoal/contract';
import type { BestRows, Engine, Isa, SpreadOptions } from './engine.ts';
import type { Graph } from '../graphs/graph.ts';
import type { NativeAddon, NativeRows } from './native-addon.ts';
import { TurnBudget } from './turn-budget.ts';
import { BYTES_OF, METRICS, MIN_LENGTH, ROW_TYPES, type Matrix, type Metric, type RowBlock } from './vectors.ts';

/**
 * Work is counted in products of a search by one query, some 0.09 to 0.12 ns each where they wait for no memory. In
 * these: what a value of a row costs however many queries meet it, and what a product costs then, where rows are
 * compared in place and where they are packed first; a product in fp64, and one of a length; a step along an edge, and
 * each lane of it more. 1,000 × 384 by 1, 4, 8 and 16 queries: 34, 62, 121 and 240 µs in a search, 31, 46, 83 and 177
 * where every score is kept; by 20 and 64 265 and 615 there (AVX2, one core of an EPYC, 2026-11; AVX-512 of a Xeon as
 * much). Rows that are scored in fp64 lie anywhere: without waiting for them a product takes 0.14 ns.
 */
const IN_PLACE = { value: 0.6, product: 0.4 } as const;
const PACKED = { value: 2.9, product: 0.24 } as const;
const EXACT_PRODUCT = 2;
const LENGTH_PRODUCT = 1.4;
const EDGE = 10;
const EDGE_LANE = 1.5;

/**
 * Less is done at once, in the caller's thread: in some 75 µs at most, where a call on another thread takes 45 to 200
 * more (EPYC and Xeon, 2026-11). The break-even with a GPU, which is asked in the same way and takes 27 to 45, lies
 * within.
 */
const AT_ONCE_WORK = 600_000;
const AT_ONCE = 0;
/**
 * So much of that, some 2 ms, in one turn of the event loop: who awaits one such call after the other would else hold
 * up everybody else.
 */
const AT_ONCE_WORK_OF_A_TURN = 16_000_000;
/** What a call takes beside its work. */
const CALL_WORK = 80_000;

/**
 * Each thread gets so much at least, some 60 µs of one query's time where a thread waits for memory; waking another
 * takes 2 to 40 µs. Two or three threads save too little of something short: one query × 5,000 × 384 takes 194 µs on
 * one core of an EPYC and 222 on two, on a Xeon 450 on one, 147 on four, 74 to 90 on 16 (2026-11).
 */
const MIN_WORK_EACH = 250_000;
const SHORT_WORK = 2_000_000;
const MIN_THREADS_FOR_SHORT = 4;

/**
 * Most edges and nodes of one call that spreads, all steps together: 1.5 s with 16 lanes side by side (AVX2, two cores,
 * a graph of 1 M nodes and 20 M edges, 2026-11-23). A call that lasts a minute is taken for one that hangs.
 */
const SPREAD_WORK = 1 << 25;

export function nativeEngine(addon: NativeAddon, isa: Isa, threads: number, spreadWork = SPREAD_WORK): Engine {
  return new NativeEngine(addon, isa, threads, spreadWork);
}

class NativeEngine implements Engine {
  readonly isa: Isa;
  readonly threads: number;
  readonly #addon: NativeAddon;
  /** Where `isa` stands among those of the addon. */
  readonly #index: number;
  readonly #spreadWork: number;
  readonly #turn = new TurnBudget(AT_ONCE_WORK_OF_A_TURN);
  readonly #prepare: RowsPreparer;

  constructor(addon: NativeAddon, isa: Isa, threads: number, spreadWork: number) {
    this.isa = isa;
    this.threads = threads;
    this.#addon = addon;
    this.#index = addon.isas().indexOf(isa);
    this.#spreadWork = spreadWork;
    this.#prepare = new RowsPreparer(addon, this.#index, (work) => this.#threadsFor(work));
  }

  async topK(queries: Matrix, rows: RowBlock, metric: Metric, k: number, signal?: AbortSignal): Promise<BestRows> {
    const prepared = await this.#prepare.rows(rows, metric);
    const found = new Uint32Array(queries.rows * (k + 1));
    const scores = new Float64Array(queries.rows * k);
    const work = workOf(queries.rows, rows) + EXACT_PRODUCT * k * queries.rows * rows.dims;
    await withStop(signal, (stop) =>
      this.#addon.topK(
        this.#index,
        this.#threadsFor(work),
        ...prepared,
        unshared(queries.values),
        queries.rows,
        METRICS.indexOf(metric),
        k,
        found,
        scores,
        stop,
      ),
    );
    return { found: found.subarray(0, queries.rows), rows: found.subarray(queries.rows), scores };
  }

  async matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array> {
    const prepared = await this.#prepare.scoredRows(rows, metric);
    const scores = new Float32Array(queries.rows * rows.rows);
    await withStop(signal, (stop) =>
      this.#addon.matrix(
        this.#index,
        this.#threadsFor(workOf(queries.rows, rows)),
        ...prepared,
        unshared(queries.values),
        queries.rows,
        METRICS.indexOf(metric),
        scores,
        stop,
      ),
    );
    return scores;
  }

  async rescore(
    queries: Matrix,
    rows: RowBlock,
    metric: Metric,
    begin: Uint32Array,
    candidates: Uint32Array,
    signal?: AbortSignal,
  ): Promise<Float64Array> {
    const prepared = await this.#prepare.scoredRows(rows, metric);
    const scores = new Float64Array(candidates.length);
    await withStop(signal, (stop) =>
      this.#addon.rescore(
        this.#index,
        this.#threadsFor(EXACT_PRODUCT * candidates.length * rows.dims),
        ...prepared,
        unshared(queries.values),
        queries.rows,
        METRICS.indexOf(metric),
        begin,
        candidates,
        scores,
        stop,
      ),
    );
    return scores;
  }

  async spread(
    graph: Graph,
    lanes: number,
    activation: Float32Array,
    { steps, decay, threshold, signal, onPart }: SpreadOptions,
  ): Promise<Float32Array> {
    const { nodes, begin, source, weight } = graph;
    const scratch = new Float32Array(2 * activation.length);
    const work = steps * (source.length + nodes);
    for (let from = 0; from < work; from += this.#spreadWork) {
      if (from > 0) onPart?.();
      const to = Math.min(work, from + this.#spreadWork);
      await withStop(signal, (stop) =>
        this.#addon.spread(
          this.#index,
          this.#threadsFor(work * (EDGE + EDGE_LANE * lanes)),
          nodes,
          begin,
          source,
          weight,
          lanes,
          from,
          to,
          decay,
          threshold,
          activation,
          scratch,
          stop,
        ),
      );
    }
    return activation;
  }

  #threadsFor(work: number): number {
    if (work < AT_ONCE_WORK) return this.#turn.take(work + CALL_WORK) ? AT_ONCE : 1;
    const wanted = Math.min(this.threads, Math.floor(work / MIN_WORK_EACH));
    return work < SHORT_WORK && wanted < MIN_THREADS_FOR_SHORT ? 1 : wanted;
  }
}

function workOf(queries: number, { rows, dims }: RowBlock): number {
  return Math.min(IN_PLACE.value + IN_PLACE.product * queries, PACKED.value + PACKED.product * queries) * rows * dims;
}

/** Runs `work` with a byte that an abort sets; then the reason is thrown, whatever the work has left. */
export async function withStop<Value>(
  signal: AbortSignal | undefined,
  work: (stop: Uint8Array) => Promise<Value>,
): Promise<Value> {
  signal?.throwIfAborted();
  const stop = new Uint8Array(1);
  const onAbort = (): void => {
    stop[0] = 1;
  };
  signal?.addEventListener('abort', onAbort, { once: true });
  try {
    const value = await work(stop);
    signal?.throwIfAborted();
    return value;
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof Error && error.message === 'out of memory')
      throw new ShoalError(
        'OUT_OF_VRAM',
        'there is not enough memory for this search: take fewer rows or queries at a time (tileRows)',
        {},
        error,
      );
    throw error;
  } finally {
    signal?.removeEventListener('abort', onAbort);
  }
}

/** N-API hands out pointers into memory that only this process changes. */
export function unshared(values: Float32Array): Float32Array {
  return values.buffer instanceof SharedArrayBuffer ? values.slice() : values;
}

interface Prepared {
  readonly lengths: Float32Array | Float64Array;
  readonly longest: number;
  inverse?: Float32Array;
}

class RowsPreparer {
  readonly #addon: NativeAddon;
  readonly #isa: number;
  readonly #threadsFor: (work: number) => number;
  /** Blocks are never changed: a collection's are read-only, and a matrix gets a new one with each call. */
  readonly #known = new WeakMap<RowBlock, Prepared>();

  constructor(addon: NativeAddon, isa: number, threadsFor: (work: number) => number) {
    this.#addon = addon;
    this.#isa = isa;
    this.#threadsFor = threadsFor;
  }

  async rows(block: RowBlock, metric: Metric): Promise<NativeRows> {
    const { scales } = block;
    const described = (factors: Float32Array | null, longest: number): NativeRows =>
      describedRows(block, factors, longest);
    let prepared = this.#known.get(block);
    if (prepared === undefined) {
      const lengths = block.lengths ?? (await this.#lengths(described(null, 0), scales));
      prepared = { lengths, longest: longestOf(lengths) };
      this.#known.set(block, prepared);
    }
    if (metric !== 'cosine') return described(scales ?? null, prepared.longest);
    return described((prepared.inverse ??= inverseOf(prepared.lengths, scales)), prepared.longest);
  }

  /**
   * For scores of all rows, or of chosen ones: nothing is proven of those left out, so no length is needed but for
   * cosine.
   */
  async scoredRows(block: RowBlock, metric: Metric): Promise<NativeRows> {
    return metric === 'cosine' ? this.rows(block, metric) : describedRows(block, block.scales ?? null, 0);
  }

  async #lengths(rows: NativeRows, scales: Float32Array | undefined): Promise<Float64Array> {
    const lengths = new Float64Array(rows[1]);
    await this.#addon.lengths(this.#isa, this.#threadsFor(LENGTH_PRODUCT * rows[1] * rows[2]), ...rows, lengths);
    if (scales !== undefined) for (let row = 0; row < lengths.length; row++) lengths[row]! *= scales[row]!;
    return lengths;
  }
}

/** `factors`: what similarity.h calls scales. */
export function describedRows(
  { dtype, data, rows, dims, strideBytes }: RowBlock,
  factors: Float32Array | null,
  longest: number,
): NativeRows {
  invariant(
    strideBytes % BYTES_OF[dtype] === 0 && data.length >= (rows - 1) * strideBytes + dims * BYTES_OF[dtype],
    'rows lie within their bytes, each on a multiple of its element',
  );
  return [
    data.buffer instanceof SharedArrayBuffer ? data.slice() : data,
    rows,
    dims,
    strideBytes,
    ROW_TYPES.indexOf(dtype),
    factors,
    longest,
  ];
}

function longestOf(lengths: Float32Array | Float64Array): number {
  let longest = 0;
  for (const length of lengths) if (length > longest) longest = length; // false for NaN
  return longest * (1 + 1e-6); // lengths may have been rounded
}

/** 1/‖row‖ in units of the stored values; 0 for rows of length 0. */
function inverseOf(lengths: Float32Array | Float64Array, scales: Float32Array | undefined): Float32Array {
  const inverse = new Float32Array(lengths.length);
  for (let row = 0; row < inverse.length; row++)
    inverse[row] = lengths[row]! < MIN_LENGTH ? 0 : (scales?.[row] ?? 1) / lengths[row]!;
  return inverse;
}
