// A queue in memory and the JobSource that claims from it, driven by a clock that a test turns by hand. It passes the
// same conformance suite as the real one, so what a test proves with it holds for the queue server as well.
//
// A job is *waiting* → *active* (claimed: a lock with a token and an end) → *completed* | *failed*. A returned job
// waits again, or is *delayed* until its time. An active job whose lock has ended may be claimed by anybody.

import { failedReason, invariant } from '@shoal/contract';
import type { Clock } from '../ports/clock.ts';
import type { JobSource, RawClaim, SettleResult, Settlement } from '../ports/queue.ts';

export interface JobRecord {
  readonly state: 'waiting' | 'delayed' | 'active' | 'completed' | 'failed';
  /** Verdicts about its input so far. */
  readonly attempts: number;
  readonly returnValue: unknown;
  readonly failedReason: string | undefined;
}

export interface MemoryJobOptions {
  readonly name?: string;
  readonly mustFail?: string;
  readonly stalls?: number;
}

interface MemoryJob extends JobRecord {
  readonly jobId: string;
  readonly name: string;
  readonly data: unknown;
  readonly mustFail: string | undefined;
  readonly stalls: number;
  readonly addedMs: number;
  readonly readyMs: number;
  readonly lock: { readonly token: string; readonly untilMs: number } | undefined;
}

/** Of a parked job, until it may be claimed again. */
const PARKED_MS = 5_000;

type Ending = Exclude<Settlement, { kind: 'abandon' }>;

export class MemoryQueue {
  readonly clock: Clock;
  readonly leaseMs: number;
  private readonly jobs = new Map<string, MemoryJob>();
  private readonly endings: Ending['kind'][] = [];
  /** Jobs kept aside, by id. */
  readonly quarantined = new Map<string, unknown>();
  private readonly cancelListeners = new Set<(jobIds: readonly string[]) => void>();
  private waiters: (() => void)[] = [];

  constructor(clock: Clock, leaseMs = 15_000) {
    this.clock = clock;
    this.leaseMs = leaseMs;
  }

  /** A known id is left as it is. */
  add(jobId: string, data: unknown, options: MemoryJobOptions = {}): void {
    if (this.jobs.has(jobId)) return;
    const nowMs = this.clock.nowMs();
    this.jobs.set(jobId, {
      jobId,
      data,
      name: options.name ?? 'embed',
      mustFail: options.mustFail,
      stalls: options.stalls ?? 0,
      addedMs: nowMs,
      readyMs: nowMs,
      state: 'waiting',
      attempts: 0,
      returnValue: undefined,
      failedReason: undefined,
      lock: undefined,
    });
    this.tell();
  }

  inspect(jobId: string): JobRecord | undefined {
    return this.jobs.get(jobId);
  }

  /** The endings given so far, in order; an abandoned claim has none. */
  settlements(): readonly Ending['kind'][] {
    return this.endings;
  }

  /** Resolves once `count` endings were given. */
  async settled(count: number): Promise<void> {
    while (this.endings.length < count) await this.change();
  }

  /** As when the lease ran out and another worker claimed the job: its lock has a stranger's token. */
  steal(jobId: string): void {
    const job = this.jobs.get(jobId);
    invariant(job?.state === 'active', 'only a claimed job can be stolen');
    this.jobs.set(jobId, { ...job, lock: { token: 'a stranger', untilMs: Infinity } });
  }

  /** A job that waits fails at once, one that is claimed is its worker's to end. */
  cancel(jobId: string): void {
    const job = this.jobs.get(jobId);
    if (job?.state === 'waiting' || job?.state === 'delayed')
      this.jobs.set(jobId, {
        ...job,
        state: 'failed',
        failedReason: 'CANCELLED: the job was cancelled before a worker had claimed it',
      });
    else for (const listener of this.cancelListeners) listener([jobId]);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.cancelListeners.add(listener);
  }

  /** Jobs that anybody could claim now. */
  claimable(): number {
    return [...this.jobs.values()].filter((job) => claimableMs(job) <= this.clock.nowMs()).length;
  }

  /** How many of those that come next say that they are interactive. */
  urgentNext(): number {
    const free = [...this.jobs.values()].filter((job) => claimableMs(job) <= this.clock.nowMs());
    const others = free.findIndex(({ data }) => (data as { class?: unknown } | undefined)?.class !== 'interactive');
    return others < 0 ? free.length : others;
  }

  // ---- what a source does with it -------------------------------------------------------------------------------

  take(limit: number, nextToken: () => string): RawClaim[] {
    const nowMs = this.clock.nowMs();
    const free = [...this.jobs.values()].filter((job) => claimableMs(job) <= nowMs).slice(0, limit);
    return free.map((job) => {
      const token = nextToken();
      const stalls = job.state === 'active' ? job.stalls + 1 : job.stalls;
      this.jobs.set(job.jobId, { ...job, stalls, state: 'active', lock: { token, untilMs: nowMs + this.leaseMs } });
      return {
        jobId: job.jobId,
        token,
        name: job.name,
        data: structuredClone(job.data),
        attempt: job.attempts,
        queuedMs: nowMs - job.addedMs,
        stalls,
        mustFail: job.mustFail,
      };
    });
  }

  /** Milliseconds until a job may be claimed without anybody doing anything. */
  nextClaimableInMs(): number {
    return Math.min(...[...this.jobs.values()].map(claimableMs)) - this.clock.nowMs();
  }

  /** False when the lock is not the claim's any more: nothing was changed then. */
  renew(claim: RawClaim): boolean {
    return this.update(claim, { lock: { token: claim.token, untilMs: this.clock.nowMs() + this.leaseMs } });
  }

  end(claim: RawClaim, ending: Ending): boolean {
    const isOurs = this.update(claim, { lock: undefined, ...this.outcomeOf(claim, ending) });
    if (isOurs) this.endings.push(ending.kind);
    if (isOurs && ending.kind === 'quarantine') this.quarantined.set(claim.jobId, claim.data);
    this.tell();
    return isOurs;
  }

  /** Resolves at the next change of a job. */
  change(): Promise<void> {
    return new Promise((resolve) => this.waiters.push(resolve));
  }

  tell(): void {
    for (const waiter of this.waiters.splice(0)) waiter();
  }

  private update(claim: RawClaim, news: Partial<MemoryJob>): boolean {
    const job = this.jobs.get(claim.jobId);
    if (job?.lock?.token !== claim.token || job.lock.untilMs <= this.clock.nowMs()) return false;
    this.jobs.set(claim.jobId, { ...job, ...news });
    return true;
  }

  private outcomeOf(claim: RawClaim, ending: Ending): Partial<MemoryJob> {
    switch (ending.kind) {
      case 'complete':
        return { state: 'completed', returnValue: structuredClone(ending.value), attempts: claim.attempt + 1 };
      case 'fail':
        return { state: 'failed', failedReason: failedReason(ending.failure), attempts: claim.attempt + 1 };
      case 'hand-over':
        // there is one lane here
        return { state: 'failed', failedReason: failedReason(ending.handOver.reason), attempts: claim.attempt + 1 };
      case 'quarantine':
        return { state: 'failed', failedReason: failedReason(ending.failure), attempts: claim.attempt + 1 };
      case 'park':
        return { state: 'delayed', readyMs: this.clock.nowMs() + PARKED_MS };
      case 'return':
        return { state: ending.delayMs > 0 ? 'delayed' : 'waiting', readyMs: this.clock.nowMs() + ending.delayMs };
    }
  }
}

/** From when on anybody may claim the job. */
function claimableMs(job: MemoryJob): number {
  switch (job.state) {
    case 'waiting':
    case 'delayed':
      return job.readyMs;
    case 'active':
      return job.lock?.untilMs ?? Infinity;
    case 'completed':
    case 'failed':
      return Infinity;
  }
}

let sources = 0;

/** One worker's end of a MemoryQueue. */
export class MemoryJobSource implements JobSource {
  private readonly queue: MemoryQueue;
  private readonly id = `memory-${++sources}`;
  private readonly held = new Map<string, RawClaim>();
  private readonly listeners: ((jobId: string) => void)[] = [];
  private state: 'new' | 'claiming' | 'draining' | 'stopped' = 'new';
  private tokens = 0;
  private cancelRenewal: () => void = () => undefined;

  constructor(queue: MemoryQueue) {
    this.queue = queue;
  }

  async start(): Promise<void> {
    if (this.state !== 'new') return;
    this.state = 'claiming';
    this.renewLater();
  }

  async claim(limit: number): Promise<readonly RawClaim[]> {
    while (this.state === 'claiming') {
      const claims = this.takeUpTo(limit);
      if (claims.length > 0) return claims;
      await this.untilClaimable();
    }
    return [];
  }

  /** Jobs are in the order in which they came: what is next may be interactive or not. */
  async claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    const urgent = this.state === 'claiming' ? this.queue.urgentNext() : 0;
    return urgent === 0 ? [] : this.takeUpTo(Math.min(limit, urgent));
  }

  /** Like `claim`, but does not wait. */
  async claimNow(limit: number): Promise<readonly RawClaim[]> {
    return this.state === 'claiming' ? this.takeUpTo(limit) : [];
  }

  async settle(claim: RawClaim, settlement: Settlement): Promise<SettleResult> {
    const isHeld = this.held.get(claim.jobId)?.token === claim.token;
    if (isHeld) this.held.delete(claim.jobId);
    if (settlement.kind === 'abandon') return 'settled';
    return isHeld && this.state !== 'stopped' && this.queue.end(claim, settlement) ? 'settled' : 'lease-lost';
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.listeners.push(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.queue.onCancelled((jobIds) => {
      const held = jobIds.filter((jobId) => this.held.has(jobId));
      if (held.length > 0) listener(held);
    });
  }

  async claimable(): Promise<number> {
    return this.queue.claimable();
  }

  async stopClaiming(): Promise<void> {
    if (this.state !== 'stopped') this.state = 'draining';
    this.queue.tell();
  }

  async stop(): Promise<void> {
    this.state = 'stopped';
    this.cancelRenewal();
    this.held.clear();
    this.queue.tell();
  }

  private takeUpTo(limit: number): RawClaim[] {
    return this.queue.take(limit, () => `${this.id}:${++this.tokens}`).map((claim) => this.hold(claim));
  }

  private hold(claim: RawClaim): RawClaim {
    if (this.held.has(claim.jobId)) this.lose(claim.jobId); // ours once, and its lease ran out before we noticed
    this.held.set(claim.jobId, claim);
    return claim;
  }

  private lose(jobId: string): void {
    this.held.delete(jobId);
    for (const listener of this.listeners) listener(jobId);
  }

  private renewLater(): void {
    this.cancelRenewal = this.queue.clock.after(this.queue.leaseMs / 3, () => {
      for (const claim of this.held.values()) if (!this.queue.renew(claim)) this.lose(claim.jobId);
      this.renewLater();
    });
  }

  private async untilClaimable(): Promise<void> {
    const inMs = this.queue.nextClaimableInMs();
    const cancel = inMs < Infinity ? this.queue.clock.after(inMs, () => this.queue.tell()) : () => undefined;
    await this.queue.change();
    cancel();
  }
}
