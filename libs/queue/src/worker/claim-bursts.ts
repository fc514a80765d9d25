// How jobs are taken: in bursts of parallel calls, one round trip each, as many calls as jobs are known to wait or will
// have come by then. Only where nothing is known does it wait for a marker first. Takes and nothing else; whose the
// jobs are and how they end is bull-job-source.ts.
//
// Once the signal says that claiming has ended, nothing is waited for any more. A call that is under way may still
// bring a job: it goes to `onLate`, which hands it back unspent.
//
// Why: docs/decisions/claiming-and-order.md#a-marker-wakes-a-burst-not-a-claim

import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from '@shoal/core';
import { backoffMs, unlessAborted, type Backoff } from '@shoal/core/base';
import { isConnectionFault } from '../redis/connection.ts';
import type { TakenJob } from '../bullmq/batch-worker.ts';
import { MOST_JOBS, type WaitingOrder } from './fair-order.ts';

export interface ClaimBurstsOptions {
  /** Resolves when a job may be there, or after a while. */
  readonly untilMarker: () => Promise<void>;
  /** So many calls at once, in one round trip. */
  readonly takeNow: (count: number) => Promise<TakenJob | undefined>[];
  /**
   * Gives waiting jobs their place in line and tells how many wait; undefined when that is not known. Travels before
   * the calls that follow it.
   */
  readonly order: () => Promise<WaitingOrder | undefined>;
  /** Told of each job as it comes: its lease runs from now, though the claim may still be asking for more. */
  readonly onTaken: (taken: TakenJob) => void;
  readonly onLate: (taken: TakenJob) => Promise<void>;
  /** Of each claim that failed. */
  readonly onFault?: ((error: unknown) => void) | undefined;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/**
 * Calls that find nothing cost the server as much as others: asking for all at once took 54 % of a core on an almost
 * empty queue, bursts growing from 8 took 10 % (2026-11). So a first burst is small where nothing is known, and each
 * order tells how many wait.
 */
const FIRST_BURST = 2;
const BURST_GROWTH = 4;
const RETRY: Backoff = { firstMs: 100, mostMs: 2_000 };
/**
 * Markers that come at once and bring no job: one was left over, and the next look waits; when they go on, the queue is
 * paused or limited, and they come ever later up to this. (20 ms at once cost a lone text 20 of its 22 ms; 2026-11.)
 */
const EMPTY_LOOK_MS = 20;
const EMPTY_LOOK: Backoff = { firstMs: 1, mostMs: EMPTY_LOOK_MS };
/**
 * Calls that give jobs their places, one behind the other in one round trip: 100,000 jobs behind 20 ms took 11.6 s one
 * at a time (2026-11). The server does other things between two.
 */
const ORDERS_AT_ONCE = 8;
/** Four round trips' worth: jobs that were taken wait while so many others get their places, and no longer. */
const LONG_BACKLOG = 4 * ORDERS_AT_ONCE * MOST_JOBS;

export class ClaimBursts {
  private readonly options: ClaimBurstsOptions;
  private readonly late = new Set<Promise<void>>();
  private mayHaveMore = true;
  /** Jobs that waited, by the last look; others may have taken them. */
  private known = 0;
  /** Jobs that came between two bursts, the last time and the time before. */
  private arrivals: readonly [last: number, before: number] = [0, 0];
  /** Of the last burst. */
  private roundTripMs = 0;
  private faults = 0;
  private emptyLooks = 0;
  /** Jobs wait without a place: they get one before the next burst. */
  private isUnordered = false;

  constructor(options: ClaimBurstsOptions) {
    this.options = options;
  }

  /** At least one and at most `limit` jobs; none once claiming has ended. One call at a time. */
  async claim(limit: number): Promise<TakenJob[]> {
    while (!this.options.signal.aborted) {
      const waitedMs = this.mayHaveMore ? undefined : await this.waitForMarker();
      const jobs = await this.takeBursts(limit);
      if (jobs.length > 0) return jobs;
      if (waitedMs !== undefined) await this.restAfterEmptyLook(waitedMs);
    }
    return [];
  }

  /** At most `limit` jobs that can be had at once, or none. One call at a time, counted with `claim`. */
  async claimNow(limit: number): Promise<TakenJob[]> {
    return this.takeBursts(limit);
  }

  /**
   * Of the jobs that are next in line, at most `limit` interactive ones, or none. One call at a time, counted with
   * `claim`.
   */
  async claimUrgent(limit: number): Promise<TakenJob[]> {
    const line = await unlessAborted(this.options.signal, this.orderAll());
    const count = Math.min(limit, line?.urgent ?? 0);
    return count === 0 ? [] : this.collect(this.options.takeNow(count));
  }

  /** At most `limit` jobs of a worker that claims bulk alone, or none. One call at a time, counted with `claim`. */
  async claimBulk(limit: number): Promise<TakenJob[]> {
    const line = await unlessAborted(this.options.signal, this.orderAll());
    const count = Math.min(limit, line?.placed ?? 0);
    return count === 0 ? [] : this.collect(this.options.takeNow(count));
  }

  /** Resolves when no call is under way any more. */
  async settled(): Promise<void> {
    await Promise.all(this.late);
  }

  /** How long that took, ms. */
  private async waitForMarker(): Promise<number> {
    const askedMs = performance.now();
    try {
      await unlessAborted(this.options.signal, this.options.untilMarker());
    } catch (error) {
      this.report(error);
      await this.restAfterFault();
    }
    return performance.now() - askedMs;
  }

  private async restAfterEmptyLook(waitedMs: number): Promise<void> {
    this.emptyLooks = waitedMs < EMPTY_LOOK_MS + this.roundTripMs ? this.emptyLooks + 1 : 0;
    if (this.emptyLooks > 1) await this.pause(backoffMs(this.emptyLooks - 2, EMPTY_LOOK));
  }

  /** Jobs are handed over at once, unless another round trip is sure to bring more than there are already. */
  private async takeBursts(limit: number): Promise<TakenJob[]> {
    const jobs: TakenJob[] = [];
    do jobs.push(...(await this.takeBurst(limit - jobs.length)));
    while (
      this.mayHaveMore &&
      !this.isUnordered &&
      this.known > jobs.length &&
      jobs.length < limit &&
      !this.options.signal.aborted
    );
    return jobs;
  }

  private async takeBurst(limit: number): Promise<TakenJob[]> {
    if (this.isUnordered) await unlessAborted(this.options.signal, this.orderAll());
    const sentMs = performance.now();
    const size = Math.max(FIRST_BURST, this.known + this.arriving());
    const wanted = Math.min(size, limit);
    const ordering = this.options.order();
    const got = await this.collect(this.options.takeNow(wanted));
    const line = await unlessAborted(this.options.signal, ordering);
    // what was taken goes on its way first
    this.isUnordered = got.length > 0 && line !== undefined && line.unplaced > LONG_BACKLOG;
    if (!this.isUnordered) await unlessAborted(this.options.signal, this.orderRest(line));
    this.roundTripMs = performance.now() - sentMs;
    if (line !== undefined) this.arrivals = [Math.max(0, line.placed + line.unplaced - this.known), this.arrivals[0]];
    if (got.length > 0) this.emptyLooks = 0;
    const rest = line === undefined ? size * BURST_GROWTH : restOf(line, got.length);
    this.known = got.length === wanted ? rest : 0;
    this.mayHaveMore = this.known > 0 || (got.length > 0 && this.arriving() > 0);
    return got;
  }

  /**
   * So many jobs come, as it seems, while a burst is under way: the smaller count, because what one producer adds at
   * once comes once.
   */
  private arriving(): number {
    return Math.min(...this.arrivals);
  }

  /** Jobs without a place would be taken before all others: no further burst while there are some. */
  private async orderRest(line: WaitingOrder | undefined): Promise<WaitingOrder | undefined> {
    let rest = line;
    while (rest !== undefined && rest.unplaced > 0 && !this.options.signal.aborted) {
      const calls = Math.min(ORDERS_AT_ONCE, Math.ceil(rest.unplaced / MOST_JOBS));
      rest = (await Promise.all(Array.from({ length: calls }, () => this.options.order()))).at(-1);
    }
    return rest;
  }

  private async orderAll(): Promise<WaitingOrder | undefined> {
    return this.orderRest(await this.options.order());
  }

  private async collect(calls: readonly Promise<TakenJob | undefined>[]): Promise<TakenJob[]> {
    const outcomes = await unlessAborted(this.options.signal, Promise.allSettled(calls));
    if (outcomes === undefined) {
      for (const call of calls) this.handBackLate(call);
      return [];
    }
    const jobs = outcomes.flatMap((outcome) =>
      outcome.status === 'fulfilled' && outcome.value !== undefined ? [outcome.value] : [],
    );
    for (const taken of jobs) this.options.onTaken(taken);
    const faults = outcomes.flatMap((outcome): unknown[] => (outcome.status === 'rejected' ? [outcome.reason] : []));
    for (const fault of faults) this.report(fault);
    if (faults.every(isCorruptJob)) this.faults = 0;
    else if (jobs.length === 0) await this.restAfterFault();
    return jobs;
  }

  private handBackLate(call: Promise<TakenJob | undefined>): void {
    const handedBack = call
      .then((taken) => (taken === undefined ? undefined : this.options.onLate(taken)))
      .catch((error: unknown) => this.report(error))
      .finally(() => this.late.delete(handedBack));
    this.late.add(handedBack);
  }

  private async restAfterFault(): Promise<void> {
    await this.pause(backoffMs(this.faults++, RETRY));
  }

  private async pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.options.signal }).catch(() => undefined);
  }

  private report(error: unknown): void {
    const { log, onFault } = this.options;
    onFault?.(error);
    if (isConnectionFault(error)) return; // the connection says so itself, once
    if (isCorruptJob(error)) log.error({ err: error }, 'a job in the queue cannot be read; it is left to its lease');
    else log.warn({ err: error, faults: this.faults }, 'claiming failed, trying again');
  }
}

/**
 * Jobs of a line that was counted before so many were taken; when it was counted later (the server had to load the
 * script first), all of it.
 */
function restOf({ placed, unplaced }: WaitingOrder, taken: number): number {
  const waiting = placed + unplaced;
  return waiting < taken ? waiting : waiting - taken;
}

/** What JSON.parse throws over a job's `opts` or `parent`. The job was taken, so the next look finds another. */
function isCorruptJob(error: unknown): boolean {
  return error instanceof SyntaxError;
}
