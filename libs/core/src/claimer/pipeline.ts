// The claimer's half of the pipeline: claim → dispatch → settle. It holds leases and decides endings; texts and vectors
// are the executor's business. Core's other half is executor.ts; the messages between the two are in protocol.ts.
//
// States of the pipeline: *new*; *starting* (the executor opens the model); *claiming* (the loop runs); *draining* (no
// new claims; what has begun is finished, the rest goes back unspent); *stopped*. It may be stopped in any of them.
//
// Whatever happens to the executor meanwhile: its jobs stay claimed, their leases are renewed, and they are dispatched
// again to the next one. That costs no attempt. Jobs that were at the device when it died run alone first
// (suspects.ts); the others are *held* until that is over, and go back to the queue when it takes longer than one more
// death.

import { Announcements } from './announcements.ts';
import { ClaimAhead } from './prefetch.ts';
import { ClaimWatch } from './claim-watch.ts';
import {
  ShoalError,
  toFailure,
  type Failure,
  MAX_ROWS_PER_JOB,
  invariant,
  unreachable,
  type JobReturn,
} from '@shoal/contract';
import { ExecutorWatch } from './executor-watch.ts';
import { noMetrics, type Metrics, type SettledJob } from '../ports/metrics.ts';
import type {
  Announcement,
  Announcer,
  JobSource,
  KnownEnding,
  RawClaim,
  SettleResult,
  Settlement,
} from '../ports/queue.ts';
import type { Clock } from '../ports/clock.ts';
import type { ExecutorLink } from '../ports/link.ts';
import type { Logger } from '../ports/logger.ts';
import { Suspects, isConvictedByStalls } from './suspects.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import { readEmbedJob, type QueuedJob, type ReadJob } from './queued-job.ts';
import type { AnyOrder, FromExecutor, JobOutcome } from '../protocol.ts';

export interface PipelineLimits {
  /** Real tokens that claims keep waiting at the executor. */
  readonly poolTokens: number;
  /** Most that is claimed beyond them for what the device eats meanwhile. Left out: nothing. */
  readonly aheadTokens?: number;
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
  /** What the jobs of this queue are. Default: embeddings. */
  readonly readJob?: ReadJob;
}

export type PipelineState = { readonly name: 'new' | 'starting' | 'claiming' | 'draining' | 'stopped' };

/**
 * BullMQ removes a completed job from the active list in time linear to its length: 2,000 claims measured harmless
 * (2026-11).
 */
const MAX_CLAIMS = 2_000;
/** Expected tokens of a row before any has been seen: the mean of the standard length mix. */
const FIRST_TOKENS_PER_ROW = 64;
/**
 * A claim asks for at most so many jobs or for as many as are held. Nobody knows how large a job is before it is
 * claimed: a worker that has seen jobs of one row would else take the work of minutes in one claim, and keep it from
 * the others.
 */
const FIRST_CLAIM = 8;
/**
 * A job is open until its last row has run, and most of its rows have run long before; so claims follow what waits in
 * the pool, and open jobs are bounded only to keep memory in sight: by so many pools and what is claimed ahead.
 */
const MAX_OPEN_POOLS = 4;
/**
 * Of what may be claimed ahead: less room is not worth a claim. Jobs of 256 texts for a deep pool were claimed 8 at a
 * time then, not 3, and claims with their orders took 44 µs of the server's one thread a job, not 69 (a simulated
 * device, two cores, 2026-11).
 */
const LEAST_CLAIM_SHARE = 1 / 8;
/**
 * An interactive job does not wait for the pool to have room: so many more may be claimed at a look, into as much room
 * again.
 */
const URGENT_CLAIMS = 16;
/**
 * How often a worker whose pool is full looks for interactive jobs, while there are some and while none came lately. A
 * look takes the server about 40 µs, so 3 ms are 1.3 % of its thread a worker (5 ms: half the interactive jobs 1 ms
 * later; 2026-11). A pool that is full for longer than a run is looked after with each run as well.
 */
const URGENT_LOOK_MS = 3;
const IDLE_LOOK_MS = 50;
const URGENT_LATELY_MS = 1_000;
/** A job that so many executors were about to read when they died without running anything is failed. */
const MAX_EXECUTOR_DEATHS = 20;
/**
 * So many recycled executors in a row without one job done: the next is taken for a death, and somebody for its cause.
 */
const MAX_VAIN_RECYCLES = 5;
/** So many executors in a row that die before one answers: the device does not work, the worker ends. */
const MAX_FAILED_STARTS = 5;
/** How long `stop` waits for announcements; a producer that misses one asks for itself after 2 s. */
const LAST_ANNOUNCEMENTS_MS = 5_000;
/**
 * A source that was stopped by somebody else resolves empty at once; asked without a pause it would keep the process
 * from hearing anything.
 */
const EMPTY_CLAIM_MS = 100;
const UNKNOWN_VERSION_RETRY_MS = 5_000;
const UNKNOWN_VERSION_LIMIT_MS = 600_000;

interface ClaimedJob {
  readonly claim: RawClaim;
  readonly job: QueuedJob;
  tokens: number;
  /** Of executors that ran nothing and were reading this job's input, among others. */
  unexplainedDeaths: number;
  /** Whether the executor that is up has it; held otherwise. */
  isDispatched: boolean;
  /** Whether the executor has said that its rows are in the pool. */
  isFilled: boolean;
  /**
   * When its claim began, until it is filled; undefined of a claim that waited for jobs, and of what has been to
   * another executor.
   */
  askedMs: number | undefined;
}

export class Pipeline {
  private readonly parts: PipelineParts;
  private readonly metrics: Metrics;
  private readonly readJob: ReadJob;
  private state: PipelineState = { name: 'new' };
  private readonly claimed = new Map<string, ClaimedJob>();
  private readonly settling = new Set<Promise<void>>();
  private readonly suspects = new Suspects();
  private readonly announcements: Announcements;
  private readonly executorWatch: ExecutorWatch;
  private readonly claimWatch: ClaimWatch;
  private readonly ahead = new ClaimAhead();
  /** Of claims that the executor has. */
  private dispatched = 0;
  /** Set when the executor is killed for what no job of it did. */
  private blameless: string | undefined;
  private vainRecycles = 0;
  /** Of all open jobs, rows that ran already included. */
  private tokensInFlight = 0;
  /** What the executor said last that waits in its pool. */
  private pooledTokens = 0;
  /** Of jobs whose rows are not known to be in the pool yet. */
  private unfilledTokens = 0;
  private tokensPerRow = FIRST_TOKENS_PER_ROW;
  /** Of those in flight, or of the last that were; before any was seen, of the largest there can be. */
  private tokensPerJob = MAX_ROWS_PER_JOB * FIRST_TOKENS_PER_ROW;
  private lastUrgentMs = Number.NEGATIVE_INFINITY;
  private lastLookMs = Number.NEGATIVE_INFINITY;
  private isExecutorUp = false;
  private isReplacing = false;
  private hasFailed = false;
  private loop: Promise<void> = Promise.resolve();
  private replacing: Promise<void> = Promise.resolve();
  private stopping: Promise<void> | undefined;
  private readonly sleepers = new Set<() => void>();
  private readonly wakers = new Set<() => void>();
  private reportFatal: (error: unknown) => void = () => undefined;
  /** Rejects when the worker cannot go on; never resolves. */
  readonly failed: Promise<never>;

  constructor(parts: PipelineParts) {
    this.parts = parts;
    this.metrics = parts.metrics ?? noMetrics;
    this.readJob = parts.readJob ?? readEmbedJob;
    this.failed = new Promise((_, reject) => (this.reportFatal = reject));
    this.failed.catch(() => undefined); // whoever cares awaits it
    const { clock, log, limits, source, executor } = parts;
    this.announcements = new Announcements(parts);
    this.executorWatch = new ExecutorWatch({
      clock,
      log,
      timeoutMs: limits.executorTimeoutMs,
      ping: (sequence) => (this.isExecutorUp ? executor.send({ kind: 'ping', sequence }) : undefined),
      onHung: (reason) => executor.kill(reason),
      onSilent: (reason) => {
        if (!this.isExecutorUp) return;
        log.error({ code: 'EXECUTOR_LOST', reason, jobs: this.claimed.size }, 'executor silent, starting another');
        this.killBlameless(reason);
      },
      openJobs: () => this.dispatched,
    });
    this.claimWatch = new ClaimWatch({
      clock,
      log,
      timeoutMs: limits.claimTimeoutMs,
      claimable: () => source.claimable(),
      onWedged: (error) => this.reportFatal(error),
    });
  }

  /** Starts both ends; resolves with the executor's `ready`. Nothing is claimed before the executor can run. */
  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    invariant(this.isIn('new'), 'a pipeline is started once, and not after it was stopped');
    const { source, executor } = this.parts;
    this.state = { name: 'starting' };
    source.onLeaseLost((jobId) => this.loseLease(jobId));
    source.onCancelled((jobIds) => jobIds.forEach((jobId) => this.cancel(jobId)));
    executor.onMessage((message) => this.hear(message));
    executor.onLost((reason) => (this.replacing = this.replaceExecutor(reason)));
    const ready = await this.startExecutor();
    if (this.isIn('starting')) this.isExecutorUp = true;
    if (this.isIn('starting')) await source.start();
    if (!this.isIn('starting')) {
      await source.stop();
      throw new ShoalError('INTERRUPTED', 'the worker was stopped while it started');
    }
    this.state = { name: 'claiming' };
    this.executorWatch.start();
    this.claimWatch.start();
    this.loop = this.run().catch((error: unknown) => this.reportFatal(error));
    return ready;
  }

  private async startExecutor(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    const ready = await this.parts.executor.start();
    this.metrics.executorReady(ready.pid);
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
    this.wake();
    this.endSleeps();
    await this.parts.source.stopClaiming();
    await this.loop;
    await this.finishOrGiveBack();
    this.state = { name: 'stopped' };
    await this.parts.source.stop();
  }

  private isIn(...names: readonly PipelineState['name'][]): boolean {
    return names.includes(this.state.name);
  }

  private async run(): Promise<void> {
    while (this.isIn('claiming')) {
      const limit = this.isExecutorUp ? this.claimLimit() : 0;
      if (limit < 1) {
        await this.claimUrgent();
        continue;
      }
      const askedMs = this.parts.clock.nowMs();
      const claims = await this.claimWatch.during(this.parts.source.claim(limit));
      const isQueueDrained = claims.length < limit;
      if (claims.length > 0) this.dispatch(claims, isQueueDrained, isQueueDrained ? undefined : askedMs);
      else if (this.isIn('claiming')) await this.sleep(EMPTY_CLAIM_MS);
    }
  }

  // ---- claim ----------------------------------------------------------------------------------------------------

  /**
   * How many jobs fill the pool up to its target and what comes to it for what the device eats meanwhile, by the sizes
   * seen so far.
   */
  private claimLimit(): number {
    if (this.suspects.isIsolating) return 0;
    const room = this.room();
    if (room <= (this.parts.limits.aheadTokens ?? 0) * LEAST_CLAIM_SHARE) return 0;
    if (this.claimed.size > 0) this.tokensPerJob = this.tokensInFlight / this.claimed.size;
    const jobs = Math.ceil(room / this.tokensPerJob);
    return Math.min(
      jobs,
      Math.max(FIRST_CLAIM, this.claimed.size),
      MAX_CLAIMS - this.claimed.size - this.settling.size,
    );
  }

  /** Real tokens that may be claimed. `pools`: beyond the one that is to be kept waiting. */
  private room(pools = 0): number {
    const {
      clock,
      limits: { poolTokens, aheadTokens = 0 },
    } = this.parts;
    const more = pools * poolTokens + Math.min(aheadTokens, this.ahead.tokens(clock.nowMs()));
    return Math.min(
      poolTokens + more - this.pooledTokens - this.unfilledTokens,
      MAX_OPEN_POOLS * poolTokens + more - this.tokensInFlight,
    );
  }

  /**
   * What is done while there is no room: looks for interactive jobs now and then, and waits for a change in between.
   */
  private async claimUrgent(): Promise<void> {
    const { clock, source } = this.parts;
    const limit = this.urgentLimit();
    if (limit < 1) return this.change();
    const isLately = clock.nowMs() - this.lastUrgentMs < URGENT_LATELY_MS;
    const waitMs = this.lastLookMs + (isLately ? URGENT_LOOK_MS : IDLE_LOOK_MS) - clock.nowMs();
    if (waitMs > 0) return this.change(waitMs);
    this.lastLookMs = clock.nowMs();
    const claims = await this.claimWatch.during(source.claimUrgent(limit));
    if (claims.length > 0) this.dispatch(claims, false, undefined);
  }

  private urgentLimit(): number {
    if (!this.isExecutorUp || this.suspects.isIsolating) return 0;
    return this.room(1) <= 0 ? 0 : Math.min(URGENT_CLAIMS, MAX_CLAIMS - this.claimed.size - this.settling.size);
  }

  // ---- dispatch -------------------------------------------------------------------------------------------------

  private dispatch(claims: readonly RawClaim[], isQueueDrained: boolean, askedMs: number | undefined): void {
    const fresh = claims.flatMap((claim) => {
      this.metrics.jobClaimed(claim.queuedMs);
      this.forgetOlder(claim);
      const job = this.judge(claim);
      return job === undefined ? [] : [this.hold(claim, job, askedMs)];
    });
    if (this.suspects.claimed(fresh.map(({ claim: { jobId, stalls = 0 } }) => ({ jobId, stalls }))))
      this.giveBackHeld(); // the worker may die of them, and others with it
    // By themselves, so that their inputs are not read behind those of others.
    const [urgent, rest] = [fresh.filter(({ job }) => isUrgent(job)), fresh.filter(({ job }) => !isUrgent(job))];
    if (urgent.length > 0) this.lastUrgentMs = this.parts.clock.nowMs();
    this.send(urgent, isQueueDrained && rest.length === 0);
    this.send(rest, isQueueDrained);
  }

  private hold(claim: RawClaim, job: QueuedJob, askedMs: number | undefined): ClaimedJob {
    const tokens = job.tokens ?? Math.ceil(job.rows * this.tokensPerRow);
    const open: ClaimedJob = {
      claim,
      job,
      tokens,
      unexplainedDeaths: 0,
      isDispatched: false,
      isFilled: false,
      askedMs,
    };
    this.claimed.set(claim.jobId, open);
    this.tokensInFlight += tokens;
    this.unfilledTokens += tokens;
    this.countInFlight();
    return open;
  }

  /** To the executor, unless there is none, or suspects are alone there: then they are held, and sent later. */
  private send(jobs: readonly ClaimedJob[], isQueueDrained: boolean): void {
    if (!this.isExecutorUp) return;
    if (this.suspects.isIsolating) return this.sendSuspects();
    const orders = jobs.flatMap((open) => this.ordered(open));
    if (orders.length > 0) this.parts.executor.send({ kind: 'run', jobs: orders, isQueueDrained });
  }

  /** The first group of suspects, once nothing else is at the executor. */
  private sendSuspects(): void {
    if (this.dispatched > 0) return;
    const group = this.suspects.group.flatMap((jobId) => this.claimed.get(jobId) ?? []);
    const orders = group.flatMap((open) => this.ordered(open));
    if (orders.length > 0) this.parts.executor.send({ kind: 'run', jobs: orders, isQueueDrained: true });
  }

  /** Nothing, once its deadline has passed: it was refused. */
  private ordered(open: ClaimedJob): AnyOrder[] {
    const { claim, job } = open;
    if (this.claimed.get(claim.jobId) !== open || open.isDispatched) return []; // given back meanwhile
    const remainingMs = job.deadlineMs === undefined ? undefined : job.deadlineMs - this.parts.serverNowMs();
    if (remainingMs !== undefined && remainingMs <= 0) {
      this.forget(open);
      return this.refuse(claim, deadlinePassed(job), job) ?? [];
    }
    open.isDispatched = true;
    this.dispatched++;
    return [job.order(remainingMs)];
  }

  /** What is held goes back to the queue, where other workers find it; suspects stay. */
  private giveBackHeld(): void {
    const suspects = new Set(this.suspects.all());
    for (const open of this.claimed.values()) {
      if (open.isDispatched || suspects.has(open.claim.jobId)) continue;
      this.forget(open);
      this.settle(open.claim, { kind: 'return', delayMs: 0, reason: 'suspects run alone on this worker' }, undefined);
    }
  }

  /** For a job whose lease ran out unnoticed and that this very worker claimed again. */
  private forgetOlder({ jobId }: RawClaim): void {
    const older = this.claimed.get(jobId);
    if (older === undefined) return;
    this.forget(older);
    this.settle(older.claim, { kind: 'abandon' }, undefined);
  }

  /** A checked job, or undefined when it got its ending here, without running. */
  private judge(claim: RawClaim): QueuedJob | undefined {
    if (isConvictedByStalls(claim.stalls ?? 0))
      return this.quarantine(
        claim,
        `${claim.stalls} workers died or were cut off while they had this job, the last ones with nothing else ` +
          'at the device',
      );
    if (claim.mustFail !== undefined) return this.refuse(claim, { code: 'JOB_INVALID', message: claim.mustFail });
    try {
      const job = this.readJob(claim);
      if (claim.ending !== undefined) return this.endAsKnown(claim, claim.ending, job);
      if (job.deadlineMs === undefined || job.deadlineMs > this.parts.serverNowMs()) return job;
      return this.refuse(claim, deadlinePassed(job), job);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      if (error.code !== 'JOB_VERSION_UNKNOWN' || claim.queuedMs > UNKNOWN_VERSION_LIMIT_MS)
        return this.refuse(claim, toFailure(error));
      this.settle(claim, { kind: 'return', delayMs: UNKNOWN_VERSION_RETRY_MS, reason: error.message }, undefined);
      return undefined;
    }
  }

  private refuse(claim: RawClaim, failure: Failure, job?: QueuedJob): undefined {
    this.settle(claim, { kind: 'fail', failure }, failedAnnouncement(claim, job));
  }

  /** It was handed over, and its child in the CPU lane has ended. */
  private endAsKnown(claim: RawClaim, ending: KnownEnding, job: QueuedJob): undefined {
    const { reply, resultTtlMs } = job;
    const outcome = ending.kind === 'complete' ? 'completed' : 'failed';
    this.settle(claim, ending, {
      jobId: claim.jobId,
      outcome,
      reply,
      resultTtlMs,
      isUrgent: isUrgent(job),
      wasRepeated: false,
    });
  }

  private quarantine(claim: RawClaim, message: string, job?: QueuedJob): undefined {
    this.parts.log.error({ jobId: claim.jobId, code: 'QUARANTINED', reason: message }, 'job quarantined');
    this.settle(
      claim,
      { kind: 'quarantine', failure: { code: 'QUARANTINED', message } },
      failedAnnouncement(claim, job),
    );
  }

  // ---- settle ---------------------------------------------------------------------------------------------------

  private hear(message: FromExecutor): void {
    if (message.kind !== 'pong') this.executorWatch.progressed();
    switch (message.kind) {
      case 'outcomes':
        this.vainRecycles = 0;
        return message.outcomes.forEach((outcome) => this.conclude(outcome));
      case 'filled':
        for (const { jobId, tokens } of message.jobs) this.learnSize(jobId, tokens);
        return this.learnPool(message.poolTokens);
      case 'pong':
        return this.executorWatch.answered(message.runningMs);
      case 'ran':
        this.suspects.ended(message.batch);
        this.metrics.microBatchRan(message);
        this.ahead.ran(message.tokens, this.parts.clock.nowMs());
        this.learnPool(message.poolTokens);
        return this.parts.log.debug(
          { rows: message.rows, width: message.width, tokens: message.tokens, runMs: message.runMs },
          'micro-batch ran',
        );
      case 'split':
        this.suspects.ended(message.batch);
        return this.metrics.microBatchSplit(message.code);
      case 'refused':
        return this.suspects.ended(message.batch);
      case 'began':
        return this.suspects.began(message.batch, message.jobIds);
      case 'rerun':
        return this.metrics.rowsRerun(message.rows);
      case 'budget':
        return this.metrics.budgetChanged(message.budget);
      case 'memory':
        return this.metrics.memoryMeasured(message);
      case 'similarity':
        return this.metrics.similarityTold(message.facts);
      case 'recycle':
        return this.recycle(message.reason);
      case 'ready':
      case 'unfit':
        return; // the link's own business
      default:
        return unreachable(message);
    }
  }

  private learnSize(jobId: string, tokens: number): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.tokensInFlight += tokens - open.tokens;
    if (!open.isFilled) this.unfilledTokens -= open.tokens;
    if (open.askedMs !== undefined) this.ahead.filled(this.parts.clock.nowMs() - open.askedMs);
    open.askedMs = undefined;
    open.isFilled = true;
    open.tokens = tokens;
    this.countInFlight();
    this.tokensPerRow += 0.05 * (tokens / open.job.rows - this.tokensPerRow);
  }

  private learnPool(poolTokens: number): void {
    this.pooledTokens = poolTokens;
    this.countInFlight();
    this.wake();
  }

  private conclude(outcome: JobOutcome): void {
    const open = this.claimed.get(outcome.jobId);
    if (open === undefined || open.claim.token !== outcome.token) return;
    this.forget(open);
    this.settle(open.claim, settlementOf(outcome), announcementOf(open, outcome));
  }

  private forget(open: ClaimedJob): void {
    this.claimed.delete(open.claim.jobId);
    if (open.isDispatched) this.dispatched--;
    this.goOnIsolating(open.claim.jobId);
    this.tokensInFlight -= open.tokens;
    if (!open.isFilled) this.unfilledTokens -= open.tokens;
    // its rows may have left the pool without a run that would tell
    this.pooledTokens = Math.min(this.pooledTokens, this.tokensInFlight);
    this.countInFlight();
    this.wake();
  }

  /** The next group may be due, or everybody again. */
  private goOnIsolating(ended: string): void {
    const wasIsolating = this.suspects.isIsolating;
    this.suspects.forget(ended);
    if (!wasIsolating || this.isReplacing) return;
    if (this.suspects.isIsolating) return this.send([], true);
    this.parts.log.info({ held: this.claimed.size }, 'suspects have run, everybody may again');
    this.send([...this.claimed.values()], true);
  }

  private countInFlight(): void {
    this.metrics.inFlight(this.claimed.size, this.pooledTokens);
  }

  private settle(claim: RawClaim, settlement: Settlement, announcement: Announcement | undefined): void {
    const { source, log, faults } = this.parts;
    const settled = (async () => {
      if (settlement.kind === 'fail' && settlement.failure.code !== 'CANCELLED')
        log.warn(
          { jobId: claim.jobId, code: settlement.failure.code, reason: settlement.failure.message },
          'job failed',
        );
      faults.reach('before-complete');
      const result = await source.settle(claim, settlement, announcement);
      faults.reach('after-complete');
      this.metrics.jobSettled(toSettledJob(settlement, result));
      if (result === 'lease-lost')
        log.warn({ jobId: claim.jobId, code: 'LEASE_LOST' }, 'job belongs to another worker by now');
      else if (result === 'announced') faults.reach('after-announce');
      else if (announcement !== undefined) this.announcements.add(announcement);
    })()
      .catch((error: unknown) => this.reportFatal(error))
      .finally(() => {
        this.settling.delete(settled);
        this.wake();
      });
    this.settling.add(settled);
  }

  // ---- faults ---------------------------------------------------------------------------------------------------

  private loseLease(jobId: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.parts.log.warn({ jobId, code: 'LEASE_LOST' }, 'lease lost, dropping the job');
    this.metrics.leaseLost();
    this.forget(open);
    this.parts.executor.send({ kind: 'drop', jobIds: [jobId] });
    this.settle(open.claim, { kind: 'abandon' }, undefined);
  }

  /** Its rows at the device go on; nothing is written for the job any more. */
  private cancel(jobId: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.parts.executor.send({ kind: 'drop', jobIds: [jobId] });
    this.forget(open);
    this.refuse(
      open.claim,
      { code: 'CANCELLED', message: 'the job was cancelled after a worker had claimed it' },
      open.job,
    );
  }

  private recycle(reason: string): void {
    if (++this.vainRecycles > MAX_VAIN_RECYCLES) return this.parts.executor.kill(reason);
    this.parts.log.warn({ reason, jobs: this.claimed.size }, 'recycling the executor');
    this.metrics.executorRecycled();
    this.killBlameless(reason);
  }

  private killBlameless(reason: string): void {
    this.blameless = reason;
    this.parts.executor.kill(reason);
  }

  private async replaceExecutor(reason: string): Promise<void> {
    if (!this.isExecutorUp) return;
    this.isExecutorUp = false;
    if (!this.isIn('starting', 'claiming')) return; // what it had goes back to the queue
    this.isReplacing = true;
    this.judgeDeath(reason);
    await this.startAnother();
    this.isReplacing = false;
    // whoever stops the pipeline stops the executor as well
    if (!this.isIn('starting', 'claiming') || this.hasFailed) return;
    this.isExecutorUp = true;
    this.executorWatch.renewed();
    this.emptyPool();
    this.send([...this.claimed.values()], true);
    this.wake();
  }

  /** Who was at the device is suspect, unless the executor was killed for something else. */
  private judgeDeath(reason: string): void {
    const { blameless } = this;
    this.blameless = undefined;
    this.metrics.executorLost();
    const unread = [...this.claimed.values()].filter((open) => open.isDispatched && !open.isFilled);
    for (const open of this.claimed.values()) open.isDispatched = false;
    this.dispatched = 0;
    if (blameless !== undefined) return this.suspects.clearDevice();
    const wasIsolating = this.suspects.isIsolating;
    const wasDeviceEmpty = this.suspects.isDeviceEmpty;
    const convicted = this.suspects.executorDied();
    this.parts.log.error(
      { code: 'EXECUTOR_LOST', reason, jobs: this.claimed.size, suspects: this.suspects.all().length },
      'executor lost, starting another',
    );
    for (const jobId of convicted) this.convict(jobId, reason);
    // its end crossed the news of its run; nobody would wait for it in vain
    for (const jobId of this.suspects.all()) if (!this.claimed.has(jobId)) this.suspects.forget(jobId);
    if (wasIsolating) this.giveBackHeld(); // it is one of them; others need not wait until it is found
    if (wasDeviceEmpty) this.countUnexplained(unread);
  }

  private convict(jobId: string, reason: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.forget(open);
    this.quarantine(
      open.claim,
      `its executor ended each time it was alone at the device (${reason}); its input is kept in quarantine`,
      open.job,
    );
  }

  private async startAnother(): Promise<void> {
    for (let failedStarts = 1; ; failedStarts++) {
      try {
        await this.startExecutor();
        break;
      } catch (error) {
        if (!this.isIn('starting', 'claiming')) return;
        this.parts.log.error({ err: error, failedStarts }, 'executor did not start');
        if (failedStarts >= MAX_FAILED_STARTS) return this.giveUp(error);
        await this.sleep(Math.min(5_000, 100 * 2 ** failedStarts));
        if (!this.isIn('starting', 'claiming')) return;
      }
    }
  }

  /** The new executor has nothing yet: every claimed job is to be filled again. */
  private emptyPool(): void {
    this.pooledTokens = 0;
    this.unfilledTokens = this.tokensInFlight;
    for (const open of this.claimed.values()) Object.assign(open, { isFilled: false, askedMs: undefined });
  }

  private giveUp(error: unknown): void {
    this.hasFailed = true;
    this.reportFatal(error);
  }

  /**
   * Nothing was at the device: it died as it opened, or over the input of one of these. Nobody can be tried, so
   * patience is all there is.
   */
  private countUnexplained(unread: readonly ClaimedJob[]): void {
    for (const open of unread) {
      if (++open.unexplainedDeaths < MAX_EXECUTOR_DEATHS) continue;
      this.forget(open);
      const failure: Failure = {
        code: 'EXECUTOR_LOST',
        message: `${MAX_EXECUTOR_DEATHS} executors died before they had read this job`,
      };
      this.settle(open.claim, { kind: 'fail', failure }, failedAnnouncement(open.claim, open.job));
    }
  }

  // ---- drain ----------------------------------------------------------------------------------------------------

  private async finishOrGiveBack(): Promise<void> {
    const { executor, clock, limits } = this.parts;
    const exited = this.isExecutorUp ? executor.stop() : undefined;
    if (exited !== undefined) await Promise.race([exited, this.sleep(limits.drainTimeoutMs)]);
    this.isExecutorUp = false;
    this.executorWatch.stop();
    this.endSleeps();
    executor.kill('drained');
    await (exited ?? executor.stop());
    await this.replacing;
    for (const open of this.claimed.values()) {
      this.forget(open);
      this.settle(open.claim, { kind: 'return', delayMs: 0, reason: 'worker stopped' }, undefined);
    }
    const startedMs = clock.nowMs();
    // a server that is away may be for long; its leases run out
    await Promise.race([this.allSettled(), this.sleep(limits.drainTimeoutMs)]);
    await Promise.race([this.announcements.settled(), this.sleep(LAST_ANNOUNCEMENTS_MS)]);
    this.endSleeps();
    this.parts.log.debug({ durationMs: clock.nowMs() - startedMs }, 'settled the rest');
  }

  private async allSettled(): Promise<void> {
    while (this.settling.size > 0) await Promise.all(this.settling);
  }

  // ---- waiting --------------------------------------------------------------------------------------------------

  /** Resolves at the next `wake`, or after `ms`. */
  private change(ms?: number): Promise<void> {
    return this.waitAmong(this.wakers, ms);
  }

  private wake(): void {
    for (const end of this.wakers) end();
  }

  /** Resolves after `ms`, or at `endSleeps`. */
  private sleep(ms: number): Promise<void> {
    return this.waitAmong(this.sleepers, ms);
  }

  private endSleeps(): void {
    for (const end of this.sleepers) end();
  }

  private waitAmong(waiting: Set<() => void>, ms: number | undefined): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        waiting.delete(end);
        cancel?.();
        resolve();
      };
      const cancel = ms === undefined ? undefined : this.parts.clock.after(ms, end);
      waiting.add(end);
    });
  }
}

function isUrgent(job: QueuedJob): boolean {
  return job.class === 'interactive';
}

function deadlinePassed({ deadlineMs = 0 }: QueuedJob): Failure {
  return {
    code: 'DEADLINE_PASSED',
    message: `the deadline ${new Date(deadlineMs).toISOString()} passed before the job ran`,
  };
}

function settlementOf(outcome: JobOutcome): Settlement {
  switch (outcome.kind) {
    case 'committed':
    case 'already':
      return { kind: 'complete', value: outcome.value };
    case 'failed':
      return { kind: 'fail', failure: outcome.failure };
    case 'hand-over':
      return { kind: 'hand-over', handOver: outcome.handOver };
    case 'lease-lost':
      return { kind: 'abandon' };
    case 'unstarted':
      return { kind: 'return', delayMs: 0, reason: 'worker stopped' };
    default:
      return unreachable(outcome);
  }
}

/** What was refused because the lease was lost has changed nothing, whatever was meant. */
function toSettledJob(settlement: Settlement, result: SettleResult): SettledJob {
  if (result === 'lease-lost') return { outcome: 'abandon', code: 'LEASE_LOST', rows: 0 };
  return {
    outcome: settlement.kind,
    code: settlement.kind === 'fail' || settlement.kind === 'quarantine' ? settlement.failure.code : undefined,
    // its child was counted
    rows: settlement.kind === 'complete' && !wasHandedOver(settlement.value) ? settlement.value.rows : 0,
  };
}

function wasHandedOver(value: JobReturn): boolean {
  return 'handedOver' in value && value.handedOver !== undefined;
}

function announcementOf({ claim, job }: ClaimedJob, outcome: JobOutcome): Announcement | undefined {
  if (claim.lane === 'cpu') return undefined; // the job itself is in the main lane, and is announced when it ends there
  const base = { jobId: job.jobId, reply: job.reply, resultTtlMs: job.resultTtlMs, isUrgent: isUrgent(job) };
  switch (outcome.kind) {
    case 'committed':
      return { ...base, outcome: 'completed', wasRepeated: false };
    case 'already':
      return { ...base, outcome: 'completed', wasRepeated: true };
    case 'failed':
      return { ...base, outcome: 'failed', wasRepeated: false };
    default:
      return undefined;
  }
}

/**
 * Without a job, because it could not even be read: nobody is known to wait for it, but its input must not stay behind.
 */
function failedAnnouncement({ jobId, lane }: RawClaim, job?: QueuedJob): Announcement | undefined {
  if (lane === 'cpu') return undefined;
  return {
    jobId,
    outcome: 'failed',
    reply: job?.reply,
    resultTtlMs: job?.resultTtlMs ?? 0,
    isUrgent: job !== undefined && isUrgent(job),
    wasRepeated: false,
  };
}
