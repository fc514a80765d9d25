// Jobs of every kind on one small collection, each answer compared with a direct one.

import { expect } from 'vitest';
import type { ShoalClient } from '@shoal/client';
import { exactRanking, expectSame, randomVectors } from './exact.ts';

export const DIMS = 16;
export const ROWS = 40;
const queries = { values: randomVectors(3, DIMS, 99), dims: DIMS };
const query = (index: number): Float32Array => queries.values.subarray(index * DIMS, (index + 1) * DIMS);

/** Four jobs. */
export async function askEverything(client: ShoalClient, name: string, rows: Float32Array): Promise<void> {
  const candidates = [[1, 30, 20], [39], [7, 8, 9]];
  const [top, near, matrix, again] = await Promise.all([
    client.topK(name, queries, { k: 5 }),
    client.topK(name, queries, { k: 200, metric: 'l2' }),
    client.cosine(queries, { collection: name }, { metric: 'dot' }),
    client.rescore(
      name,
      queries,
      candidates.map((ids) => BigUint64Array.from(ids, BigInt)),
      { k: 2 },
    ),
  ]);
  for (let i = 0; i < 3; i++) {
    expectSame(top[i], exactRanking(rows, query(i), 'cosine', 5));
    expectSame(near[i], exactRanking(rows, query(i), 'l2', ROWS));
    expectSame(again[i], exactRanking(rows, query(i), 'cosine', 2, candidates[i]));
    for (const { id, score } of exactRanking(rows, query(i), 'dot', ROWS))
      expect(matrix.scores[i * ROWS + id]).toBeCloseTo(score, 4);
  }
}

export function rowsOf(seed: number): Float32Array {
  return randomVectors(ROWS, DIMS, seed);
}
