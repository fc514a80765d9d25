// Least cosine between the rows of two matrices, in f64: what every bench checks before its clock starts.

/** `a`, `b`: rows × dims, row-major. */
export function leastCosine(a: Float32Array, b: Float32Array, dims: number): number {
  let least = 1;
  for (let at = 0; at < a.length; at += dims) {
    let dot = 0;
    let normA = 0;
    let normB = 0;
    for (let i = at; i < at + dims; i++) {
      dot += a[i]! * b[i]!;
      normA += a[i]! * a[i]!;
      normB += b[i]! * b[i]!;
    }
    least = Math.min(least, dot / Math.sqrt(normA * normB));
  }
  return least;
}
