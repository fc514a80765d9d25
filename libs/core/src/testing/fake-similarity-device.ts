// A device for similarity without kernels and files: collections are arrays, scores are summed in f64, and a test says
// how much memory there is, what fails, and when a run may go on. Keeps count of what is held.

import {
  ShoalError,
  type Ranking,
  type Matrix,
  activationOf,
  nodeOf,
  type SeedSet,
  type SimilarityMetric,
} from '@shoal/contract';
import type { Fitted, GraphSource, HeldGraph, HeldRows, RowSource, SimilarityDevice } from '../similarity/device.ts';
import { Gate } from './gate.ts';

export const ROW_BYTES = 16;

export class FakeSimilarityDevice implements SimilarityDevice {
  readonly device = 'fake';
  readonly collections = new Map<string, Matrix>();
  /** What made the rows of collections, by their names; the others are not known. */
  readonly models = new Map<string, string>();
  /** Outgoing edges of each node. */
  readonly graphs = new Map<string, readonly (readonly number[])[]>();
  /** Collections that are cut, by the code that looking at them gives. */
  readonly broken = new Map<string, 'COLLECTION_GONE' | 'COLLECTION_CORRUPT'>();
  /** What has another version under its name: told once. */
  readonly replaced = new Set<string>();
  /** Every call of a kernel: how many queries (or sets of seeds) met how many rows. */
  readonly calls: { readonly queries: number; readonly rows: number }[] = [];
  /** Rows of each load. */
  readonly loads: number[] = [];
  /** More rows in one load, or in one call, and there is no memory. */
  mostLoadRows = Number.POSITIVE_INFINITY;
  mostCallRows = Number.POSITIVE_INFINITY;
  mostLanes = Number.POSITIVE_INFINITY;
  /** A call with a query that begins with this value fails. */
  poison: number | undefined;
  heldBytes = 0;
  mostHeldBytes = 0;
  openSources = 0;
  /** Held, a call has reached the kernels and has not come back. */
  readonly gate = new Gate();

  async newest(name: string): Promise<string> {
    const versions = [...this.collections.keys()].filter((each) => each.startsWith(`${name}@`));
    if (versions.length === 0) throw new ShoalError('COLLECTION_UNKNOWN', `no collection is called ${name}`);
    return versions.at(-1)!;
  }

  async openCollection(name: string): Promise<RowSource> {
    const matrix = this.collections.get(name);
    if (matrix === undefined) throw new ShoalError('COLLECTION_UNKNOWN', `no collection is called ${name}`);
    this.openSources++;
    const model = this.models.get(name);
    return {
      name,
      ...(model === undefined ? {} : { model }),
      rows: matrix.rows,
      dims: matrix.dims,
      rowBytes: ROW_BYTES,
      isCurrent: () => this.check(name),
      load: async (first, count) => {
        await this.check(name);
        this.loads.push(count);
        if (count > this.mostLoadRows) return noRoom;
        this.hold(count * ROW_BYTES);
        return { fits: true, value: this.rows(part(matrix, first, count), first, count * ROW_BYTES) };
      },
      close: async () => void this.openSources--,
    };
  }

  async openGraph(name: string): Promise<GraphSource> {
    const graph = this.graphs.get(name);
    if (graph === undefined) throw new ShoalError('COLLECTION_UNKNOWN', `no graph is called ${name}`);
    this.openSources++;
    const bytes = graph.length * ROW_BYTES;
    const load = async (): Promise<Fitted<HeldGraph>> => {
      this.hold(bytes);
      return {
        fits: true,
        value: {
          bytes,
          free: () => this.free(bytes),
          spread: (seeds, { k, steps, decay, threshold }) =>
            this.call(
              seeds.length,
              graph.length,
              () => seeds.length > this.mostLanes,
              () => seeds.map((set) => spread(graph, set, steps, decay, threshold, k)),
            ),
        },
      };
    };
    return {
      name,
      nodes: graph.length,
      bytes,
      load,
      isCurrent: () => this.check(name),
      close: async () => void this.openSources--,
    };
  }

  rowsOf(matrix: Matrix): HeldRows {
    return this.rows(matrix, 0, 0);
  }

  private rows(matrix: Matrix, first: number, bytes: number): HeldRows {
    const isTooMuch = (): boolean => matrix.rows > this.mostCallRows;
    const idsAndScores = (
      queries: Matrix,
      metric: SimilarityMetric,
      k: number,
      idsOf: (query: number) => readonly number[],
    ): Ranking[] =>
      Array.from({ length: queries.rows }, (_, query) =>
        ranked(
          idsOf(query).map((id) => ({ id, score: scoreOf(rowOf(queries, query), rowOf(matrix, id - first), metric) })),
          metric,
          k,
        ),
      );
    const all = Array.from({ length: matrix.rows }, (_, row) => first + row);
    return {
      rows: matrix.rows,
      bytes,
      free: () => this.free(bytes),
      slice: (from, count) => this.rows(part(matrix, from, count), first + from, 0),
      has: (id) => id >= BigInt(first) && id < BigInt(first + matrix.rows),
      topK: (queries, { k, metric }) =>
        this.call(queries.rows, matrix.rows, isTooMuch, () => idsAndScores(queries, metric, k, () => all), queries),
      rescore: (queries, candidates, { k, metric }) =>
        this.call(
          queries.rows,
          matrix.rows,
          isTooMuch,
          () => idsAndScores(queries, metric, k, (query) => Array.from(candidates[query]!, Number)),
          queries,
        ),
      scores: (queries, { metric }) =>
        this.call(
          queries.rows,
          matrix.rows,
          isTooMuch,
          () =>
            Float32Array.from({ length: queries.rows * matrix.rows }, (_, at) =>
              scoreOf(rowOf(queries, Math.floor(at / matrix.rows)), rowOf(matrix, at % matrix.rows), metric),
            ),
          queries,
        ),
    };
  }

  private async call<Value>(
    queries: number,
    rows: number,
    isTooMuch: () => boolean,
    compute: () => Value,
    values?: Matrix,
  ): Promise<Fitted<Value>> {
    this.calls.push({ queries, rows });
    await this.gate.pass();
    if (isTooMuch()) return noRoom;
    if (
      values !== undefined &&
      this.poison !== undefined &&
      Array.from({ length: values.rows }, (_, row) => rowOf(values, row)[0]).includes(this.poison)
    )
      throw new ShoalError('SEARCH_INVALID', 'a poisoned query');
    return { fits: true, value: compute() };
  }

  private async check(name: string): Promise<boolean> {
    const code = this.broken.get(name);
    if (code !== undefined) throw new ShoalError(code, `${name} is not what it was`);
    return !this.replaced.delete(name);
  }

  private hold(bytes: number): void {
    this.heldBytes += bytes;
    this.mostHeldBytes = Math.max(this.mostHeldBytes, this.heldBytes);
  }

  private free(bytes: number): void {
    this.heldBytes -= bytes;
  }
}

const noRoom = { fits: false, message: 'no memory, says the test' } as const;

function part({ values, dims }: Matrix, first: number, rows: number): Matrix {
  return { values: values.subarray(first * dims, (first + rows) * dims), rows, dims };
}

function rowOf({ values, dims }: Matrix, row: number): Float32Array {
  return values.subarray(row * dims, (row + 1) * dims);
}

function scoreOf(a: Float32Array, b: Float32Array, metric: SimilarityMetric): number {
  const sum = (of: (i: number) => number): number => a.reduce((total, _, i) => total + of(i), 0);
  if (metric === 'l2') return sum((i) => (a[i]! - b[i]!) ** 2);
  const dot = sum((i) => a[i]! * b[i]!);
  return metric === 'dot' ? dot : dot / Math.sqrt(sum((i) => a[i]! ** 2) * sum((i) => b[i]! ** 2));
}

function ranked(
  scored: readonly { readonly id: number; readonly score: number }[],
  metric: SimilarityMetric,
  k: number,
): Ranking {
  const best = scored
    .toSorted((a, b) => (metric === 'l2' ? a.score - b.score : b.score - a.score) || a.id - b.id)
    .slice(0, k);
  return {
    ids: BigUint64Array.from(best, ({ id }) => BigInt(id)),
    scores: Float32Array.from(best, ({ score }) => score),
  };
}

function spread(
  graph: readonly (readonly number[])[],
  seeds: SeedSet,
  steps: number,
  decay: number,
  threshold: number,
  k: number,
): Ranking {
  const total: number[] = graph.map((_, node) =>
    seeds.filter((seed) => nodeOf(seed) === node).reduce((sum: number, seed) => sum + activationOf(seed), 0),
  );
  let last = [...total];
  for (let step = 0; step < steps; step++) {
    const next: number[] = graph.map(() => 0);
    for (const [node, targets] of graph.entries())
      if (last[node]! >= threshold && last[node]! > 0)
        for (const target of targets) next[target]! += decay * last[node]!;
    next.forEach((value, node) => (total[node]! += value));
    last = next;
  }
  return ranked(
    total.flatMap((score, id) => (score > 0 ? [{ id, score }] : [])),
    'dot',
    k,
  );
}
