// What similarity answers are compared with: vectors from a seed, and every score summed in f64. For tests and benches.

import { expect } from 'vitest';
import type { Ranking, SimilarityMetric } from '@shoal/contract';

export interface Hit {
  readonly id: number;
  readonly score: number;
}

export function randomVectors(count: number, dims: number, seed: number): Float32Array {
  let state = seed;
  return Float32Array.from({ length: count * dims }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

export function scoreOf(a: Float32Array, b: Float32Array, metric: SimilarityMetric): number {
  let [dot, aa, bb, distance] = [0, 0, 0, 0];
  for (const [i, x] of a.entries()) {
    const y = b[i]!;
    dot += x * y;
    aa += x * x;
    bb += y * y;
    distance += (x - y) ** 2;
  }
  return metric === 'dot' ? dot : metric === 'l2' ? distance : dot / Math.sqrt(aa * bb);
}

/** The k best of `ids`, or of all rows; the lower id is the better among equals. */
export function exactRanking(
  rows: Float32Array,
  query: Float32Array,
  metric: SimilarityMetric,
  k: number,
  ids?: readonly number[],
): Hit[] {
  const dims = query.length;
  const all = ids ?? Array.from({ length: rows.length / dims }, (_, row) => row);
  const scored = all.map((id) => ({ id, score: scoreOf(query, rows.subarray(id * dims, (id + 1) * dims), metric) }));
  return scored.sort((a, b) => (metric === 'l2' ? a.score - b.score : b.score - a.score) || a.id - b.id).slice(0, k);
}

export function expectSame(found: Ranking | undefined, exact: readonly Hit[]): void {
  expect([...found!.ids].map(Number)).toEqual(exact.map(({ id }) => id));
  for (const [i, { score }] of exact.entries())
    expect(Math.abs(found!.scores[i]! - score)).toBeLessThan(1e-5 * Math.max(1, Math.abs(score)));
}
