// How alike two vectors of one model are, where models that do not normalize give each its own length.

/**
 * The cosine, less what is lost where the lengths differ: 1 − |a − b|² ÷ 2|a||b|. Of vectors of length 1 that is the
 * cosine alone; of a model that does not normalize, a wrong length shows as much as a wrong direction. NaN where one has
 * no length or holds what is no number.
 */
export function likenessOf(a: Float32Array, b: Float32Array): number {
  let [dot, aa, bb] = [0, 0, 0];
  for (let at = 0; at < a.length; at++) {
    dot += a[at]! * b[at]!;
    aa += a[at]! ** 2;
    bb += b[at]! ** 2;
  }
  const both = Math.sqrt(aa * bb);
  return (dot - (Math.sqrt(aa) - Math.sqrt(bb)) ** 2 / 2) / both;
}
