// Whether two vectors say the same: a batch of other rows may round the last bits otherwise.

const MIN_COSINE = 0.999999;

export function isSame(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  if (a.length !== b.length) return false;
  let [dot, aa, bb] = [0, 0, 0];
  for (let at = 0; at < a.length; at++) {
    dot += a[at]! * b[at]!;
    aa += a[at]! * a[at]!;
    bb += b[at]! * b[at]!;
  }
  return dot / Math.sqrt(aa * bb) >= MIN_COSINE;
}
