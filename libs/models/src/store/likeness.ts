// How alike two vectors of one model are, where models that do not normalize give each its own length, and how near the
// vectors of another computation of the model come.

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

const NEAREST = 10;

export interface Nearness {
  /** By `likenessOf`; a vector that is none counts as -1. */
  readonly meanCosine: number;
  readonly leastCosine: number;
  /** Of each text's ten nearest others as expected, how many are among its ten nearest as found: 0 to 1. */
  readonly recallAt10: number;
}

/**
 * Two lists of vectors of the same texts, in the same order. `every`: the nearest others are looked for of each so many-th
 * text alone, default of each.
 */
export function nearnessOf(
  expected: readonly Float32Array[],
  found: readonly Float32Array[],
  { every = 1 }: { readonly every?: number } = {},
): Nearness {
  const cosines = found.map((vector, at) => {
    const cosine = likenessOf(vector, expected[at]!);
    return Number.isNaN(cosine) ? -1 : cosine;
  });
  const asked = found.flatMap((_, at) => (at % every === 0 ? [at] : []));
  const same = asked.map((at) => {
    const right = nearest(expected, at);
    return nearest(found, at).filter((other) => right.includes(other)).length / Math.max(1, right.length);
  });
  return {
    meanCosine: mean(cosines),
    leastCosine: cosines.reduce((least, cosine) => Math.min(least, cosine), 1),
    recallAt10: mean(same),
  };
}

/** Indexes of the ten others that are nearest to this one by cosine. */
function nearest(vectors: readonly Float32Array[], of: number): readonly number[] {
  const own = vectors[of]!;
  return vectors
    .map((vector, at) => ({ at, cosine: cosineOf(own, vector) }))
    .filter(({ at }) => at !== of)
    .toSorted((a, b) => b.cosine - a.cosine)
    .slice(0, NEAREST)
    .map(({ at }) => at);
}

function cosineOf(a: Float32Array, b: Float32Array): number {
  let [dot, bb] = [0, 0];
  for (let at = 0; at < a.length; at++) {
    dot += a[at]! * b[at]!;
    bb += b[at]! ** 2;
  }
  return dot / Math.sqrt(bb);
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
