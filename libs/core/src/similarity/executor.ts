// The executor that compares: fill → cut → run → commit, in the protocol of protocol.ts like the one that embeds.
// Orders come in, their vectors are read and checked (similarity-fill.ts), wait with others of the same request
// (similarity-pool.ts), run together (similarity-run.ts), and each job is committed when its run is back (commit.ts).
//
// The life of a job here: *filling*, *pooled*, *running*, *done* (its result is being committed), *gone* (its outcome
// was sent). One run at a time: the kernels use the whole device, and what comes meanwhile gathers by itself, so there
// is no window. A run that fails for a reason of its own is run again job by job, so that the reason stays with the job
// that has it. A job that does not fit this device even alone is handed over to the CPU lane, unless it comes from
// there or this device is a CPU.

import { ShoalError, toFailure, type Failure, invariant, unreachable } from '@shoal/contract';
import { Committer } from '../executor/commit.ts';
import { failed, unstarted } from '../executor/endings.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import { OpenOrders, requestsOf } from '../executor/open-orders.ts';
import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';
import type { PayloadStore } from '../ports/payload.ts';
import type { FromExecutor, JobOutcome, SimilarityOrder, ToExecutor } from '../protocol.ts';
import type { Residents } from './ledger.ts';
import type { DeviceUse, SimilarityDevice } from './device.ts';
import { SimilarityFiller, type FilledWork, type Work } from './fill.ts';
import { SimilarityPool } from './pool.ts';
import { mostRows, searchedBy, similarityResult, similarityValue } from './result.ts';
import { SimilarityRun, type Computed } from './run.ts';

export interface SimilarityExecutorParts {
  readonly store: PayloadStore;
  readonly device: SimilarityDevice;
  /** What of collections and graphs stays in memory, see ledger.ts. */
  readonly residents: Residents;
  readonly clock: Clock;
  readonly log: Logger;
  /** There is no other device after this one: what does not fit it fails. */
  readonly isLastLane: boolean;
  /** Most queries of one run, whoever asks. */
  readonly maxRows: number;
  /** Key of a job's result, for its return value. */
  readonly resultKey: (resultId: string) => string;
  readonly send: (message: FromExecutor) => void;
  readonly faults: FaultPoints;
}

interface OpenJob {
  readonly order: SimilarityOrder;
  readonly fingerprint: string;
  readonly work: Work;
  readonly rows: number;
  readonly enteredMs: number;
  readonly deadlineMs: number;
  isAlone: boolean;
  isDropped: boolean;
  isBegun: boolean;
  splits: number;
  runMs: number;
  result: Extract<Computed, { ok: true }> | undefined;
  use: DeviceUse | undefined;
}

interface Running {
  readonly jobs: readonly OpenJob[];
  readonly startedMs: number;
  readonly abort: AbortController;
  readonly ended: Promise<void>;
  /**
   * Since when the device is busy with a part of it; undefined while rows are read, which takes as long as the disk
   * does.
   */
  deviceSinceMs: number | undefined;
  /** As the claimer knows it: another number after each split. */
  batch: number;
}

export class SimilarityExecutor {
  private readonly parts: SimilarityExecutorParts;
  private readonly filler: SimilarityFiller;
  private readonly committer: Committer<OpenJob>;
  private readonly runs: SimilarityRun;
  private readonly orders: OpenOrders<SimilarityOrder, OpenJob>;
  private readonly pool = new SimilarityPool<OpenJob>();
  private readonly filling = new Set<Promise<void>>();
  private running: Running | undefined;
  private batches = 0;
  private isStopping = false;

  constructor(parts: SimilarityExecutorParts) {
    this.parts = parts;
    this.filler = new SimilarityFiller(parts);
    this.runs = new SimilarityRun({
      ...parts,
      onSplit: (rows, message) => this.split(rows, message),
      onDevice: (isBusy) => this.deviceIs(isBusy),
    });
    this.orders = new OpenOrders((outcomes) => parts.send({ kind: 'outcomes', outcomes }));
    this.committer = new Committer({
      ...parts,
      resultOf: (job) => similarityResult(job, job.result),
      valueOf: (job) => similarityValue(this.parts, job.order, job.result!, { ...job, searched: searchedBy(job.work) }),
      onCommitted: (answers) => {
        for (const { job } of answers) this.orders.forget(job);
        parts.send({ kind: 'outcomes', outcomes: answers.map(({ outcome }) => outcome) });
      },
    });
  }

  handle(message: Exclude<ToExecutor<SimilarityOrder>, { kind: 'stop' }>): void {
    switch (message.kind) {
      case 'run':
        return this.accept(message.jobs);
      case 'drop':
        return this.drop(message.jobIds);
      case 'ping':
        return this.parts.send({
          kind: 'pong',
          sequence: message.sequence,
          runningMs:
            this.running?.deviceSinceMs === undefined ? 0 : this.parts.clock.nowMs() - this.running.deviceSinceMs,
        });
      default:
        return unreachable(message);
    }
  }

  /**
   * Gives back what has not begun, finishes the rest, and resolves when every job has had its outcome and nothing is
   * held.
   */
  async stop(): Promise<void> {
    this.isStopping = true;
    await Promise.all(this.filling);
    const unbegun = this.orders.all().filter((job) => !job.isBegun);
    this.letGo(this.orders.end(unbegun, unstarted));
    while (this.running !== undefined || this.committer.busy !== undefined)
      await Promise.all([this.running?.ended, this.committer.busy]);
    invariant(this.orders.size === 0, 'nothing is open once nothing runs');
    await this.filler.close();
    this.parts.residents.clear();
  }

  // ---- fill -----------------------------------------------------------------------------------------------------

  private accept(orders: readonly SimilarityOrder[]): void {
    const fresh = orders.filter((order) => !this.orders.has(order));
    // they crossed the stop on the way
    if (this.isStopping) return this.parts.send({ kind: 'outcomes', outcomes: fresh.map(unstarted) });
    this.drop(fresh.map((order) => order.jobId)); // older claims of the same jobs on this worker
    this.orders.want(fresh);
    const filled = this.fill(fresh, this.parts.clock.nowMs()).finally(() => this.filling.delete(filled));
    this.filling.add(filled);
  }

  private async fill(orders: readonly SimilarityOrder[], arrivedMs: number): Promise<void> {
    const filled = await this.filler.fill(orders);
    const pooled = orders.flatMap((order, i) => {
      if (this.orders.arrived(order))
        return this.admit(order, filled[i]!, arrivedMs) ? [{ jobId: order.jobId, tokens: order.rows }] : [];
      if (filled[i]!.kind === 'work') this.release(filled[i]!.work); // dropped while its input was read
      return [];
    });
    if (pooled.length > 0) this.parts.send({ kind: 'filled', jobs: pooled, poolTokens: this.pool.rows });
    this.pump();
  }

  /** Whether it is in the pool now; else it ended here. */
  private admit(order: SimilarityOrder, filled: FilledWork, arrivedMs: number): boolean {
    const { jobId, token, rows } = order;
    if (filled.kind === 'failed') this.parts.send({ kind: 'outcomes', outcomes: [failed(order, filled.failure)] });
    if (filled.kind === 'already')
      this.parts.send({
        kind: 'outcomes',
        outcomes: [
          {
            kind: 'already',
            jobId,
            token,
            value: similarityValue(this.parts, order, filled.header, {
              splits: 0,
              runMs: 0,
              use: undefined,
              searched: filled.searched,
            }),
          },
        ],
      });
    if (filled.kind !== 'work') return false;
    const { fingerprint, work } = filled;
    const job: OpenJob = {
      order,
      fingerprint,
      work,
      rows,
      enteredMs: this.parts.clock.nowMs(),
      deadlineMs: arrivedMs + (order.remainingMs ?? Number.POSITIVE_INFINITY),
      isAlone: false,
      isDropped: false,
      isBegun: false,
      splits: 0,
      runMs: 0,
      result: undefined,
      use: undefined,
    };
    this.orders.open(job);
    this.pool.add(job);
    return true;
  }

  private drop(jobIds: readonly string[]): void {
    this.letGo(this.orders.drop(jobIds));
    if (this.running?.jobs.every((job) => job.isDropped) === true) this.running.abort.abort();
  }

  /** Jobs that ended without having run, or while they ran. */
  private letGo(jobs: readonly OpenJob[]): void {
    const waiting = jobs.filter((job) => !this.isRunning(job) && job.result === undefined);
    this.pool.remove(waiting);
    for (const job of waiting) this.release(job.work);
  }

  private isRunning(job: OpenJob): boolean {
    return this.running?.jobs.includes(job) === true;
  }

  private release(work: Work): void {
    this.filler
      .release(work)
      .catch((error: unknown) => this.parts.log.warn({ err: error }, 'a collection could not be closed'));
  }

  // ---- cut and run ----------------------------------------------------------------------------------------------

  private pump(): void {
    if (this.running !== undefined) return;
    this.failLateJobs();
    const jobs = this.pool.cut((job) => mostRows(job, this.parts.maxRows));
    if (jobs === undefined) return;
    for (const job of jobs) job.isBegun = true;
    const { promise: ended, resolve } = Promise.withResolvers<void>();
    const running: Running = {
      jobs,
      abort: new AbortController(),
      startedMs: this.parts.clock.nowMs(),
      ended,
      deviceSinceMs: undefined,
      batch: 0,
    };
    this.running = running;
    this.begin(running);
    void this.run(running).finally(() => {
      for (const job of jobs) if (job.result !== undefined || job.isDropped) this.release(job.work);
      this.running = undefined;
      resolve();
      this.pump();
    });
  }

  private begin(running: Running): void {
    running.batch = ++this.batches;
    this.parts.send({ kind: 'began', batch: running.batch, jobIds: running.jobs.map(({ order }) => order.jobId) });
  }

  private async run(running: Running): Promise<void> {
    const { jobs, abort, startedMs } = running;
    try {
      const computed = await this.runs.compute(
        jobs[0]!.order.request,
        jobs.map(({ work }) => work),
        abort.signal,
      );
      const runMs = this.parts.clock.nowMs() - startedMs;
      this.tellRan(running, runMs);
      const use = this.parts.device.takeUse?.();
      jobs.forEach((job, i) => this.keepResult(job, computed[i]!, runMs, use));
      this.committer.add(jobs.filter((job) => job.result !== undefined));
    } catch (error) {
      this.parts.device.takeUse?.(); // or the next run would tell of this one's
      if (abort.signal.aborted) return this.tellRan(running, this.parts.clock.nowMs() - startedMs);
      if (!(error instanceof ShoalError)) throw error; // the device itself: the process ends, its jobs run again
      this.fail(running, error);
    }
  }

  private keepResult(job: OpenJob, computed: Computed, runMs: number, use: DeviceUse | undefined): void {
    if (!computed.ok) return void this.orders.end([job], (order) => failed(order, computed.failure));
    job.result = computed;
    job.runMs = runMs;
    job.use = use;
  }

  /** What ran together runs alone next; what was alone has failed. */
  private fail({ jobs, batch }: Running, error: ShoalError): void {
    const failure = toFailure(error);
    this.parts.log.warn(
      { jobs: jobs.length, code: failure.code, reason: failure.message, ...requestsOf(jobs) },
      jobs.length === 1 ? 'job cannot run here' : 'run failed, its jobs run one by one',
    );
    this.parts.send({ kind: 'refused', batch, code: failure.code });
    if (jobs.length === 1)
      return void this.orders.end(jobs, (order) =>
        failure.code === 'OUT_OF_VRAM' && !this.isLast(order) ? handedOver(order, failure) : failed(order, failure),
      );
    for (const job of jobs) {
      if (job.isDropped) continue;
      job.isAlone = true;
      this.pool.add(job);
    }
  }

  private isLast({ lane }: SimilarityOrder): boolean {
    return this.parts.isLastLane || lane === 'cpu';
  }

  private split(rows: number, message: string): void {
    const { running } = this;
    invariant(running !== undefined, 'only what runs is split');
    const facts = { rows, code: 'OUT_OF_VRAM', reason: message, ...requestsOf(running.jobs) };
    this.parts.log.warn(facts, 'tile does not fit, halving it');
    for (const job of running.jobs) job.splits++;
    this.parts.send({ kind: 'split', batch: running.batch, code: 'OUT_OF_VRAM' });
    this.begin(running);
  }

  private deviceIs(isBusy: boolean): void {
    if (this.running !== undefined) this.running.deviceSinceMs = isBusy ? this.parts.clock.nowMs() : undefined;
  }

  private tellRan({ jobs, batch }: Running, runMs: number): void {
    const rows = jobs.reduce((sum, job) => sum + job.rows, 0);
    const nowMs = this.parts.clock.nowMs();
    this.parts.send({
      kind: 'ran',
      batch,
      rows,
      width: 1,
      tokens: rows,
      runMs,
      duplicates: 0,
      poolTokens: this.pool.rows,
      poolAgeMs: nowMs - (this.pool.oldestMs() ?? nowMs),
    });
  }

  private failLateJobs(): void {
    const late = this.orders.late(this.parts.clock.nowMs()).filter((job) => !job.isBegun);
    this.letGo(
      this.orders.end(late, (order) =>
        failed(order, {
          code: 'DEADLINE_PASSED',
          message:
            `the deadline passed ${order.remainingMs} ms after the job reached the device's queue, before it had ` +
            'run',
        }),
      ),
    );
  }
}

function handedOver({ jobId, token }: SimilarityOrder, reason: Failure): JobOutcome {
  return { kind: 'hand-over', jobId, token, handOver: { reason, peakBytes: undefined } };
}
