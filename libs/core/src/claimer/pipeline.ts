// The claimer's half of the pipeline: claim → dispatch → settle. It holds leases and decides endings; texts and vectors
// are the executor's business. Core's other half is executor.ts; the messages between the two are in protocol.ts.
//
// States of the pipeline: *new*; *starting* (the executor opens the model); *claiming* (the loop runs); *draining* (no
// new claims; what has begun is finished, the rest goes back unspent); *stopped*. It may be stopped in any of them.
//
// Beside it lie: how much is claimed (claim-room.ts), who runs it and what becomes of it when an executor dies
// (executor-keeper.ts), which ending a claim gets (endings.ts), and how the queue is told (settler.ts). They call back
// through the listeners that they are given here.

import { ClaimRoom, type RoomLimits } from './claim-room.ts';
import { ClaimWatch } from './claim-watch.ts';
import type { ClaimedJob } from './claimed-job.ts';
import { ABANDONED, endingOf, failed, judge, returned, type Ending } from './endings.ts';
import { ExecutorKeeper } from './executor-keeper.ts';
import { isUrgent, readEmbedJob, readPart, type QueuedJob, type ReadJob } from './queued-job.ts';
import { JobSpans, UNTRACED, type Traced } from './job-spans.ts';
import { Settler, namesOf } from './settler.ts';
import { Sleeps } from './sleeps.ts';
import { ShoalError, invariant, unreachable } from '@shoal/contract';
import { STAGES, noMetrics, type Metrics } from '../ports/metrics.ts';
import { CANCELLED_WHILE_CLAIMED, type Announcer, type JobSource, type RawClaim } from '../ports/queue.ts';
import type { Clock } from '../ports/clock.ts';
import type { ExecutorLink } from '../ports/link.ts';
import type { Logger } from '../ports/logger.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import type { FromExecutor, JobOutcome } from '../protocol.ts';

export interface PipelineLimits extends RoomLimits {
  readonly executorTimeoutMs: number;
  readonly drainTimeoutMs: number;
  /** How long a claim may bring nothing while jobs wait, before the worker leaves. */
  readonly claimTimeoutMs: number;
}

export interface PipelineParts {
  readonly source: JobSource;
  readonly announcer: Announcer;
  readonly executor: ExecutorLink;
  readonly clock: Clock;
  /** Epoch milliseconds by the clock of the queue server: deadlines are told in it. */
  readonly serverNowMs: () => number;
  readonly log: Logger;
  readonly limits: PipelineLimits;
  readonly faults: FaultPoints;
  /** Left out: nothing is counted. */
  readonly metrics?: Metrics;
  /** Left out: nothing is traced. */
  readonly traced?: Traced | undefined;
  /** What the jobs of this queue are. Default: embeddings. */
  readonly readJob?: ReadJob;
}

export type PipelineState = { readonly name: 'new' | 'starting' | 'claiming' | 'draining' | 'stopped' };

/** How long `stop` waits for announcements; a producer that misses one asks for itself after 2 s. */
const LAST_ANNOUNCEMENTS_MS = 5_000;
/**
 * A source that was stopped by somebody else resolves empty at once; asked without a pause it would keep the process
 * from hearing anything.
 */
const EMPTY_CLAIM_MS = 100;
/** While the end of one part is written, the rows of two keep the device busy: one thread may not read fast enough for it. */
const MOST_PARTS = 3;
/**
 * Whoever has a part for minutes meets deaths of workers that are not its doing, and each leaves it farther on than the
 * last: so many count for nothing.
 */
const FORGIVEN_STALLS = 50;

export class Pipeline {
  private readonly parts: PipelineParts;
  private readonly metrics: Metrics;
  private readonly claimed = new Map<string, ClaimedJob>();
  private readonly spans: JobSpans;
  private readonly room: ClaimRoom;
  private readonly keeper: ExecutorKeeper;
  private readonly settler: Settler;
  private readonly claimWatch: ClaimWatch;
  /** Whoever waits for room; woken by every change that may have made some. */
  private readonly changes: Sleeps;
  /** Whoever waits for a time to pass; woken when the pipeline stops. */
  private readonly sleeps: Sleeps;
  private readonly fatal = Promise.withResolvers<never>();
  private state: PipelineState = { name: 'new' };
  private loop: Promise<void> = Promise.resolve();
  private stopping: Promise<void> | undefined;

  constructor(parts: PipelineParts) {
    this.parts = parts;
    this.spans = new JobSpans(parts.traced ?? UNTRACED, () => parts.clock.nowMs());
    this.metrics = this.spans.tap(parts.metrics ?? noMetrics);
    this.failed.catch(() => undefined); // whoever cares awaits it
    const { metrics } = this;
    const { clock, log, limits, source } = parts;
    const onFatal = (error: unknown): void => this.fatal.reject(error);
    this.changes = new Sleeps(clock);
    this.sleeps = new Sleeps(clock);
    this.room = new ClaimRoom(limits, (claims, pooledTokens) => metrics.inFlight(claims, pooledTokens));
    this.settler = new Settler({ ...parts, metrics, onSettled: () => this.changes.wake(), onFatal });
    this.keeper = new ExecutorKeeper({
      ...parts,
      metrics,
      timeoutMs: limits.executorTimeoutMs,
      claimed: this.claimed,
      sleeps: this.sleeps,
      isNeeded: () => this.isIn('starting', 'claiming'),
      onReplaced: () => this.replaced(),
      onEnded: (open, ending) => this.end(open, ending),
      onFatal,
    });
    this.claimWatch = new ClaimWatch({
      clock,
      log,
      timeoutMs: limits.claimTimeoutMs,
      claimable: () => source.claimable(),
      onWedged: onFatal,
    });
  }

  /** Rejects when the worker cannot go on; never resolves. */
  get failed(): Promise<never> {
    return this.fatal.promise;
  }

  // ---- start and stop -------------------------------------------------------------------------------------------

  /** Starts both ends; resolves with the executor's `ready`. Nothing is claimed before the executor can run. */
  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    invariant(this.isIn('new'), 'a pipeline is started once, and not after it was stopped');
    const { source, executor } = this.parts;
    this.state = { name: 'starting' };
    source.onLeaseLost((jobId) => this.loseLease(jobId));
    source.onCancelled((jobIds) => jobIds.forEach((jobId) => this.cancel(jobId)));
    executor.onMessage((message) => this.hear(message));
    const ready = await this.keeper.start();
    this.spans.readyAt(ready.device);
    if (this.isIn('starting')) await source.start();
    if (!this.isIn('starting')) {
      await source.stop();
      throw new ShoalError('INTERRUPTED', 'the worker was stopped while it started');
    }
    this.state = { name: 'claiming' };
    this.keeper.beginToWatch();
    this.claimWatch.start();
    this.loop = Promise.all([this.run(), this.runParts()]).then(
      () => undefined,
      (error: unknown) => this.fatal.reject(error),
    );
    return ready;
  }

  /**
   * Drains: no new claims, what has begun is finished within the drain timeout, everything else is given back. Safe to
   * call early or twice.
   */
  stop(): Promise<void> {
    this.stopping ??= this.isIn('new') ? this.neverStart() : this.drain();
    return this.stopping;
  }

  private async neverStart(): Promise<void> {
    this.state = { name: 'stopped' };
  }

  private async drain(): Promise<void> {
    this.state = { name: 'draining' };
    this.claimWatch.stop();
    this.changes.wake();
    this.sleeps.wake();
    await this.parts.source.stopClaiming();
    await this.loop;
    await this.keeper.stop(this.parts.limits.drainTimeoutMs);
    for (const open of this.claimed.values()) this.end(open, returned('worker stopped'));
    await this.settleRest();
    this.state = { name: 'stopped' };
    await this.parts.source.stop();
  }

  private async settleRest(): Promise<void> {
    const { clock, limits, log } = this.parts;
    const startedMs = clock.nowMs();
    // a server that is away may be for long; its leases run out
    await Promise.race([this.settler.settled(), this.sleeps.sleep(limits.drainTimeoutMs)]);
    await Promise.race([this.settler.announced(), this.sleeps.sleep(LAST_ANNOUNCEMENTS_MS)]);
    this.sleeps.wake();
    log.debug({ durationMs: clock.nowMs() - startedMs }, 'settled the rest');
  }

  private isIn(...names: readonly PipelineState['name'][]): boolean {
    return names.includes(this.state.name);
  }

  // ---- claim ----------------------------------------------------------------------------------------------------

  private async run(): Promise<void> {
    const { clock, source } = this.parts;
    while (this.isIn('claiming')) {
      const askedMs = clock.nowMs();
      const limit = this.keeper.takesJobs ? this.room.limit(askedMs, this.settler.underWay) : 0;
      if (limit < 1) {
        await this.claimUrgent();
        continue;
      }
      const claims = await this.claimWatch.during(source.claim(limit));
      const isQueueDrained = claims.length < limit;
      if (claims.length > 0) this.dispatch(claims, isQueueDrained, isQueueDrained ? undefined : askedMs);
      else if (this.isIn('claiming')) await this.sleeps.sleep(EMPTY_CLAIM_MS);
    }
  }

  /**
   * Looks for interactive jobs now and then while there is no room for others, and waits for a change in between.
   */
  private async claimUrgent(): Promise<void> {
    const { clock, source } = this.parts;
    const nowMs = clock.nowMs();
    const limit = this.keeper.takesJobs ? this.room.urgentLimit(nowMs, this.settler.underWay) : 0;
    if (limit < 1) return this.changes.sleep();
    const waitMs = this.room.untilUrgentLookMs(nowMs);
    if (waitMs > 0) return this.changes.sleep(waitMs);
    this.room.looked(nowMs);
    const claims = await this.claimWatch.during(source.claimUrgent(limit));
    if (claims.length > 0) this.dispatch(claims, false, undefined);
  }

  /** Parts of runs are claimed beside all other jobs, whatever room there is: none of their rows has come yet. */
  private async runParts(): Promise<void> {
    const { source } = this.parts;
    while (this.isIn('claiming') && source.claimPart !== undefined) {
      if (!this.keeper.takesJobs || this.openParts >= MOST_PARTS) {
        await this.changes.sleep();
        continue;
      }
      const claims = await source.claimPart();
      if (claims.length > 0) this.dispatch(claims, false, undefined);
      else if (this.isIn('claiming')) await this.sleeps.sleep(EMPTY_CLAIM_MS);
    }
  }

  private get openParts(): number {
    let parts = 0;
    for (const { job } of this.claimed.values()) if (job.isPart === true) parts++;
    return parts;
  }

  // ---- dispatch -------------------------------------------------------------------------------------------------

  private dispatch(claims: readonly RawClaim[], isQueueDrained: boolean, askedMs: number | undefined): void {
    const fresh = claims.flatMap((claim) => this.taken(claim, askedMs));
    this.keeper.claimed(fresh);
    // By themselves, so that their inputs are not read behind those of others.
    const [urgent, rest] = [fresh.filter(({ job }) => isUrgent(job)), fresh.filter(({ job }) => !isUrgent(job))];
    if (urgent.length > 0) this.room.urgentCame(this.parts.clock.nowMs());
    this.keeper.send(urgent, isQueueDrained && rest.length === 0);
    this.keeper.send(rest, isQueueDrained);
  }

  /** The job of a claim, or nothing when it has its ending without running. */
  private taken(found: RawClaim, askedMs: number | undefined): ClaimedJob[] {
    const { serverNowMs } = this.parts;
    const isForgiven = found.isPart === true && (found.stalls ?? 0) <= FORGIVEN_STALLS;
    const claim = isForgiven ? { ...found, stalls: 0 } : found;
    const readJob = claim.isPart === true ? readPart : (this.parts.readJob ?? readEmbedJob);
    const older = this.claimed.get(claim.jobId);
    if (older !== undefined) this.end(older, ABANDONED); // its lease ran out unnoticed, and we have claimed it again
    const verdict = judge(claim, readJob, serverNowMs());
    this.metrics.jobClaimed(claim.queuedMs, verdict.kind === 'run' ? verdict.job.class : 'bulk');
    if (verdict.kind === 'run') return [this.hold(claim, verdict.job, askedMs)];
    this.settler.settle(claim, verdict.ending, this.spans.claimed(claim, undefined));
    return [];
  }

  private hold(claim: RawClaim, job: QueuedJob, askedMs: number | undefined): ClaimedJob {
    const size = this.room.hold(job.isPart === true ? 0 : job.rows, job.tokens, askedMs);
    const span = this.spans.claimed(claim, job);
    const open: ClaimedJob = { claim, job, size, span, isDispatched: false, unexplainedDeaths: 0 };
    this.claimed.set(claim.jobId, open);
    if (job.isPart === true) this.metrics.partsOpen(this.openParts);
    return open;
  }

  // ---- what the executor says -----------------------------------------------------------------------------------

  private hear(message: FromExecutor): void {
    const jobIds = message.kind === 'ran' ? this.keeper.jobsOf(message.batch) : undefined;
    this.keeper.hear(message);
    this.spans.hear(message);
    switch (message.kind) {
      case 'outcomes':
        return message.outcomes.forEach((outcome) => this.conclude(outcome));
      case 'filled':
        return this.filled(message);
      case 'ran':
        return this.ran(message, jobIds);
      case 'split':
        return this.metrics.microBatchSplit(message.code);
      case 'rerun':
        return this.metrics.rowsRerun(message.rows);
      case 'part-rows':
        return this.metrics.partRows(message.rows);
      case 'bodies':
        return this.metrics.bodiesBeside(message);
      case 'budget':
        return this.metrics.budgetChanged(message.budget);
      case 'memory':
        return this.metrics.memoryMeasured(message);
      case 'similarity':
        return this.metrics.similarityTold(message.facts);
      case 'stages':
        return tellStages(this.metrics, message.tookMs);
      case 'pong':
      case 'began':
      case 'refused':
      case 'recycle':
        return; // the keeper's business
      case 'ready':
      case 'unfit':
        return; // the link's own business
      default:
        return unreachable(message);
    }
  }

  private filled({ jobs, poolTokens }: Extract<FromExecutor, { kind: 'filled' }>): void {
    const nowMs = this.parts.clock.nowMs();
    for (const { jobId, tokens } of jobs) {
      const open = this.claimed.get(jobId);
      if (open !== undefined) this.room.filled(open.size, tokens, nowMs);
    }
    this.pooled(poolTokens);
  }

  private ran(run: Extract<FromExecutor, { kind: 'ran' }>, jobIds: ReadonlySet<string> | undefined): void {
    const { rows, width, tokens, runMs, poolTokens } = run;
    this.metrics.microBatchRan({ ...run, jobIds });
    this.room.ran(tokens, this.parts.clock.nowMs());
    this.pooled(poolTokens);
    this.parts.log.debug({ rows, width, tokens, runMs }, 'micro-batch ran');
  }

  private pooled(poolTokens: number): void {
    this.room.pooled(poolTokens);
    this.changes.wake();
  }

  private replaced(): void {
    this.room.emptied();
    this.changes.wake();
  }

  // ---- settle ---------------------------------------------------------------------------------------------------

  private conclude(outcome: JobOutcome): void {
    const open = this.claimed.get(outcome.jobId);
    if (open === undefined || open.claim.token !== outcome.token) return;
    this.end(open, endingOf(open, outcome));
  }

  private end(open: ClaimedJob, ending: Ending): void {
    this.forget(open);
    this.settler.settle(open.claim, ending, open.span);
  }

  private forget(open: ClaimedJob): void {
    this.claimed.delete(open.claim.jobId);
    this.spans.left(open.claim.jobId, open.span);
    this.room.leave(open.size);
    if (open.job.isPart === true) this.metrics.partsOpen(this.openParts);
    this.keeper.forget(open);
    this.changes.wake();
  }

  private loseLease(jobId: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.parts.log.warn({ ...namesOf(open.claim), code: 'LEASE_LOST' }, 'lease lost, dropping the job');
    this.metrics.leaseLost();
    this.forget(open);
    this.keeper.drop(jobId);
    this.settler.settle(open.claim, ABANDONED, open.span);
  }

  /** Its rows at the device go on; nothing is written for the job any more. */
  private cancel(jobId: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.keeper.drop(jobId);
    this.end(open, failed(open.claim, CANCELLED_WHILE_CLAIMED, open.job));
  }
}

function tellStages(
  metrics: Pick<Metrics, 'stageTook'>,
  tookMs: Extract<FromExecutor, { kind: 'stages' }>['tookMs'],
): void {
  for (const stage of STAGES) for (const ms of tookMs[stage] ?? []) metrics.stageTook(stage, ms);
}
