// Exact nearest rows by cosine over one matrix of unit vectors, in plain code: some thousand rows take a few
// milliseconds. Larger collections are the business of libs/similarity.

export interface Hit {
  readonly row: number;
  /** Cosine, −1 to 1. */
  readonly score: number;
}

/**
 * The `k` rows of `matrix` (rows × dims, unit length) nearest to `query` (dims, unit length), best first; equal ones by
 * row.
 */
export function topK(matrix: Float32Array, query: Float32Array, k: number): readonly Hit[] {
  const dims = query.length;
  const best: Hit[] = [];
  for (let row = 0; row * dims < matrix.length; row++) {
    const score = dot(matrix, row * dims, query);
    if (best.length === k && score <= best.at(-1)!.score) continue;
    const at = best.findIndex((hit) => hit.score < score);
    best.splice(at === -1 ? best.length : at, 0, { row, score });
    if (best.length > k) best.pop();
  }
  return best;
}

function dot(matrix: Float32Array, at: number, query: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < query.length; i++) sum += matrix[at + i]! * query[i]!;
  return sum;
}
