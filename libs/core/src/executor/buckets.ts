// The rows of one class that wait in the pool, in length buckets of 8 tokens. Keeps the book and hands rows out, first
// come first; where a batch begins and what it takes is planned in cut-plan.ts.

export const BUCKET_TOKENS = 8;

export interface PoolRow {
  /** Real tokens, special tokens included. */
  readonly tokens: number;
  readonly enteredMs: number;
  /** Somebody waits for it: it is cut before every bulk row. */
  readonly isInteractive: boolean;
  /** Its tenant asked for little lately: it is cut before rows of others of its class that were claimed earlier. */
  readonly hasLead?: boolean | undefined;
}

/** What a plan looks at: how many rows wait, how long, and where. */
export type BucketsView = Pick<
  Buckets<PoolRow>,
  'rowCount' | 'tokenCount' | 'oldestMs' | 'oldestBucket' | 'longestBucket' | 'fullestBucket' | 'rowsUpTo'
>;

export class Buckets<Row extends PoolRow> {
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

  /** The bucket of the longest rows; -1 when there are no rows. */
  longestBucket(): number {
    return this.buckets.findLastIndex((rows) => rows.length > 0);
  }

  /** How many rows lie in this bucket and in those below it. */
  rowsUpTo(bucket: number): number {
    let count = 0;
    for (let i = Math.min(bucket, this.buckets.length - 1); i >= 0; i--) count += this.buckets[i]!.length;
    return count;
  }

  /** The bucket of the row that waits longest; of rows that came together, the longest's: the shorter may join it. */
  oldestBucket(): number | undefined {
    let oldest: number | undefined;
    for (const [bucket, rows] of this.buckets.entries()) {
      const first = rows[0];
      if (first !== undefined && (oldest === undefined || first.enteredMs <= this.buckets[oldest]![0]!.enteredMs))
        oldest = bucket;
    }
    return oldest;
  }

  /** The bucket with most tokens; the oldest where none has more. */
  fullestBucket(): number | undefined {
    let fullest = this.oldestBucket();
    if (fullest === undefined) return undefined;
    for (const [bucket, tokens] of this.bucketTokens.entries())
      if (tokens > this.bucketTokens[fullest]!) fullest = bucket;
    return fullest;
  }

  /** Takes rows out of a bucket as long as `joins` accepts them. True when it is empty then and the next may follow. */
  take(bucket: number, joins: (row: Row) => boolean): boolean {
    const waiting = this.buckets[bucket] ?? [];
    let count = 0;
    for (; count < waiting.length && joins(waiting[count]!); count++) this.account(bucket, -waiting[count]!.tokens, -1);
    waiting.splice(0, count);
    return waiting.length === 0;
  }

  /** Puts a row back that was just taken; of several the last one first. */
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

  private account(bucket: number, tokens: number, rows: number): void {
    this.bucketTokens[bucket]! += tokens;
    this.tokenCount += tokens;
    this.rowCount += rows;
  }
}

export function bucketOf(tokens: number): number {
  return Math.ceil(tokens / BUCKET_TOKENS) - 1;
}

/** The tokens of the longest rows of a bucket. */
export function widthOf(bucket: number): number {
  return (bucket + 1) * BUCKET_TOKENS;
}
