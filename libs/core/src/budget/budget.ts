// How large the next micro-batch may be: the least of what the memory of the device allows, what still makes runs
// faster, what is done in time while somebody waits, and what the runtime's integers can count. It learns from every
// run and from every running out of memory; it reads no memory and no clock itself.
//
// Memory is counted as increment: bytes above what the open graph holds. Three limits hold at a time, the least wins:
//   *room*     a fraction of the device, less what is loaded, less what other processes use (where a source of memory
//              is known)
//   *ceiling*  what running out of memory has taught. It falls by a quarter each time, is held for HOLD_RUNS runs,
//              doubled with each further OOM, then rises by a quarter in as many runs; so at most about one run in
//              HOLD_RUNS tests a limit that failed before. It is forgotten once something else limits. When a run goes
//              well that is larger than one that failed, there is memory and the rows were to blame: then it is as
//              before the first of them.
//   *trial*    where no source of memory is known: starts small and doubles with each full run that went well.

import { ShoalError } from '@shoal/contract';
import { bytesPerToken, footprintBytes, incrementBytes, liveBytes, type MemoryLaw } from './memory-model.ts';
import type { BatchBudget, BudgetState, MemoryReading, RunShape } from '../ports/device.ts';
import { RunTimeModel, type RunTimeLaw } from './run-time-model.ts';

export interface BudgetOptions {
  /** The settings: caps, whatever the device could do. */
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
  /** Longest row in tokens. */
  readonly maxTokens: number;
  /**
   * For the runtime's integers: elements per token of the widest tensor, and heads. Unset: nothing is known of the
   * graph.
   */
  readonly model?:
    | { readonly hiddenSize: number; readonly intermediateSize: number; readonly heads: number }
    | undefined;
  /** Its `loadedBytes` is best replaced by what this process holds. Unset: nothing predicts memory. */
  readonly memory?: { readonly law: MemoryLaw; readonly source: 'fitted' | 'stored' | 'preset' } | undefined;
  /** All memory this worker's device has. Unset: no source of memory. */
  readonly totalBytes?: number | undefined;
  /** Share of it that this worker and all others may use together. */
  readonly memoryFraction?: number | undefined;
  /** While an interactive row waits, a run is to take no longer. */
  readonly latencyTargetMs?: number | undefined;
  /** Padded tokens beyond which larger batches are no faster, measured before. Unset: learned while running. */
  readonly kneeTokens?: number | undefined;
  /** Where to begin while the knee is unknown: a preset. */
  readonly startTokens?: number | undefined;
  /** What an earlier executor of this worker had learned, see `learned()`. */
  readonly learned?: LearnedBudget | undefined;
}

/** What is worth carrying into the next executor of this worker: JSON. */
export interface LearnedBudget {
  readonly law: MemoryLaw | undefined;
  readonly ceiling: Ceiling | undefined;
  readonly trialBytes: number | undefined;
}

export interface Budget extends BatchBudget {
  /**
   * What the driver shows, at most every few seconds and after an OOM. `ownBytes`: what of it this worker holds itself;
   * predicted when unset.
   */
  deviceMemory(
    reading: { readonly freeBytes: number; readonly totalBytes: number } | undefined,
    ownBytes?: number,
  ): void;
  /** From now on memory is predicted by this law: measured at warm-up, beside the first runs. */
  useMemoryLaw(law: MemoryLaw, source: 'fitted' | 'stored' | 'preset'): void;
  /** The law with its corrections; undefined when nothing predicts memory. */
  memoryLaw(): MemoryLaw | undefined;
  /** What a run of this shape will take; undefined until enough was seen. */
  predictMs(shape: RunShape): number | undefined;
  runTimeLaw(): RunTimeLaw | undefined;
  learned(): LearnedBudget;
}

interface Ceiling {
  readonly bytes: number;
  /** Runs until it begins to rise. */
  readonly holdRuns: number;
  /** How long the next hold is going to be. */
  readonly patienceRuns: number;
  /** What others used when it was learned: when they leave, their share is free again. */
  readonly othersBytes: number;
}

/** From a first OOM on, until it is known whether memory was short or some rows ask for too much. */
interface Shortage {
  readonly ceilingBefore: Ceiling | undefined;
  readonly sourceBefore: BudgetState['source'];
  /** Least increment that failed, and most that went well since. */
  leastFailed: number;
  mostRan: number;
  /** Set once rows were found to be to blame: so many runs more, smaller ones that fail are taken for theirs. */
  runsLeft?: number;
}

export const DEFAULT_MEMORY_FRACTION = 0.8;
export const DEFAULT_LATENCY_TARGET_MS = 100;
const WIDTH_STEP = 8;
/** Needs of one shape differ by 8 % from run to run: one that went well says little about the next. */
const TESTS = 16;
/** The bar is one OOM in 10,000 runs; so a limit that failed is not tested again any sooner. */
const HOLD_RUNS = 10_000;
const MAX_HOLD_RUNS = 160_000;
/** It rises in steps of so many runs. */
const STEP_RUNS = 100;
/**
 * An OOM lowers the budget by this factor; for a run that was far smaller than the budget by no more than half, see
 * ranOutOfMemory.
 */
const SHRINK = 0.75;
const MOST_SHRINK = 0.5;
/**
 * A run that went well shows that one smaller by so much failed for its rows, not for want of memory: runs of one shape
 * differ by 8 %.
 */
const PROOF = 1.25;
/**
 * Runtimes count elements of a tensor in 32 bits with a sign: 4,096 × 512 tokens of MiniLM failed on CUDA as "out of
 * memory" that it was not (2026-11).
 */
const MAX_ELEMENTS = 2 ** 31 - 1;
/**
 * How far one reading draws the law towards it. Where it said too little all the way at once: the next runs are smaller
 * then, and peaks of smaller runs show nothing. A process holds other things than tensors: half-way. Where it said too
 * much, gently.
 */
const CORRECTION_UP = 1;
const CORRECTION_UP_BY_PROCESS = 0.5;
const CORRECTION_DOWN = 0.1;
/** Readings that differ by less change nothing. */
const TOLERANCE = 0.02;
/** Whatever was learned of run times, a run of so few tokens is never too large. */
const LEAST_KNEE = 256;
/** Starts here while neither knee nor preset is known. */
const START_TOKENS = 4096;
/** Where no source of memory is known. */
const TRIAL_TOKENS = 1024;

/** Stands in where nothing predicts memory: a byte is a padded token. */
const TOKENS_AS_BYTES: MemoryLaw = {
  loadedBytes: 0,
  floorBytes: 0,
  slackBytes: 0,
  perToken: [{ width: WIDTH_STEP, bytes: 1 }],
  arena: 'exact',
};

type Limit = BudgetState['limitedBy'];

/** Throws CONFIG_INVALID when the memory it may use holds no single row of `maxTokens`. */
export function createBudget(options: BudgetOptions): Budget {
  return new LearningBudget(options);
}

class LearningBudget implements Budget {
  private readonly options: BudgetOptions;
  private readonly widest: number;
  private readonly runTimes = new RunTimeModel();
  /** By what runs have taught so far; asked for at each of 64 widths, and worked out once a run. */
  private knee: number | undefined;
  private law: MemoryLaw;
  private source: BudgetState['source'];
  private totalBytes: number | undefined;
  private othersBytes = 0;
  private ceiling: Ceiling | undefined;
  private trialBytes: number | undefined;
  /** The run with the largest increment so far: the arena holds that much. */
  private largestRun: RunShape | undefined;
  /** Highest reading so far. */
  private peakReading = 0;
  /** Runs near the budget that have to go well after an OOM before two are in flight again. */
  private testsLeft = 0;
  private shortage: Shortage | undefined;
  private isInteractive = false;
  private state: BudgetState | undefined;

  constructor(options: BudgetOptions) {
    const { memory, learned, totalBytes, maxTokens } = options;
    this.options = options;
    this.widest = roundUp(maxTokens);
    this.totalBytes = totalBytes;
    this.law = memory?.law ?? TOKENS_AS_BYTES;
    this.source = memory?.source ?? 'none';
    if (learned?.law !== undefined && memory !== undefined) this.useCorrected(learned.law);
    this.ceiling = learned?.ceiling;
    if (memory === undefined || totalBytes === undefined) this.trialBytes = learned?.trialBytes ?? this.firstTrial();
    if (memory !== undefined && memory.source !== 'preset') this.checkRoom();
  }

  rowsAt(width: number): number {
    return this.limitAt(width).rows;
  }

  current(): BudgetState {
    return (this.state ??= this.describe());
  }

  peakBytes(shape: RunShape): number | undefined {
    return this.source === 'none' || this.law === TOKENS_AS_BYTES ? undefined : liveBytes(this.law, shape);
  }

  ran({
    rows,
    width,
    runMs,
    memory,
  }: RunShape & { readonly runMs: number; readonly memory?: MemoryReading | undefined }): void {
    this.state = undefined;
    this.runTimes.add({ rows, width }, runMs);
    this.knee = undefined;
    if (memory !== undefined) this.correct({ rows, width }, memory);
    const increment = this.increment(rows, width);
    if (this.largestRun === undefined || increment > this.increment(this.largestRun.rows, this.largestRun.width))
      this.largestRun = { rows, width };
    if (increment > this.mostIncrement() * SHRINK) this.testsLeft = Math.max(0, this.testsLeft - 1);
    if (this.ceiling !== undefined)
      this.ceiling = increment > this.ceiling.bytes * MOST_SHRINK ? this.regained(this.ceiling) : this.ceiling;
    else if (this.trialBytes !== undefined && increment > this.trialBytes * SHRINK) this.trialBytes *= 2;
    if (this.shortage !== undefined) this.shortage = this.after(this.shortage, increment);
  }

  /**
   * A quarter less than the run that failed, or than is allowed now where that is less: the run may have been cut
   * before an earlier failure was known. A small run that fails where larger ones went well says little about how much
   * there is: then half of the budget at most. Its sibling, of the same size, is to run before anything is lowered
   * below it.
   */
  ranOutOfMemory({ rows, width }: RunShape, { siblingWaits } = { siblingWaits: false }): void {
    const allowed = this.largestIncrement();
    const failed = this.increment(rows, width);
    if (this.areRowsToBlame(failed)) return;
    const bytes = Math.min(
      siblingWaits ? allowed : this.lowered(allowed),
      Math.max(siblingWaits ? failed : this.lowered(failed), MOST_SHRINK * allowed),
    );
    const patienceRuns = Math.min(MAX_HOLD_RUNS, 2 * (this.ceiling?.patienceRuns ?? HOLD_RUNS / 2));
    this.ceiling = { bytes, holdRuns: patienceRuns, patienceRuns, othersBytes: this.othersBytes };
    if (this.source === 'none') this.source = 'learned';
    this.testsLeft = TESTS;
    this.state = undefined;
  }

  /** Whether a failed run was smaller than what went well since the first that failed. */
  private areRowsToBlame(failed: number): boolean {
    const known = this.shortage;
    // those rows are not all of it
    if (known?.runsLeft !== undefined && failed * PROOF > known.mostRan) this.shortage = undefined;
    this.shortage ??= { ceilingBefore: this.ceiling, sourceBefore: this.source, leastFailed: failed, mostRan: 0 };
    this.shortage.leastFailed = Math.min(this.shortage.leastFailed, failed);
    return this.isProvenWrong(this.shortage);
  }

  private after(shortage: Shortage, increment: number): Shortage | undefined {
    shortage.mostRan = Math.max(shortage.mostRan, increment);
    if (!this.isProvenWrong(shortage)) return this.testsLeft > 0 ? shortage : undefined;
    return --shortage.runsLeft! > 0 ? shortage : undefined;
  }

  /** Then there is no shortage, and what it has lowered is as before. */
  private isProvenWrong(shortage: Shortage): boolean {
    if (shortage.runsLeft !== undefined) return true;
    if (shortage.mostRan < PROOF * shortage.leastFailed) return false;
    shortage.runsLeft = TESTS;
    this.ceiling = shortage.ceilingBefore;
    if (this.source === 'learned') this.source = shortage.sourceBefore;
    this.testsLeft = 0;
    this.state = undefined;
    return true;
  }

  interactiveWaits(isWaiting: boolean): void {
    this.isInteractive = isWaiting;
    this.state = undefined;
  }

  deviceMemory(
    reading: { readonly freeBytes: number; readonly totalBytes: number } | undefined,
    ownBytes = this.heldBytes(),
  ): void {
    if (reading === undefined) return; // the last one stays: a source that is silent for a while says nothing new
    this.totalBytes = Math.min(reading.totalBytes, this.options.totalBytes ?? reading.totalBytes);
    this.othersBytes = Math.max(0, reading.totalBytes - reading.freeBytes - ownBytes);
    if (this.memoryLaw() !== undefined) this.trialBytes = undefined;
    this.state = undefined;
  }

  useMemoryLaw(law: MemoryLaw, source: 'fitted' | 'stored' | 'preset'): void {
    this.law = law;
    this.source = source;
    this.trialBytes = this.totalBytes === undefined ? this.firstTrial() : undefined;
    this.state = undefined;
  }

  memoryLaw(): MemoryLaw | undefined {
    return this.law === TOKENS_AS_BYTES ? undefined : this.law;
  }

  predictMs(shape: RunShape): number | undefined {
    return this.runTimes.predictMs(shape);
  }

  runTimeLaw(): RunTimeLaw | undefined {
    return this.runTimes.law();
  }

  learned(): LearnedBudget {
    return { law: this.memoryLaw(), ceiling: this.ceiling, trialBytes: this.trialBytes };
  }

  // ---- what limits ----------------------------------------------------------------------------------------------

  private limitAt(width: number): { readonly rows: number; readonly by: Limit } {
    let least: { rows: number; by: Limit } = { rows: Number.POSITIVE_INFINITY, by: 'setting' };
    for (const [by, rows] of this.limitsAt(width)) if (rows < least.rows) least = { rows, by };
    return { rows: Math.max(1, Math.floor(least.rows)), by: least.by };
  }

  /** Most rows by each limit, not rounded. None rises with the width. */
  private limitsAt(width: number): [Limit, number][] {
    const {
      maxPaddedTokens,
      maxRows,
      model,
      kneeTokens = this.learnedKnee(),
      latencyTargetMs = DEFAULT_LATENCY_TARGET_MS,
    } = this.options;
    const limits: [Limit, number][] = [
      ['setting', Math.min(maxPaddedTokens / width, maxRows)],
      [this.trialBytes === undefined ? 'memory' : 'unknown-memory', this.rowsOf(this.mostIncrement(), width)],
      ['knee', kneeTokens / width],
    ];
    if (model !== undefined)
      limits.push([
        'integer',
        Math.min(
          MAX_ELEMENTS / (width * Math.max(3 * model.hiddenSize, model.intermediateSize)),
          MAX_ELEMENTS / (model.heads * width * width),
        ),
      ]);
    const inTime = this.isInteractive ? this.runTimes.rowsWithin(latencyTargetMs, width) : undefined;
    if (inTime !== undefined) limits.push(['latency', inTime]);
    return limits;
  }

  private learnedKnee(): number {
    return (this.knee ??= Math.max(LEAST_KNEE, this.runTimes.kneeTokens(this.options.startTokens ?? START_TOKENS)));
  }

  /** Least of room, ceiling and trial. */
  private mostIncrement(): number {
    const most = this.mostBelowCeiling();
    return this.ceiling === undefined
      ? most
      : Math.min(most, this.ceiling.bytes + Math.max(0, this.ceiling.othersBytes - this.othersBytes));
  }

  private mostBelowCeiling(): number {
    return Math.min(this.trialBytes ?? Number.POSITIVE_INFINITY, this.roomBytes());
  }

  private roomBytes(): number {
    if (this.totalBytes === undefined || this.memoryLaw() === undefined) return Number.POSITIVE_INFINITY;
    const { memoryFraction = DEFAULT_MEMORY_FRACTION } = this.options;
    return memoryFraction * this.totalBytes - this.othersBytes - this.law.loadedBytes;
  }

  private firstTrial(): number {
    return this.increment(Math.max(1, Math.floor(TRIAL_TOKENS / this.widest)), this.widest);
  }

  private rowsOf(increment: number, width: number): number {
    const { floorBytes, slackBytes } = this.law;
    return increment < floorBytes
      ? 0
      : (increment - floorBytes + slackBytes) / (width * bytesPerToken(this.law, width));
  }

  private increment(rows: number, width: number): number {
    return incrementBytes(this.law, { rows, width });
  }

  /** Of all runs that may be cut now. */
  private largestIncrement(): number {
    return Math.max(...this.widths().map((width) => this.increment(this.limitAt(width).rows, width)));
  }

  private describe(): BudgetState {
    let most = { maxPaddedTokens: 0, limitedBy: 'setting' as Limit };
    for (const width of this.widths()) {
      const { rows, by } = this.limitAt(width);
      if (rows * width > most.maxPaddedTokens) most = { maxPaddedTokens: rows * width, limitedBy: by };
    }
    return { ...most, source: this.source, isTesting: this.testsLeft > 0 };
  }

  private widths(): number[] {
    return Array.from({ length: this.widest / WIDTH_STEP }, (_, i) => (i + 1) * WIDTH_STEP);
  }

  /** What of the device is this worker's own, by prediction. */
  private heldBytes(): number {
    return footprintBytes(this.law, this.largestRun);
  }

  // ---- what was learned -----------------------------------------------------------------------------------------

  /**
   * A quarter off all that was held, weights included, because what is missing may have been taken by others; of the
   * increment a quarter at least and half at most.
   */
  private lowered(increment: number): number {
    const { loadedBytes } = this.law;
    return Math.min(
      SHRINK * increment,
      Math.max(MOST_SHRINK * increment, SHRINK * (loadedBytes + increment) - loadedBytes),
    );
  }

  private regained(ceiling: Ceiling): Ceiling | undefined {
    if (ceiling.holdRuns > 0) return { ...ceiling, holdRuns: ceiling.holdRuns - 1 };
    const bytes = ceiling.bytes * (1 / SHRINK) ** (STEP_RUNS / ceiling.patienceRuns);
    this.ceiling = undefined; // what else would limit?
    return bytes >= this.largestIncrement() ? undefined : { ...ceiling, bytes, holdRuns: STEP_RUNS - 1 };
  }

  /**
   * A reading is the peak of all runs so far. When it rose, this run needed that much: exactly, or where the arena
   * doubles, more than it held before. When it did not, this run needed no more than that. What the law says is drawn
   * into this interval.
   */
  private correct(shape: RunShape, { liveBytes: live, footprintBytes: footprint, source }: MemoryReading): void {
    const reading = live ?? footprint;
    if (reading === undefined || this.memoryLaw() === undefined) return;
    const isExact = live !== undefined || this.law.arena === 'exact';
    const least = reading <= this.peakReading ? 0 : isExact ? reading : this.peakReading;
    this.peakReading = Math.max(this.peakReading, reading);
    const predicted = liveBytes(this.law, shape);
    const found = Math.max(least, Math.min(predicted, reading));
    if (Math.abs(found - predicted) < TOLERANCE * predicted) return;
    const { loadedBytes, floorBytes, slackBytes } = this.law;
    const perToken = Math.max(1, found - loadedBytes - floorBytes + slackBytes) / (shape.rows * shape.width);
    const pull = found < predicted ? CORRECTION_DOWN : source === 'process' ? CORRECTION_UP_BY_PROCESS : CORRECTION_UP;
    this.law = drawn(this.law, shape.width, perToken, pull);
    this.source = 'corrected';
  }

  private useCorrected(law: MemoryLaw): void {
    this.law = { ...law, loadedBytes: this.law.loadedBytes };
    this.source = 'corrected';
  }

  private checkRoom(): void {
    const need = this.increment(1, this.widest);
    const room = this.roomBytes();
    if (need <= room) return;
    const { totalBytes, memoryFraction = DEFAULT_MEMORY_FRACTION, maxTokens } = this.options;
    throw new ShoalError(
      'CONFIG_INVALID',
      `one row of ${maxTokens} tokens takes ${megabytes(this.law.loadedBytes + need)} with this model, but ` +
        `${memoryFraction} of ${megabytes(totalBytes ?? 0)} may be used; ` +
        'raise memoryFraction or maxDeviceBytes, lower maxTokens, or use a smaller model',
      { totalBytes, memoryFraction, maxTokens },
    );
  }
}

/**
 * The law with the table's entries beside `width` drawn towards `perToken`, each by its share in that width; others
 * only so far that none falls with the width.
 */
function drawn(law: MemoryLaw, width: number, perToken: number, pull: number): MemoryLaw {
  const ratio = perToken / bytesPerToken(law, width);
  const knots = law.perToken.map((knot, i) => ({
    ...knot,
    bytes: knot.bytes * ratio ** (pull * shareOf(law.perToken, i, width)),
  }));
  if (ratio > 1)
    for (let i = 1; i < knots.length; i++) knots[i]!.bytes = Math.max(knots[i]!.bytes, knots[i - 1]!.bytes);
  else for (let i = knots.length - 2; i >= 0; i--) knots[i]!.bytes = Math.min(knots[i]!.bytes, knots[i + 1]!.bytes);
  return { ...law, perToken: knots };
}

/** How much the table's entry `i` has to say about `width`, 0 to 1. */
function shareOf(table: MemoryLaw['perToken'], i: number, width: number): number {
  const at = Math.max(table[0]!.width, Math.min(table.at(-1)!.width, width));
  const here = table[i]!.width;
  const neighbour = at < here ? table[i - 1] : table[i + 1];
  if (at === here) return 1;
  return neighbour === undefined ? 0 : Math.max(0, 1 - Math.abs(at - here) / Math.abs(neighbour.width - here));
}

function roundUp(tokens: number): number {
  return Math.ceil(tokens / WIDTH_STEP) * WIDTH_STEP;
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`;
}
