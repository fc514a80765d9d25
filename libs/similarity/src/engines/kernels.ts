// What this library computes, as one interface: exact top-k, every score, scores of candidates, spreading activation.
// The checks stand here, once; an engine below (native code where its addon loads, plain code elsewhere) gets checked
// values and gives the same answers: ordered and scored in fp64, ties to the lower id. No call blocks the event loop
// for long.

import { availableParallelism } from 'node:os';
import { ShoalError } from '@shoal/contract';
import { nativeCure } from '@shoal/core/base';
import type { Graph } from '../graphs/graph.ts';
import { answer, merged, mostActivated, type TopK } from './best-rows.ts';
import { checkMetric, checkSearch, checkSpread, refuseCut, rowsOfIds, type Seeds } from './checks.ts';
import type { BestRows, Engine, EngineName, Isa, SpreadOptions, Stoppable } from './engine.ts';
import { nativeAddon, nativeProblem } from './native-addon.ts';
import { nativeEngine } from './native-engine.ts';
import { plainEngine } from './plain-engine.ts';
import {
  checkDims,
  checkValues,
  idOfRow,
  rowsOf,
  sliceRows,
  type Matrix,
  type Metric,
  type RowBlock,
} from './vectors.ts';

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
        ? `the native code is not here (${nativeProblem()}); ${nativeCure('addons', 'npm run build makes it where there is a C++ compiler')}`
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
