import { expect, test } from 'vitest';
import { mergeRankings } from './rankings.ts';

test('two parts of a collection give the ranking of the whole, ties to the lower id', () => {
  const a = { ids: BigUint64Array.of(1n, 4n), scores: Float32Array.of(0.9, 0.5) };
  const b = { ids: BigUint64Array.of(2n, 3n), scores: Float32Array.of(0.9, 0.5) };
  expect([...mergeRankings(a, b, 10, 'dot').ids]).toEqual([1n, 2n, 3n, 4n]);
  expect([...mergeRankings(b, a, 3, 'dot').ids]).toEqual([1n, 2n, 3n]);
  const near = { ids: BigUint64Array.of(5n), scores: Float32Array.of(0.1) };
  expect([...mergeRankings({ ids: BigUint64Array.of(9n), scores: Float32Array.of(0.2) }, near, 1, 'l2').ids]).toEqual([
    5n,
  ]);
});
