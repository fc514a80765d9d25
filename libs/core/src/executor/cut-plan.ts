// How the next micro-batch is cut out of the pool, as a plan: which rows it begins with, how wide and how long it may
// become, and what it takes from which class of rows, in order. One of four:
//
//   *interactive*  Rows that somebody waits for, those with a lead first (fair-share.ts) and the oldest first, and
//                  alone. Bulk rows come beside them only where a run
//                  costs much the same at every size: elsewhere, filled up to a quarter of the budget, bulk work gained
//                  1 % at most, and the longest wait rose from 1.23 to 1.65 batch times (an interactive job each batch
//                  time, 2026-11; bench/queue/interactive-wait.ts).
//   *free*         Where a run costs much the same at every size: all that fit, the oldest first. Lengths are nothing
//                  that could be saved.
//   *led*          Bulk rows with a lead (fair-share.ts) first, whatever the padding up to half a batch, and others to
//                  fill it up.
//   *by-length*    Bulk rows of like length, from the fullest bucket downwards, or from a row that has waited its
//                  limit, so that no length starves.
//
// Pure: no clock, no rows are moved. pool.ts carries a plan out.

import { widthOf, type BucketsView } from './buckets.ts';
import { fewRowsAtMost, fewWidth } from './run-shapes.ts';

export interface CutLimits {
  /** Most rows of a batch of this width, at least 1: a row that is wider than the budget travels alone. */
  rowsAt(width: number): number;
  /** A row older than this is cut next, whatever its length. */
  readonly maxRowAgeMs: number;
  /**
   * Batches come in few shapes, see run-shapes.ts: what is beyond the last full one stays in the pool while other rows
   * do.
   */
  readonly prefersFewShapes?: boolean | undefined;
  /**
   * Share of a full batch below which it is filled whatever the padding, where the fixed cost of a run is known.
   * Default SMALL_BATCH.
   */
  readonly smallShare?: number | undefined;
}

/** The classes of rows: those that somebody waits for and bulk rows, of each those with a lead and all others. */
export type RowClass = 'urgent' | 'interactive' | 'leading' | 'bulk';

/** What waits, and what planning has spent so far. */
export interface CutView extends Readonly<Record<RowClass, BucketsView>> {
  /** So many batches may begin with rows that have a lead. */
  readonly ledCredit: number;
}

/** Rows of these classes join the batch, from this bucket downwards, as long as each bucket was emptied before. */
export interface Take {
  readonly from: readonly RowClass[];
  readonly bucket: number;
  /** Up to this share of `maxRows` a row joins whatever the padding. */
  readonly smallShare: number;
  readonly maxRows: number;
}

export interface CutPlan {
  readonly kind: 'interactive' | 'free' | 'led' | 'by-length';
  readonly width: number;
  readonly minPaddingEfficiency: number;
  /** They are carried out in this order. */
  readonly takes: readonly Take[];
  /** What is left of the credit once this plan is carried out. */
  readonly ledCredit: number;
}

/**
 * A batch takes shorter rows from lower buckets only while real tokens ÷ padded tokens stays at or above this: a fuller
 * batch buys little once the device is busy, and padding costs its full share. Simulated on the standard length mix
 * (log-normal, median 52, sigma 0.98, 8 to 512 tokens; 2026-11; pool.test.ts), without the rule, at 0.9, and at 0.95:
 *   1,024-token budget, 24 k tokens in the pool   0.959  0.959  0.960
 *   2,048-token budget, 16 k tokens in the pool   0.898  0.927  0.947
 *   64 k-token budget, 16 k rows in the pool      0.931  0.939  0.948
 *   1,024-token budget, 160 texts                 0.860  0.932  0.953
 * With a cost of 30 tokens for each run, 0.95 is the cheapest of 0, 0.85, 0.9, 0.92, 0.95 and 0.98 or within 0.7 % of
 * it.
 */
const MIN_PADDING_EFFICIENCY = 0.95;
/**
 * Where shapes are few a batch that stops early loses up to a third of its rows to the next shape: of 0.8 to 0.95, 0.9
 * was best at 64 k tokens and 16 k rows.
 */
const MIN_EFFICIENCY_OF_FEW = 0.9;
/**
 * Below this share of the budget a batch is filled whatever the padding: the fixed cost of a run would weigh more. 160
 * texts at 1,024 tokens: 0.941 with a quarter, 0.953 with a tenth, for 6 % more runs; in bulk no difference.
 */
export const SMALL_BATCH = 0.1;

/**
 * Rows with a lead are first of their length in every batch. Sooner than that they run in batches that begin with them,
 * whatever the padding up to this share of a batch. Where padding costs nothing every batch does; else, and while other
 * rows wait longer than they should, four in a row and one in eight after that. Beside one tenant who fills the pool,
 * 40 texts of another take 3.4 times as long as alone at 4,096 tokens a run, and 10 jobs of 64 at 64 k tokens 1.8
 * times; 12.5 and 12.4 times by length alone (bench/queue/tenant-wait.ts, 2026-11-22). Where a tenth of all rows has a
 * lead all the time, padding efficiency is 0.90 and 0.93 instead of 0.94 and 0.95.
 */
const LED_SHARE = 0.5;
export const MOST_LED = 4;
const BATCHES_PER_LED = 8;

/**
 * Where a run of one row takes at least this share of a full one, interactive rows are not sent alone: it would cost
 * bulk work as much as a full run.
 */
export const FILLED_SHARE = 0.5;

/** The plan for the next micro-batch, or undefined when no row waits. */
export function planCut(view: CutView, limits: CutLimits, nowMs: number): CutPlan | undefined {
  if (view.urgent.rowCount + view.interactive.rowCount > 0) return planInteractive(view, limits, nowMs);
  if (view.leading.rowCount + view.bulk.rowCount === 0) return undefined;
  const lead = leadOf(view, limits, nowMs);
  if (isPaddingFree(limits)) return planFree(view, lead, limits, nowMs);
  return lead.isTaken ? planLed(view, lead, limits, nowMs) : planByLength(view, lead, limits, nowMs);
}

function planInteractive(view: CutView, limits: CutLimits, nowMs: number): CutPlan {
  const first = view.urgent.oldestBucket() ?? view.interactive.oldestBucket() ?? 0;
  const classes = (['urgent', 'interactive'] as const).filter((name) => view[name].rowCount > 0);
  const taken = (bucket: number, frame: Frame): Take[] =>
    classes.map((name) => takeFrom([name], bucket, frame, limits));
  if (!isPaddingFree(limits)) {
    const frame = frameAt(first, limits);
    return { ...planOf('interactive', frame, view), takes: taken(first, frame) };
  }
  const lead = leadOf(view, limits, nowMs);
  const bucket = Math.max(first, bulkBucket(view, lead, limits, nowMs) ?? 0);
  const frame = frameAt(bucket, limits);
  const beside = { ...frame, maxRows: Math.floor(frame.maxRows * smallShareOf(limits)) };
  return {
    ...planOf('interactive', frame, lead),
    takes: [
      ...taken(bucket, frame),
      ...(lead.isTaken ? [takeLed(bucket, beside, limits)] : []),
      takeFrom(bulkInTurn(view, lead, limits, nowMs), bucket, beside, limits),
    ],
  };
}

function planFree(view: CutView, lead: Lead, limits: CutLimits, nowMs: number): CutPlan {
  const unlimited = { ...limits, smallShare: 1 };
  const begin = bulkBucket(view, lead, { ...unlimited, maxRowAgeMs: Number.NEGATIVE_INFINITY }, nowMs) ?? 0;
  const bucket = filledFrom(view, begin, limits);
  const frame = frameAt(bucket, limits);
  const classes = bulkInTurn(view, lead, limits, nowMs);
  return {
    ...planOf('free', frame, lead),
    takes: [
      ...(lead.isTaken ? [takeLed(bucket, frame, limits)] : []),
      ...(bucket > begin ? [takeFrom(classes, begin, frame, unlimited)] : []), // before what only fills it up
      takeFrom(classes, bucket, frame, unlimited),
    ],
  };
}

function planLed(view: CutView, lead: Lead, limits: CutLimits, nowMs: number): CutPlan {
  const bucket = bulkBucket(view, lead, limits, nowMs) ?? 0;
  const frame = frameAt(bucket, limits);
  return {
    ...planOf('led', frame, lead),
    takes: [takeLed(bucket, frame, limits), takeFrom(['leading', 'bulk'], bucket, frame, limits)],
  };
}

function planByLength(view: CutView, lead: Lead, limits: CutLimits, nowMs: number): CutPlan {
  const bucket = bulkBucket(view, lead, limits, nowMs) ?? 0;
  const frame = frameAt(bucket, limits);
  return {
    ...planOf('by-length', frame, lead),
    takes: [takeFrom(bulkInTurn(view, lead, limits, nowMs), bucket, frame, limits)],
  };
}

// ---- what all plans are made of -------------------------------------------------------------------------------------

/** How large a batch may become that begins in a bucket. */
interface Frame {
  readonly width: number;
  readonly maxRows: number;
  readonly minPaddingEfficiency: number;
}

/** Whether a batch of bulk rows begins with those that have a lead, and the credit that is left. */
interface Lead {
  readonly isTaken: boolean;
  readonly ledCredit: number;
}

function planOf(
  kind: CutPlan['kind'],
  { width, minPaddingEfficiency }: Frame,
  { ledCredit }: Pick<Lead, 'ledCredit'>,
): Omit<CutPlan, 'takes'> {
  return { kind, width, minPaddingEfficiency, ledCredit };
}

function frameAt(bucket: number, limits: CutLimits): Frame {
  const { prefersFewShapes: isFew = false } = limits;
  const width = isFew ? fewWidth(widthOf(bucket)) : widthOf(bucket);
  const most = Math.max(1, limits.rowsAt(width));
  return {
    width,
    maxRows: isFew ? fewRowsAtMost(most, width) : most,
    minPaddingEfficiency: isFew ? MIN_EFFICIENCY_OF_FEW : MIN_PADDING_EFFICIENCY,
  };
}

function takeFrom(from: readonly RowClass[], bucket: number, { maxRows }: Frame, limits: CutLimits): Take {
  return { from, bucket, maxRows, smallShare: smallShareOf(limits) };
}

function takeLed(bucket: number, { maxRows }: Frame, limits: CutLimits): Take {
  return { from: ['leading'], bucket, maxRows, smallShare: Math.max(smallShareOf(limits), LED_SHARE) };
}

/** Whether the next batch of bulk rows begins with those that have a lead; where that is not free it is paid for. */
function leadOf(view: CutView, limits: CutLimits, nowMs: number): Lead {
  const ledCredit = Math.min(MOST_LED, view.ledCredit + 1 / BATCHES_PER_LED);
  if (view.leading.rowCount === 0 || view.bulk.rowCount === 0) return { isTaken: false, ledCredit };
  if (isPaddingFree(limits) && nowMs - view.bulk.oldestMs()! <= limits.maxRowAgeMs) return { isTaken: true, ledCredit };
  return ledCredit < 1 ? { isTaken: false, ledCredit } : { isTaken: true, ledCredit: ledCredit - 1 };
}

/** The bucket in which a batch of bulk rows begins; undefined when there are none. */
function bulkBucket(view: CutView, { isTaken }: Lead, limits: CutLimits, nowMs: number): number | undefined {
  const { leading, bulk } = view;
  if (isTaken) return seedBucket(leading, { ...limits, smallShare: Math.max(smallShareOf(limits), LED_SHARE) }, nowMs);
  const leadMs = leading.oldestMs() ?? Number.POSITIVE_INFINITY;
  const bulkMs = bulk.oldestMs() ?? Number.POSITIVE_INFINITY;
  const isOverdue = nowMs - Math.min(leadMs, bulkMs) > limits.maxRowAgeMs;
  const isAmongLeading = isOverdue ? leadMs < bulkMs : leading.tokenCount > bulk.tokenCount;
  return seedBucket(isAmongLeading ? leading : bulk, limits, nowMs);
}

/**
 * The bucket in which a batch of one class begins: that of the longest rows when all rows are one small batch, else
 * that of a row that waits too long, else the fullest.
 */
function seedBucket(buckets: BucketsView, limits: CutLimits, nowMs: number): number | undefined {
  const oldestMs = buckets.oldestMs();
  if (oldestMs === undefined) return undefined;
  const longest = buckets.longestBucket();
  if (buckets.rowCount <= limits.rowsAt(widthOf(longest)) * smallShareOf(limits)) return longest;
  return nowMs - oldestMs > limits.maxRowAgeMs ? buckets.oldestBucket() : buckets.fullestBucket();
}

/**
 * This bucket or one above it: where padding costs nothing, a batch is not cut short because there are too few rows
 * below the one that it begins with.
 */
function filledFrom({ leading, bulk }: CutView, seed: number, limits: CutLimits): number {
  const longest = Math.max(leading.longestBucket(), bulk.longestBucket());
  let filled = seed;
  while (filled < longest && leading.rowsUpTo(filled) + bulk.rowsUpTo(filled) < limits.rowsAt(widthOf(filled + 1)))
    filled++;
  return filled;
}

/**
 * The classes of bulk rows in the order in which each bucket gives them. Rows with a lead are first, unless another row
 * waits too long: else the batch would begin in its bucket, and fill up without it.
 */
function bulkInTurn({ leading, bulk }: CutView, lead: Lead, { maxRowAgeMs }: CutLimits, nowMs: number): RowClass[] {
  const bulkMs = bulk.oldestMs() ?? nowMs;
  const isBulkLate = nowMs - bulkMs > maxRowAgeMs && bulkMs <= (leading.oldestMs() ?? bulkMs);
  return isBulkLate && !lead.isTaken ? ['bulk', 'leading'] : ['leading', 'bulk'];
}

function isPaddingFree(limits: CutLimits): boolean {
  return smallShareOf(limits) >= FILLED_SHARE;
}

function smallShareOf({ smallShare = SMALL_BATCH }: CutLimits): number {
  return smallShare;
}
