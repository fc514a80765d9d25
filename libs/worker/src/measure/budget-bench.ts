// Tries token budgets by running the very micro-batches that a worker would cut of the standard length mix, in a
// process of its own: first doubling until larger ones only lose, then those near the best again and again, their
// micro-batches in turns, and the choice is among these. What each micro-batch takes is the median of its rounds: a
// moment in which somebody else wanted the machine slows single runs, not a budget. Takes fewer rounds where the device
// is slow.

import { ShoalError } from '@shoal/contract';
import type { RunShape, Tokenizer } from '@shoal/core';
import { median } from '@shoal/core/base';
import type { OrtBackendOptions } from '@shoal/inference';
import { interleaved } from './interleaved.ts';
import { planMix } from './mix-plan.ts';
import { probeShapes, type ProbedShape } from './shape-probe.ts';
import { bestOf, ofRounds, type TriedBudget } from './tried-budgets.ts';

const FIRST_TOKENS = 256;
/** Padded tokens of the largest budget that is tried. */
export const MOST_TOKENS = 262_144;
/** Doubling ends when so many budgets in a row gave less than this share of the best. */
const WORSE = 0.97;
const WORSE_IN_A_ROW = 2;
/** A sample of one budget takes about so long. */
const SAMPLE_MS = 1_500;
const LEAST_SAMPLE_ROWS = 96;
const MOST_SAMPLE_ROWS = 200_000;
const ROUNDS = 5;
/** A single round is off by so much now and then: what came as near as this is tried again. */
const NEAR_THE_BEST = 0.8;
const SILENCE_MS = 120_000;
/** On a slow or busy device no larger budget is tried from then on, so that time is left for a second look. */
const CLIMB_END_MS = 50_000;
/** Two minutes are promised: no round begins that would end later. */
const END_MS = 105_000;
/** A process opens its graph and warms up beside what it measures. */
const ROUND_OVERHEAD = 1.5;

interface Plan {
  readonly maxPaddedTokens: number;
  readonly rows: number;
  readonly shapes: readonly RunShape[];
  /** What each shape took, in each round. */
  readonly runMs: readonly number[][];
}

export interface BudgetBenchOptions {
  readonly maxRows: number;
  readonly poolTokens: number;
  readonly tokenizer: Pick<Tokenizer, 'maxTokens'>;
  readonly signal?: AbortSignal;
}

/** Runs the micro-batches that budgets make of the standard mix. */
export class BudgetBench {
  private readonly options: BudgetBenchOptions;
  private readonly backend: OrtBackendOptions;
  private readonly startedMs: number;
  private textsPerMs = 0.05;

  constructor(options: BudgetBenchOptions, backend: OrtBackendOptions, startedMs: number) {
    this.options = options;
    this.backend = backend;
    this.startedMs = startedMs;
  }

  async climb(onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const tried: TriedBudget[] = [];
    let best = 0;
    let worse = 0;
    for (
      let budget = FIRST_TOKENS;
      budget <= MOST_TOKENS && worse < WORSE_IN_A_ROW && (tried.length === 0 || this.elapsedMs() < CLIMB_END_MS);
      budget *= 2
    ) {
      const [found] = await this.measure([budget], 1);
      if (found === undefined) break; // no memory for it, or no time
      tried.push(found);
      this.textsPerMs = found.textsPerSecond / 1000;
      worse = found.textsPerSecond < WORSE * best ? worse + 1 : 0;
      best = Math.max(best, found.textsPerSecond);
      onProgress(Math.min(1, tried.length / 8));
    }
    if (tried.length === 0)
      throw new ShoalError(
        'OUT_OF_VRAM',
        `not even a batch of ${FIRST_TOKENS} padded tokens runs on this device; free some of its memory or use ` +
          'a smaller model',
      );
    return tried;
  }

  /**
   * What came near the best again, what lies half a step from the best, and the preset, which the choice has to beat.
   * None where there was no time for it.
   */
  async refine(
    coarse: readonly TriedBudget[],
    presetTokens: number | undefined,
    onProgress: (share: number) => void,
  ): Promise<readonly TriedBudget[]> {
    const best = bestOf(coarse);
    const largest = coarse.at(-1)!.maxPaddedTokens;
    const near = coarse
      .filter(({ textsPerSecond }) => textsPerSecond >= NEAR_THE_BEST * best.textsPerSecond)
      .map(({ maxPaddedTokens }) => maxPaddedTokens);
    const halfSteps = [best.maxPaddedTokens * 0.75, best.maxPaddedTokens * 1.5];
    const budgets = [...new Set([...near, ...halfSteps, ...(presetTokens === undefined ? [] : [presetTokens])])]
      .filter((budget) => budget >= FIRST_TOKENS && budget <= largest)
      .sort((a, b) => a - b);
    this.textsPerMs = best.textsPerSecond / 1000;
    return this.measure(budgets, ROUNDS, onProgress);
  }

  /**
   * Budgets in the order given, then in the reverse, and so on, over the same rows. Those that there was memory for.
   */
  private async measure(
    budgets: readonly number[],
    rounds: number,
    onProgress: (share: number) => void = () => undefined,
  ): Promise<readonly TriedBudget[]> {
    const plans = budgets.map((budget) => this.plan(budget));
    let roundMs = plans.reduce((sum, { rows }) => sum + rows / this.textsPerMs, 0) * ROUND_OVERHEAD;
    for (let round = 0; round < rounds && this.elapsedMs() + roundMs < END_MS; round++) {
      const beganMs = this.elapsedMs();
      await this.runOnce(round % 2 === 0 ? plans : plans.toReversed(), (share) => onProgress((round + share) / rounds));
      roundMs = this.elapsedMs() - beganMs;
    }
    return plans
      .filter(({ runMs }) => runMs.every((found) => found.length > 0))
      .map(({ maxPaddedTokens, rows, runMs }) => ({
        ...ofRounds({ maxPaddedTokens }, ratesOf(rows, runMs)),
        textsPerSecond: (rows * 1000) / runMs.reduce((sum, found) => sum + median(found), 0),
      }));
  }

  /** One process, every plan once. Counts for nothing when memory ran out on the way. */
  private async runOnce(plans: readonly Plan[], onProgress: (share: number) => void): Promise<void> {
    const warm = warmUp(plans);
    const turns = interleaved(
      plans.map(({ shapes, runMs }) => shapes.map((shape, i) => ({ shape, runMs: runMs[i]! }))),
    );
    const shapes = [...warm, ...turns.map(({ shape }) => shape)];
    const ran = await this.probe(shapes, onProgress);
    if (ran.length < shapes.length) return;
    for (const [i, { runMs }] of turns.entries()) runMs.push(ran[warm.length + i]!.runMs[0]!);
  }

  private elapsedMs(): number {
    return performance.now() - this.startedMs;
  }

  private plan(maxPaddedTokens: number): Plan {
    const {
      maxRows,
      poolTokens,
      tokenizer: { maxTokens },
    } = this.options;
    const rows = Math.round(Math.max(LEAST_SAMPLE_ROWS, Math.min(MOST_SAMPLE_ROWS, SAMPLE_MS * this.textsPerMs)));
    const shapes = planMix({
      rows,
      maxTokens,
      maxPaddedTokens,
      maxRows,
      poolTokens: Math.max(poolTokens, 4 * maxPaddedTokens),
    });
    return { maxPaddedTokens, rows, shapes, runMs: shapes.map(() => []) };
  }

  private probe(shapes: readonly RunShape[], onProgress: (share: number) => void): Promise<readonly ProbedShape[]> {
    const { signal } = this.options;
    let done = 0;
    const arenaTokens = Math.max(...shapes.map(({ rows, width }) => rows * width));
    return probeShapes({
      backend: this.backend,
      shapes,
      repeats: 1,
      arenaTokens,
      timeoutMs: SILENCE_MS,
      onShape: () => onProgress(++done / shapes.length),
      ...(signal !== undefined && { signal }),
    });
  }
}

/** Texts per second of each round. */
function ratesOf(rows: number, runMs: readonly (readonly number[])[]): readonly number[] {
  const rounds = Math.min(...runMs.map((found) => found.length));
  return Array.from(
    { length: rounds },
    (_, round) => (rows * 1000) / runMs.reduce((sum, found) => sum + found[round]!, 0),
  );
}

/** The first runs of a process are slow: the largest batch of each plan once, uncounted. */
function warmUp(plans: readonly Plan[]): readonly RunShape[] {
  return plans.map(({ shapes }) =>
    shapes.reduce((most, shape) => (shape.rows * shape.width > most.rows * most.width ? shape : most)),
  );
}
