// How much memory of the device there is for runs: a fraction of all of it, less what is loaded and less what other
// processes use, and what runs take of it, by the law of memory-model.ts. The law is corrected by every reading; where
// no law is known, a byte is a padded token and there is no end of room. Reads no memory itself.

import { bytesPerToken, footprintBytes, incrementBytes, liveBytes, type MemoryLaw } from './memory-model.ts';
import type { BudgetState, MemoryReading, RunShape } from '../ports/device.ts';

export type LawSource = 'fitted' | 'stored' | 'preset';

export interface MemoryRoomOptions {
  readonly memory?: { readonly law: MemoryLaw; readonly source: LawSource } | undefined;
  /** All memory this worker's device has. Unset: no source of memory. */
  readonly totalBytes?: number | undefined;
  /** Share of it that this worker and all others may use together. */
  readonly memoryFraction?: number | undefined;
}

export const DEFAULT_MEMORY_FRACTION = 0.8;
export const WIDTH_STEP = 8;
/**
 * An OOM lowers the budget by this factor; for a run that was far smaller than the budget by no more than half, see
 * ceiling.ts.
 */
export const SHRINK = 0.75;
export const MOST_SHRINK = 0.5;
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

/** Stands in where nothing predicts memory: a byte is a padded token. */
const TOKENS_AS_BYTES: MemoryLaw = {
  loadedBytes: 0,
  floorBytes: 0,
  slackBytes: 0,
  perToken: [{ width: WIDTH_STEP, bytes: 1 }],
  arena: 'exact',
};

export class MemoryRoom {
  private readonly options: MemoryRoomOptions;
  private current: MemoryLaw;
  private lawSource: Exclude<BudgetState['source'], 'learned'>;
  private total: number | undefined;
  private others = 0;
  /** The run with the largest increment so far: the arena holds that much. */
  private largestRun: RunShape | undefined;
  /** Highest reading so far. */
  private peakReading = 0;

  constructor(options: MemoryRoomOptions) {
    this.options = options;
    this.current = options.memory?.law ?? TOKENS_AS_BYTES;
    this.lawSource = options.memory?.source ?? 'none';
    this.total = options.totalBytes;
  }

  /** Undefined when nothing predicts memory. */
  get law(): MemoryLaw | undefined {
    return this.current === TOKENS_AS_BYTES ? undefined : this.current;
  }

  get source(): Exclude<BudgetState['source'], 'learned'> {
    return this.lawSource;
  }

  get totalBytes(): number | undefined {
    return this.total;
  }

  /** What other processes use of the device. */
  get othersBytes(): number {
    return this.others;
  }

  get loadedBytes(): number {
    return this.current.loadedBytes;
  }

  /** The largest increment that there is room for; infinite where that is not known. */
  bytes(): number {
    if (this.total === undefined || this.law === undefined) return Number.POSITIVE_INFINITY;
    const { memoryFraction = DEFAULT_MEMORY_FRACTION } = this.options;
    return memoryFraction * this.total - this.others - this.current.loadedBytes;
  }

  /** What a run takes above what the open graph holds. */
  incrementOf(shape: RunShape): number {
    return incrementBytes(this.current, shape);
  }

  /** Most rows of this width that take no more than this increment, not rounded. */
  rowsOf(increment: number, width: number): number {
    const { floorBytes, slackBytes } = this.current;
    return increment < floorBytes
      ? 0
      : (increment - floorBytes + slackBytes) / (width * bytesPerToken(this.current, width));
  }

  /** What a run holds at its peak; undefined when nothing predicts memory. */
  peakOf(shape: RunShape): number | undefined {
    return this.law === undefined ? undefined : liveBytes(this.law, shape);
  }

  /**
   * A quarter off all that was held, weights included, because what is missing may have been taken by others; of the
   * increment a quarter at least and half at most.
   */
  lowered(increment: number): number {
    const { loadedBytes } = this.current;
    return Math.min(
      SHRINK * increment,
      Math.max(MOST_SHRINK * increment, SHRINK * (loadedBytes + increment) - loadedBytes),
    );
  }

  /** Takes what the driver shows; `ownBytes`: what of it this worker holds itself, predicted when left out. */
  see(
    { freeBytes, totalBytes }: { readonly freeBytes: number; readonly totalBytes: number },
    ownBytes = footprintBytes(this.current, this.largestRun),
  ): void {
    this.total = Math.min(totalBytes, this.options.totalBytes ?? totalBytes);
    this.others = Math.max(0, totalBytes - freeBytes - ownBytes);
  }

  useLaw(law: MemoryLaw, source: LawSource): void {
    this.current = law;
    this.lawSource = source;
  }

  /** Takes the law that an earlier executor had corrected, except for what is loaded. */
  useCorrected(law: MemoryLaw): void {
    this.current = { ...law, loadedBytes: this.current.loadedBytes };
    this.lawSource = 'corrected';
  }

  /** Learns from a run that went well. Returns its increment by what is known then. */
  ran(shape: RunShape, reading: MemoryReading | undefined): number {
    if (reading !== undefined) this.correct(shape, reading);
    const increment = this.incrementOf(shape);
    if (this.largestRun === undefined || increment > this.incrementOf(this.largestRun)) this.largestRun = shape;
    return increment;
  }

  /**
   * A reading is the peak of all runs so far. When it rose, this run needed that much: exactly, or where the arena
   * doubles, more than it held before. When it did not, this run needed no more than that. What the law says is drawn
   * into this interval.
   */
  private correct(shape: RunShape, { liveBytes: live, footprintBytes: footprint, source }: MemoryReading): void {
    const reading = live ?? footprint;
    if (reading === undefined || this.law === undefined) return;
    const isExact = live !== undefined || this.law.arena === 'exact';
    const least = reading <= this.peakReading ? 0 : isExact ? reading : this.peakReading;
    this.peakReading = Math.max(this.peakReading, reading);
    const predicted = liveBytes(this.law, shape);
    const found = Math.max(least, Math.min(predicted, reading));
    if (Math.abs(found - predicted) < TOLERANCE * predicted) return;
    const { loadedBytes, floorBytes, slackBytes } = this.law;
    const perToken = Math.max(1, found - loadedBytes - floorBytes + slackBytes) / (shape.rows * shape.width);
    const pull = found < predicted ? CORRECTION_DOWN : source === 'process' ? CORRECTION_UP_BY_PROCESS : CORRECTION_UP;
    this.current = drawn(this.law, shape.width, perToken, pull);
    this.lawSource = 'corrected';
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
