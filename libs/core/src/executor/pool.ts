// Rows that wait to run, and the way a micro-batch is cut out of them. What a batch is made of is planned in
// cut-plan.ts; here rows come in, plans are carried out, and batches that were too much are halved. Interactive rows
// and bulk rows, with a lead (fair-share.ts) and without, have buckets of their own. No clock, no engine.

import { invariant } from '@shoal/contract';
import { BUCKET_TOKENS, Buckets, bucketOf, widthOf, type PoolRow } from './buckets.ts';
import { MOST_LED, planCut, type CutLimits, type CutPlan, type RowClass, type Take } from './cut-plan.ts';
import { fewRowsAtMost, fewWidth } from './run-shapes.ts';

export interface MicroBatch<Row extends PoolRow> {
  /** Longest first. */
  readonly rows: readonly Row[];
  /** Tokens of the longest row, rounded up to 8, or to one of few widths. */
  readonly width: number;
}

interface OpenBatch<Row extends PoolRow> {
  readonly plan: CutPlan;
  readonly rows: Row[];
  tokens: number;
}

export class Pool<Row extends PoolRow> {
  private readonly waiting: Readonly<Record<RowClass, Buckets<Row>>> = {
    urgent: new Buckets<Row>(),
    interactive: new Buckets<Row>(),
    leading: new Buckets<Row>(),
    bulk: new Buckets<Row>(),
  };
  private readonly all = Object.values(this.waiting);
  private ledCredit = MOST_LED;

  get rows(): number {
    return this.all.reduce((sum, { rowCount }) => sum + rowCount, 0);
  }

  get interactiveRows(): number {
    return this.waiting.urgent.rowCount + this.waiting.interactive.rowCount;
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

  /** Takes one micro-batch out, or undefined when the pool is empty. */
  cut(limits: CutLimits, nowMs: number): MicroBatch<Row> | undefined {
    const plan = planCut({ ...this.waiting, ledCredit: this.ledCredit }, limits, nowMs);
    if (plan === undefined) return undefined;
    this.ledCredit = plan.ledCredit;
    const open: OpenBatch<Row> = { plan, rows: [], tokens: 0 };
    for (const take of plan.takes) this.carryOut(take, open);
    const { prefersFewShapes: isFew = false } = limits;
    if (isFew && plan.kind !== 'interactive' && this.rows > 0)
      this.putBack(open.rows.splice(fewRowsAtMost(open.rows.length, plan.width)));
    if (plan.takes.length > 1) open.rows.sort((a, b) => b.tokens - a.tokens);
    // short rows with a lead may have filled what began above them
    const needed = widthOf(bucketOf(open.rows[0]!.tokens));
    return { rows: open.rows, width: isFew ? fewWidth(needed) : needed };
  }

  /** Takes out every row that `isUnwanted`. */
  remove(isUnwanted: (row: Row) => boolean): void {
    for (const buckets of this.all) buckets.remove(isUnwanted);
  }

  private carryOut(take: Take, open: OpenBatch<Row>): void {
    const joins = (row: Row): boolean => {
      if (!fits(row, open, take)) return false;
      open.rows.push(row);
      open.tokens += row.tokens;
      return true;
    };
    for (let bucket = take.bucket; bucket >= 0; bucket--)
      for (const rows of take.from) if (!this.waiting[rows].take(bucket, joins)) return;
  }

  /** Rows that were just taken go back in the order they were. */
  private putBack(rows: readonly Row[]): void {
    for (const row of rows.toReversed()) this.bucketsOf(row).putBack(row);
  }

  private bucketsOf({ isInteractive, hasLead }: PoolRow): Buckets<Row> {
    if (isInteractive) return this.waiting[hasLead === true ? 'urgent' : 'interactive'];
    return this.waiting[hasLead === true ? 'leading' : 'bulk'];
  }
}

/** Whether a row joins the batch: it costs no width, or little padding, or the batch is small yet. */
function fits(row: PoolRow, { plan, rows, tokens }: OpenBatch<PoolRow>, { maxRows, smallShare }: Take): boolean {
  if (rows.length >= maxRows) return false;
  return (
    rows.length < maxRows * smallShare ||
    row.tokens > plan.width - BUCKET_TOKENS ||
    (tokens + row.tokens) / ((rows.length + 1) * plan.width) >= plan.minPaddingEfficiency
  );
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
