// What this library computes, as one interface: exact top-k, every score, scores of candidates, spreading activation.
// The checks stand here, once; an engine below (native code where its addon loads, plain code elsewhere) gets checked
// values and gives the same answers: ordered and scored in fp64, ties to the lower id. No call blocks the event loop
// for long.

import { availableParallelism } from 'node:os';
import { ShoalError } from '@shoal/contract';
import type { Graph } from '../graphs/graph.ts';
import { BestHeap } from './best-heap.ts';
import { nativeAddon, nativeProblem } from './native-addon.ts';
import { nativeEngine } from './native-engine.ts';
import { plainEngine } from './plain-engine.ts';
import {
  checkDims,
  checkValues,
  idOfRow,
  METRICS,
  rowOfId,
  rowsOf,
  sliceRows,
  type Matrix,
  type Metric,
  type RowBlock,
} from './vectors.ts';

/** Instruction sets of the native code, best first, and `plain`: no native code at all. */
export const ISAS = ['avx512', 'avx2', 'neon', 'portable', 'plain'] as const;
export type Isa = (typeof ISAS)[number];
/** What computes: an instruction set, the GPU, or whichever of a CPU and a GPU is faster. */
export type EngineName = Isa | 'cuda' | 'hybrid';

export interface Stoppable {
  /** The call ends early with the signal's reason; checked every few milliseconds of work. */
  readonly signal?: AbortSignal;
}

export interface SearchOptions extends Stoppable {
  /** 1 or more; more than there are rows means all of them. */
  readonly k: number;
  readonly metric: Metric;
  /** Rows that are looked at in one go. Fewer need less memory beside the rows (`workBytes`); answers are the same. */
  readonly tileRows?: number;
}

export interface MatrixOptions extends Stoppable {
  readonly metric: Metric;
}

/** Nodes of one start, with their activation; each lane spreads by itself. */
export interface Seeds {
  readonly nodes: Uint32Array;
  readonly values: Float32Array;
}

export interface SpreadOptions extends Stoppable {
  readonly steps: number;
  /** 0 to 1: what is left of an activation after one edge of weight 1. */
  readonly decay: number;
  /** A node whose activation of the last step is below gives nothing on. */
  readonly threshold: number;
  readonly k: number;
  /** Whoever computes is through with a part of it and begins with the next. */
  readonly onPart?: () => void;
}

/** The best of each query, best first. Query q has `found[q]` of them, from q × k on; what is behind is 0. */
export interface TopK {
  readonly queries: number;
  readonly k: number;
  readonly found: Uint32Array;
  readonly ids: BigUint64Array;
  readonly scores: Float32Array;
}

export interface Kernels {
  readonly isa: EngineName;
  readonly threads: number;
  /** The k best rows of each query, by exact search. Rows that hold NaN are never found. */
  topK(queries: Matrix, rows: RowBlock, options: SearchOptions): Promise<TopK>;
  /** Every score, a.rows × b.rows, whatever the metric. */
  cosine(a: Matrix, b: Matrix | RowBlock, options: MatrixOptions): Promise<Float32Array>;
  /** The k best of the rows with the ids `candidates[q]`; an id that comes twice counts once. */
  rescore(
    queries: Matrix,
    rows: RowBlock,
    candidates: readonly BigUint64Array[],
    options: SearchOptions,
  ): Promise<TopK>;
  /** The k most activated nodes of each lane; nodes that nothing reached are not among them. */
  spread(graph: Graph, seeds: readonly Seeds[], options: SpreadOptions): Promise<TopK>;
}

/** Best rows by number, best first, with fp64 scores: what engines give back. Laid out like `TopK`. */
export interface BestRows {
  readonly found: Uint32Array;
  readonly rows: Uint32Array;
  readonly scores: Float64Array;
}

/** What computes. Everything it is given was checked; it may not look at `ids`. */
export interface Engine {
  readonly isa: EngineName;
  readonly threads: number;
  topK(queries: Matrix, rows: RowBlock, metric: Metric, k: number, signal?: AbortSignal): Promise<BestRows>;
  matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array>;
  /** Scores in fp64 of the rows `candidates[begin[q]] … candidates[begin[q + 1] − 1]`. */
  rescore(
    queries: Matrix,
    rows: RowBlock,
    metric: Metric,
    begin: Uint32Array,
    candidates: Uint32Array,
    signal?: AbortSignal,
  ): Promise<Float64Array>;
  /**
   * The totals. `activation` is nodes × lanes and holds the seeds; where the device failed it still does, otherwise it
   * may hold the totals.
   */
  spread(graph: Graph, lanes: number, activation: Float32Array, options: SpreadOptions): Promise<Float32Array>;
}

export interface KernelOptions {
  /** An instruction set that this machine or build lacks is refused with SETUP_FAILED. Unset: the best. */
  readonly isa?: Isa;
  /** 1 to 1,024. Unset: one for each core. */
  readonly threads?: number;
}

/** More than the largest machines have cores. */
const MOST_THREADS = 1024;

/** Native code when its addon is there, else plain code. */
export function openKernels(options: KernelOptions = {}): Kernels {
  return kernelsOn(cpuEngine(options));
}

/** The checks in front of an engine. */
export function kernelsOn(engine: Engine): Kernels {
  return new CheckedKernels(engine);
}

/** As `openKernels`, without the checks. */
export function cpuEngine({
  isa,
  threads = Math.min(MOST_THREADS, availableParallelism()),
}: KernelOptions = {}): Engine {
  if (!Number.isInteger(threads) || threads < 1 || threads > MOST_THREADS)
    throw new ShoalError(
      'CONFIG_INVALID',
      `the kernels were asked for ${threads} threads: they take 1 to ${MOST_THREADS}; leave it out for one per core`,
      { threads },
    );
  const addon = isa === 'plain' ? undefined : nativeAddon();
  const there = addon?.isas() ?? [];
  const chosen = isa ?? (there[0] as Isa | undefined) ?? 'plain';
  if (chosen === 'plain') return plainEngine();
  if (addon === undefined || !there.includes(chosen)) {
    const why =
      addon === undefined
        ? `the native code is not here (${nativeProblem()}); npm run build makes it where there is a C++ compiler`
        : `this machine has ${there.join(', ')}`;
    throw new ShoalError('SETUP_FAILED', `the kernels for ${chosen} cannot be used: ${why}`, { isa: chosen });
  }
  return nativeEngine(addon, chosen, threads);
}

/** Lanes that spread side by side: 16 floats are one cache line, and more would only need more memory. */
const SPREAD_LANES = 16;

class CheckedKernels implements Kernels {
  readonly #engine: Engine;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  get isa(): EngineName {
    return this.#engine.isa;
  }

  get threads(): number {
    return this.#engine.threads;
  }

  async topK(
    queries: Matrix,
    rows: RowBlock,
    { k, metric, tileRows = rows.rows, signal }: SearchOptions,
  ): Promise<TopK> {
    checkSearch(queries, rows, k, metric);
    if (!Number.isInteger(tileRows) || tileRows < 1)
      throw new ShoalError('SEARCH_INVALID', `tileRows is ${tileRows}: it must be 1 or more`, { tileRows });
    const kept = Math.min(k, rows.rows);
    let best: BestRows | undefined;
    for (let first = 0; first < rows.rows; first += tileRows) {
      signal?.throwIfAborted();
      const last = Math.min(rows.rows, first + tileRows);
      const tile = first === 0 && last === rows.rows ? rows : sliceRows(rows, first, last);
      const found = await this.#engine.topK(queries, tile, metric, Math.min(k, last - first), signal);
      best =
        best === undefined && last === rows.rows
          ? found
          : merged(best, found, { queries: queries.rows, kept, first, tile: Math.min(k, last - first), metric });
    }
    refuseCut(rows);
    return answer(best!, queries.rows, kept, (row) => idOfRow(rows, row), rows.ids === undefined);
  }

  async cosine(a: Matrix, b: Matrix | RowBlock, { metric, signal }: MatrixOptions): Promise<Float32Array> {
    const rows = 'data' in b ? b : rowsOf(b);
    checkMetric(metric);
    checkDims(a, rows);
    checkValues(a, 'vector');
    if ('values' in b) checkValues(b, 'vector');
    signal?.throwIfAborted();
    if (a.rows === 0 || rows.rows === 0) return new Float32Array();
    const scores = await this.#engine.matrix(a, rows, metric, signal);
    refuseCut(rows);
    return scores;
  }

  async rescore(
    queries: Matrix,
    rows: RowBlock,
    candidates: readonly BigUint64Array[],
    { k, metric, signal }: SearchOptions,
  ): Promise<TopK> {
    checkSearch(queries, rows, k, metric);
    if (candidates.length !== queries.rows)
      throw new ShoalError(
        'SEARCH_INVALID',
        `there are ${queries.rows} queries and ${candidates.length} lists of candidates`,
        { queries: queries.rows, lists: candidates.length },
      );
    const lists = candidates.map((ids, query) => rowsOfIds(rows, ids, query));
    const begin = new Uint32Array(lists.length + 1);
    lists.forEach((list, query) => (begin[query + 1] = begin[query]! + list.length));
    const flat = new Uint32Array(begin[lists.length]!);
    lists.forEach((list, query) => flat.set(list, begin[query]));
    const scores = await this.#engine.rescore(queries, rows, metric, begin, flat, signal);
    const kept = Math.min(k, Math.max(0, ...lists.map((list) => list.length)));
    refuseCut(rows);
    const sign = metric === 'l2' ? -1 : 1;
    const best: BestRows = {
      found: new Uint32Array(queries.rows),
      rows: new Uint32Array(queries.rows * kept),
      scores: new Float64Array(queries.rows * kept),
    };
    for (const [query, list] of lists.entries()) {
      const order = Array.from(list, (row, i) => ({ row, score: scores[begin[query]! + i]! })).filter(
        ({ score }) => !Number.isNaN(score),
      );
      order.sort((a, b) => sign * (b.score - a.score) || a.row - b.row);
      best.found[query] = Math.min(kept, order.length);
      for (const [i, { row, score }] of order.slice(0, kept).entries()) {
        best.rows[query * kept + i] = row;
        best.scores[query * kept + i] = score;
      }
    }
    return answer(best, queries.rows, kept, (row) => idOfRow(rows, row), rows.ids === undefined);
  }

  async spread(graph: Graph, seeds: readonly Seeds[], options: SpreadOptions): Promise<TopK> {
    checkSpread(graph, seeds, options);
    const kept = Math.min(options.k, graph.nodes);
    const best: BestRows = {
      found: new Uint32Array(seeds.length),
      rows: new Uint32Array(seeds.length * kept),
      scores: new Float64Array(seeds.length * kept),
    };
    for (let first = 0; first < seeds.length; first += SPREAD_LANES) {
      options.signal?.throwIfAborted();
      if (first > 0) options.onPart?.();
      const lanes = seeds.slice(first, first + SPREAD_LANES);
      const activation = new Float32Array(graph.nodes * lanes.length);
      for (const [lane, { nodes, values }] of lanes.entries())
        nodes.forEach((node, i) => (activation[node * lanes.length + lane]! += values[i]!));
      const totals = await this.#engine.spread(graph, lanes.length, activation, options);
      lanes.forEach((_, lane) => mostActivated(totals, lanes.length, lane, kept, best, first + lane));
    }
    return answer(best, seeds.length, kept, (node) => BigInt(node), true);
  }
}

/** A mapped file that somebody cut reads as zeros: then there is no answer. */
function refuseCut({ data }: RowBlock): void {
  if (nativeAddon()?.isCut(data) === true)
    throw new ShoalError(
      'COLLECTION_CORRUPT',
      'the file of the collection was cut while it was searched: build it again',
      {},
    );
}

function checkMetric(metric: Metric): void {
  if (!METRICS.includes(metric))
    throw new ShoalError('SEARCH_INVALID', `"${String(metric)}" is no metric: there are ${METRICS.join(', ')}`, {
      metric,
    });
}

function checkK(k: number): void {
  if (!Number.isInteger(k) || k < 1) throw new ShoalError('SEARCH_INVALID', `k is ${k}: ask for 1 or more`, { k });
}

function checkSearch(queries: Matrix, rows: RowBlock, k: number, metric: Metric): void {
  checkK(k);
  checkMetric(metric);
  checkDims(queries, rows);
  if (queries.rows === 0) throw new ShoalError('SEARCH_INVALID', 'there is no query', {});
  if (rows.rows === 0) throw new ShoalError('COLLECTION_EMPTY', 'there are no rows to search', {});
  checkValues(queries, 'query');
}

function checkSpread(graph: Graph, seeds: readonly Seeds[], { steps, decay, threshold, k }: SpreadOptions): void {
  checkK(k);
  if (!Number.isInteger(steps) || steps < 0 || steps > 10_000)
    throw new ShoalError('SEARCH_INVALID', `steps is ${steps}: ask for 0 to 10,000`, { steps });
  if (!(decay >= 0 && decay <= 1))
    throw new ShoalError('SEARCH_INVALID', `decay is ${decay}: it must be 0 to 1`, { decay });
  if (!(threshold >= 0 && threshold < Infinity))
    throw new ShoalError('SEARCH_INVALID', `threshold is ${threshold}: it must be 0 or more`, { threshold });
  if (seeds.length === 0) throw new ShoalError('SEARCH_INVALID', 'there are no seeds', {});
  for (const [lane, { nodes, values }] of seeds.entries()) {
    if (nodes.length === 0 || nodes.length !== values.length)
      throw new ShoalError('SEARCH_INVALID', `seeds ${lane}: ${nodes.length} nodes and ${values.length} values`, {
        lane,
      });
    const strange = nodes.find((node) => node >= graph.nodes);
    if (strange !== undefined)
      throw new ShoalError(
        'GRAPH_INVALID',
        `seeds ${lane}: there is no node ${strange}; the graph has ${graph.nodes}`,
        { lane, node: strange },
      );
    const bad = values.findIndex((value) => !(value >= 0 && value <= MAX_ACTIVATION));
    if (bad !== -1)
      throw new ShoalError(
        'VECTOR_INVALID',
        `seeds ${lane}: the activation of node ${nodes[bad]} is ${values[bad]}; it must be 0 to ${MAX_ACTIVATION}`,
        { lane },
      );
  }
}

const MAX_ACTIVATION = 1e16;

function rowsOfIds(rows: RowBlock, ids: BigUint64Array, query: number): Uint32Array {
  const found = Uint32Array.from(ids, (id) => {
    const row = rowOfId(rows, id);
    if (row === undefined)
      throw new ShoalError('SEARCH_INVALID', `candidates of query ${query}: there is no row ${id} among ${rows.rows}`, {
        query,
        id: String(id),
      });
    return row;
  });
  return found.length === new Set(found).size ? found : new Uint32Array(new Set(found));
}

/**
 * The best of `before` and of a tile that begins at row `first`; rows of the tile have higher numbers, so ties are for
 * `before`.
 */
function merged(
  before: BestRows | undefined,
  tile: BestRows,
  {
    queries,
    kept,
    first,
    tile: tileK,
    metric,
  }: { queries: number; kept: number; first: number; tile: number; metric: Metric },
): BestRows {
  const out: BestRows = {
    found: new Uint32Array(queries),
    rows: new Uint32Array(queries * kept),
    scores: new Float64Array(queries * kept),
  };
  for (let query = 0; query < queries; query++) {
    let [i, j, n] = [0, 0, 0];
    const [ends, tileEnds] = [before?.found[query] ?? 0, tile.found[query]!];
    for (; n < kept && (i < ends || j < tileEnds); n++) {
      const mine = i < ends ? before!.scores[query * kept + i]! : NaN;
      const other = j < tileEnds ? tile.scores[query * tileK + j]! : NaN;
      const takesMine = Number.isNaN(other) || (metric === 'l2' ? mine <= other : mine >= other);
      out.scores[query * kept + n] = takesMine ? mine : other;
      out.rows[query * kept + n] = takesMine
        ? before!.rows[query * kept + i++]!
        : first + tile.rows[query * tileK + j++]!;
    }
    out.found[query] = n;
  }
  return out;
}

function answer(
  { found, rows, scores }: BestRows,
  queries: number,
  k: number,
  idOf: (row: number) => bigint,
  isRowNumber: boolean,
): TopK {
  const ids = new BigUint64Array(rows.length);
  if (isRowNumber) {
    const halves = new Uint32Array(ids.buffer); // little-endian: the low half first
    for (let i = 0; i < rows.length; i++) halves[2 * i] = rows[i]!;
  } else {
    for (let query = 0; query < queries; query++)
      for (let i = query * k; i < query * k + found[query]!; i++) ids[i] = idOf(rows[i]!);
  }
  return { queries, k, found, ids, scores: Float32Array.from(scores) };
}

/** The answer of one query as views. */
export function hitsOf(
  { k, found, ids, scores }: TopK,
  query: number,
): { readonly ids: BigUint64Array; readonly scores: Float32Array } {
  const [from, to] = [query * k, query * k + found[query]!];
  return { ids: ids.subarray(from, to), scores: scores.subarray(from, to) };
}

function mostActivated(
  activation: Float32Array,
  lanes: number,
  lane: number,
  k: number,
  best: BestRows,
  query: number,
): void {
  const heap = new BestHeap(k);
  for (let node = 0, at = lane; at < activation.length; node++, at += lanes)
    if (activation[at]! > 0) heap.offer(activation[at]!, node);
  heap.writeTo(best, query, k, 1);
}
