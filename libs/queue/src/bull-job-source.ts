// Claims jobs of one queue from the server and gives each claim its ending; implements core's JobSource on BullMQ. It knows
// nothing of what a job asks for, and never lets a fault of the server turn one ending into another.
//
// States: *new* → *claiming* → *draining* (stopClaiming: no more claims; leases are renewed, claims settled) → *stopped*. Any
// state may go to *stopped* at once. A claim call that waits when claiming ends resolves empty; a job that the server hands
// out after that moment goes back unspent.

import { failedReason, invariant, keySpace, unreachable, type Failure, type JobSource, type Logger, type RawClaim, type SettleResult, type Settlement } from '@shoal/core';
import { UnrecoverableError, type Job } from 'bullmq';
import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { BatchWorker, type TakenJob } from './batch-worker.ts';
import { isLockLost, limitEvents, wakeIdleWorker } from './bullmq-internals.ts';
import { closeConnection, isConnectionFault, isPassingFault, isServerFull, openConnection, untilReady, type Redis } from './connection.ts';
import { keepLocks } from './keep-locks.ts';
import { Leases } from './leases.ts';
import { checkServer, type ServerFacts } from './server-check.ts';
import { within } from './within.ts';

export interface BullJobSourceOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  /** How long a claim lasts without renewal; renewed at a third of it. */
  readonly leaseMs: number;
  /** How often jobs whose lease ran out are looked for. */
  readonly stalledCheckMs: number;
  /** Shown as `processedBy` of a job. */
  readonly workerId?: string;
  readonly log: Logger;
}

type State = 'new' | 'claiming' | 'draining' | 'stopped';
type Ending = Exclude<Settlement, { kind: 'abandon' }>;

/**
 * The first burst of a claim and its growth. A burst asks for so many jobs at once; it grows while every call brings one.
 * Asking for all at once cost the server 54 % of a core on an almost empty queue, growing bursts 10 % (2026-11).
 */
const FIRST_BURST = 8;
const BURST_GROWTH = 4;
const FIRST_RETRY_MS = 100;
const LAST_RETRY_MS = 2_000;
/** Tries of an ending that the server refuses for a reason nobody foresaw; then the claim is left to its lease. */
const MAX_ODD_FAULTS = 5;
const MAX_EVENTS = 1_000;
/** A look that came back at once without a job (the queue is paused or limited) is not repeated sooner. */
const EMPTY_LOOK_MS = 20;
/** How long `stop` waits for jobs on their way back before it cuts the connection; their leases bring them back as well. */
const HAND_BACK_MS = 1_000;

export class BullJobSource implements JobSource {
  private readonly options: BullJobSourceOptions;
  private readonly leases: Leases;
  private readonly lostListeners: ((jobId: string) => void)[] = [];
  private readonly claimed = new Map<string, TakenJob>();
  private readonly handBacks = new Set<Promise<void>>();
  private readonly claimingEnd = new AbortController();
  private readonly end = new AbortController();
  private state: State = 'new';
  private connection: Redis | undefined;
  private worker: BatchWorker | undefined;
  private facts: ServerFacts | undefined;
  private opening: Promise<void> = Promise.resolve();
  private mayHaveMore = true;
  private faults = 0;
  private claimTurn: Promise<unknown> = Promise.resolve();
  private stopping: Promise<void> | undefined;

  constructor(options: BullJobSourceOptions) {
    this.options = options;
    setMaxListeners(0, this.end.signal); // one for each ending that waits between two tries
    this.leases = new Leases({
      leaseMs: options.leaseMs,
      extend: (jobIds, tokens, leaseMs) => this.extend(jobIds, tokens, leaseMs),
      onLost: (jobId) => this.reportLost(jobId),
      log: options.log,
    });
  }

  /** What the server said about itself at the start. */
  get serverFacts(): ServerFacts | undefined {
    return this.facts;
  }

  async start(): Promise<void> {
    if (this.state !== 'new') return;
    this.state = 'claiming';
    this.opening = this.open();
    try {
      await this.opening;
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  claim(limit: number): Promise<readonly RawClaim[]> {
    invariant(limit >= 1, 'a claim asks for at least one job');
    const turn = this.claimTurn.then(() => this.claimSome(limit));
    this.claimTurn = turn.catch(() => undefined);
    return turn;
  }

  async settle(claim: RawClaim, settlement: Settlement): Promise<SettleResult> {
    const { jobId, token } = claim;
    if (settlement.kind === 'abandon') {
      this.forget(jobId, token);
      return 'settled';
    }
    const taken = this.claimed.get(token);
    if (taken === undefined || !this.leases.beginSettling(jobId, token)) return 'lease-lost';
    const result = await this.untilSettled(taken, settlement);
    this.forget(jobId, token);
    return result;
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.lostListeners.push(listener);
  }

  async stopClaiming(): Promise<void> {
    if (this.state === 'claiming') this.state = 'draining';
    this.claimingEnd.abort();
    await this.claimTurn;
    if (this.state !== 'draining') return;
    await this.worker?.interruptWait();
    void this.wakeAnother(); // the marker that our last look may have taken was meant for somebody
  }

  stop(): Promise<void> {
    this.stopping ??= this.close();
    return this.stopping;
  }

  // ---- start and stop -------------------------------------------------------------------------------------------

  private async open(): Promise<void> {
    const { redisUrl, prefix, queue, log, leaseMs, stalledCheckMs, workerId = randomUUID() } = this.options;
    const connection = openConnection({ url: redisUrl, name: `shoal:worker:${queue}`, log });
    this.connection = connection;
    await untilReady(connection, redisUrl);
    const { facts, warnings } = await checkServer(connection);
    for (const warning of warnings) log.warn({ server: facts.version }, warning);
    this.facts = facts;
    await limitEvents(connection, prefix, queue, MAX_EVENTS).catch((error: unknown) => this.reportFault(error));
    if (this.isStopped()) return;
    const worker = new BatchWorker({ connection, prefix, queue, workerId, leaseMs, stalledCheckMs });
    worker.on('error', (error) => log.debug({ err: error }, 'queue client reported an error'));
    worker.on('stalled', (jobId) => log.warn({ jobId }, 'job stalled, its worker is gone; it waits again'));
    this.worker = worker;
    await worker.untilReady();
    await worker.startStalledCheckTimer();
    if (this.isStopped()) return;
    this.leases.start();
  }

  private async close(): Promise<void> {
    this.state = 'stopped';
    this.claimingEnd.abort();
    this.leases.stop();
    await this.claimTurn;
    if (this.connection?.status === 'ready') await within(HAND_BACK_MS, Promise.all(this.handBacks));
    this.end.abort();
    this.claimed.clear();
    await this.worker?.shutDown();
    if (this.connection !== undefined) await closeConnection(this.connection);
    await within(HAND_BACK_MS, this.opening);
  }

  private isStopped(): boolean {
    return this.state === 'stopped';
  }

  // ---- claim ----------------------------------------------------------------------------------------------------

  private async claimSome(limit: number): Promise<readonly RawClaim[]> {
    const claims: RawClaim[] = [];
    while (this.state === 'claiming' && claims.length === 0) {
      if (!this.mayHaveMore) claims.push(...(await this.waitForOne()));
      if (claims.length > 0 || this.mayHaveMore) claims.push(...(await this.takeBursts(limit - claims.length)));
    }
    return claims;
  }

  private async waitForOne(): Promise<RawClaim[]> {
    const askedMs = performance.now();
    const claims = await this.collect([this.worker?.takeNext() ?? Promise.resolve(undefined)]);
    if (claims.length === 0 && performance.now() - askedMs < EMPTY_LOOK_MS) await this.pause(EMPTY_LOOK_MS);
    return claims;
  }

  private async takeBursts(limit: number): Promise<RawClaim[]> {
    const claims: RawClaim[] = [];
    for (let size = FIRST_BURST; claims.length < limit && this.state === 'claiming'; size *= BURST_GROWTH) {
      const wanted = Math.min(size, limit - claims.length);
      const got = await this.collect(this.worker?.takeNow(wanted) ?? []);
      claims.push(...got);
      this.mayHaveMore = got.length === wanted;
      if (!this.mayHaveMore) break;
    }
    return claims;
  }

  /** Waits for calls that take jobs. Once claiming has ended it waits no longer: what still comes is handed back. */
  private async collect(calls: readonly Promise<TakenJob | undefined>[]): Promise<RawClaim[]> {
    const outcomes = await unlessAborted(this.claimingEnd.signal, Promise.allSettled(calls));
    if (outcomes === undefined) {
      for (const call of calls) this.handBackLate(call);
      return [];
    }
    const fault = outcomes.find((outcome) => outcome.status === 'rejected' && !isCorruptJob(outcome.reason));
    for (const outcome of outcomes) if (outcome.status === 'rejected') this.reportFault(outcome.reason);
    const claims = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' && outcome.value !== undefined ? [this.hold(outcome.value)] : []));
    if (fault === undefined) this.faults = 0;
    else await this.pause(Math.min(FIRST_RETRY_MS * 2 ** Math.min(this.faults++, 10), LAST_RETRY_MS));
    return claims;
  }

  private hold(taken: TakenJob): RawClaim {
    const { job, token } = taken;
    const jobId = job.id ?? '';
    this.leases.hold(jobId, token);
    this.claimed.set(token, taken);
    return {
      jobId,
      token,
      name: job.name ?? '',
      data: job.data,
      attempt: job.attemptsMade,
      queuedMs: Number.isFinite(job.timestamp) ? Math.max(0, Date.now() - job.timestamp) : 0,
      mustFail: job.deferredFailure,
    };
  }

  private handBackLate(call: Promise<TakenJob | undefined>): void {
    const handedBack = call
      .then((taken) => (taken === undefined ? undefined : this.giveBack(taken, 0)))
      .catch((error: unknown) => this.reportFault(error))
      .finally(() => this.handBacks.delete(handedBack));
    this.handBacks.add(handedBack);
  }

  // ---- settle ---------------------------------------------------------------------------------------------------

  /** Tries until the server took the ending or says that the lock is not ours. */
  private async untilSettled(taken: TakenJob, ending: Ending): Promise<SettleResult> {
    let oddFaults = 0;
    for (let attempt = 0; !this.end.signal.aborted; attempt++) {
      try {
        await this.give(taken, ending);
        return 'settled';
      } catch (error) {
        if (isLockLost(error)) return await this.wasTakenBefore(taken.job, ending);
        if (this.end.signal.aborted) break;
        const fields = { jobId: taken.job.id, ending: ending.kind, attempt, err: error };
        if (!isPassingFault(error) && ++oddFaults >= MAX_ODD_FAULTS) {
          this.options.log.error(fields, 'the queue server refuses to end a job; it is left to its lease');
          return 'lease-lost';
        }
        this.options.log.debug(fields, 'ending a job failed, trying again');
        await sleep(Math.min(FIRST_RETRY_MS * 2 ** Math.min(attempt, 10), LAST_RETRY_MS), undefined, { signal: this.end.signal }).catch(() => undefined);
      }
    }
    return 'lease-lost';
  }

  private async give(taken: TakenJob, ending: Ending): Promise<void> {
    const { job, token } = taken;
    switch (ending.kind) {
      case 'complete': return void (await job.moveToCompleted(ending.value, token, false));
      case 'fail': return void (await job.moveToFailed(verdict(ending.failure), token, false));
      case 'return': return this.giveBack(taken, ending.delayMs);
      default: return unreachable(ending);
    }
  }

  private async giveBack({ job, token }: TakenJob, delayMs: number): Promise<void> {
    if (delayMs > 0) return job.moveToDelayed(Date.now() + delayMs, token);
    await job.moveToWait(token);
    if (job.priority > 0) await this.wakeAnother();
  }

  /**
   * A lost lock may be our own doing: when the connection breaks after the server did the work, the same command is sent
   * again and finds no lock. The job says whether it ended the way we asked.
   */
  private async wasTakenBefore(job: Job, ending: Ending): Promise<SettleResult> {
    if (this.connection === undefined || ending.kind === 'return') return 'lease-lost';
    try {
      const key = keySpace(this.options.prefix).job(this.options.queue, job.id ?? '');
      const [finishedOn, returnvalue, reason] = await this.connection.hmget(key, 'finishedOn', 'returnvalue', 'failedReason');
      const isOurs = ending.kind === 'complete' ? returnvalue === JSON.stringify(ending.value) : reason === failedReason(ending.failure);
      return finishedOn && isOurs ? 'settled' : 'lease-lost';
    } catch {
      return 'lease-lost';
    }
  }

  // ---- leases ---------------------------------------------------------------------------------------------------

  private async extend(jobIds: string[], tokens: string[], leaseMs: number): Promise<readonly string[]> {
    const { worker, connection } = this;
    if (worker === undefined || connection === undefined) return [];
    try {
      return await worker.extendJobLocks(jobIds, tokens, leaseMs);
    } catch (error) {
      if (!isServerFull(error)) throw error;
      return keepLocks(connection, { prefix: this.options.prefix, queue: this.options.queue, jobIds, tokens, leaseMs });
    }
  }

  private reportLost(jobId: string): void {
    for (const [token, taken] of this.claimed) if (taken.job.id === jobId) this.claimed.delete(token);
    for (const listener of this.lostListeners) listener(jobId);
  }

  private forget(jobId: string, token: string): void {
    this.claimed.delete(token);
    this.leases.release(jobId, token);
  }

  // ---- waiting and reporting ------------------------------------------------------------------------------------

  private async wakeAnother(): Promise<void> {
    const { prefix, queue } = this.options;
    if (this.connection !== undefined) await wakeIdleWorker(this.connection, prefix, queue).catch(() => undefined);
  }

  private async pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.claimingEnd.signal }).catch(() => undefined);
  }

  private reportFault(error: unknown): void {
    if (this.state === 'stopped' || isConnectionFault(error)) return; // the connection says so itself, once
    if (isCorruptJob(error)) this.options.log.error({ err: error }, 'a job in the queue cannot be read; it is left to its lease');
    else this.options.log.warn({ err: error, faults: this.faults }, 'claiming failed, trying again');
  }
}

/** A verdict is final whatever `attempts` the producer gave, and where it was thrown says nothing to anybody. */
function verdict(failure: Failure): UnrecoverableError {
  const error = new UnrecoverableError(failedReason(failure));
  error.stack = '';
  return error;
}

/** What JSON.parse throws over a job's `opts` or `parent`. The job was taken, so the next look finds another. */
function isCorruptJob(error: unknown): boolean {
  return error instanceof SyntaxError;
}

/** What `work` gives, or undefined as soon as the signal is aborted. Leaves nothing at the signal behind. */
function unlessAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const stopWaiting = (): void => resolve(undefined);
    if (signal.aborted) stopWaiting();
    signal.addEventListener('abort', stopWaiting, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stopWaiting));
  });
}
