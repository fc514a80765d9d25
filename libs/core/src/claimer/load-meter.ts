// How fast a worker is and what it has to do, counted from what passes on the way to the metrics. Rates are measured
// at the device and forget what is long past.

import {
  LENGTH_CLASSES,
  lengthClassOf,
  type BodyCounts,
  type LengthClass,
  type PayloadServerFacts,
  type WorkerLoad,
} from '../fleet/worker-facts.ts';
import { ArrivalRate } from '../base/arrival-rate.ts';
import { systemClock, type Clock } from '../ports/clock.ts';
import type { BudgetState } from '../ports/device.ts';
import type { Metrics } from '../ports/metrics.ts';
import type { SimilarityFacts } from '../similarity/facts.ts';

/** After so much time at the device, what was measured counts a third. */
const MEMORY_MS = 20_000;
/** Texts a second are of about so long. */
const TEXTS_MS = 10_000;

interface Sums {
  tokens: number;
  /** Weighted by tokens: an idle GPU's runs of one row say nothing about what it can do, and weigh next to nothing. */
  weightedTokens: number;
  weightedMs: number;
}

/** Counts for `WorkerLoad` whatever passes it on the way to the metrics. */
export class LoadMeter {
  private readonly byLength: Record<LengthClass, Sums> = { short: zero(), medium: zero(), long: zero() };
  private readonly clock: Clock;
  private readonly texts = new ArrivalRate(TEXTS_MS);
  private claims = 0;
  private poolTokens = 0;
  private tokens = 0;
  private jobs = 0;
  budget: BudgetState | undefined;
  memoryBytes: number | undefined;
  similarity: SimilarityFacts | undefined;
  /** Told by executors of workers that have payload servers; since when one fails, by this machine's clock. */
  payloadServers: readonly PayloadServerFacts[] | undefined;
  bodies: BodyCounts | undefined;
  /** Whether an executor runs that said it can. */
  hasExecutor = false;
  /** How the last executor was lost, in the words of the log; undefined: none was. */
  lastLoss: string | undefined;
  /** What the queue server has no room for. */
  brake: 'memory' | 'unread' | undefined;

  constructor(clock: Clock = systemClock) {
    this.clock = clock;
  }

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
        this.texts.add(run.rows, this.clock.nowMs());
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
      bodiesBeside: (bodies) => {
        this.payloadServers = bodies.servers ?? this.payloadServers;
        const { put = 0, byQueueServer = 0, lost = 0 } = this.bodies ?? {};
        this.bodies = {
          put: put + bodies.put,
          byQueueServer: byQueueServer + bodies.byQueueServer,
          lost: lost + bodies.lost,
        };
        metrics.bodiesBeside(bodies);
      },
      memoryMeasured: (memory) => {
        this.memoryBytes = memory.measuredBytes;
        metrics.memoryMeasured(memory);
      },
      executorReady: (pid) => {
        this.hasExecutor = true;
        metrics.executorReady(pid);
      },
      executorLost: (reason, words) => {
        this.hasExecutor = false;
        this.lastLoss = words ?? reason;
        metrics.executorLost(reason, words);
      },
    };
  }

  /** Rows that the device ran, of about the last ten seconds. */
  get textsPerSecond(): number {
    return 1_000 * this.texts.perMs(this.clock.nowMs());
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
