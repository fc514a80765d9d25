// The micro-batches that a token budget makes out of the standard length mix, as a worker in full swing cuts them:
// claims keep so many tokens in the pool, and a batch is taken from it again and again. Pure; the same plan for the
// same seed.

import { Pool, fixedBudget, type RunShape } from '@shoal/core';
import { seededRandom } from '@shoal/core/base';

export interface MixOptions {
  readonly rows: number;
  /** Longest row, tokens. */
  readonly maxTokens: number;
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
  /** Real tokens that wait in the pool. */
  readonly poolTokens: number;
}

export function planMix(options: MixOptions): readonly RunShape[] {
  return cutMix(options).map(({ tokens, width }) => ({ rows: tokens.length, width }));
}

export interface MixBatch {
  /** The tokens of each row. */
  readonly tokens: readonly number[];
  readonly width: number;
}

/** The batches themselves, for a device on which a row costs its own tokens and not its batch's width. */
export function cutMix({ rows, maxTokens, maxPaddedTokens, maxRows, poolTokens }: MixOptions): readonly MixBatch[] {
  const lengths = standardLengths(rows, maxTokens);
  const { rowsAt } = fixedBudget({ maxPaddedTokens, maxRows });
  const pool = new Pool<{ tokens: number; enteredMs: number; isInteractive: boolean }>();
  const plan: MixBatch[] = [];
  for (;;) {
    while (pool.tokens < poolTokens && lengths.length > 0)
      pool.add({ tokens: lengths.pop()!, enteredMs: 0, isInteractive: false });
    const batch = pool.cut({ rowsAt, maxRowAgeMs: Number.POSITIVE_INFINITY }, 0);
    if (batch === undefined) return plan;
    plan.push({ tokens: batch.rows.map(({ tokens }) => tokens), width: batch.width });
  }
}

const DRAWS = 65_536;

/**
 * Log-normal, median 52 tokens, σ 0.98, 8 at least: as many rows from each part of the distribution as belong there, in
 * random order. Drawn at random, a hundred rows would hold 13 % more or fewer tokens than another hundred.
 */
export function standardLengths(rows: number, maxTokens: number): number[] {
  const random = seededRandom(1);
  const draws = Float64Array.from({ length: DRAWS }, () => normal(random)).sort();
  const lengths = Array.from({ length: rows }, (_, row) => {
    const draw = draws[Math.floor(((row + 0.5) * DRAWS) / rows)]!;
    return { tokens: Math.max(8, Math.min(maxTokens, Math.round(52 * Math.exp(0.98 * draw)))), place: random() };
  });
  return lengths.sort((a, b) => a.place - b.place).map(({ tokens }) => tokens);
}

function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random());
}
