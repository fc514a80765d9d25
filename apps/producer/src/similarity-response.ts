// Answers of POST /v1/similarity/…, as lists in the manner of OpenAI's: one item for each query or set of seeds, in
// order.

import type { Scores, Searched } from '@shoal/client';
import type { Ranking } from '@shoal/contract';
import { JsonList } from './json-stream.ts';
import { invalid } from './problem.ts';

/** Scores of one answer: some 80 MB of JSON. */
export const MAX_SCORES = 1 << 22;

/**
 * Bytes that rankings hold until they are written: an id and a score of 8 bytes for each hit, twice, and a name of some
 * 64 where names were asked for.
 */
export function rankingBytes(rows: number, k: number, isNamed = false): number {
  return 2 * rows * k * (isNamed ? 80 : 16);
}

/** Of a graph nothing is told beside the rankings. */
export function toRankings(rankings: readonly Ranking[] & Partial<Searched>): JsonList {
  return new JsonList(
    rankings.length,
    (index) => {
      const { ids, scores, names } = rankings[index]!;
      const named = names === undefined ? {} : { names: names.map((name) => (name === '' ? null : name)) };
      return { object: 'ranking', index, ids: Array.from(ids, idOf), scores: [...scores], ...named };
    },
    searchedIn(rankings),
  );
}

/** Throws a Problem where there are more scores than an answer can hold. */
export function toScores({ rows, columns, scores, ...searched }: Scores): JsonList {
  if (scores.length > MAX_SCORES)
    throw invalid(
      'result_too_large',
      'queries',
      `${rows} × ${columns} scores are more than the ${MAX_SCORES} of one answer; ask with fewer queries, or ` +
        'for the best k',
    );
  return new JsonList(
    rows,
    (index) => ({
      object: 'scores',
      index,
      scores: [...scores.subarray(index * columns, (index + 1) * columns)],
    }),
    searchedIn(searched),
  );
}

/** Which collection was searched, and what made its rows: null where nobody knows, so that nothing was checked. */
function searchedIn({ collection, collectionModel }: Partial<Searched>): object {
  return collection === undefined ? {} : { collection, collection_model: collectionModel ?? null };
}

/** A number where JavaScript's numbers hold it, else text: programs may give rows ids of 64 bits. */
function idOf(id: bigint): number | string {
  return id <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(id) : String(id);
}
