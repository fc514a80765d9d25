// How large the next micro-batch may be: the least of what the memory of the device allows, what still makes runs
// faster, what is done in time while somebody waits, and what the runtime's integers can count. It learns from every
// run and from every running out of memory; it reads no memory and no clock itself.
//
// Memory is counted as increment: bytes above what the open graph holds. Three limits hold at a time, the least wins:
//   *room*     a fraction of the device, less what is loaded, less what other processes use (where a source of memory
//              is known): memory-room.ts
//   *ceiling*  what running out of memory has taught: ceiling.ts
//   *trial*    where no source of memory is known: starts small and doubles with each full run that went well
//
// Why: docs/decisions/memory-and-budget.md#running-out-of-memory-is-remembered-for-10000-runs

import { ShoalError } from '@shoal/contract';
import { OomCeiling, type Ceiling } from './ceiling.ts';
import type { MemoryLaw } from './memory-model.ts';
import { DEFAULT_MEMORY_FRACTION, MemoryRoom, SHRINK, WIDTH_STEP, type LawSource } from './memory-room.ts';
import type { BatchBudget, BudgetState, MemoryReading, RunShape } from '../ports/device.ts';
import { RunTimeModel, type RunTimeLaw } from './run-time-model.ts';

export interface BudgetOptions {
  /** The settings: caps, whatever the device could do. */
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
  /** Longest row in tokens. */
  readonly maxTokens: number;
  /**
   * The sizes that the runtime's integers must count: elements per token of the widest tensor, and heads. Unset:
   * nothing is known of the graph.
   */
  readonly model?:
    | { readonly hiddenSize: number; readonly intermediateSize: number; readonly heads: number }
    | undefined;
  /** Its `loadedBytes` is best replaced by what this process holds. Unset: nothing predicts memory. */
  readonly memory?: { readonly law: MemoryLaw; readonly source: LawSource } | undefined;
  /** All memory this worker's device has. Unset: no source of memory. */
  readonly totalBytes?: number | undefined;
  /** Share of it that this worker and all others may use together. */
  readonly memoryFraction?: number | undefined;
  /** While an interactive row waits, a run is to take no longer. */
  readonly latencyTargetMs?: number | undefined;
  /** Padded tokens beyond which larger batches are no faster, measured before. Unset: learned while running. */
  readonly kneeTokens?: number | undefined;
  /** The padded tokens to begin with while the knee is unknown: a preset. */
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
  /** Predicts memory by this law from now on: it was measured at warm-up, beside the first runs. */
  useMemoryLaw(law: MemoryLaw, source: LawSource): void;
  /** The law with its corrections; undefined when nothing predicts memory. */
  memoryLaw(): MemoryLaw | undefined;
  /** What a run of this shape will take; undefined until enough was seen. */
  predictMs(shape: RunShape): number | undefined;
  runTimeLaw(): RunTimeLaw | undefined;
  learned(): LearnedBudget;
}

export const DEFAULT_LATENCY_TARGET_MS = 100;
/**
 * Runtimes count elements of a tensor in 32 bits with a sign: 4,096 × 512 tokens of MiniLM failed on CUDA as "out of
 * memory" that it was not (2026-11).
 */
const MAX_ELEMENTS = 2 ** 31 - 1;
/** Whatever was learned of run times, a run of so few tokens is never too large. */
const LEAST_KNEE = 256;
/** Starts here while neither knee nor preset is known. */
const START_TOKENS = 4096;
/** The budget starts here where no source of memory is known. */
const TRIAL_TOKENS = 1024;

type Limit = BudgetState['limitedBy'];

/** Throws CONFIG_INVALID when the memory it may use holds no single row of `maxTokens`. */
export function createBudget(options: BudgetOptions): Budget {
  return new LearningBudget(options);
}

class LearningBudget implements Budget {
  private readonly options: BudgetOptions;
  private readonly widest: number;
  private readonly runTimes = new RunTimeModel();
  private readonly room: MemoryRoom;
  private readonly ceiling: OomCeiling;
  /** The knee by what runs have taught so far: asked for at each of 64 widths, and worked out once a run. */
  private knee: number | undefined;
  private trialBytes: number | undefined;
  private isInteractive = false;
  private state: BudgetState | undefined;

  constructor(options: BudgetOptions) {
    const { memory, learned, totalBytes, maxTokens } = options;
    this.options = options;
    this.widest = roundUp(maxTokens);
    this.room = new MemoryRoom(options);
    if (learned?.law !== undefined && memory !== undefined) this.room.useCorrected(learned.law);
    this.ceiling = new OomCeiling(this.room, () => this.largestIncrement(), learned?.ceiling);
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
    return this.room.peakOf(shape);
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
    const increment = this.room.ran({ rows, width }, memory);
    const hadCeiling = this.ceiling.learned !== undefined;
    this.ceiling.ran(increment, this.mostIncrement());
    if (!hadCeiling && this.trialBytes !== undefined && increment > this.trialBytes * SHRINK) this.trialBytes *= 2;
    this.ceiling.judge(increment);
  }

  ranOutOfMemory(shape: RunShape, { siblingWaits } = { siblingWaits: false }): void {
    this.ceiling.ranOut(this.room.incrementOf(shape), siblingWaits);
    this.state = undefined;
  }

  interactiveWaits(isWaiting: boolean): void {
    this.isInteractive = isWaiting;
    this.state = undefined;
  }

  deviceMemory(
    reading: { readonly freeBytes: number; readonly totalBytes: number } | undefined,
    ownBytes?: number,
  ): void {
    if (reading === undefined) return; // the last one stays: a source that is silent for a while says nothing new
    this.room.see(reading, ownBytes);
    if (this.room.law !== undefined) this.trialBytes = undefined;
    this.state = undefined;
  }

  useMemoryLaw(law: MemoryLaw, source: LawSource): void {
    this.room.useLaw(law, source);
    this.trialBytes = this.room.totalBytes === undefined ? this.firstTrial() : undefined;
    this.state = undefined;
  }

  memoryLaw(): MemoryLaw | undefined {
    return this.room.law;
  }

  predictMs(shape: RunShape): number | undefined {
    return this.runTimes.predictMs(shape);
  }

  runTimeLaw(): RunTimeLaw | undefined {
    return this.runTimes.law();
  }

  learned(): LearnedBudget {
    return { law: this.room.law, ceiling: this.ceiling.learned, trialBytes: this.trialBytes };
  }

  // ---- what limits ----------------------------------------------------------------------------------------------

  private limitAt(width: number): { readonly rows: number; readonly by: Limit } {
    let least: { rows: number; by: Limit } = { rows: Number.POSITIVE_INFINITY, by: 'setting' };
    for (const [by, rows] of this.limitsAt(width)) if (rows < least.rows) least = { rows, by };
    return { rows: Math.max(1, Math.floor(least.rows)), by: least.by };
  }

  /** Most rows by each limit, not rounded. None rises with the width. */
  private limitsAt(width: number): [Limit, number][] {
    const { maxPaddedTokens, maxRows, model, kneeTokens = this.learnedKnee() } = this.options;
    const { latencyTargetMs = DEFAULT_LATENCY_TARGET_MS } = this.options;
    const limits: [Limit, number][] = [
      ['setting', Math.min(maxPaddedTokens / width, maxRows)],
      [this.trialBytes === undefined ? 'memory' : 'unknown-memory', this.room.rowsOf(this.mostIncrement(), width)],
      ['knee', kneeTokens / width],
    ];
    if (model !== undefined) limits.push(['integer', rowsCountable(model, width)]);
    const inTime = this.isInteractive ? this.runTimes.rowsWithin(latencyTargetMs, width) : undefined;
    if (inTime !== undefined) limits.push(['latency', inTime]);
    return limits;
  }

  private learnedKnee(): number {
    return (this.knee ??= Math.max(LEAST_KNEE, this.runTimes.kneeTokens(this.options.startTokens ?? START_TOKENS)));
  }

  /** The least of room, ceiling and trial. */
  private mostIncrement(): number {
    return Math.min(this.trialBytes ?? Number.POSITIVE_INFINITY, this.room.bytes(), this.ceiling.bytes);
  }

  private firstTrial(): number {
    const rows = Math.max(1, Math.floor(TRIAL_TOKENS / this.widest));
    return this.room.incrementOf({ rows, width: this.widest });
  }

  /** The largest of all runs that may be cut now. */
  private largestIncrement(): number {
    return Math.max(...this.widths().map((width) => this.room.incrementOf({ rows: this.limitAt(width).rows, width })));
  }

  private describe(): BudgetState {
    let most = { maxPaddedTokens: 0, limitedBy: 'setting' as Limit };
    for (const width of this.widths()) {
      const { rows, by } = this.limitAt(width);
      if (rows * width > most.maxPaddedTokens) most = { maxPaddedTokens: rows * width, limitedBy: by };
    }
    const source = this.room.source === 'none' && this.ceiling.hasTaught ? 'learned' : this.room.source;
    const { law, totalBytes, othersBytes, loadedBytes } = this.room;
    const state: BudgetState = { ...most, source, isTesting: this.ceiling.isTesting };
    return law === undefined || totalBytes === undefined
      ? state
      : { ...state, device: { totalBytes, othersBytes, loadedBytes } };
  }

  private widths(): number[] {
    return Array.from({ length: this.widest / WIDTH_STEP }, (_, i) => (i + 1) * WIDTH_STEP);
  }

  private checkRoom(): void {
    const need = this.room.incrementOf({ rows: 1, width: this.widest });
    if (need <= this.room.bytes()) return;
    const { totalBytes, memoryFraction = DEFAULT_MEMORY_FRACTION, maxTokens } = this.options;
    throw new ShoalError(
      'CONFIG_INVALID',
      `one row of ${maxTokens} tokens takes ${megabytes(this.room.loadedBytes + need)} with this model, but ` +
        `${memoryFraction} of ${megabytes(totalBytes ?? 0)} may be used; ` +
        'raise memoryFraction or maxDeviceBytes, lower maxTokens, or use a smaller model',
      { totalBytes, memoryFraction, maxTokens },
    );
  }
}

/** Most rows of this width whose tensors the runtime can still count. */
function rowsCountable(model: NonNullable<BudgetOptions['model']>, width: number): number {
  const { hiddenSize, intermediateSize, heads } = model;
  return Math.min(
    MAX_ELEMENTS / (width * Math.max(3 * hiddenSize, intermediateSize)),
    MAX_ELEMENTS / (heads * width * width),
  );
}

function roundUp(tokens: number): number {
  return Math.ceil(tokens / WIDTH_STEP) * WIDTH_STEP;
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`;
}
