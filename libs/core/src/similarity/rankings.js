// Several rankings of the same query, from several parts of a collection, as one. Pure.
export const EMPTY_RANKING = { ids: new BigUint64Array(), scores: new Float32Array() };
/** The k best of both, best first, ties to the lower id. Either is in that order already. */
export function mergeRankings(a, b, k, metric) {
  if (a.ids.length === 0) return cutRanking(b, k);
  const isBetter = metric === 'l2' ? (x, y) => x < y : (x, y) => x > y;
  const count = Math.min(k, a.ids.length + b.ids.length);
  const merged = { ids: new BigUint64Array(count), scores: new Float32Array(count) };
  for (let at = 0, i = 0, j = 0; at < count; at++) {
    const takesA =
      j >= b.ids.length ||
      (i < a.ids.length &&
        (isBetter(a.scores[i], b.scores[j]) || (a.scores[i] === b.scores[j] && a.ids[i] < b.ids[j])));
    const from = takesA ? a : b;
    const index = takesA ? i++ : j++;
    merged.ids[at] = from.ids[index];
    merged.scores[at] = from.scores[index];
  }
  return merged;
}
function cutRanking({ ids, scores }, k) {
  return ids.length <= k ? { ids, scores } : { ids: ids.subarray(0, k), scores: scores.subarray(0, k) };
}
//# sourceMappingURL=rankings.js.map
