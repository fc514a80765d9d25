// How long a run takes, learned from runs: b + a·T + c·T·width for T padded tokens. b is what every run costs whatever
// its size, c is attention. Tells up to which size a larger batch is faster (the knee), and how large one may be that
// has to be done in time. Runs are kept as sums by size, so that what large and small ones taught is not forgotten
// while only one size runs.

import type { RunShape } from '../ports/device.ts';

/** At the knee this share of the time goes into tokens, and the rest into what every run costs. */
const TIME_IN_TOKENS = 0.97;
/** Runs of a size that are enough to believe their mean. */
const ENOUGH_RUNS = 4;
/** A size keeps about so many runs' worth of memory, so that a device that slows down is noticed. */
const REMEMBERED_RUNS = 256;
/** A size that costs so much more per token than the cheapest lies beyond the knee. */
const DEARER = 1.02;

interface Size {
  runs: number;
  tokens: number;
  tokenWidths: number;
  ms: number;
}

export interface RunTimeLaw {
  /** Milliseconds of every run. */
  readonly perRunMs: number;
  readonly perTokenMs: number;
  /** Per token and token of width. */
  readonly perTokenWidthMs: number;
}

export class RunTimeModel {
  /** By half powers of two of the padded tokens. */
  private readonly sizes = new Map<number, Size>();
  private ran = 0;
  private fitted: RunTimeLaw | undefined;

  add({ rows, width }: RunShape, runMs: number): void {
    const tokens = rows * width;
    const key = sizeOf(tokens);
    const size = this.sizes.get(key) ?? { runs: 0, tokens: 0, tokenWidths: 0, ms: 0 };
    const kept = 1 - 1 / REMEMBERED_RUNS;
    this.sizes.set(key, {
      runs: size.runs * kept + 1,
      tokens: size.tokens * kept + tokens,
      tokenWidths: size.tokenWidths * kept + tokens * width,
      ms: size.ms * kept + runMs,
    });
    if (++this.ran % 16 === 0 || this.ran < 64) this.fitted = this.fit();
  }

  /** Undefined until runs of two sizes, at least twice apart, were seen. */
  law(): RunTimeLaw | undefined {
    return this.fitted;
  }

  predictMs({ rows, width }: RunShape): number | undefined {
    const law = this.fitted;
    return law === undefined ? undefined : law.perRunMs + rows * width * (law.perTokenMs + law.perTokenWidthMs * width);
  }

  /** Most rows of this width that are done within `limitMs`; undefined while nothing is known. */
  rowsWithin(limitMs: number, width: number): number | undefined {
    const law = this.fitted;
    return law === undefined
      ? undefined
      : Math.floor((limitMs - law.perRunMs) / (width * (law.perTokenMs + law.perTokenWidthMs * width)));
  }

  /**
   * Padded tokens beyond which a larger batch gains next to nothing. At most `startTokens` or twice what was tried, so
   * that it is found step by step.
   */
  kneeTokens(startTokens: number): number {
    const known = [...this.sizes.values()].filter((size) => size.runs >= ENOUGH_RUNS);
    const tried = Math.max(startTokens, ...known.map((size) => (2 * size.tokens) / size.runs));
    const law = this.fitted;
    if (law === undefined) return tried;
    const perTokenMs = law.perTokenMs + law.perTokenWidthMs * (sum(known, 'tokenWidths') / sum(known, 'tokens'));
    const knee =
      perTokenMs > 0 ? (law.perRunMs / perTokenMs) * (TIME_IN_TOKENS / (1 - TIME_IN_TOKENS)) : Number.POSITIVE_INFINITY;
    return Math.min(knee, this.cheapestTokens(known, law), tried);
  }

  /** Tokens of the cheapest size when a larger one was seen to cost more per token; else no limit. */
  private cheapestTokens(known: readonly Size[], law: RunTimeLaw): number {
    const costs = known.map((size) => ({
      tokens: size.tokens / size.runs,
      perToken: (size.ms - law.perTokenWidthMs * size.tokenWidths) / size.tokens,
    }));
    const cheapest = costs.reduce((best, cost) => (cost.perToken < best.perToken ? cost : best));
    const isPassed = costs.some((cost) => cost.tokens > cheapest.tokens && cost.perToken > cheapest.perToken * DEARER);
    return isPassed ? cheapest.tokens * Math.SQRT2 : Number.POSITIVE_INFINITY;
  }

  private fit(): RunTimeLaw | undefined {
    const means = [...this.sizes.values()]
      .filter((size) => size.runs >= ENOUGH_RUNS)
      .map(({ runs, tokens, tokenWidths, ms }) => ({
        tokens: tokens / runs,
        tokenWidths: tokenWidths / runs,
        ms: ms / runs,
      }));
    const tokens = means.map((mean) => mean.tokens);
    if (means.length < 2 || Math.max(...tokens) < 2 * Math.min(...tokens)) return undefined;
    const [perRunMs, perTokenMs, perTokenWidthMs] = nonNegativeFit(
      means.map((mean) => [1 / mean.ms, mean.tokens / mean.ms, mean.tokenWidths / mean.ms]),
    );
    return { perRunMs: perRunMs!, perTokenMs: perTokenMs!, perTokenWidthMs: perTokenWidthMs! };
  }
}

function sizeOf(tokens: number): number {
  return Math.round(2 * Math.log2(tokens));
}

function sum(sizes: readonly Size[], key: keyof Size): number {
  return sizes.reduce((total, size) => total + size[key], 0);
}

/** x ≥ 0 for which every row · x comes closest to 1: the best of the fits that leave some of the three columns out. */
function nonNegativeFit(rows: readonly (readonly [number, number, number])[]): [number, number, number] {
  let best: { x: [number, number, number]; misfit: number } = { x: [0, 0, 0], misfit: rows.length };
  for (const columns of [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]) {
    const found = leastSquares(rows.map((row) => columns.map((column) => row[column]!)));
    if (found === undefined || found.some((value) => value < 0)) continue;
    const x: [number, number, number] = [0, 0, 0];
    for (const [i, column] of columns.entries()) x[column] = found[i]!;
    const misfit = rows.reduce((total, row) => total + (row[0] * x[0] + row[1] * x[1] + row[2] * x[2] - 1) ** 2, 0);
    if (misfit < best.misfit) best = { x, misfit };
  }
  return best.x;
}

/** x that makes A·x closest to all ones, by the normal equations; undefined where they have no single answer. */
function leastSquares(rows: readonly (readonly number[])[]): number[] | undefined {
  const n = rows[0]!.length;
  // columns differ by powers of ten
  const scale = rows[0]!.map((_, i) => Math.sqrt(rows.reduce((total, row) => total + row[i]! ** 2, 0)) || 1);
  const matrix = scale.map((ofRow, i) => [
    ...scale.map((ofColumn, j) => rows.reduce((total, row) => total + (row[i]! * row[j]!) / (ofRow * ofColumn), 0)),
    rows.reduce((total, row) => total + row[i]! / ofRow, 0),
  ]);
  for (let i = 0; i < n; i++) {
    const pivot = matrix[i]![i]!;
    if (pivot < 1e-6) return undefined;
    for (let k = 0; k < n; k++) {
      if (k === i) continue;
      const factor = matrix[k]![i]! / pivot;
      for (let j = i; j <= n; j++) matrix[k]![j]! -= factor * matrix[i]![j]!;
    }
  }
  return matrix.map((row, i) => row[n]! / row[i]! / scale[i]!);
}
