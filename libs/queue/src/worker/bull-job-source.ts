// Claims jobs of one queue from the server and gives each claim its ending; implements core's JobSource on BullMQ. It
// knows nothing of what a job asks for. Taking jobs is claim-bursts.ts, ending them job-endings.ts, keeping them
// leases.ts.
//
// States: *new* → *claiming* → *draining* (stopClaiming: no more claims; leases are renewed, claims settled) →
// *stopped*. Any state may go to *stopped* at once. A claim call that waits when claiming ends resolves empty; a job
// that the server hands out after that moment goes back unspent.

import { randomUUID } from 'node:crypto';
import { invariant } from '@shoal/contract';
import {
  noFaults,
  type Announcement,
  type FaultPoints,
  type JobSource,
  type Logger,
  type RawClaim,
  type SettleResult,
  type Settlement,
} from '@shoal/core';
import { BatchWorker, KEEP_COMPLETED, type TakenJob } from '../bullmq/batch-worker.ts';
import { Completions } from '../bullmq/finish.ts';
import { limitEvents } from '../bullmq/internals.ts';
import { CancelListener } from '../producer/cancel.ts';
import { ClaimBrake, DEFAULT_BRAKE, type BrakeLimits, type BrakeReason } from './claim-brake.ts';
import { ClaimBursts, unlessAborted } from './claim-bursts.ts';
import { countClaimable } from './claimable.ts';
import { closeConnection, isServerFull, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { orderWaiting, type Line } from './fair-order.ts';
import { HandOvers, endingOf, handOverOf } from './hand-over.ts';
import { JobEndings } from './job-endings.ts';
import { keepLocks } from './keep-locks.ts';
import { Leases } from './leases.ts';
import { RedisAnnouncer } from './announcer.ts';
import { Quarantine } from '../upkeep/quarantine.ts';
import { checkServer, type ServerFacts } from '../redis/server-check.ts';
import { within } from '../redis/within.ts';
import { giveBackPredecessors, tokenPrefixOf } from './worker-identity.ts';

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
  /** What this worker is called over all its lives: what a dead one of this name had claimed goes back at the start. */
  readonly workerName?: string | undefined;
  /** The main lane, under whose name jobs are quarantined; left out, they only fail. */
  readonly quarantineOf?: string | undefined;
  /** The CPU lane that jobs of this queue may be handed over to; left out, what would go there fails. */
  readonly handOverTo?: string | undefined;
  readonly faults?: FaultPoints | undefined;
  /** When to stop claiming because the server has no room for results; see claim-brake.ts. */
  readonly brake?: BrakeLimits | undefined;
  /** See checkServer. */
  readonly isUnsafeAllowed?: boolean | undefined;
  readonly onBrake?: ((reason: BrakeReason | undefined) => void) | undefined;
  readonly log: Logger;
}

type State = 'new' | 'claiming' | 'draining' | 'stopped';

/** What exists once the server answered and was found safe. */
interface Parts {
  readonly worker: BatchWorker;
  readonly bursts: ClaimBursts;
  readonly brake: ClaimBrake;
  readonly endings: JobEndings;
  readonly completions: Completions;
  readonly cancels: CancelListener;
}

const MAX_EVENTS = 1_000;
/**
 * How long `stop` waits for jobs on their way back before it cuts the connection; their leases bring them back as well.
 */
const HAND_BACK_MS = 1_000;

export class BullJobSource implements JobSource {
  private readonly options: BullJobSourceOptions;
  private readonly leases: Leases;
  private readonly lostListeners: ((jobId: string) => void)[] = [];
  private readonly cancelListeners: ((jobIds: readonly string[]) => void)[] = [];
  /** By token. */
  private readonly claimed = new Map<string, TakenJob>();
  private readonly claimingEnd = new AbortController();
  private readonly end = new AbortController();
  private state: State = 'new';
  private readonly handOvers: HandOvers | undefined;
  private readonly quarantine: Quarantine | undefined;
  private connection: Redis | undefined;
  private parts: Parts | undefined;
  private facts: ServerFacts | undefined;
  private opening: Promise<void> = Promise.resolve();
  private claimTurn: Promise<unknown> = Promise.resolve();
  private stopping: Promise<void> | undefined;

  constructor(options: BullJobSourceOptions) {
    this.options = options;
    const { redisUrl, prefix, queue, handOverTo, faults = noFaults, log } = options;
    if (handOverTo !== undefined)
      this.handOvers = new HandOvers({ redisUrl, prefix, queue, cpuQueue: handOverTo, faults, log });
    if (options.quarantineOf !== undefined)
      this.quarantine = new Quarantine({ redisUrl, prefix, queue: options.quarantineOf, log });
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
    return this.inTurn(async ({ bursts, brake }) => {
      const allowed = await brake.untilAllowed(limit);
      return allowed === 0 ? [] : bursts.claim(allowed);
    });
  }

  /** Like `claim`, but does not wait: empty when nothing can be claimed now. For who looks into several lanes. */
  claimNow(limit: number): Promise<readonly RawClaim[]> {
    return this.whereAllowed(limit, (bursts, allowed) => bursts.claimNow(allowed));
  }

  claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.whereAllowed(limit, (bursts, allowed) => bursts.claimUrgent(allowed));
  }

  private whereAllowed(
    limit: number,
    take: (bursts: ClaimBursts, allowed: number) => Promise<TakenJob[]>,
  ): Promise<readonly RawClaim[]> {
    return this.inTurn(async ({ bursts, brake }) => {
      const allowed = await brake.allowed(limit);
      return allowed === 0 ? [] : take(bursts, allowed);
    });
  }

  private inTurn(take: (parts: Parts) => Promise<TakenJob[]>): Promise<readonly RawClaim[]> {
    const turn = this.claimTurn.then(async () => {
      const taken = this.parts === undefined ? [] : await take(this.parts);
      void this.parts?.cancels.look(taken.map(({ job }) => job.id ?? ''));
      return Promise.all(taken.map((one) => this.toClaim(one)));
    });
    this.claimTurn = turn.catch(() => undefined);
    return turn;
  }

  /**
   * A job that was handed over comes with its child's ending, when that can be read; else it runs again and finds its
   * result.
   */
  private async toClaim(taken: TakenJob): Promise<RawClaim> {
    const claim = toClaim(taken);
    if (handOverOf(taken.job) === undefined) return claim;
    try {
      return { ...claim, ending: await unlessAborted(this.claimingEnd.signal, endingOf(taken.job)) };
    } catch (error) {
      this.options.log.warn(
        { jobId: claim.jobId, err: error },
        'how a handed-over job ended could not be read, it runs again',
      );
      return claim;
    }
  }

  async settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    const { jobId, token } = claim;
    if (settlement.kind === 'abandon') {
      this.forget(jobId, token);
      return 'settled';
    }
    const taken = this.claimed.get(token);
    if (this.parts === undefined || taken === undefined || !this.leases.beginSettling(jobId, token))
      return 'lease-lost';
    const result = await this.parts.endings.settle(taken, settlement, announcement);
    if (settlement.kind === 'fail' && settlement.failure.code === 'CANCELLED') void this.parts.cancels.forget(jobId);
    this.forget(jobId, token);
    return result;
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.lostListeners.push(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.cancelListeners.push(listener);
  }

  async claimable(): Promise<number> {
    if (this.parts?.brake.isOn === true) return 0; // which it says aloud
    const { redisUrl, prefix, queue, log } = this.options;
    return countClaimable({ redisUrl, prefix, queue, log });
  }

  async stopClaiming(): Promise<void> {
    if (this.state === 'claiming') this.state = 'draining';
    this.claimingEnd.abort();
    await this.claimTurn;
    if (this.state !== 'draining') return;
    await this.parts?.worker.interruptWait();
    void this.parts?.endings.wakeAnother(); // the marker that our last look may have taken was meant for somebody
  }

  stop(): Promise<void> {
    this.stopping ??= this.close();
    return this.stopping;
  }

  private async open(): Promise<void> {
    const {
      redisUrl,
      prefix,
      queue,
      log,
      leaseMs,
      stalledCheckMs,
      workerName = '',
      workerId = workerName || randomUUID(),
    } = this.options;
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:worker:${queue}`, log });
    this.connection = connection;
    await untilReady(connection, redisUrl);
    const { facts, warnings } = await checkServer(connection, { isUnsafeAllowed: this.options.isUnsafeAllowed });
    for (const warning of warnings) log.warn({ server: facts.version }, warning);
    this.facts = facts;
    await limitEvents(connection, prefix, queue, MAX_EVENTS).catch((error: unknown) =>
      log.debug({ err: error }, 'the stream of events was not bounded'),
    );
    if (this.isStopped()) return;
    const worker = new BatchWorker({
      connection,
      prefix,
      queue,
      workerId,
      leaseMs,
      stalledCheckMs,
      tokenPrefix: tokenPrefixOf(workerName),
    });
    worker.on('error', (error) => log.debug({ err: error }, 'queue client reported an error'));
    worker.on('stalled', (jobId) => log.warn({ jobId }, 'job stalled, its worker is gone; it waits again'));
    this.parts = this.assemble(connection, worker);
    await Promise.all([worker.untilReady(), this.parts.cancels.start(), this.parts.completions.prepare()]);
    if (workerName !== '') await giveBackPredecessors({ connection, worker, prefix, queue, name: workerName, log });
    await worker.startStalledCheckTimer();
    if (!this.isStopped()) this.leases.start();
  }

  private assemble(connection: Redis, worker: BatchWorker): Parts {
    const { redisUrl, prefix, queue, leaseMs, log } = this.options;
    const completions = new Completions({ connection, prefix, queue, kept: KEEP_COMPLETED, signal: this.end.signal });
    const announcer = new RedisAnnouncer({
      connection,
      prefix,
      queue,
      sendEndings: () => completions.flush(),
      signal: this.end.signal,
      log,
    });
    const endings = new JobEndings({
      connection,
      prefix,
      queue,
      log,
      announcer,
      completions,
      handOvers: this.handOvers,
      quarantine: this.quarantine,
      open: () => this.claimed.size,
      signal: this.end.signal,
    });
    const cancels = new CancelListener({
      redisUrl,
      prefix,
      connection,
      log,
      lane: queue,
      everyMs: leaseMs / 3,
      held: () => [...this.claimed.values()].map(({ job }) => job.id ?? ''),
      onCancelled: (jobIds) => this.cancelListeners.forEach((listener) => listener(jobIds)),
    });
    const bursts = new ClaimBursts({
      untilSign: () => worker.untilSign(),
      takeNow: (count) => worker.takeNow(count),
      order: () => this.order(connection),
      onTaken: (taken) => this.hold(taken),
      onLate: (taken) => endings.giveBack(taken, 0),
      signal: this.claimingEnd.signal,
      log,
    });
    const brake = new ClaimBrake({
      connection,
      prefix,
      queue,
      log,
      limits: this.options.brake ?? DEFAULT_BRAKE,
      inFlight: () => this.claimed.size,
      onChange: this.options.onBrake,
      signal: this.claimingEnd.signal,
    });
    return { worker, bursts, brake, endings, completions, cancels };
  }

  /** Undefined when that failed: without an order jobs are claimed as they came, which is better than not at all. */
  private async order(connection: Redis): Promise<Line | undefined> {
    const { prefix, queue, log } = this.options;
    try {
      return await orderWaiting(connection, { prefix, queue }, this.end.signal);
    } catch (error) {
      if (!this.end.signal.aborted) log.warn({ err: error }, 'waiting jobs could not be put in order');
      return undefined;
    }
  }

  private async close(): Promise<void> {
    this.state = 'stopped';
    this.claimingEnd.abort();
    this.leases.stop();
    await this.claimTurn;
    if (this.parts !== undefined && this.connection?.status === 'ready')
      await within(HAND_BACK_MS, this.parts.bursts.settled());
    this.end.abort();
    this.claimed.clear();
    await Promise.all([
      this.parts?.worker.shutDown(),
      this.parts?.cancels.stop(),
      this.handOvers?.stop(),
      this.quarantine?.close(),
    ]);
    if (this.connection !== undefined) await closeConnection(this.connection);
    await within(HAND_BACK_MS, this.opening);
  }

  private isStopped(): boolean {
    return this.state === 'stopped';
  }

  private hold(taken: TakenJob): void {
    this.leases.hold(taken.job.id ?? '', taken.token);
    this.claimed.set(taken.token, taken);
  }

  private async extend(jobIds: string[], tokens: string[], leaseMs: number): Promise<readonly string[]> {
    const { parts, connection } = this;
    if (parts === undefined || connection === undefined) return [];
    try {
      return await parts.worker.extendJobLocks(jobIds, tokens, leaseMs);
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
}

function toClaim({ job, token }: TakenJob): RawClaim {
  return {
    jobId: job.id ?? '',
    token,
    name: job.name ?? '',
    data: job.data,
    attempt: job.attemptsMade,
    queuedMs: Number.isFinite(job.timestamp) ? Math.max(0, Date.now() - job.timestamp) : 0,
    mustFail: job.deferredFailure,
    stalls: job.stalledCounter,
  };
}
