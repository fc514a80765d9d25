// The kernels in plain TypeScript: what runs where no compiler built the native ones. Everything is summed in fp64, so
// there are no candidates and no second look. It lets the event loop go on every few milliseconds.

import { setImmediate as turn } from 'node:timers/promises';
import { BestHeap } from './best-heap.ts';
import type { BestRows, Engine } from './engine.ts';
import { lengthOf, MIN_LENGTH, rowReader, type Matrix, type Metric, type RowBlock, type RowValues } from './vectors.ts';

export function plainEngine(): Engine {
  return { isa: 'plain', threads: 1, topK, matrix, rescore, spread };
}

/** Some 2 ms of products at 1 to 2 GFLOP/s. */
const PRODUCTS_PER_TURN = 1_000_000;

/** Breathes after every PRODUCTS_PER_TURN; then the signal is looked at. */
class Breath {
  #left = PRODUCTS_PER_TURN;
  readonly #signal: AbortSignal | undefined;

  constructor(signal: AbortSignal | undefined) {
    this.#signal = signal;
  }

  /** True when it is time for `take`; asked for first because awaiting each row would cost more than the row. */
  isDue(products: number): boolean {
    return (this.#left -= products) < 0;
  }

  async take(): Promise<void> {
    this.#left = PRODUCTS_PER_TURN;
    await turn();
    this.#signal?.throwIfAborted();
  }
}

type Score = (query: number, row: RowValues, rowLength: number) => number;

/** Scores a pair: the larger the better, so a distance is negative here. */
function scorer({ values, rows, dims }: Matrix, metric: Metric): Score {
  const queries = Array.from({ length: rows }, (_, q) => values.subarray(q * dims, (q + 1) * dims));
  if (metric === 'dot') return (q, row) => dot(queries[q]!, row);
  if (metric === 'l2') return (q, row) => -distance(queries[q]!, row);
  const lengths = queries.map(lengthOf);
  return (q, row, rowLength) =>
    lengths[q]! < MIN_LENGTH || rowLength < MIN_LENGTH
      ? 0 * rowLength
      : dot(queries[q]!, row) / (lengths[q]! * rowLength);
}

async function topK(
  queries: Matrix,
  rows: RowBlock,
  metric: Metric,
  k: number,
  signal?: AbortSignal,
): Promise<BestRows> {
  const heaps = Array.from({ length: queries.rows }, () => new BestHeap(k));
  await eachRow(queries, rows, metric, signal, (query, row, score) => heaps[query]!.offer(score, row));
  const best: BestRows = {
    found: new Uint32Array(queries.rows),
    rows: new Uint32Array(queries.rows * k),
    scores: new Float64Array(queries.rows * k),
  };
  heaps.forEach((heap, query) => heap.writeTo(best, query, k, metric === 'l2' ? -1 : 1));
  return best;
}

async function matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array> {
  const scores = new Float32Array(queries.rows * rows.rows);
  const sign = metric === 'l2' ? -1 : 1;
  await eachRow(
    queries,
    rows,
    metric,
    signal,
    (query, row, score) => (scores[query * rows.rows + row] = sign * score + 0),
  );
  return scores;
}

async function eachRow(
  queries: Matrix,
  rows: RowBlock,
  metric: Metric,
  signal: AbortSignal | undefined,
  take: (query: number, row: number, score: number) => void,
): Promise<void> {
  const score = scorer(queries, metric);
  const read = rowReader(rows);
  const breath = new Breath(signal);
  for (let row = 0; row < rows.rows; row++) {
    const values = read(row);
    const length = metric === 'cosine' ? lengthOf(values) : 0;
    for (let query = 0; query < queries.rows; query++) take(query, row, score(query, values, length));
    if (breath.isDue(queries.rows * rows.dims)) await breath.take();
  }
}

async function rescore(
  queries: Matrix,
  rows: RowBlock,
  metric: Metric,
  begin: Uint32Array,
  candidates: Uint32Array,
  signal?: AbortSignal,
): Promise<Float64Array> {
  const score = scorer(queries, metric);
  const read = rowReader(rows);
  const breath = new Breath(signal);
  const sign = metric === 'l2' ? -1 : 1;
  const scores = new Float64Array(candidates.length);
  for (let query = 0; query < queries.rows; query++) {
    for (let i = begin[query]!; i < begin[query + 1]!; i++) {
      const values = read(candidates[i]!);
      scores[i] = sign * score(query, values, metric === 'cosine' ? lengthOf(values) : 0) + 0;
      if (breath.isDue(rows.dims)) await breath.take();
    }
  }
  return scores;
}

const spread: Engine['spread'] = async (graph, lanes, activation, { steps, decay, threshold, signal, onPart }) => {
  const breath = new Breath(signal);
  let given = activation.slice();
  let arriving = new Float32Array(activation.length);
  for (let step = 0; step < steps; step++) {
    for (let i = 0; i < given.length; i++) given[i] = given[i]! >= threshold ? given[i]! * decay : 0;
    for (let node = 0; node < graph.nodes; node++) {
      const to = node * lanes;
      arriving.fill(0, to, to + lanes);
      for (let edge = graph.begin[node]!; edge < graph.begin[node + 1]!; edge++) {
        const from = graph.source[edge]! * lanes;
        const weight = graph.weight[edge]!;
        for (let lane = 0; lane < lanes; lane++) arriving[to + lane]! += weight * given[from + lane]!;
      }
      for (let lane = 0; lane < lanes; lane++) activation[to + lane]! += arriving[to + lane]!;
      if (breath.isDue(lanes * (1 + graph.begin[node + 1]! - graph.begin[node]!))) {
        await breath.take();
        onPart?.();
      }
    }
    [given, arriving] = [arriving, given];
  }
  return activation;
};

/** Four chains, because one would wait for its own additions. */
function dot(a: Float32Array, b: RowValues): number {
  let [s0, s1, s2, s3, i] = [0, 0, 0, 0, 0];
  for (const end = a.length - 3; i < end; i += 4) {
    s0 += a[i]! * b[i]!;
    s1 += a[i + 1]! * b[i + 1]!;
    s2 += a[i + 2]! * b[i + 2]!;
    s3 += a[i + 3]! * b[i + 3]!;
  }
  for (; i < a.length; i++) s0 += a[i]! * b[i]!;
  return s0 + s1 + (s2 + s3);
}

function distance(a: Float32Array, b: RowValues): number {
  let [s0, s1, s2, s3, i] = [0, 0, 0, 0, 0];
  for (const end = a.length - 3; i < end; i += 4) {
    s0 += (a[i]! - b[i]!) ** 2;
    s1 += (a[i + 1]! - b[i + 1]!) ** 2;
    s2 += (a[i + 2]! - b[i + 2]!) ** 2;
    s3 += (a[i + 3]! - b[i + 3]!) ** 2;
  }
  for (; i < a.length; i++) s0 += (a[i]! - b[i]!) ** 2;
  return s0 + s1 + (s2 + s3);
}
