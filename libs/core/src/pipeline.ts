// The claimer's half of the pipeline: claim → dispatch → settle. It holds leases and decides endings; texts and vectors are
// the executor's business. Core's other half is executor.ts; the messages between the two are in protocol.ts.
//
// States of the pipeline: *claiming* (the loop runs), *draining* (no new claims; what has begun is finished, the rest goes
// back unspent), *stopped*. Whatever happens to the executor meanwhile: its jobs stay claimed, their leases are renewed, and
// they are dispatched again to the next one. That costs no attempt; only a job that was dispatched to many executors that
// died is failed, so that nothing runs for ever.

import { ShoalError, toFailure, type Failure } from './errors.ts';
import { parseJob, type EmbedJob } from './job-schema.ts';
import { unreachable } from './invariant.ts';
import type { Announcement, Announcer, Clock, ExecutorLink, JobSource, Logger, RawClaim, Settlement } from './ports.ts';
import type { FaultPoints } from './fault-points.ts';
import type { FromExecutor, JobOrder, JobOutcome } from './protocol.ts';

export interface PipelineLimits {
  /** Real tokens that claims keep waiting at the executor. */
  readonly poolTokens: number;
  readonly executorTimeoutMs: number;
  readonly drainTimeoutMs: number;
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
}

export type PipelineState = { readonly name: 'claiming' } | { readonly name: 'draining' } | { readonly name: 'stopped' };

/** BullMQ removes a completed job from the active list in time linear to its length: 2,000 claims measured harmless (2026-11). */
const MAX_CLAIMS = 2_000;
/** Expected tokens of a row before any has been seen: the mean of the standard length mix. */
const FIRST_TOKENS_PER_ROW = 64;
/** A job that was with so many executors when they died is failed. */
const MAX_EXECUTOR_DEATHS = 20;
/** So many executors in a row that die before one answers: the device does not work, the worker ends. */
const MAX_FAILED_STARTS = 5;
const UNKNOWN_VERSION_RETRY_MS = 5_000;
const UNKNOWN_VERSION_LIMIT_MS = 600_000;

interface ClaimedJob {
  readonly claim: RawClaim;
  readonly job: EmbedJob;
  tokens: number;
  executorDeaths: number;
}

export class Pipeline {
  private readonly parts: PipelineParts;
  private state: PipelineState = { name: 'stopped' };
  private readonly claimed = new Map<string, ClaimedJob>();
  private readonly settling = new Set<Promise<void>>();
  private announcements: Announcement[] = [];
  private announceLoop: Promise<void> | undefined;
  private tokensInFlight = 0;
  private tokensPerRow = FIRST_TOKENS_PER_ROW;
  private isExecutorUp = false;
  private loop: Promise<void> = Promise.resolve();
  private wakers: (() => void)[] = [];
  private reportFatal: (error: unknown) => void = () => undefined;
  /** Rejects when the worker cannot go on; never resolves. */
  readonly failed: Promise<never>;

  constructor(parts: PipelineParts) {
    this.parts = parts;
    this.failed = new Promise((_, reject) => (this.reportFatal = reject));
    this.failed.catch(() => undefined); // whoever cares awaits it
  }

  /** Starts both ends; resolves with the executor's `ready`. Nothing is claimed before the executor can run. */
  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    const { source, executor } = this.parts;
    source.onLeaseLost((jobId) => this.loseLease(jobId));
    executor.onMessage((message) => this.hear(message));
    executor.onLost((reason) => void this.replaceExecutor(reason));
    const ready = await executor.start();
    this.isExecutorUp = true;
    await source.start();
    this.state = { name: 'claiming' };
    this.watch();
    this.loop = this.run();
    return ready;
  }

  /** Drains: no new claims, what has begun is finished within the drain timeout, everything else is given back. Safe to call twice. */
  async stop(): Promise<void> {
    if (this.state.name !== 'claiming') return;
    this.state = { name: 'draining' };
    this.wake();
    await this.parts.source.stopClaiming();
    await this.loop;
    await this.finishOrGiveBack();
    this.state = { name: 'stopped' };
    await this.parts.source.stop();
  }

  private async run(): Promise<void> {
    while (this.state.name === 'claiming') {
      const limit = this.claimLimit();
      if (limit < 1 || !this.isExecutorUp) {
        await this.change();
        continue;
      }
      const claims = await this.parts.source.claim(limit);
      this.dispatch(claims, claims.length < limit);
    }
  }

  // ---- claim ----------------------------------------------------------------------------------------------------

  /** How many jobs fill the pool up to its target, by the sizes seen so far. */
  private claimLimit(): number {
    const room = this.parts.limits.poolTokens - this.tokensInFlight;
    if (room <= 0) return 0;
    const jobs = Math.ceil(room / (this.tokensPerRow * this.rowsPerJob()));
    return Math.min(jobs, MAX_CLAIMS - this.claimed.size);
  }

  private rowsPerJob(): number {
    if (this.claimed.size === 0) return 1;
    let rows = 0;
    for (const { job } of this.claimed.values()) rows += job.rows;
    return rows / this.claimed.size;
  }

  // ---- dispatch -------------------------------------------------------------------------------------------------

  private dispatch(claims: readonly RawClaim[], isQueueDrained: boolean): void {
    const orders = claims.flatMap((claim) => {
      const verdict = this.judge(claim);
      if ('kind' in verdict) {
        this.settle(claim, verdict, undefined);
        return [];
      }
      const older = this.claimed.get(claim.jobId);
      if (older !== undefined) this.forget(older); // its lease ran out unnoticed and this worker claimed the job again
      const tokens = verdict.input.form === 'tokens' ? verdict.input.tokens : verdict.rows * this.tokensPerRow;
      this.claimed.set(claim.jobId, { claim, job: verdict, tokens, executorDeaths: 0 });
      this.tokensInFlight += tokens;
      return [orderOf(claim, verdict)];
    });
    if (orders.length > 0) this.parts.executor.send({ kind: 'run', jobs: orders, isQueueDrained });
  }

  /** A checked job, or the ending it gets without running. */
  private judge(claim: RawClaim): EmbedJob | Settlement {
    if (claim.mustFail !== undefined) return { kind: 'fail', failure: { code: 'JOB_INVALID', message: claim.mustFail } };
    try {
      const job = parseJob(claim.jobId, claim.name, claim.data);
      if (job.deadlineMs === undefined || job.deadlineMs > this.parts.serverNowMs()) return job;
      return { kind: 'fail', failure: { code: 'DEADLINE_PASSED', message: `the deadline ${new Date(job.deadlineMs).toISOString()} passed before the job was claimed` } };
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      if (error.code !== 'JOB_VERSION_UNKNOWN' || claim.queuedMs > UNKNOWN_VERSION_LIMIT_MS) return { kind: 'fail', failure: toFailure(error) };
      return { kind: 'return', delayMs: UNKNOWN_VERSION_RETRY_MS, reason: error.message };
    }
  }

  // ---- settle ---------------------------------------------------------------------------------------------------

  private hear(message: FromExecutor): void {
    switch (message.kind) {
      case 'outcomes': return message.outcomes.forEach((outcome) => this.conclude(outcome));
      case 'filled': return message.jobs.forEach(({ jobId, tokens }) => this.learnSize(jobId, tokens));
      case 'pong': return this.answered(message.runningMs);
      case 'ran':
        return this.parts.log.debug({ rows: message.rows, width: message.width, tokens: message.tokens, runMs: message.runMs }, 'micro-batch ran');
      case 'ready':
      case 'unfit':
        return; // the link's own business
      default: return unreachable(message);
    }
  }

  private learnSize(jobId: string, tokens: number): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.tokensInFlight += tokens - open.tokens;
    open.tokens = tokens;
    this.tokensPerRow += 0.05 * (tokens / open.job.rows - this.tokensPerRow);
  }

  private conclude(outcome: JobOutcome): void {
    const open = this.claimed.get(outcome.jobId);
    if (open === undefined || open.claim.token !== outcome.token) return;
    this.forget(open);
    this.settle(open.claim, settlementOf(outcome), announcementOf(open.job, outcome));
  }

  private forget(open: ClaimedJob): void {
    this.claimed.delete(open.claim.jobId);
    this.tokensInFlight -= open.tokens;
    this.wake();
  }

  private settle(claim: RawClaim, settlement: Settlement, announcement: Announcement | undefined): void {
    const { source, log, faults } = this.parts;
    const settled = (async () => {
      if (settlement.kind === 'fail') log.warn({ jobId: claim.jobId, code: settlement.failure.code, reason: settlement.failure.message }, 'job failed');
      faults.reach('before-complete');
      const result = await source.settle(claim, settlement);
      faults.reach('after-complete');
      if (result === 'lease-lost') log.warn({ jobId: claim.jobId, code: 'LEASE_LOST' }, 'job belongs to another worker by now');
      else if (announcement !== undefined || settlement.kind === 'fail') this.announce(announcement ?? failedAnnouncement(claim));
    })()
      .catch((error: unknown) => this.reportFatal(error))
      .finally(() => this.settling.delete(settled));
    this.settling.add(settled);
  }

  private announce(announcement: Announcement): void {
    this.announcements.push(announcement);
    this.announceLoop ??= this.announceAll().finally(() => (this.announceLoop = undefined));
  }

  private async announceAll(): Promise<void> {
    while (this.announcements.length > 0) {
      const batch = this.announcements;
      this.announcements = [];
      await this.parts.announcer.announce(batch);
      this.parts.faults.reach('after-announce');
    }
  }

  // ---- faults ---------------------------------------------------------------------------------------------------

  private loseLease(jobId: string): void {
    const open = this.claimed.get(jobId);
    if (open === undefined) return;
    this.parts.log.warn({ jobId, code: 'LEASE_LOST' }, 'lease lost, dropping the job');
    this.forget(open);
    this.parts.executor.send({ kind: 'drop', jobIds: [jobId] });
    this.settle(open.claim, { kind: 'abandon' }, undefined);
  }

  private async replaceExecutor(reason: string): Promise<void> {
    if (this.state.name === 'stopped' || !this.isExecutorUp) return;
    this.isExecutorUp = false;
    this.parts.log.error({ code: 'EXECUTOR_LOST', reason, jobs: this.claimed.size }, 'executor lost, starting another');
    this.countDeaths();
    for (let failedStarts = 1; ; failedStarts++) {
      try {
        await this.parts.executor.start();
        break;
      } catch (error) {
        this.parts.log.error({ err: error, failedStarts }, 'executor did not start');
        if (failedStarts >= MAX_FAILED_STARTS) return this.reportFatal(error);
        await this.sleep(Math.min(5_000, 100 * 2 ** failedStarts));
      }
    }
    this.isExecutorUp = true;
    this.lastAnswerMs = this.parts.clock.nowMs();
    const orders = [...this.claimed.values()].map(({ claim, job }) => orderOf(claim, job));
    if (orders.length > 0) this.parts.executor.send({ kind: 'run', jobs: orders, isQueueDrained: true });
    this.wake();
  }

  private countDeaths(): void {
    for (const open of this.claimed.values()) {
      if (++open.executorDeaths < MAX_EXECUTOR_DEATHS) continue;
      this.forget(open);
      const failure: Failure = { code: 'EXECUTOR_LOST', message: `${MAX_EXECUTOR_DEATHS} executors died while they had this job` };
      this.settle(open.claim, { kind: 'fail', failure }, undefined);
    }
  }

  // ---- watching the executor ------------------------------------------------------------------------------------

  private lastAnswerMs = 0;
  private pings = 0;
  private cancelWatch: () => void = () => undefined;

  /** Asks the executor a few times per timeout whether it lives; one that is silent, or whose run never ends, is killed. */
  private watch(): void {
    const { clock, executor, limits } = this.parts;
    this.lastAnswerMs = clock.nowMs();
    const look = (): void => {
      if (this.state.name === 'stopped') return;
      const silentMs = clock.nowMs() - this.lastAnswerMs;
      if (this.isExecutorUp && silentMs > limits.executorTimeoutMs) executor.kill(`no answer for ${Math.round(silentMs)} ms`);
      else if (this.isExecutorUp) executor.send({ kind: 'ping', sequence: ++this.pings });
      this.cancelWatch = clock.after(limits.executorTimeoutMs / 4, look);
    };
    look();
  }

  private answered(runningMs: number): void {
    this.lastAnswerMs = this.parts.clock.nowMs();
    if (runningMs > this.parts.limits.executorTimeoutMs) this.parts.executor.kill(`a run has lasted ${Math.round(runningMs)} ms`);
  }

  // ---- drain ----------------------------------------------------------------------------------------------------

  private async finishOrGiveBack(): Promise<void> {
    const { executor, clock, limits } = this.parts;
    const deadline = this.sleep(limits.drainTimeoutMs);
    await Promise.race([this.isExecutorUp ? executor.stop() : Promise.resolve(), deadline]);
    this.isExecutorUp = false;
    this.cancelWatch();
    executor.kill('drained');
    for (const open of this.claimed.values()) {
      this.forget(open);
      this.settle(open.claim, { kind: 'return', delayMs: 0, reason: 'worker stopped' }, undefined);
    }
    const startedMs = clock.nowMs();
    while (this.settling.size > 0 || this.announceLoop !== undefined) await Promise.all([...this.settling, this.announceLoop]);
    this.parts.log.debug({ durationMs: clock.nowMs() - startedMs }, 'settled the rest');
  }

  // ---- waiting --------------------------------------------------------------------------------------------------

  /** Resolves at the next `wake`. */
  private change(): Promise<void> {
    return new Promise((resolve) => this.wakers.push(resolve));
  }

  private wake(): void {
    for (const waker of this.wakers.splice(0)) waker();
  }

  private sleep(ms: number): Promise<void> {
    return new Promise((resolve) => void this.parts.clock.after(ms, resolve));
  }
}

function orderOf(claim: RawClaim, job: EmbedJob): JobOrder {
  const { input, fingerprint, truncate, prompt, output, resultTtlMs } = job;
  return { jobId: claim.jobId, token: claim.token, queuedMs: claim.queuedMs, class: job.class, input, fingerprint, truncate, prompt, output, resultTtlMs };
}

function settlementOf(outcome: JobOutcome): Settlement {
  switch (outcome.kind) {
    case 'committed':
    case 'already': return { kind: 'complete', value: outcome.value };
    case 'failed': return { kind: 'fail', failure: outcome.failure };
    case 'lease-lost': return { kind: 'abandon' };
    case 'unstarted': return { kind: 'return', delayMs: 0, reason: 'worker stopped' };
    default: return unreachable(outcome);
  }
}

function announcementOf(job: EmbedJob, outcome: JobOutcome): Announcement | undefined {
  const base = { jobId: job.jobId, reply: job.reply, resultTtlMs: job.resultTtlMs };
  switch (outcome.kind) {
    case 'committed': return { ...base, outcome: 'completed', wasRepeated: false };
    case 'already': return { ...base, outcome: 'completed', wasRepeated: true };
    case 'failed': return { ...base, outcome: 'failed', wasRepeated: false };
    default: return undefined;
  }
}

/** For a job that could not even be read: nobody is known to wait for it, but its input must not stay behind. */
function failedAnnouncement(claim: RawClaim): Announcement {
  return { jobId: claim.jobId, outcome: 'failed', reply: undefined, resultTtlMs: 0, wasRepeated: false };
}
