// Rows that wait to run, in length buckets of 8 tokens, and the way a micro-batch is cut out of them. A batch grows
// from the fullest bucket downwards, so that rows of like length meet without waiting for one big sorted window; a row
// that has waited its limit is the seed instead, so that no length starves. Interactive rows have buckets of their own
// and are always cut first, oldest first, and alone; so have rows with a lead (flows.ts), which are cut before other
// bulk rows and are filled up with those. Pure: no clock, no engine.

import { invariant } from '@shoal/contract';
import { fewRowsAtMost, fewWidth } from './run-shapes.ts';

export const BUCKET_TOKENS = 8;

export interface PoolRow {
  /** Real tokens, special tokens included. */
  readonly tokens: number;
  readonly enteredMs: number;
  /** Somebody waits for it: it is cut before every bulk row. */
  readonly isInteractive: boolean;
  /**
   * Of a bulk row: its tenant asked for little lately, and it is cut before rows of others that were claimed earlier.
   */
  readonly hasLead?: boolean | undefined;
}

export interface MicroBatch<Row extends PoolRow> {
  /** Longest first. */
  readonly rows: readonly Row[];
  /** Tokens of the longest row, rounded up to 8, or to one of few widths. */
  readonly width: number;
}

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
 * times; 12.5 and 12.4 times by length alone (bench/queue/tenant-wait.ts, 2026-11-22). Where a tenth of all rows has a lead
 * all the time, padding efficiency is 0.90 and 0.93 instead of 0.94 and 0.95.
 */
const LED_SHARE = 0.5;
const MOST_LED = 4;
const BATCHES_PER_LED = 8;

/**
 * Where a run of one row takes at least this share of a full one, interactive rows are not sent alone: it would cost
 * bulk work as much as a full run.
 */
export const FILLED_SHARE = 0.5;

interface OpenBatch<Row extends PoolRow> {
  readonly rows: Row[];
  readonly width: number;
  maxRows: number;
  readonly minPaddingEfficiency: number;
  readonly smallShare: number;
  tokens: number;
}

export class Pool<Row extends PoolRow> {
  private readonly interactive = new Buckets<Row>();
  /** Bulk rows with a lead. */
  private readonly leading = new Buckets<Row>();
  private readonly bulk = new Buckets<Row>();
  private readonly all = [this.interactive, this.leading, this.bulk];
  /** So many batches may begin with rows that have a lead. */
  private ledCredit = MOST_LED;

  get rows(): number {
    return this.all.reduce((sum, { rowCount }) => sum + rowCount, 0);
  }

  get interactiveRows(): number {
    return this.interactive.rowCount;
  }

  /** Real tokens of all rows. */
  get tokens(): number {
    return this.all.reduce((sum, { tokenCount }) => sum + tokenCount, 0);
  }

  add(row: Row): void {
    invariant(row.tokens >= 1, 'a row has at least one token');
    this.bucketsOf(row).add(row);
  }

  /** When the longest-waiting row came in, or undefined when the pool is empty. */
  oldestMs(): number | undefined {
    const oldest = Math.min(...this.all.map((buckets) => buckets.oldestMs() ?? Number.POSITIVE_INFINITY));
    return oldest === Number.POSITIVE_INFINITY ? undefined : oldest;
  }

  /**
   * Takes one micro-batch out, or undefined when the pool is empty. Interactive rows get bulk rows beside them only
   * where a run costs much the same at every size: elsewhere, filled up to a quarter of the budget, bulk work gained 1
   * % at most, and the longest wait rose from 1.23 to 1.65 batch times (an interactive job each batch time, 2026-11;
   * bench/queue/interactive-wait.ts). There a batch of bulk rows takes all that fit and begins with the oldest: lengths are
   * nothing that could be saved.
   */
  cut(limits: CutLimits, nowMs: number): MicroBatch<Row> | undefined {
    const { smallShare = SMALL_BATCH, prefersFewShapes: isFew = false } = limits;
    const isUrgent = this.interactive.rowCount > 0;
    const isPaddingFree = smallShare >= FILLED_SHARE;
    const isBulkToo = !isUrgent || isPaddingFree;
    const isLed = isBulkToo && this.takeLead(limits, nowMs);
    const isFree = !isUrgent && isPaddingFree;
    const bulkSeed = isBulkToo
      ? this.bulkSeed(
          isLed,
          isFree ? { ...limits, smallShare: 1, maxRowAgeMs: Number.NEGATIVE_INFINITY } : limits,
          nowMs,
        )
      : undefined;
    const urgentSeed = this.interactive.oldestBucket();
    if (bulkSeed === undefined && urgentSeed === undefined) return undefined;
    const begin = Math.max(bulkSeed ?? 0, urgentSeed ?? 0);
    const seed = isFree ? this.filledFrom(begin, limits.rowsAt) : begin;
    const width = isFew ? fewWidth(widthOf(seed)) : widthOf(seed);
    const most = Math.max(1, limits.rowsAt(width));
    const open: OpenBatch<Row> = {
      rows: [],
      tokens: 0,
      width,
      maxRows: isFew ? fewRowsAtMost(most, width) : most,
      minPaddingEfficiency: isFew ? MIN_EFFICIENCY_OF_FEW : MIN_PADDING_EFFICIENCY,
      smallShare: isFree ? 1 : smallShare,
    };
    const bulkMs = this.bulk.oldestMs() ?? nowMs;
    // else the batch would begin in the bucket of a late row with a lead, and fill up without it
    const isBulkLate = nowMs - bulkMs > limits.maxRowAgeMs && bulkMs <= (this.leading.oldestMs() ?? bulkMs);
    const inTurn = isBulkLate && !isLed ? [this.bulk, this.leading] : [this.leading, this.bulk];
    if (isUrgent) takeInto(open, seed, [this.interactive]);
    if (isUrgent && bulkSeed !== undefined)
      open.maxRows = Math.max(open.rows.length, Math.floor(open.maxRows * smallShare));
    if (isLed) takeInto(open, seed, [this.leading], Math.max(smallShare, LED_SHARE));
    if (seed > begin) takeInto(open, begin, inTurn); // before what is taken only to fill it up
    if (bulkSeed !== undefined) takeInto(open, seed, inTurn);
    if (isFew && !isUrgent && this.rows > 0) this.putBack(open.rows.splice(fewRowsAtMost(open.rows.length, width)));
    if (isLed || seed > begin || (isUrgent && isBulkToo)) open.rows.sort((a, b) => b.tokens - a.tokens);
    // short rows with a lead may have filled what began above them
    const needed = widthOf(bucketOf(open.rows[0]!.tokens));
    return { rows: open.rows, width: isFew ? fewWidth(needed) : needed };
  }

  /** Takes out every row that `isUnwanted`. */
  remove(isUnwanted: (row: Row) => boolean): void {
    for (const buckets of this.all) buckets.remove(isUnwanted);
  }

  private bucketsOf({ isInteractive, hasLead }: PoolRow): Buckets<Row> {
    return isInteractive ? this.interactive : hasLead === true ? this.leading : this.bulk;
  }

  /** Where a batch of bulk rows begins. */
  private bulkSeed(isLed: boolean, limits: CutLimits, nowMs: number): number | undefined {
    const { smallShare = SMALL_BATCH, maxRowAgeMs } = limits;
    if (isLed) return this.leading.seedBucket({ ...limits, smallShare: Math.max(smallShare, LED_SHARE) }, nowMs);
    const [leadMs, bulkMs] = [
      this.leading.oldestMs() ?? Number.POSITIVE_INFINITY,
      this.bulk.oldestMs() ?? Number.POSITIVE_INFINITY,
    ];
    const isOverdue = nowMs - Math.min(leadMs, bulkMs) > maxRowAgeMs;
    const isAmongLeading = isOverdue ? leadMs < bulkMs : this.leading.tokenCount > this.bulk.tokenCount;
    return (isAmongLeading ? this.leading : this.bulk).seedBucket(limits, nowMs);
  }

  /**
   * This bucket or one above it: where padding costs nothing, a batch is not cut short because there are too few rows
   * below its seed.
   */
  private filledFrom(seed: number, rowsAt: CutLimits['rowsAt']): number {
    const longest = Math.max(this.leading.longestBucket(), this.bulk.longestBucket());
    let filled = seed;
    while (filled < longest && this.leading.rowsUpTo(filled) + this.bulk.rowsUpTo(filled) < rowsAt(widthOf(filled + 1)))
      filled++;
    return filled;
  }

  /** Rows that were just taken, in the order they were. */
  private putBack(rows: readonly Row[]): void {
    for (const row of rows.toReversed()) this.bucketsOf(row).putBack(row);
  }

  /**
   * Whether the next batch of bulk rows begins with those that have a lead, before others; where that is not free it is
   * paid for.
   */
  private takeLead({ smallShare = SMALL_BATCH, maxRowAgeMs }: CutLimits, nowMs: number): boolean {
    this.ledCredit = Math.min(MOST_LED, this.ledCredit + 1 / BATCHES_PER_LED);
    if (this.leading.rowCount === 0 || this.bulk.rowCount === 0) return false;
    const isFree = smallShare >= FILLED_SHARE && nowMs - this.bulk.oldestMs()! <= maxRowAgeMs;
    if (!isFree && this.ledCredit < 1) return false;
    if (!isFree) this.ledCredit--;
    return true;
  }
}

/** The rows of one class. */
class Buckets<Row extends PoolRow> {
  rowCount = 0;
  tokenCount = 0;
  private readonly buckets: Row[][] = [];
  private readonly bucketTokens: number[] = [];

  add(row: Row): void {
    const bucket = bucketOf(row.tokens);
    while (this.buckets.length <= bucket) {
      this.buckets.push([]);
      this.bucketTokens.push(0);
    }
    this.buckets[bucket]!.push(row);
    this.account(bucket, row.tokens, 1);
  }

  oldestMs(): number | undefined {
    const bucket = this.oldestBucket();
    return bucket === undefined ? undefined : this.buckets[bucket]![0]!.enteredMs;
  }

  /** -1 when there are no rows. */
  longestBucket(): number {
    return this.buckets.findLastIndex((rows) => rows.length > 0);
  }

  rowsUpTo(bucket: number): number {
    let count = 0;
    for (let i = Math.min(bucket, this.buckets.length - 1); i >= 0; i--) count += this.buckets[i]!.length;
    return count;
  }

  /** Of rows that came together, the longest: the shorter ones may join it. */
  oldestBucket(): number | undefined {
    let oldest: number | undefined;
    for (const [bucket, rows] of this.buckets.entries()) {
      const first = rows[0];
      if (first !== undefined && (oldest === undefined || first.enteredMs <= this.buckets[oldest]![0]!.enteredMs))
        oldest = bucket;
    }
    return oldest;
  }

  /**
   * Where a batch begins: with the longest rows when all rows are one small batch, else with those that wait too long
   * or with the fullest bucket.
   */
  seedBucket(limits: CutLimits, nowMs: number): number | undefined {
    const oldest = this.oldestBucket();
    if (oldest === undefined) return undefined;
    const longest = this.longestBucket();
    if (this.rowCount <= limits.rowsAt(widthOf(longest)) * (limits.smallShare ?? SMALL_BATCH)) return longest;
    if (nowMs - this.buckets[oldest]![0]!.enteredMs > limits.maxRowAgeMs) return oldest;
    let fullest = oldest;
    for (const [bucket, tokens] of this.bucketTokens.entries())
      if (tokens > this.bucketTokens[fullest]!) fullest = bucket;
    return fullest;
  }

  /** A row that was just taken; of several the last one first. */
  putBack(row: Row): void {
    const bucket = bucketOf(row.tokens);
    this.buckets[bucket]!.unshift(row);
    this.account(bucket, row.tokens, 1);
  }

  remove(isUnwanted: (row: Row) => boolean): void {
    for (const [bucket, rows] of this.buckets.entries()) {
      const kept = rows.filter((row) => !isUnwanted(row));
      if (kept.length === rows.length) continue;
      for (const row of rows) if (isUnwanted(row)) this.account(bucket, -row.tokens, -1);
      this.buckets[bucket] = kept;
    }
  }

  /** First come first; true when the bucket was emptied and the next may follow. */
  take(bucket: number, open: OpenBatch<Row>, smallShare: number): boolean {
    const waiting = this.buckets[bucket] ?? [];
    let count = 0;
    for (; count < waiting.length && joins(waiting[count]!, open, smallShare); count++) {
      const row = waiting[count]!;
      open.rows.push(row);
      open.tokens += row.tokens;
      this.account(bucket, -row.tokens, -1);
    }
    waiting.splice(0, count);
    return waiting.length === 0;
  }

  private account(bucket: number, tokens: number, rows: number): void {
    this.bucketTokens[bucket]! += tokens;
    this.tokenCount += tokens;
    this.rowCount += rows;
  }
}

/** Moves rows of the seed's bucket and of those below it into the batch, as long as each was emptied before. */
function takeInto<Row extends PoolRow>(
  open: OpenBatch<Row>,
  seed: number,
  from: readonly Buckets<Row>[],
  smallShare = open.smallShare,
): void {
  for (let bucket = seed; bucket >= 0; bucket--)
    for (const buckets of from) if (!buckets.take(bucket, open, smallShare)) return;
}

/**
 * Two halves, by padded tokens, of a batch that was too much for the device: few wide rows, and more that are never
 * wider.
 */
export function halve<Row extends PoolRow>({ rows }: MicroBatch<Row>): [MicroBatch<Row>, MicroBatch<Row>] {
  invariant(rows.length >= 2, 'one row cannot be halved');
  const widest = widthOf(bucketOf(rows[0]!.tokens));
  const rest = (at: number): number => (rows.length - at) * widthOf(bucketOf(rows[at]!.tokens));
  let middle = 1;
  while (middle < rows.length - 1 && middle * widest < rest(middle)) middle++;
  if (middle > 1 && rest(middle - 1) <= middle * widest) middle--; // one wide row fewer balances better
  return [batchOf(rows.slice(0, middle)), batchOf(rows.slice(middle))];
}

/** A batch of exactly these rows, longest first. */
export function batchOf<Row extends PoolRow>(rows: readonly Row[]): MicroBatch<Row> {
  const longest = rows.reduce((most, row) => Math.max(most, row.tokens), 1);
  return { rows, width: widthOf(bucketOf(longest)) };
}

function bucketOf(tokens: number): number {
  return Math.ceil(tokens / BUCKET_TOKENS) - 1;
}

function widthOf(bucket: number): number {
  return (bucket + 1) * BUCKET_TOKENS;
}

function joins(
  row: PoolRow,
  { rows, width, maxRows, minPaddingEfficiency, tokens }: OpenBatch<PoolRow>,
  smallShare: number,
): boolean {
  if (rows.length >= maxRows) return false;
  const isSmall = rows.length < maxRows * smallShare;
  return (
    isSmall ||
    row.tokens > width - BUCKET_TOKENS ||
    (tokens + row.tokens) / ((rows.length + 1) * width) >= minPaddingEfficiency
  );
}
