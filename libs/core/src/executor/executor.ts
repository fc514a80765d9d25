// The executor's half of the pipeline: fill → cut → run → commit. Jobs come in as orders; their rows go into one pool
// and lose touch with each other; micro-batches leave it for the device, and each job is committed when its last row is
// back. Everything here happens in one process beside the claimer, and knows no Redis, no ONNX Runtime and no clock of
// its own. Filling is told in fill.ts, committing in commit.ts, how long to gather in window.ts.
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

import { ArrivalRate } from '../base/arrival-rate.ts';
import { Committer, failed } from './commit.ts';
import { embedResult, embedValue, repeatedValue } from './embed-result.ts';
import { Filler, type Filled } from './fill.ts';
import { Flows } from './fair-share.ts';
import {
  ShoalError,
  toFailure,
  type Failure,
  BodyRooms,
  invariant,
  unreachable,
  DEFAULT_TENANT,
  type HandOver,
} from '@shoal/contract';
import { Slots, rowsWithin } from './slots.ts';
import { pack, squaredLengthOf, writeScaled } from './slot-buffers.ts';
import { fewRowsAtLeast, fewWidth } from './run-shapes.ts';
import { BUCKET_TOKENS } from './buckets.ts';
import { FILLED_SHARE, SMALL_BATCH, type CutLimits } from './cut-plan.ts';
import { Pool, batchOf, halve, type MicroBatch } from './pool.ts';
import { familyOf, isWanted, jobsOf, type OpenJob, type Row } from './open-job.ts';
import { OpenOrders, unstarted } from './open-orders.ts';
import { mergeTwins } from './duplicates.ts';
import { windowMs, type WindowLimits } from './window.ts';
import type { BatchBudget, BudgetState, InferenceBackend, RunResult, RunShape, Slot } from '../ports/device.ts';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';
import type { PayloadStore } from '../ports/payload.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import type { FromExecutor, JobOrder, JobOutcome, ToExecutor } from '../protocol.ts';

export interface ExecutorLimits extends WindowLimits {
  /** A row older than this is cut next, whatever its length. */
  readonly maxRowAgeMs: number;
}

export interface ExecutorParts {
  readonly store: PayloadStore;
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
  readonly prompts: Readonly<Record<'query' | 'passage', string>>;
  /** Key of a job's result, for its return value. */
  readonly resultKey: (jobId: string) => string;
  readonly send: (message: FromExecutor) => void;
  readonly faults: FaultPoints;
}

/** A micro-batch on its way to the device. */
interface Attempt {
  readonly batch: MicroBatch<Row>;
  /** In fp32, because a narrower precision made nonsense of these rows. */
  readonly isExact: boolean;
  /** Half of the micro-batch of this number, which was too much. */
  readonly halfOf?: number;
}

/** A micro-batch that was given to the device. */
interface SentRun {
  /** What it takes, by what runs took before. */
  readonly expectedMs: number;
  readonly sentMs: number;
  readonly isUrgent: boolean;
}

/** So many rows in a row that did not fit alone: it is not the rows. */
const LONE_FAILURES_TO_RECYCLE = 2;
/** A run in fp32 takes twice the memory of one in fp16, beside a session of its own. */
const EXACT_SHARE = 0.5;
/**
 * How long before the device is through it is given a full micro-batch to go on with. A thread that reads inputs is
 * late now and then, and two runs of a GPU take about 20 ms: as much as was queued always. What nobody knows beforehand
 * is learned: a device that stood still doubles it, and each run takes a hundredth off. What is queued cannot be
 * overtaken, and a tenant with little waits for it.
 */
const FIRST_IN_HAND_MS = 20;
const LEAST_IN_HAND_MS = 5;
const MOST_IN_HAND_MS = 160;
const LESS_IN_HAND = 0.99;
/**
 * Packing a micro-batch and waking the device's thread take about a millisecond; what a run takes is foreseen within a
 * tenth.
 */
const GO_ON_MS = 1;
const GO_ON_SHARE = 0.1;
/**
 * Share of a run that is kept in hand when interactive rows gather behind it: coming too late would cost them a run of
 * bulk work.
 */
const URGENT_GO_ON_SHARE = 0.4;
const MEMORY_NEWS_MS = 1_000;
/** A budget that changed by less than this share is no news. */
const BUDGET_NEWS = 0.03;
/** Catches NaN, infinities and zero vectors before anybody can receive one. */
const MAX_LENGTH_ERROR = 0.01;

export class Executor {
  private readonly parts: ExecutorParts;
  private readonly filler: Filler;
  private readonly committer: Committer<OpenJob>;
  private readonly slots: Slots;
  private readonly cutLimits: CutLimits;
  private readonly pool = new Pool<Row>();
  private readonly flows = new Flows();
  private readonly orders: OpenOrders<JobOrder, OpenJob>;
  private readonly rooms = new BodyRooms();
  /**
   * Halves of batches that were too much for the device, and rows to be run again in fp32; they go before anything new.
   */
  private again: Attempt[] = [];
  /** What is at the device, in the order in which it came there, by when it ends. */
  private readonly running = new Map<Promise<void>, SentRun>();
  private readonly filling = new Set<Promise<void>>();
  private readonly arrivals = new ArrivalRate();
  /** Micro-batches at the device with an interactive row that have not begun: they are the next. */
  private urgentQueued = 0;
  /** When the run began that goes on now. */
  private runBeganMs = 0;
  /** Since when interactive rows wait for the run that goes on to be nearly over. */
  private gatheringSinceMs: number | undefined;
  private inHandMs = FIRST_IN_HAND_MS;
  private loneFailures = 0;
  private isRecycled = false;
  private isStopping = false;
  private isQueueDrained = false;
  private batches = 0;
  private cancelWindow: (() => void) | undefined;
  private toldWaiting = false;
  private toldBudget: BudgetState | undefined;
  private toldMemoryMs = Number.NEGATIVE_INFINITY;

  constructor(parts: ExecutorParts) {
    const { backend, budget, limits } = parts;
    this.parts = parts;
    this.filler = new Filler(parts);
    this.orders = new OpenOrders((outcomes) => this.report(outcomes));
    this.committer = new Committer({
      ...parts,
      resultOf: (job) => embedResult(parts, job),
      valueOf: (job) => embedValue(parts, job),
      onCommitted: (answers) => this.conclude(answers),
    });
    this.slots = new Slots(backend);
    this.cutLimits = {
      maxRowAgeMs: limits.maxRowAgeMs,
      prefersFewShapes: backend.prefersFewShapes,
      rowsAt: (width) => rowsWithin(backend, budget, width),
    };
  }

  handle(message: Exclude<ToExecutor, { kind: 'stop' }>): void {
    switch (message.kind) {
      case 'run':
        this.tellBudget();
        return this.accept(message.jobs, message.isQueueDrained);
      case 'drop':
        return this.drop(message.jobIds);
      case 'ping':
        this.tellBudget();
        return this.parts.send({ kind: 'pong', sequence: message.sequence, runningMs: this.parts.backend.runningMs() });
      default:
        return unreachable(message);
    }
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
    while (this.running.size > 0 || this.committer.busy !== undefined)
      await Promise.all([...this.running.keys(), this.committer.busy]);
    this.giveBack(() => this.isRecycled); // recycled while it stopped
    invariant(this.orders.size === 0 && this.again.length === 0, 'nothing is open once nothing runs');
    this.slots.stop();
  }

  // ---- fill -----------------------------------------------------------------------------------------------------

  private accept(orders: readonly JobOrder[], isQueueDrained: boolean): void {
    const fresh = orders.filter((order) => !this.orders.has(order));
    if (this.isStopping) return this.report(fresh.map(unstarted)); // they crossed the stop on the way
    this.isQueueDrained = isQueueDrained;
    this.drop(fresh.map((order) => order.jobId)); // older claims of the same jobs on this worker
    this.orders.want(fresh);
    const filled = this.fill(fresh, this.parts.clock.nowMs()).finally(() => this.filling.delete(filled));
    this.filling.add(filled);
  }

  private async fill(orders: readonly JobOrder[], arrivedMs: number): Promise<void> {
    const filled = await this.filler.fill(orders);
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
    const { jobId, token } = order;
    switch (filled.kind) {
      case 'rows':
        return this.pour(order, filled, arrivedMs);
      case 'already':
        return void this.report([
          { kind: 'already', jobId, token, value: repeatedValue(this.parts, order, filled.header) },
        ]);
      case 'failed':
        return void this.report([failed(order, filled.failure)]);
      default:
        return unreachable(filled);
    }
  }

  private pour(
    order: JobOrder,
    { ids, truncated, fingerprint, input }: Extract<Filled, { kind: 'rows' }>,
    arrivedMs: number,
  ): number {
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    // what is sent, where nothing is to be cut off
    const body = this.rooms.take(4 * ids.length * this.parts.backend.dims);
    const job: OpenJob = {
      order,
      fingerprint,
      input,
      tokens,
      truncated,
      rows: ids.length,
      left: ids.length,
      waiting: ids.length,
      deadlineMs: arrivedMs + (order.remainingMs ?? Number.POSITIVE_INFINITY),
      vectors: new Float32Array(body.buffer, body.byteOffset, body.length / 4),
      splits: 0,
      runMs: 0,
      isBegun: false,
      isDropped: false,
    };
    this.orders.open(job);
    const enteredMs = this.parts.clock.nowMs();
    this.arrivals.add(ids.length, enteredMs);
    const isInteractive = order.class === 'interactive';
    const hasLead = !isInteractive && this.flows.enter(order.tenant ?? DEFAULT_TENANT, tokens);
    for (const [index, row] of ids.entries())
      this.pool.add({ job, index, ids: row, tokens: row.length, enteredMs, isInteractive, hasLead, twins: NO_TWINS });
    return tokens;
  }

  private drop(jobIds: readonly string[]): void {
    this.letGo(this.orders.drop(jobIds));
  }

  /** Rows of theirs that wait are forgotten. */
  private letGo(jobs: readonly OpenJob[]): void {
    if (jobs.length === 0) return; // the usual case, and looking through the whole pool is not cheap
    this.pool.remove((row) => row.job.isDropped);
    this.again = this.again.flatMap(withoutUnwanted);
  }

  private giveBack(isUnspent: (job: OpenJob) => boolean): void {
    this.end(this.orders.all().filter(isUnspent), unstarted);
  }

  /** These jobs end here without a result. */
  private end(jobs: readonly OpenJob[], outcomeOf: (order: JobOrder) => JobOutcome): void {
    this.letGo(this.orders.end(jobs, outcomeOf));
  }

  // ---- cut ------------------------------------------------------------------------------------------------------

  /** Keeps the device busy as long as something is due and a slot is free for it. */
  private pump(): void {
    this.cancelWindow?.();
    this.cancelWindow = undefined;
    this.failLateJobs();
    do this.tellWhoWaits();
    while (!this.isRecycled && this.launchNext());
  }

  private launchNext(): boolean {
    // what is sent behind a run that fails would fail as well
    if (this.running.size > 0 && this.parts.budget.current().isTesting === true) return false;
    const isUrgent = this.pool.interactiveRows > 0 || this.again.some(({ batch }) => hasInteractive(batch));
    if (isUrgent ? this.gathersUrgent() : !this.isBulkDue()) return false;
    const slot = this.slots.lend(isUrgent);
    if (slot === undefined) return false;
    const attempt = this.take(isUrgent);
    this.launch(slot, attempt);
    return true;
  }

  /**
   * A device with one micro-batch running and one to go on with is given a third only when that is full, because a
   * short pool loses nothing by gathering on, and none at all while an interactive row waits. What would run behind
   * another gathers until that is nearly over. Else the window decides.
   */
  private isBulkDue(): boolean {
    if (this.slots.areBusy && this.urgentRun() !== undefined) return false;
    if (this.again.length > 0) return true;
    const { rows, tokens } = this.pool;
    const { budget, clock, limits } = this.parts;
    const oldestMs = this.pool.oldestMs();
    if (oldestMs === undefined) return false;
    const isFull = this.isPoolFull();
    if (this.slots.areBusy && !isFull) return false;
    const waiting = { rows, tokens, isFull, isQueueDrained: this.isQueueDrained };
    const windowEndMs = oldestMs + windowMs(waiting, limits, budget);
    const remainingMs =
      Math.max(
        windowEndMs,
        this.goOnMs(isFull ? this.inHandMs : GO_ON_MS),
        isFull ? Number.NEGATIVE_INFINITY : this.takeSessionMs(),
      ) - clock.nowMs();
    if (remainingMs <= 0) return true;
    this.cancelWindow ??= clock.after(remainingMs, () => this.pump());
    return false;
  }

  /**
   * Where a run takes much the same time whatever its size, interactive rows gather until the one that goes on is
   * nearly over, and while others are queued: they would not run any sooner, and each few of them would take a run of
   * their own from bulk work and from those that come after them. With one every two runs, the slowest of a hundred
   * takes 2.4 runs; 2.9 while they were cut as they came (bench/queue/interactive-wait.ts --device fixed, 2026-11).
   */
  private gathersUrgent(): boolean {
    const {
      backend: { sessions = 1 },
      clock,
    } = this.parts;
    if (this.running.size < sessions || (this.smallShare() ?? 0) < FILLED_SHARE) return false;
    if (this.urgentQueued > 0) return true;
    const remainingMs = this.urgentGoOnMs() - clock.nowMs();
    this.gatheringSinceMs ??= clock.nowMs();
    const wasForeseen = this.gatheringSinceMs >= this.runBeganMs; // else the run ended sooner than it should have
    if (remainingMs <= 0 || !wasForeseen) return false;
    this.cancelWindow ??= clock.after(remainingMs, () => this.pump());
    return true;
  }

  /**
   * When the device has to be given interactive rows for them to be next. What runs now is what came first, or is
   * urgent itself.
   */
  private urgentGoOnMs(): number {
    const { sessions = 1 } = this.parts.backend;
    const current = this.urgentRun() ?? [...this.running.values()][0];
    if (sessions > 1 || current === undefined) return Number.NEGATIVE_INFINITY;
    return this.runBeganMs + current.expectedMs * (1 - URGENT_GO_ON_SHARE);
  }

  /**
   * When the device has to be given what comes next. Cut any earlier, a batch would wait behind the run that goes on
   * with fewer rows than it could have. Of devices that run several at once see takeSessionMs.
   */
  private goOnMs(inHandMs: number): number {
    const { sessions = 1 } = this.parts.backend;
    if (sessions > 1 || this.running.size === 0) return Number.NEGATIVE_INFINITY;
    const expectedMs = [...this.running.values()].reduce((sum, run) => sum + run.expectedMs, 0);
    return this.runBeganMs + expectedMs * (1 - GO_ON_SHARE) - inHandMs;
  }

  /**
   * When what waits takes a free session of a device that runs several at once. Where a run takes much the same time
   * whatever its size, sessions that are taken one right after the other also end so, and all that comes meanwhile
   * waits for that. With rows coming at an even rate, the sum of all waits is least when those that wait are as many as
   * will come, for each free session, until another is free.
   */
  private takeSessionMs(): number {
    const {
      backend: { sessions = 1 },
      clock,
    } = this.parts;
    const free = sessions - this.running.size;
    if (sessions === 1 || this.running.size === 0 || free <= 0 || (this.smallShare() ?? 0) < FILLED_SHARE)
      return Number.NEGATIVE_INFINITY;
    const nextFreeMs = Math.min(...[...this.running.values()].map(({ sentMs, expectedMs }) => sentMs + expectedMs));
    return nextFreeMs - (free * this.pool.rows) / this.arrivals.perMs(clock.nowMs());
  }

  /** Whether one run could take no more than what waits. */
  private isPoolFull(): boolean {
    const { rows, tokens } = this.pool;
    return tokens >= this.parts.budget.current().maxPaddedTokens || rows >= this.cutLimits.rowsAt(BUCKET_TOKENS);
  }

  /** Told of each end of a run. */
  private learnInHand(): void {
    const stoodStill = this.running.size === 0 && this.isPoolFull();
    this.inHandMs = stoodStill
      ? Math.min(MOST_IN_HAND_MS, 2 * this.inHandMs)
      : Math.max(LEAST_IN_HAND_MS, LESS_IN_HAND * this.inHandMs);
  }

  /** The first at the device with an interactive row. */
  private urgentRun(): SentRun | undefined {
    return [...this.running.values()].find(({ isUrgent }) => isUrgent);
  }

  private take(isUrgent: boolean): Attempt {
    const at = isUrgent ? this.again.findIndex(({ batch }) => hasInteractive(batch)) : 0;
    if (at >= 0 && at < this.again.length) return this.takeAgain(at);
    const batch = this.pool.cut({ ...this.cutLimits, smallShare: this.smallShare() }, this.parts.clock.nowMs());
    invariant(batch !== undefined, 'a batch that is due can be cut');
    return { batch: { ...batch, rows: mergeTwins(batch.rows) }, isExact: false };
  }

  /** On a device whose runs take much the same time whatever their size, a run more costs more than padding does. */
  private smallShare(): number | undefined {
    const { budget } = this.parts;
    const least = budget.predictMs({ rows: 1, width: BUCKET_TOKENS });
    const full = budget.predictMs({ rows: this.cutLimits.rowsAt(BUCKET_TOKENS), width: BUCKET_TOKENS });
    return least === undefined || full === undefined || full <= 0
      ? undefined
      : Math.min(1, Math.max(SMALL_BATCH, least / full));
  }

  /** The budget may have shrunk since the batch was cut: what is above it now is halved before it runs. */
  private takeAgain(at: number): Attempt {
    const attempt = this.again[at]!;
    const { batch, isExact } = attempt;
    const most = Math.max(1, Math.floor(this.cutLimits.rowsAt(batch.width) * (isExact ? EXACT_SHARE : 1)));
    const parts = batch.rows.length > most ? halve(batch).map((half) => ({ batch: half, isExact })) : [];
    this.again.splice(at, 1, ...parts);
    return parts.length > 0 ? this.takeAgain(at) : attempt;
  }

  /** "Before each run": a job whose deadline passed while rows of it still wait has no result in time. */
  private failLateJobs(): void {
    const late = this.orders.late(this.parts.clock.nowMs()).filter((job) => job.waiting > 0);
    this.end(late, (order) =>
      failed(order, {
        code: 'DEADLINE_PASSED',
        message:
          `the deadline passed ${order.remainingMs} ms after the job reached the device's queue, before all its ` +
          'rows had run',
      }),
    );
  }

  // ---- run ------------------------------------------------------------------------------------------------------

  private launch(slot: Slot, attempt: Attempt): void {
    const { rows } = attempt.batch;
    const jobs = jobsOf(rows);
    for (const job of jobs) job.isBegun = true;
    for (const row of rows) for (const { job } of familyOf(row)) job.waiting--;
    const number = ++this.batches;
    const isUrgent = hasInteractive(attempt.batch);
    if (isUrgent) this.gatheringSinceMs = undefined;
    this.parts.send({ kind: 'began', batch: number, jobIds: [...jobs].map((job) => job.order.jobId) });
    const shape = this.shapeOf(attempt.batch);
    const expectedMs = this.parts.budget.predictMs(shape) ?? 0;
    const sentMs = this.parts.clock.nowMs();
    if (this.running.size === 0) this.runBeganMs = sentMs;
    if (isUrgent && this.running.size >= (this.parts.backend.sessions ?? 1)) this.urgentQueued++;
    const ended = this.run(slot, attempt, shape, isUrgent, number).finally(() => {
      if (this.urgentQueued > 0) this.urgentQueued--;
      this.runBeganMs = this.parts.clock.nowMs();
      this.running.delete(ended);
      this.learnInHand();
      this.pump();
    });
    this.running.set(ended, { expectedMs, sentMs, isUrgent });
  }

  private async run(slot: Slot, attempt: Attempt, shape: RunShape, isUrgent: boolean, number: number): Promise<void> {
    pack(slot, attempt.batch, shape);
    try {
      const result = await this.atDevice(slot, shape, attempt.isExact, isUrgent);
      if (result.ok) this.deliver(slot, attempt, shape, number, result);
      else this.runOut(attempt, shape, number, result.outOfVram);
    } catch (error) {
      // the device itself: the process ends, its jobs run again
      if (!(error instanceof ShoalError) || error.code !== 'INFERENCE_FAILED') throw error;
      const failure = toFailure(error);
      this.split(attempt, number, failure, (jobs) => this.end(jobs, (order) => failed(order, failure)));
    } finally {
      this.slots.giveBack(slot);
    }
  }

  /** What runs: for a device that prefers few shapes, empty rows are added up to the next one. */
  private shapeOf({ rows: { length }, width: exact }: MicroBatch<Row>): RunShape {
    const { backend } = this.parts;
    if (backend.prefersFewShapes !== true) return { rows: length, width: exact };
    const width = fewWidth(exact); // halves were cut to their own width
    // a half is rounded up within the budget only
    const rows = Math.min(fewRowsAtLeast(length, width), this.cutLimits.rowsAt(width));
    return rows < length ? { rows: length, width: exact } : { rows, width };
  }

  private atDevice(slot: Slot, shape: RunShape, isExact: boolean, isUrgent: boolean): Promise<RunResult> {
    const { backend } = this.parts;
    if (!isExact) return backend.run(slot, shape, { isUrgent });
    invariant(backend.runExact !== undefined, 'rows run exactly only where the device can');
    return backend.runExact(slot, shape);
  }

  private deliver(
    slot: Slot,
    attempt: Attempt,
    shape: RunShape,
    number: number,
    result: Extract<RunResult, { ok: true }>,
  ): void {
    const { batch, isExact } = attempt;
    const { rows } = batch;
    const { runMs } = result;
    this.loneFailures = 0;
    if (!isExact) this.learn(shape, result);
    const unsound: Row[] = [];
    const done: OpenJob[] = [];
    let tokens = 0;
    let duplicates = 0;
    for (const [i, row] of rows.entries()) {
      tokens += row.tokens;
      duplicates += row.twins.length;
      if (!this.unpack(slot, i, row, runMs / rows.length, isExact, done)) unsound.push(row);
    }
    const poolAgeMs = this.parts.clock.nowMs() - (this.pool.oldestMs() ?? this.parts.clock.nowMs());
    this.parts.send({
      kind: 'ran',
      batch: number,
      ...shape,
      tokens,
      runMs,
      duplicates,
      poolTokens: this.pool.tokens,
      poolAgeMs,
    });
    if (unsound.length > 0) this.refuse(unsound, isExact);
    this.committer.add(done);
  }

  /** One row's vector into its job, and its twins'. False when it is not of length 1: nobody may receive that. */
  private unpack(slot: Slot, at: number, row: Row, runMs: number, isExact: boolean, done: OpenJob[]): boolean {
    const { dims, givesUnitRows = false } = this.parts.backend;
    const isUnit = givesUnitRows && !isExact;
    const squaredLength = isUnit ? 1 : squaredLengthOf(slot.embeddings, at * dims, dims);
    if (!(Math.abs(squaredLength - 1) < MAX_LENGTH_ERROR) || (isUnit && Number.isNaN(slot.embeddings[at * dims])))
      return false;
    for (const { job, index } of familyOf(row)) {
      if (isUnit) job.vectors.set(slot.embeddings.subarray(at * dims, (at + 1) * dims), index * dims);
      else writeScaled(slot.embeddings, at * dims, dims, 1 / Math.sqrt(squaredLength), job.vectors, index * dims);
      job.runMs += runMs;
      if (--job.left === 0 && !job.isDropped) done.push(job);
    }
    return true;
  }

  /**
   * Unsound rows run again in fp32 where that is something else; what is unsound even then fails its jobs, and nobody
   * beside them.
   */
  private refuse(unsound: readonly Row[], isExact: boolean): void {
    const rows = unsound.filter(isWanted);
    if (rows.length === 0) return;
    if (!isExact && this.parts.backend.runExact !== undefined) {
      this.parts.log.warn(
        { rows: rows.length, precision: this.parts.backend.precision },
        'vectors not of length 1, running their rows again in fp32',
      );
      this.parts.send({ kind: 'rerun', rows: rows.length });
      return this.repeat({ batch: batchOf(rows), isExact: true });
    }
    for (const row of rows) {
      const message = `row ${row.index} gave a vector that is not of length 1 (${row.tokens} tokens)`;
      this.end([...jobsOf([row])], (order) => failed(order, { code: 'INFERENCE_FAILED', message }));
    }
  }

  private learn(shape: RunShape, { runMs, memory }: Extract<RunResult, { ok: true }>): void {
    const { budget, clock, send } = this.parts;
    const measuredBytes = memory?.footprintBytes ?? memory?.liveBytes;
    if (memory !== undefined && measuredBytes !== undefined && clock.nowMs() - this.toldMemoryMs >= MEMORY_NEWS_MS) {
      this.toldMemoryMs = clock.nowMs();
      // before the budget learns from it
      send({ kind: 'memory', predictedBytes: budget.peakBytes(shape), measuredBytes, source: memory.source });
    }
    budget.ran({ ...shape, runMs, memory });
    this.tellBudget();
  }

  // ---- too much for the device -------------------------------------------------------------------------------------

  private runOut(
    attempt: Attempt,
    shape: RunShape,
    number: number,
    { message, needsRecycle }: Extract<RunResult, { ok: false }>['outOfVram'],
  ): void {
    const { budget } = this.parts;
    const peakBytes = budget.peakBytes(shape);
    if (!attempt.isExact) budget.ranOutOfMemory(shape, { siblingWaits: this.siblingOf(attempt) >= 0 });
    this.tellBudget();
    if (needsRecycle === true) this.recycle(message);
    else if (
      shape.rows === 1 &&
      budget.current().isTesting !== false &&
      ++this.loneFailures >= LONE_FAILURES_TO_RECYCLE
    )
      this.recycle(`${this.loneFailures} rows in a row did not fit alone: ${message}`);
    if (this.isRecycled) return this.repeat(attempt);
    const reason: Failure = {
      code: 'OUT_OF_VRAM',
      message: `a row of ${shape.width} tokens does not fit this device alone: ${message}`,
    };
    this.split(attempt, number, { code: 'OUT_OF_VRAM', message }, (jobs) =>
      this.end(jobs, (order) =>
        this.isLast(order) ? failed(order, reason) : handedOver(order, { reason, peakBytes }),
      ),
    );
  }

  private isLast(order: JobOrder): boolean {
    return this.parts.isLastLane || order.lane === 'cpu';
  }

  /**
   * Keeps the halves of a batch apart until the row is found that cannot run; `giveUp` ends the jobs that wait for it.
   * The other half of the same batch goes first.
   */
  private split(attempt: Attempt, number: number, failure: Failure, giveUp: (jobs: readonly OpenJob[]) => void): void {
    const { batch, isExact } = attempt;
    const { log, send } = this.parts;
    const jobs = jobsOf(batch.rows);
    log.warn(
      { rows: batch.rows.length, width: batch.width, code: failure.code, reason: failure.message },
      batch.rows.length === 1 ? 'row cannot run here' : 'micro-batch failed, splitting',
    );
    if (batch.rows.length === 1) {
      send({ kind: 'refused', batch: number, code: failure.code });
      return giveUp([...jobs]);
    }
    send({ kind: 'split', batch: number, code: failure.code });
    for (const job of jobs) job.splits++;
    const behindSibling = this.siblingOf(attempt) + 1;
    for (const half of halve(batch).toReversed()) this.repeat({ batch: half, isExact, halfOf: number }, behindSibling);
  }

  /** Where the other half of the same micro-batch waits; -1 when it does not. */
  private siblingOf({ halfOf }: Attempt): number {
    return halfOf === undefined ? -1 : this.again.findIndex((other) => other.halfOf === halfOf);
  }

  /** Before anything else that waits, or where it is told to. */
  private repeat(attempt: Attempt, at = 0): void {
    for (const row of attempt.batch.rows) for (const { job } of familyOf(row)) job.waiting++;
    this.again.splice(at, 0, ...withoutUnwanted(attempt));
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
      this.rooms.giveBack(job.vectors.buffer);
    }
    // no row of theirs is left that would be packed
    this.parts.store.release(answers.flatMap(({ job }) => job.input ?? []));
    this.report(answers.map(({ outcome }) => outcome));
  }

  private report(outcomes: readonly JobOutcome[]): void {
    this.parts.send({ kind: 'outcomes', outcomes });
  }

  private tellWhoWaits(): void {
    const isWaiting =
      this.pool.interactiveRows > 0 ||
      this.urgentRun() !== undefined ||
      this.again.some(({ batch }) => hasInteractive(batch));
    if (isWaiting === this.toldWaiting) return;
    this.toldWaiting = isWaiting;
    this.parts.budget.interactiveWaits(isWaiting);
  }

  private tellBudget(): void {
    const budget = this.parts.budget.current();
    if (!isNews(budget, this.toldBudget)) return;
    this.toldBudget = budget;
    this.parts.send({ kind: 'budget', budget });
  }
}

const NO_TWINS: Row[] = [];

function hasInteractive({ rows }: MicroBatch<Row>): boolean {
  return rows.some((row) => row.isInteractive || row.twins.some((twin) => twin.isInteractive));
}

function withoutUnwanted(attempt: Attempt): Attempt[] {
  const rows = attempt.batch.rows.filter(isWanted);
  if (rows.length === attempt.batch.rows.length) return [attempt];
  return rows.length === 0 ? [] : [{ ...attempt, batch: batchOf(rows) }];
}

function isNews(now: BudgetState, told: BudgetState | undefined): boolean {
  if (told === undefined || now.limitedBy !== told.limitedBy || now.source !== told.source) return true;
  return Math.abs(now.maxPaddedTokens - told.maxPaddedTokens) > BUDGET_NEWS * told.maxPaddedTokens;
}

function handedOver({ jobId, token }: JobOrder, handOver: HandOver): JobOutcome {
  return { kind: 'hand-over', jobId, token, handOver };
}
