import type { Ranking, SimilarityMetric } from '@shoal/contract';
export declare const EMPTY_RANKING: Ranking;
/** The k best of both, best first, ties to the lower id. Either is in that order already. */
export declare function mergeRankings(a: Ranking, b: Ranking, k: number, metric: SimilarityMetric): Ranking;
//# sourceMappingURL=rankings.d.ts.map
