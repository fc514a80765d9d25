// Rankings as hits: what a person who searches wants to see of them.

import { ShoalError, type Ranking } from '@shoal/contract';
import type { Searched } from './searched.ts';

export interface SearchHit {
  /** Of the row in its collection. */
  readonly id: number;
  /** As the metric has it: largest is best, of l2 smallest. */
  readonly score: number;
  /** What the row is called; '' where it has no name. Absent with `names: false`. */
  readonly name?: string;
}

export interface SearchResult extends Searched {
  /** For each query its hits, best first. */
  readonly hits: readonly (readonly SearchHit[])[];
}

/** Throws SEARCH_INVALID for an id that is no safe integer. */
export function hitsOf(rankings: readonly Ranking[] & Searched): SearchResult {
  const { collection, collectionModel } = rankings;
  return { collection, collectionModel, hits: rankings.map((ranking) => hitsIn(ranking)) };
}

function hitsIn({ ids, scores, names }: Ranking): SearchHit[] {
  return Array.from(ids, (id, at) => ({
    id: safe(id),
    score: scores[at]!,
    ...(names !== undefined && { name: names[at]! }),
  }));
}

function safe(id: bigint): number {
  if (id <= Number.MAX_SAFE_INTEGER) return Number(id);
  throw new ShoalError(
    'SEARCH_INVALID',
    `a hit has the id ${id}, which is no safe integer of JavaScript; ask with topK, which gives ids as they are`,
    { id: String(id) },
  );
}
