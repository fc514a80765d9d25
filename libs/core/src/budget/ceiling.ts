// What running out of memory has taught: a ceiling for the increment of a run. It falls by a quarter each time, is held
// for HOLD_RUNS runs, doubled with each further OOM, then rises by a quarter in as many runs; so at most about one run
// in HOLD_RUNS tests a limit that failed before. It is forgotten once something else limits.
//
// From a first OOM on it is not known whether memory was short or some rows asked for too much: a *shortage*. When a
// run goes well that is larger than one that failed, there is memory and the rows were to blame: then the ceiling is as
// before the first of them.

import { MOST_SHRINK, SHRINK, type MemoryRoom } from './memory-room.ts';

/** Plain data: it is carried into the next executor of a worker. */
export interface Ceiling {
  readonly bytes: number;
  /** Runs until it begins to rise. */
  readonly holdRuns: number;
  /** How long the next hold is going to be. */
  readonly patienceRuns: number;
  /** What others used when it was learned: when they leave, their share is free again. */
  readonly othersBytes: number;
}

/** What is known since the first OOM of several. */
interface Shortage {
  readonly ceilingBefore: Ceiling | undefined;
  readonly hadTaughtBefore: boolean;
  /** Least increment that failed, and most that went well since. */
  leastFailed: number;
  mostRan: number;
  /** Set once rows were found to be to blame: so many runs more, smaller ones that fail are taken for theirs. */
  runsLeft?: number;
}

/** Needs of one shape differ by 8 % from run to run: one that went well says little about the next. */
const TESTS = 16;
/** The bar is one OOM in 10,000 runs; so a limit that failed is not tested again any sooner. */
const HOLD_RUNS = 10_000;
const MAX_HOLD_RUNS = 160_000;
/** It rises in steps of so many runs. */
const STEP_RUNS = 100;
/**
 * A run that went well shows that one smaller by so much failed for its rows, not for want of memory: runs of one shape
 * differ by 8 %.
 */
const PROOF = 1.25;

export class OomCeiling {
  private readonly room: Pick<MemoryRoom, 'lowered' | 'othersBytes'>;
  private readonly largestIncrement: () => number;
  private ceiling: Ceiling | undefined;
  private shortage: Shortage | undefined;
  /** Runs near the budget that have to go well after an OOM before two are in flight again. */
  private testsLeft = 0;
  private taught = false;

  /** `largestIncrement`: of all runs that may be cut now, by whatever limits them, this ceiling included. */
  constructor(
    room: Pick<MemoryRoom, 'lowered' | 'othersBytes'>,
    largestIncrement: () => number,
    learned: Ceiling | undefined,
  ) {
    this.room = room;
    this.largestIncrement = largestIncrement;
    this.ceiling = learned;
  }

  /** The largest increment that it allows; infinite when there is no ceiling. */
  get bytes(): number {
    if (this.ceiling === undefined) return Number.POSITIVE_INFINITY;
    const { bytes, othersBytes } = this.ceiling;
    return bytes + Math.max(0, othersBytes - this.room.othersBytes);
  }

  get learned(): Ceiling | undefined {
    return this.ceiling;
  }

  /** Whether no run near the budget has gone well since the device ran out of memory. */
  get isTesting(): boolean {
    return this.testsLeft > 0;
  }

  /** Whether running out of memory has taught anything that was not taken back. */
  get hasTaught(): boolean {
    return this.taught;
  }

  /** Learns from a run that went well; `most`: the largest increment that was allowed. */
  ran(increment: number, most: number): void {
    if (increment > most * SHRINK) this.testsLeft = Math.max(0, this.testsLeft - 1);
    if (this.ceiling !== undefined && increment > this.ceiling.bytes * MOST_SHRINK)
      this.ceiling = this.regained(this.ceiling);
  }

  /** Judges a shortage by a run that went well; called after `ran`, once all else has learned from it. */
  judge(increment: number): void {
    if (this.shortage !== undefined) this.shortage = this.after(this.shortage, increment);
  }

  /**
   * A quarter less than the run that failed, or than is allowed now where that is less: the run may have been cut
   * before an earlier failure was known. A small run that fails where larger ones went well says little about how much
   * there is: then half of the budget at most. Its sibling, of the same size, is to run before anything is lowered
   * below it.
   */
  ranOut(failed: number, siblingWaits: boolean): void {
    const allowed = this.largestIncrement();
    if (this.areRowsToBlame(failed)) return;
    const bytes = Math.min(
      siblingWaits ? allowed : this.room.lowered(allowed),
      Math.max(siblingWaits ? failed : this.room.lowered(failed), MOST_SHRINK * allowed),
    );
    const patienceRuns = Math.min(MAX_HOLD_RUNS, 2 * (this.ceiling?.patienceRuns ?? HOLD_RUNS / 2));
    this.ceiling = { bytes, holdRuns: patienceRuns, patienceRuns, othersBytes: this.room.othersBytes };
    this.taught = true;
    this.testsLeft = TESTS;
  }

  /** Whether a failed run was smaller than what went well since the first that failed. */
  private areRowsToBlame(failed: number): boolean {
    const known = this.shortage;
    // those rows are not all of it
    if (known?.runsLeft !== undefined && failed * PROOF > known.mostRan) this.shortage = undefined;
    this.shortage ??= { ceilingBefore: this.ceiling, hadTaughtBefore: this.taught, leastFailed: failed, mostRan: 0 };
    this.shortage.leastFailed = Math.min(this.shortage.leastFailed, failed);
    return this.isProvenWrong(this.shortage);
  }

  private after(shortage: Shortage, increment: number): Shortage | undefined {
    shortage.mostRan = Math.max(shortage.mostRan, increment);
    if (!this.isProvenWrong(shortage)) return this.testsLeft > 0 ? shortage : undefined;
    return --shortage.runsLeft! > 0 ? shortage : undefined;
  }

  /** Whether there is no shortage: then what it has lowered is as before. */
  private isProvenWrong(shortage: Shortage): boolean {
    if (shortage.runsLeft !== undefined) return true;
    if (shortage.mostRan < PROOF * shortage.leastFailed) return false;
    shortage.runsLeft = TESTS;
    this.ceiling = shortage.ceilingBefore;
    this.taught = shortage.hadTaughtBefore;
    this.testsLeft = 0;
    return true;
  }

  private regained(ceiling: Ceiling): Ceiling | undefined {
    if (ceiling.holdRuns > 0) return { ...ceiling, holdRuns: ceiling.holdRuns - 1 };
    const bytes = ceiling.bytes * (1 / SHRINK) ** (STEP_RUNS / ceiling.patienceRuns);
    this.ceiling = undefined; // what else would limit?
    return bytes >= this.largestIncrement() ? undefined : { ...ceiling, bytes, holdRuns: STEP_RUNS - 1 };
  }
}
