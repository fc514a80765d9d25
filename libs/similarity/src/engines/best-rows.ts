// The best rows that engines give back, joined over tiles and turned into answers with ids. Pure.

import { BestHeap } from './best-heap.ts';
import type { BestRows } from './engine.ts';
import type { Metric } from './vectors.ts';

/** The best of each query, best first. Query q has `found[q]` of them, from q × k on; what is behind is 0. */
export interface TopK {
  readonly queries: number;
  readonly k: number;
  readonly found: Uint32Array;
  readonly ids: BigUint64Array;
  readonly scores: Float32Array;
}

/**
 * The best of `before` and of a tile that begins at row `first`; rows of the tile have higher numbers, so ties are for
 * `before`.
 */
export function merged(
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

export function answer(
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

export function mostActivated(
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
