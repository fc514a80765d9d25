// The executor's half of the pipeline: fill → cut → run → commit. Jobs come in as orders; their rows go into one pool
// and lose touch with each other; micro-batches leave it for the device, and each job is committed when its last row is
// back. Everything here happens in one process beside the claimer, and knows no Redis, no ONNX Runtime and no clock of
// its own. Filling is told in fill.ts, when a micro-batch is launched in launch-timing.ts, how it is cut in
// cut-plan.ts, what runs a second time in second-tries.ts, and committing in commit.ts.
//
// The life of a job here: *filling* (its input is read and tokenized), *pooled* (some rows wait, some may be running),
// *done* (all rows are back, its result is being committed), *gone* (its outcome was sent). A job that is dropped,
// fails, is handed over or meets its deadline in between goes straight to gone: rows at the device finish, and
// nothing is written for it.
//
// A micro-batch that was too much for the device is halved by its tokens, until its rows have run or one is left that
// does not fit alone: then that row's job moves to the CPU lane as a whole. Two such rows in a row, or a library that
// cannot allocate any more, and the process is worn out: *recycled*. It says so once, launches nothing more, and leaves
// its open jobs to the next.

import { BufferPool } from '../base/buffer-pool.ts';
import { Committers, byCell } from './committers.ts';
import { already, beyondForm, failed, tooLarge, tooLate, unsound, unstarted } from './endings.ts';
import { embedResult, embedValue, repeatedValue } from './embed-result.ts';
import { Filler, type Filled } from './fill.ts';
import { Flows } from './fair-share.ts';
import {
  ShoalError,
  type ModelKind,
  invariant,
  isShoalError,
  unreachable,
  DEFAULT_TENANT,
  mainTenant,
  type Prompts,
} from '@shoal/contract';
import { Slots, rowsWithin } from './slots.ts';
import { shapeFor } from './run-shapes.ts';
import type { CutLimits } from './cut-plan.ts';
import { Pool } from './pool.ts';
import {
  hasInteractive,
  isWanted,
  jobsOf,
  openJob,
  rowsOf,
  withDuplicates,
  type OpenJob,
  type Row,
} from './open-job.ts';
import { OpenOrders, requestsOf } from './open-orders.ts';
import { mergeDuplicates } from './duplicates.ts';
import { LaunchTiming } from './launch-timing.ts';
import { SecondTries, type Attempt } from './second-tries.ts';
import { StageTimes, timedTokenizer } from './stage-times.ts';
import { deliver, isBeyondItsForm, runAtDevice } from './device-run.ts';
import { News } from './news.ts';
import type { WindowLimits } from './window.ts';
import type { BatchBudget, InferenceBackend, RunResult, RunShape, Slot } from '../ports/device.ts';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';
import type { PayloadStore } from '../ports/payload.ts';
import type { OtherCell } from '../ports/queue.ts';
import type { SplitCode } from '../ports/metrics.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import type { FromExecutor, JobOrder, JobOutcome, ToExecutor } from '../protocol.ts';

export interface ExecutorLimits extends WindowLimits {
  /** A row older than this is cut next, whatever its length. */
  readonly maxRowAgeMs: number;
}

export interface ExecutorParts {
  readonly store: PayloadStore;
  /**
   * Of another cell, for jobs that were claimed there. It answers in any case: what cannot be read throws
   * QUEUE_UNREACHABLE, what cannot be written has lost its lease. Left out: there are none.
   */
  readonly storeIn?: ((cell: OtherCell) => Pick<PayloadStore, 'read' | 'commit'>) | undefined;
  readonly backend: InferenceBackend;
  readonly budget: BatchBudget;
  readonly tokenizer: BatchTokenizer;
  readonly clock: Clock;
  readonly log: Logger;
  readonly limits: ExecutorLimits;
  /** Nobody else could run what does not fit here, as on a CPU: such a job fails instead of being handed over. */
  readonly isLastLane: boolean;
  /** name@revision */
  readonly model: string;
  readonly prompts: Prompts['prompts'];
  readonly defaultPrompt?: string | undefined;
  /** Default: an embedder. */
  readonly kind?: ModelKind | undefined;
  /** The model's vectors have length 1; else each has its own. Default true, and of scores false. */
  readonly isNormalized?: boolean | undefined;
  /** The model gives zeros for a text that it knows nothing of, as static models do. Default false. */
  readonly mayBeZero?: boolean | undefined;
  /** Key of a job's result, for its return value. */
  readonly resultKey: (resultId: string) => string;
  readonly send: (message: FromExecutor) => void;
  readonly faults: FaultPoints;
}

type FilledRows = Extract<Filled, { kind: 'rows' }>;
type RanWell = Extract<RunResult, { ok: true }>;
type RanOut = Extract<RunResult, { ok: false }>['outOfVram'];

export class Executor {
  private readonly parts: ExecutorParts;
  private readonly filler: Filler;
  private readonly committers: Committers<OpenJob>;
  private readonly slots: Slots;
  private readonly cutLimits: CutLimits;
  private readonly pool = new Pool<Row>();
  private readonly flows: Readonly<Record<JobOrder['class'], Flows>> = { interactive: new Flows(), bulk: new Flows() };
  private readonly orders: OpenOrders<JobOrder, OpenJob>;
  private readonly buffers = new BufferPool();
  private readonly timing: LaunchTiming;
  private readonly again: SecondTries;
  private readonly news: News;
  private readonly stages: StageTimes;
  /** What is at the device; each settles when its run ends. */
  private readonly running = new Set<Promise<void>>();
  private readonly filling = new Set<Promise<void>>();
  private isRecycled = false;
  private isStopping = false;
  private isQueueDrained = false;
  private batches = 0;
  private cancelTimer: (() => void) | undefined;

  constructor(parts: ExecutorParts) {
    const { backend, budget, limits } = parts;
    this.parts = parts;
    this.stages = new StageTimes(parts);
    this.filler = new Filler({ ...parts, tokenizer: timedTokenizer(parts.tokenizer, this.stages) });
    this.orders = new OpenOrders((outcomes) => this.report(outcomes));
    this.committers = new Committers({
      ...parts,
      storeIn: (cell) => {
        const store = this.storeIn(cell);
        return { commit: (...asked) => this.stages.during('commit', () => store.commit(...asked)) };
      },
      resultOf: (job) => embedResult(parts, job),
      valueOf: (job) => embedValue(parts, job),
      onCommitted: (answers) => this.conclude(answers),
    });
    this.slots = new Slots(backend);
    const rowsAt = (width: number): number => rowsWithin(backend, budget, width);
    this.cutLimits = { maxRowAgeMs: limits.maxRowAgeMs, prefersFewShapes: backend.prefersFewShapes, rowsAt };
    this.timing = new LaunchTiming({ sessions: backend.sessions ?? 1, limits, budget, rowsAt });
    this.again = new SecondTries(budget, rowsAt);
    this.news = new News(parts);
  }

  handle(message: Exclude<ToExecutor, { kind: 'stop' }>): void {
    switch (message.kind) {
      case 'run':
        this.news.tellBudget();
        return this.accept(message.jobs, message.isQueueDrained);
      case 'drop':
        return this.drop(message.jobIds);
      case 'ping':
        this.news.tellBudget();
        return this.parts.send({ kind: 'pong', sequence: message.sequence, runningMs: this.parts.backend.runningMs() });
      default:
        return unreachable(message);
    }
  }

  /** Tokens of a job's rows that are not at the device yet; undefined of one that is not in the pool. */
  waitingTokens(jobId: string): number | undefined {
    const job = this.orders.find(jobId);
    return job === undefined ? undefined : (job.tokens * job.waiting) / job.rows;
  }

  /**
   * Gives back what has not begun, finishes the rest, and resolves when every job has had its outcome and nothing runs.
   */
  async stop(): Promise<void> {
    this.isStopping = true;
    await Promise.all(this.filling);
    this.giveBack((job) => !job.isBegun || this.isRecycled);
    this.isQueueDrained = true;
    this.pump();
    while (this.running.size > 0 || this.committers.busy !== undefined)
      await Promise.all([...this.running, this.committers.busy]);
    this.giveBack(() => this.isRecycled); // recycled while it stopped
    invariant(this.orders.size === 0 && this.again.size === 0, 'nothing is open once nothing runs');
    this.stages.stop();
    this.slots.stop();
  }

  // ---- fill -----------------------------------------------------------------------------------------------------

  private accept(orders: readonly JobOrder[], isQueueDrained: boolean): void {
    const fresh = orders.filter((order) => !this.orders.has(order));
    if (this.isStopping) return this.report(fresh.map(unstarted)); // they crossed the stop on the way
    this.isQueueDrained = isQueueDrained;
    this.drop(fresh.map((order) => order.jobId)); // older claims of the same jobs on this worker
    this.orders.want(fresh);
    for (const [cell, those] of byCell(fresh, (order) => order.cell)) this.beginToFill(those, cell);
  }

  /** Orders of one cell: none waits for another's server. */
  private beginToFill(orders: readonly JobOrder[], cell: OtherCell | undefined): void {
    const filled = this.fill(orders, cell, this.parts.clock.nowMs()).finally(() => this.filling.delete(filled));
    this.filling.add(filled);
  }

  private storeIn(cell: OtherCell | undefined): Pick<PayloadStore, 'read' | 'commit'> {
    if (cell === undefined) return this.parts.store;
    invariant(this.parts.storeIn !== undefined, 'only an executor that knows other cells gets jobs of them');
    return this.parts.storeIn(cell);
  }

  /** Undefined where another cell does not give them. */
  private async read(orders: readonly JobOrder[], cell: OtherCell | undefined): Promise<Filled[] | undefined> {
    try {
      return await this.filler.fill(orders, this.storeIn(cell));
    } catch (error) {
      if (cell === undefined || !isShoalError(error, 'QUEUE_UNREACHABLE')) throw error;
      return undefined;
    }
  }

  private async fill(orders: readonly JobOrder[], cell: OtherCell | undefined, arrivedMs: number): Promise<void> {
    const filled = await this.stages.during('fill', () => this.read(orders, cell));
    if (filled === undefined) {
      this.report(orders.flatMap((order) => (this.orders.arrived(order) ? [unstarted(order)] : [])));
      return this.pump();
    }
    const pooled = orders.flatMap((order, i) => {
      if (!this.orders.arrived(order)) return []; // dropped while its input was read
      const tokens = this.admit(order, filled[i]!, arrivedMs);
      return tokens === undefined ? [] : [{ jobId: order.jobId, tokens }];
    });
    if (pooled.length > 0) this.parts.send({ kind: 'filled', jobs: pooled, poolTokens: this.pool.tokens });
    this.pump();
  }

  /** The real tokens now in the pool for this job, or undefined when it ended here. */
  private admit(order: JobOrder, filled: Filled, arrivedMs: number): number | undefined {
    switch (filled.kind) {
      case 'rows':
        return this.pour(order, filled, arrivedMs);
      case 'already':
        return void this.report([already(order, repeatedValue(this.parts, order, filled.header))]);
      case 'failed':
        return void this.report([failed(order, filled.failure)]);
      default:
        return unreachable(filled);
    }
  }

  /** Rows join the pool. Returns how many real tokens they are. */
  private pour(order: JobOrder, filled: FilledRows, arrivedMs: number): number {
    const { clock, backend } = this.parts;
    const rows = filled.ids.length;
    const body = this.buffers.take(4 * rows * backend.dims); // what is sent, where nothing is to be cut off
    const vectors = new Float32Array(body.buffer, body.byteOffset, body.length / 4);
    const job = openJob(order, filled, arrivedMs, vectors);
    this.orders.open(job);
    const enteredMs = clock.nowMs();
    this.timing.arrived(rows, enteredMs);
    const isInteractive = order.class === 'interactive';
    const hasLead = this.flows[order.class].enter(mainTenant(order.tenant ?? DEFAULT_TENANT), job.tokens);
    for (const row of rowsOf(job, filled, { enteredMs, isInteractive, hasLead })) this.pool.add(row);
    return job.tokens;
  }

  private drop(jobIds: readonly string[]): void {
    this.letGo(this.orders.drop(jobIds));
  }

  /** Forgets rows of these jobs that wait. */
  private letGo(jobs: readonly OpenJob[]): void {
    if (jobs.length === 0) return; // the usual case, and looking through the whole pool is not cheap
    this.pool.remove((row) => row.job.isDropped);
    this.again.forgetUnwanted();
  }

  private giveBack(isUnspent: (job: OpenJob) => boolean): void {
    this.end(this.orders.all().filter(isUnspent), unstarted);
  }

  /** Ends these jobs without a result. */
  private end(jobs: readonly OpenJob[], outcomeOf: (order: JobOrder) => JobOutcome): void {
    this.letGo(this.orders.end(jobs, outcomeOf));
  }

  // ---- cut ------------------------------------------------------------------------------------------------------

  /** Keeps the device busy as long as something is due and a slot is free for it. */
  private pump(): void {
    this.cancelTimer?.();
    this.cancelTimer = undefined;
    this.failLateJobs();
    do this.tellWhoWaits();
    while (!this.isRecycled && this.launchNext());
  }

  private launchNext(): boolean {
    const { clock } = this.parts;
    const { pool, again, isQueueDrained } = this;
    const nowMs = clock.nowMs();
    const due = this.timing.next({ pool, again, isBusy: this.slots.areBusy, isQueueDrained }, nowMs);
    if (due.kind === 'at') this.cancelTimer ??= clock.after(due.atMs - nowMs, () => this.pump());
    if (due.kind !== 'now') return false;
    const slot = this.slots.lend(due.isUrgent);
    if (slot === undefined) return false;
    this.launch(slot, this.again.take(due.isUrgent) ?? this.stages.now('plan', () => this.cut()));
    return true;
  }

  private cut(): Attempt {
    const limits = { ...this.cutLimits, smallShare: this.timing.smallShare() };
    const batch = this.pool.cut(limits, this.parts.clock.nowMs());
    invariant(batch !== undefined, 'a batch that is due can be cut');
    return { batch: { ...batch, rows: mergeDuplicates(batch.rows) }, isExact: false };
  }

  /**
   * Fails what comes too late, before each run: a job whose deadline passed while rows of it still wait has no result
   * in time.
   */
  private failLateJobs(): void {
    const late = this.orders.late(this.parts.clock.nowMs()).filter((job) => job.waiting > 0);
    this.end(late, tooLate);
  }

  // ---- run ------------------------------------------------------------------------------------------------------

  private launch(slot: Slot, attempt: Attempt): void {
    const { clock, send } = this.parts;
    const { rows } = attempt.batch;
    const jobs = jobsOf(rows);
    for (const job of jobs) job.isBegun = true;
    for (const row of rows) for (const { job } of withDuplicates(row)) job.waiting--;
    const number = ++this.batches;
    send({ kind: 'began', batch: number, jobIds: [...jobs].map((job) => job.order.jobId) });
    const shape = shapeFor({ rows: rows.length, width: attempt.batch.width }, this.cutLimits);
    const sent = this.timing.sent(shape, hasInteractive(rows), clock.nowMs());
    const ended = this.run(slot, attempt, shape, number).finally(() => {
      this.running.delete(ended);
      this.timing.ended(sent, this.pool, clock.nowMs());
      this.pump();
    });
    this.running.add(ended);
  }

  private async run(slot: Slot, attempt: Attempt, shape: RunShape, number: number): Promise<void> {
    try {
      const result = await runAtDevice(this.parts.backend, slot, shape, attempt);
      if (result.ok) this.receive(slot, attempt, shape, number, result);
      else this.runOut(attempt, shape, number, result.outOfVram);
    } catch (error) {
      // the device itself: the process ends, its jobs run again
      if (!(error instanceof ShoalError) || error.code !== 'INFERENCE_FAILED') throw error;
      const failure = { code: 'INFERENCE_FAILED' as const, message: error.message };
      this.split(attempt, number, failure, (order) => failed(order, failure));
    } finally {
      this.slots.giveBack(slot);
    }
  }

  private receive(slot: Slot, { batch, isExact }: Attempt, shape: RunShape, number: number, result: RanWell): void {
    const { backend, clock, send } = this.parts;
    const { runMs } = result;
    this.again.ranWell();
    if (!isExact) this.learn(shape, result);
    const isUnit = backend.givesUnitRows === true && !isExact;
    const lengths = this.parts.isNormalized === false ? 'own' : isUnit ? 'one' : 'about one';
    const { dims } = backend;
    const terms = { dims, runMs, lengths, mayBeZero: this.parts.mayBeZero === true } as const;
    const { refused, done, tokens, duplicates } = deliver(slot, batch.rows, terms);
    const poolAgeMs = clock.nowMs() - (this.pool.oldestMs() ?? clock.nowMs());
    const poolTokens = this.pool.tokens;
    send({ kind: 'ran', batch: number, ...shape, tokens, runMs, duplicates, poolTokens, poolAgeMs });
    if (refused.length > 0) this.refuse(refused, isExact);
    const large = this.parts.isNormalized === false ? done.filter((job) => isBeyondItsForm(job)) : [];
    this.end(large, beyondForm);
    this.committers.add(large.length === 0 ? done : done.filter((job) => !large.includes(job)));
  }

  /**
   * Lets unsound rows run again in fp32 where that is something else; what is unsound even then fails its jobs, and
   * nobody beside them.
   */
  private refuse(refused: readonly Row[], isExact: boolean): void {
    const { backend, log, send } = this.parts;
    const rows = refused.filter(isWanted);
    if (rows.length === 0) return;
    if (!isExact && backend.runExact !== undefined) {
      log.warn(
        { rows: rows.length, precision: backend.precision },
        'vectors that no vector of the model can be, running their rows again in fp32',
      );
      send({ kind: 'rerun', rows: rows.length });
      return this.again.addExact(rows);
    }
    for (const row of rows) this.end([...jobsOf([row])], (order) => unsound(order, row, this.parts));
  }

  private learn(shape: RunShape, { runMs, memory }: RanWell): void {
    this.news.tellMemory(shape, memory); // before the budget learns from it
    this.parts.budget.ran({ ...shape, runMs, memory });
    this.news.tellBudget();
  }

  // ---- too much for the device -------------------------------------------------------------------------------------

  private runOut(attempt: Attempt, shape: RunShape, number: number, outOfVram: RanOut): void {
    const { message } = outOfVram;
    const peakBytes = this.parts.budget.peakBytes(shape);
    const wornOut = this.again.ranOut(attempt, shape, outOfVram);
    this.news.tellBudget();
    if (wornOut !== undefined) this.recycle(wornOut);
    if (this.isRecycled) return this.again.add(attempt);
    const row = { width: shape.width, message, peakBytes };
    this.split(attempt, number, { code: 'OUT_OF_VRAM', message }, (order) =>
      tooLarge(order, row, this.parts.isLastLane || order.lane === 'cpu'),
    );
  }

  /** Lets the halves of a batch run next; where it was one row, ends the jobs that wait for it. */
  private split(
    attempt: Attempt,
    number: number,
    failure: { readonly code: SplitCode; readonly message: string },
    outcomeOf: (order: JobOrder) => JobOutcome,
  ): void {
    const { log, send } = this.parts;
    const { rows, width } = attempt.batch;
    const { code, message: reason } = failure;
    const isSplit = this.again.split(attempt, number);
    const said = isSplit ? 'micro-batch failed, splitting' : 'row cannot run here';
    log.warn({ rows: rows.length, width, code, reason, ...requestsOf(jobsOf(rows)) }, said);
    send({ kind: isSplit ? 'split' : 'refused', batch: number, code });
    if (!isSplit) this.end([...jobsOf(rows)], outcomeOf);
  }

  private recycle(reason: string): void {
    if (this.isRecycled) return;
    this.isRecycled = true;
    this.parts.log.warn({ reason, jobs: this.orders.size }, 'executor is worn out, another must go on');
    this.parts.send({ kind: 'recycle', reason });
  }

  // ---- tell -----------------------------------------------------------------------------------------------------

  private conclude(answers: readonly { readonly job: OpenJob; readonly outcome: JobOutcome }[]): void {
    for (const { job } of answers) {
      this.orders.forget(job);
      this.buffers.giveBack(job.vectors.buffer);
    }
    this.report(answers.map(({ outcome }) => outcome));
  }

  private report(outcomes: readonly JobOutcome[]): void {
    this.parts.send({ kind: 'outcomes', outcomes });
  }

  private tellWhoWaits(): void {
    const { pool, timing, again } = this;
    this.news.tellInteractive(pool.interactiveRows > 0 || timing.hasUrgentRun || again.hasInteractive);
  }
}
