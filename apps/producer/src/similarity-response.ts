// Answers of POST /v1/similarity/…, as lists in the manner of OpenAI's: one item for each query or set of seeds, in
// order.

import type { Scores } from '@shoal/client';
import type { Ranking } from '@shoal/contract';
import { invalid } from './problem.ts';

export interface RankingList {
  readonly object: 'list';
  readonly data: readonly {
    readonly object: 'ranking';
    readonly index: number;
    readonly ids: readonly (number | string)[];
    readonly scores: readonly number[];
  }[];
}

export interface ScoreList {
  readonly object: 'list';
  readonly data: readonly { readonly object: 'scores'; readonly index: number; readonly scores: readonly number[] }[];
}

/** Scores of one answer: some 80 MB of JSON. */
export const MAX_SCORES = 1 << 22;

export function toRankings(rankings: readonly Ranking[]): RankingList {
  return {
    object: 'list',
    data: rankings.map(({ ids, scores }, index) => ({
      object: 'ranking',
      index,
      ids: Array.from(ids, idOf),
      scores: [...scores],
    })),
  };
}

/** Throws a Problem where there are more scores than an answer can hold. */
export function toScores({ rows, columns, scores }: Scores): ScoreList {
  if (scores.length > MAX_SCORES)
    throw invalid(
      'result_too_large',
      'queries',
      `${rows} × ${columns} scores are more than the ${MAX_SCORES} of one answer; ask with fewer queries, or ` +
        'for the best k',
    );
  return {
    object: 'list',
    data: Array.from({ length: rows }, (_, index) => ({
      object: 'scores',
      index,
      scores: [...scores.subarray(index * columns, (index + 1) * columns)],
    })),
  };
}

/** A number where JavaScript's numbers hold it, else text: programs may give rows ids of 64 bits. */
function idOf(id: bigint): number | string {
  return id <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(id) : String(id);
}
