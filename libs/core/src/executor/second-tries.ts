// What has to run once more before anything new does: halves of micro-batches that were too much for the device, and
// rows whose vectors made no sense in a narrow precision, which run again in fp32. Also the judge of a device that runs
// out of memory again and again: it is not the rows then, and another process must go on. Runs nothing and ends no job.

import type { BatchBudget, RunResult, RunShape } from '../ports/device.ts';
import { isWanted, jobsOf, hasInteractive, withDuplicates, type Row } from './open-job.ts';
import { batchOf, halve, type MicroBatch } from './pool.ts';

/** A micro-batch on its way to the device. */
export interface Attempt {
  readonly batch: MicroBatch<Row>;
  /** Runs in fp32, because a narrower precision made nonsense of these rows. */
  readonly isExact: boolean;
  /** The number of the micro-batch that was too much, where this is half of one. */
  readonly halfOf?: number;
}

type OutOfVram = Extract<RunResult, { ok: false }>['outOfVram'];

/** So many rows in a row that did not fit alone: it is not the rows. */
const LONE_FAILURES_TO_RECYCLE = 2;
/** A run in fp32 takes twice the memory of one in fp16, beside a session of its own. */
const EXACT_SHARE = 0.5;

export class SecondTries {
  private readonly budget: Pick<BatchBudget, 'current' | 'ranOutOfMemory'>;
  private readonly rowsAt: (width: number) => number;
  private attempts: Attempt[] = [];
  private loneFailures = 0;

  /** `rowsAt`: most rows of a width that one run may have now. */
  constructor(budget: Pick<BatchBudget, 'current' | 'ranOutOfMemory'>, rowsAt: (width: number) => number) {
    this.budget = budget;
    this.rowsAt = rowsAt;
  }

  get size(): number {
    return this.attempts.length;
  }

  get hasInteractive(): boolean {
    return this.attempts.some(({ batch }) => hasInteractive(batch.rows));
  }

  /** Takes the next, of those with an interactive row where it `isUrgent`; undefined when there is none. */
  take(isUrgent: boolean): Attempt | undefined {
    const at = isUrgent ? this.attempts.findIndex(({ batch }) => hasInteractive(batch.rows)) : 0;
    return at >= 0 && at < this.attempts.length ? this.takeAt(at) : undefined;
  }

  /** Puts an attempt before all others that wait, or at a place between them. */
  add(attempt: Attempt, at = 0): void {
    for (const row of attempt.batch.rows) for (const { job } of withDuplicates(row)) job.waiting++;
    this.attempts.splice(at, 0, ...withoutUnwanted(attempt));
  }

  /** Lets these rows run again in fp32. */
  addExact(rows: readonly Row[]): void {
    this.add({ batch: batchOf(rows), isExact: true });
  }

  /**
   * Keeps the halves of a batch that failed apart, until the row is found that cannot run: false when this batch is
   * that row alone. The other half of the same batch goes first.
   */
  split(attempt: Attempt, number: number): boolean {
    const { batch, isExact } = attempt;
    if (batch.rows.length === 1) return false;
    for (const job of jobsOf(batch.rows)) job.splits++;
    const behindSibling = this.siblingOf(attempt) + 1;
    for (const half of halve(batch).toReversed()) this.add({ batch: half, isExact, halfOf: number }, behindSibling);
    return true;
  }

  /** Tells the budget that a run did not fit. Returns why the process is worn out, where it is. */
  ranOut(attempt: Attempt, shape: RunShape, { message, needsRecycle }: OutOfVram): string | undefined {
    if (!attempt.isExact) this.budget.ranOutOfMemory(shape, { siblingWaits: this.siblingOf(attempt) >= 0 });
    if (needsRecycle === true) return message;
    if (shape.rows > 1 || this.budget.current().isTesting === false) return undefined;
    return ++this.loneFailures < LONE_FAILURES_TO_RECYCLE
      ? undefined
      : `${this.loneFailures} rows in a row did not fit alone: ${message}`;
  }

  /** Learns that a run went well: what failed before did not fail in a row. */
  ranWell(): void {
    this.loneFailures = 0;
  }

  /** Leaves out rows that nobody waits for any more. */
  forgetUnwanted(): void {
    this.attempts = this.attempts.flatMap(withoutUnwanted);
  }

  /** The budget may have shrunk since the batch was cut: what is above it now is halved before it runs. */
  private takeAt(at: number): Attempt {
    const attempt = this.attempts[at]!;
    const { batch, isExact } = attempt;
    const most = Math.max(1, Math.floor(this.rowsAt(batch.width) * (isExact ? EXACT_SHARE : 1)));
    const halves = batch.rows.length > most ? halve(batch).map((half) => ({ batch: half, isExact })) : [];
    this.attempts.splice(at, 1, ...halves);
    return halves.length > 0 ? this.takeAt(at) : attempt;
  }

  /** Where the other half of the same micro-batch waits; -1 when it does not. */
  private siblingOf({ halfOf }: Attempt): number {
    return halfOf === undefined ? -1 : this.attempts.findIndex((other) => other.halfOf === halfOf);
  }
}

function withoutUnwanted(attempt: Attempt): Attempt[] {
  const rows = attempt.batch.rows.filter(isWanted);
  if (rows.length === attempt.batch.rows.length) return [attempt];
  return rows.length === 0 ? [] : [{ ...attempt, batch: batchOf(rows) }];
}
