// What a live worker tells others of itself, every two seconds: who it is, what it has in flight, and how fast it is.
// Rates are measured, in real tokens a second at the device, by the length of rows, because a CPU falls behind further
// on some lengths than on others. Decides nothing; lane-choice.ts does.

import type { Lane } from '@shoal/contract';
import type { BudgetState, Precision } from '../ports/device.ts';
import type { Metrics } from '../ports/metrics.ts';
import type { SimilarityFacts } from '../similarity/facts.ts';

/** By the width of the micro-batch. */
export type LengthClass = 'short' | 'medium' | 'long';
export const LENGTH_CLASSES: readonly LengthClass[] = ['short', 'medium', 'long'];
const MAX_SHORT_TOKENS = 32;
const MAX_MEDIUM_TOKENS = 128;

export function lengthClassOf(width: number): LengthClass {
  if (width <= MAX_SHORT_TOKENS) return 'short';
  return width <= MAX_MEDIUM_TOKENS ? 'medium' : 'long';
}

export type ByLength = Partial<Readonly<Record<LengthClass, number>>>;

/** How fast a worker is and what it has to do. */
export interface WorkerLoad {
  /** Real tokens a second, of runs as large as this worker had lately. */
  readonly rates: ByLength;
  /** Share of each length in the tokens it ran lately; together 1, or nothing before its first run. */
  readonly mix: ByLength;
  /** Claims in flight, and the tokens of them that wait in its pool. */
  readonly claims: number;
  readonly poolTokens: number;
  /** Tokens of a job, the mean of those it completed. */
  readonly tokensPerJob: number | undefined;
}

export interface WorkerFacts extends WorkerLoad {
  readonly device: string;
  readonly precision: Precision;
  /** name@revision */
  readonly model: string;
  readonly host: string;
  readonly pid: number;
  /** Lanes it claims from; one that serves the CPU lane is a CPU worker. */
  readonly lanes: readonly Lane[];
  /** Told to claim nothing until it is resumed. */
  readonly isDrained: boolean;
  readonly budget?: BudgetState | undefined;
  /** What its executor or device holds, bytes. */
  readonly memoryBytes?: number | undefined;
  /** Of a worker that compares. */
  readonly similarity?: SimilarityFacts | undefined;
  /**
   * Of a CPU worker: why it takes from the main lane or does not, and from which backlog on, in tokens, that shortens
   * the total time.
   */
  readonly mainLane?: { readonly reason: string; readonly breakEven: ByLength } | undefined;
}

/** Memory of a rate, in time at the device. */
const MEMORY_MS = 20_000;

interface Sums {
  tokens: number;
  /** Weighted by tokens: an idle GPU's runs of one row say nothing about what it can do, and weigh next to nothing. */
  weightedTokens: number;
  weightedMs: number;
}

/** Counts for `WorkerLoad` whatever passes it on the way to the metrics. */
export class LoadMeter {
  private readonly byLength: Record<LengthClass, Sums> = { short: zero(), medium: zero(), long: zero() };
  private claims = 0;
  private poolTokens = 0;
  private tokens = 0;
  private jobs = 0;
  budget: BudgetState | undefined;
  memoryBytes: number | undefined;
  similarity: SimilarityFacts | undefined;

  /** The same metrics, counted here as well. */
  tap(metrics: Metrics): Metrics {
    return {
      ...metrics,
      inFlight: (claims, poolTokens) => {
        this.claims = claims;
        this.poolTokens = poolTokens;
        metrics.inFlight(claims, poolTokens);
      },
      jobSettled: (job) => {
        if (job.outcome === 'complete' && job.rows > 0) this.jobs++;
        metrics.jobSettled(job);
      },
      microBatchRan: (run) => {
        this.ran(run);
        metrics.microBatchRan(run);
      },
      budgetChanged: (budget) => {
        this.budget = budget;
        metrics.budgetChanged(budget);
      },
      similarityTold: (facts) => {
        this.similarity = facts;
        metrics.similarityTold(facts);
      },
      memoryMeasured: (memory) => {
        this.memoryBytes = memory.measuredBytes;
        metrics.memoryMeasured(memory);
      },
    };
  }

  load(): WorkerLoad {
    const all = LENGTH_CLASSES.reduce((sum, length) => sum + this.byLength[length].tokens, 0);
    const known = LENGTH_CLASSES.filter((length) => this.byLength[length].weightedMs > 0);
    return {
      rates: Object.fromEntries(
        known.map((length) => [
          length,
          (1_000 * this.byLength[length].weightedTokens) / this.byLength[length].weightedMs,
        ]),
      ),
      mix: Object.fromEntries(known.map((length) => [length, this.byLength[length].tokens / all])),
      claims: this.claims,
      poolTokens: this.poolTokens,
      tokensPerJob: this.jobs === 0 ? undefined : this.tokens / this.jobs,
    };
  }

  private ran({
    width,
    tokens,
    runMs,
  }: {
    readonly width: number;
    readonly tokens: number;
    readonly runMs: number;
  }): void {
    if (!(runMs > 0 && tokens > 0)) return;
    const forget = Math.exp(-runMs / MEMORY_MS);
    for (const length of LENGTH_CLASSES) {
      const sums = this.byLength[length];
      for (const key of ['tokens', 'weightedTokens', 'weightedMs'] as const) sums[key] *= forget;
    }
    const sums = this.byLength[lengthClassOf(width)];
    sums.tokens += tokens;
    sums.weightedTokens += tokens * tokens;
    sums.weightedMs += tokens * runMs;
    this.tokens = this.tokens * forget + tokens;
    this.jobs *= forget;
  }
}

function zero(): Sums {
  return { tokens: 0, weightedTokens: 0, weightedMs: 0 };
}
