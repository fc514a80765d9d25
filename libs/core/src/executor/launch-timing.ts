// When the next micro-batch is given to the device: now, at a time, or not before something changes. Decided by what
// waits, by what the device runs, and by what runs take; it knows no clock, sets no timer and launches nothing.
//
// The rules, in the order in which they are asked:
//   1. Behind a run that tests whether there is memory again nothing is sent: what is sent behind one that fails would
//      fail as well.
//   2. Interactive rows go at once. Only where a run takes much the same time whatever its size do they gather until
//      the run that goes on is nearly over; a little earlier where bulk work is queued behind it.
//   3. What runs again goes before bulk rows, and no bulk work goes to a busy device while an interactive row is there.
//   4. A busy device (one micro-batch running and one to go on with) is given a third only when that is full, because a
//      short pool loses nothing by gathering on.
//   5. What would run behind another gathers until that is nearly over. Else the window decides (window.ts).
//
// Why: docs/decisions/launch-timing.md

import type { BatchBudget, RunShape } from '../ports/device.ts';
import { ArrivalRate } from '../base/arrival-rate.ts';
import { BUCKET_TOKENS } from './buckets.ts';
import { FILLED_SHARE, SMALL_BATCH } from './cut-plan.ts';
import { windowMs, type WindowLimits } from './window.ts';

/** The device and the limits as far as timing depends on them. */
export interface TimingTerms {
  /** Runs that go on side by side. */
  readonly sessions: number;
  readonly limits: WindowLimits;
  readonly budget: Pick<BatchBudget, 'current' | 'predictMs'>;
  /** Most rows of this width that one run may have now. */
  rowsAt(width: number): number;
}

/** What waits in the pool. */
export interface PoolView {
  readonly rows: number;
  /** Real tokens. */
  readonly tokens: number;
  readonly interactiveRows: number;
  /** When the row came that waits longest. */
  oldestMs(): number | undefined;
}

export interface Waiting {
  readonly pool: PoolView;
  /** What runs for the second time, which goes before anything new. */
  readonly again: { readonly size: number; readonly hasInteractive: boolean };
  /** Whether the device has one micro-batch running and another to go on with, or beside it. */
  readonly isBusy: boolean;
  /** Nothing else is queued. */
  readonly isQueueDrained: boolean;
}

export type Launch =
  | { readonly kind: 'now'; readonly isUrgent: boolean }
  | { readonly kind: 'at'; readonly atMs: number }
  /** Not before something comes, ends or changes. */
  | { readonly kind: 'never' };

/** A micro-batch that was given to the device. */
export interface SentRun {
  /** What it takes, by what runs took before. */
  readonly expectedMs: number;
  readonly sentMs: number;
  readonly isUrgent: boolean;
}

/**
 * How long before the device is through it is given a full micro-batch to go on with. A thread that reads inputs is
 * late now and then, and two runs of a GPU take about 20 ms: as much as was queued always. What nobody knows beforehand
 * is learned: a device that stood still doubles it, and each run takes a hundredth off. What is queued cannot be
 * overtaken, and a tenant with little waits for it.
 */
const FIRST_IN_HAND_MS = 20;
const LEAST_IN_HAND_MS = 5;
const MOST_IN_HAND_MS = 160;
const LESS_IN_HAND = 0.99;
/**
 * Packing a micro-batch and waking the device's thread take about a millisecond; what a run takes is foreseen within a
 * tenth.
 */
const GO_ON_MS = 1;
const GO_ON_SHARE = 0.1;
/**
 * Share of a run that is kept in hand when interactive rows gather behind it and bulk work is queued there: coming too
 * late would cost them a run of that. Where nothing is, it would cost a moment, and rows that come meanwhile go along.
 */
const URGENT_GO_ON_SHARE = 0.4;

const NEVER: Launch = { kind: 'never' };
const BULK_NOW: Launch = { kind: 'now', isUrgent: false };
const URGENT_NOW: Launch = { kind: 'now', isUrgent: true };

export class LaunchTiming {
  private readonly terms: TimingTerms;
  /** The runs at the device, in the order in which they came there. */
  private readonly running = new Set<SentRun>();
  private readonly arrivals = new ArrivalRate();
  /** Micro-batches at the device with an interactive row that have not begun: they are the next. */
  private urgentQueued = 0;
  /** When the run began that goes on now. */
  private runBeganMs = 0;
  /** Since when interactive rows wait for the run that goes on to be nearly over. */
  private gatheringSinceMs: number | undefined;
  private inHandMs = FIRST_IN_HAND_MS;

  constructor(terms: TimingTerms) {
    this.terms = terms;
  }

  /** Whether the device has been given something with an interactive row. */
  get hasUrgentRun(): boolean {
    return this.urgentRun() !== undefined;
  }

  next(waiting: Waiting, nowMs: number): Launch {
    if (this.running.size > 0 && this.terms.budget.current().isTesting === true) return NEVER;
    const isUrgent = waiting.pool.interactiveRows > 0 || waiting.again.hasInteractive;
    return isUrgent ? this.nextUrgent(nowMs) : this.nextBulk(waiting, nowMs);
  }

  /** So many rows came into the pool. */
  arrived(rows: number, nowMs: number): void {
    this.arrivals.add(rows, nowMs);
  }

  /** The device is given a micro-batch of this shape. */
  sent(shape: RunShape, isUrgent: boolean, nowMs: number): SentRun {
    const run = { expectedMs: this.terms.budget.predictMs(shape) ?? 0, sentMs: nowMs, isUrgent };
    if (isUrgent) this.gatheringSinceMs = undefined;
    if (this.running.size === 0) this.runBeganMs = nowMs;
    if (isUrgent && this.running.size >= this.terms.sessions) this.urgentQueued++;
    this.running.add(run);
    return run;
  }

  /** A run is over, however it went; `pool`: what waits now. */
  ended(run: SentRun, pool: PoolView, nowMs: number): void {
    if (this.urgentQueued > 0) this.urgentQueued--;
    this.runBeganMs = nowMs;
    this.running.delete(run);
    const stoodStill = this.running.size === 0 && this.isFull(pool);
    this.inHandMs = stoodStill
      ? Math.min(MOST_IN_HAND_MS, 2 * this.inHandMs)
      : Math.max(LEAST_IN_HAND_MS, LESS_IN_HAND * this.inHandMs);
  }

  /**
   * What a run of one row takes, as a share of what a full one takes: on a device whose runs take much the same time
   * whatever their size, a run more costs more than padding does. Undefined while too few runs were seen.
   */
  smallShare(): number | undefined {
    const { budget } = this.terms;
    const least = budget.predictMs({ rows: 1, width: BUCKET_TOKENS });
    const full = budget.predictMs({ rows: this.terms.rowsAt(BUCKET_TOKENS), width: BUCKET_TOKENS });
    return least === undefined || full === undefined || full <= 0
      ? undefined
      : Math.min(1, Math.max(SMALL_BATCH, least / full));
  }

  /**
   * Where a run takes much the same time whatever its size, interactive rows gather until the one that goes on is
   * nearly over, and while others are queued: they would not run any sooner, and each few of them would take a run of
   * their own from bulk work and from those that come after them. With one every two runs, the slowest of a hundred
   * takes 2.4 runs; 2.9 while they were cut as they came (bench/queue/interactive-wait.ts --device fixed, 2026-11).
   */
  private nextUrgent(nowMs: number): Launch {
    if (this.running.size < this.terms.sessions || !this.isAnySizeAsDear()) return URGENT_NOW;
    if (this.urgentQueued > 0) return NEVER;
    this.gatheringSinceMs ??= nowMs;
    const wasForeseen = this.gatheringSinceMs >= this.runBeganMs; // else the run ended sooner than it should have
    const atMs = this.urgentGoOnMs();
    return atMs <= nowMs || !wasForeseen ? URGENT_NOW : { kind: 'at', atMs };
  }

  private nextBulk({ pool, again, isBusy, isQueueDrained }: Waiting, nowMs: number): Launch {
    if (isBusy && this.hasUrgentRun) return NEVER;
    if (again.size > 0) return BULK_NOW;
    const oldestMs = pool.oldestMs();
    if (oldestMs === undefined) return NEVER;
    const isFull = this.isFull(pool);
    if (isBusy && !isFull) return NEVER;
    const { limits, budget } = this.terms;
    const { rows, tokens } = pool;
    const atMs = Math.max(
      oldestMs + windowMs({ rows, tokens, isFull, isQueueDrained }, limits, budget),
      this.goOnMs(isFull ? this.inHandMs : GO_ON_MS),
      isFull ? Number.NEGATIVE_INFINITY : this.takeSessionMs(rows, nowMs),
    );
    return atMs <= nowMs ? BULK_NOW : { kind: 'at', atMs };
  }

  /**
   * When the device has to be given interactive rows for them to be next. What runs now is what came first, or is
   * urgent itself.
   */
  private urgentGoOnMs(): number {
    const [first] = this.running;
    const current = this.urgentRun() ?? first;
    if (this.terms.sessions > 1 || current === undefined) return Number.NEGATIVE_INFINITY;
    const isNext = this.running.size <= this.terms.sessions;
    const inHandMs = isNext ? GO_ON_MS + current.expectedMs * GO_ON_SHARE : current.expectedMs * URGENT_GO_ON_SHARE;
    return this.runBeganMs + current.expectedMs - inHandMs;
  }

  /**
   * When the device has to be given what comes next. Cut any earlier, a batch would wait behind the run that goes on
   * with fewer rows than it could have. For devices that run several at once see takeSessionMs.
   */
  private goOnMs(inHandMs: number): number {
    if (this.terms.sessions > 1 || this.running.size === 0) return Number.NEGATIVE_INFINITY;
    const expectedMs = [...this.running].reduce((sum, run) => sum + run.expectedMs, 0);
    return this.runBeganMs + expectedMs * (1 - GO_ON_SHARE) - inHandMs;
  }

  /**
   * When what waits takes a free session of a device that runs several at once. Where a run takes much the same time
   * whatever its size, sessions that are taken one right after the other also end so, and all that comes meanwhile
   * waits for that. With rows coming at an even rate, the sum of all waits is least when those that wait are as many as
   * will come, for each free session, until another is free.
   */
  private takeSessionMs(rows: number, nowMs: number): number {
    const { sessions } = this.terms;
    const free = sessions - this.running.size;
    if (sessions === 1 || this.running.size === 0 || free <= 0 || !this.isAnySizeAsDear())
      return Number.NEGATIVE_INFINITY;
    const nextFreeMs = Math.min(...[...this.running].map(({ sentMs, expectedMs }) => sentMs + expectedMs));
    return nextFreeMs - (free * rows) / this.arrivals.perMs(nowMs);
  }

  /** Whether a run takes much the same time whatever its size. */
  private isAnySizeAsDear(): boolean {
    return (this.smallShare() ?? 0) >= FILLED_SHARE;
  }

  /** Whether one run could take no more than what waits. */
  private isFull({ rows, tokens }: PoolView): boolean {
    const { budget } = this.terms;
    return tokens >= budget.current().maxPaddedTokens || rows >= this.terms.rowsAt(BUCKET_TOKENS);
  }

  /** The first at the device with an interactive row. */
  private urgentRun(): SentRun | undefined {
    for (const run of this.running) if (run.isUrgent) return run;
    return undefined;
  }
}
