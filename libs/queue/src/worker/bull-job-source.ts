// Claims jobs of one queue from the server and gives each claim its ending; implements core's JobSource on BullMQ. It
// knows nothing of what a job asks for. Taking jobs is claim-bursts.ts, ending them job-endings.ts, keeping them
// leases.ts; source-parts.ts puts these together.
//
// States: *new* → *claiming* → *draining* (stopClaiming: no more claims; leases are renewed, claims settled) →
// *stopped*. Any state may go to *stopped* at once. A claim call that waits when claiming ends resolves empty; a job
// that the server hands out after that moment goes back unspent. While it claims it may be *drained*: it stays up,
// keeps and settles what it has, and claims nothing until it is resumed.

import { invariant } from '@shoal/contract';
import {
  CANCELLED_WHILE_CLAIMED,
  type Announcement,
  type JobSource,
  type RawClaim,
  type SettleResult,
  type Settlement,
} from '@shoal/core';
import { Serial, noFaults, unlessAborted } from '@shoal/core/base';
import type { TakenJob } from '../bullmq/batch-worker.ts';
import { closeConnection, isServerFull, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import type { ServerFacts } from '../redis/server-check.ts';
import { enterSchema } from '../redis/schema.ts';
import { within } from '../redis/within.ts';
import { Quarantine } from '../upkeep/quarantine.ts';
import type { ClaimBursts } from './claim-bursts.ts';
import { countClaimable } from './claimable.ts';
import { HandOvers, endingOf, handOverOf } from './hand-over.ts';
import { keepLocks } from './keep-locks.ts';
import { Leases } from './leases.ts';
import {
  assembleParts,
  checkedServer,
  type BullJobSourceOptions,
  type SourceHooks,
  type SourceParts,
} from './source-parts.ts';

type State = 'new' | 'claiming' | 'draining' | 'stopped';

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
  private isDrained = false;
  private readonly handOvers: HandOvers | undefined;
  private readonly quarantine: Quarantine | undefined;
  private connection: Redis | undefined;
  private parts: SourceParts | undefined;
  private opening: Promise<void> = Promise.resolve();
  private readonly claims = new Serial();
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
    return this.parts?.facts;
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

  /** Claims nothing from now on, or goes on claiming; what is held is kept and finished. */
  drain(isDrained: boolean): void {
    this.isDrained = isDrained;
  }

  claim(limit: number): Promise<readonly RawClaim[]> {
    invariant(limit >= 1, 'a claim asks for at least one job');
    return this.inTurn(async ({ bursts, brake }) => {
      for (;;) {
        const allowed = await brake.untilAllowed(limit);
        const taken = allowed === 0 ? [] : await bursts.claim(allowed);
        if (!this.isDrained || taken.length === 0) return taken;
        await this.returnUnspent(taken);
      }
    });
  }

  /** Like `claim`, but does not wait: empty when nothing can be claimed now. For who looks into several lanes. */
  claimNow(limit: number): Promise<readonly RawClaim[]> {
    return this.whereAllowed(limit, (bursts, allowed) => bursts.claimNow(allowed));
  }

  claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.whereAllowed(limit, (bursts, allowed) => bursts.claimUrgent(allowed));
  }

  /** Of a source that claims bulk alone: up to `limit` jobs that can be had now. Does not wait. */
  claimBulk(limit: number): Promise<readonly RawClaim[]> {
    return this.whereAllowed(limit, (bursts, allowed) => bursts.claimBulk(allowed));
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

  private inTurn(take: (parts: SourceParts) => Promise<TakenJob[]>): Promise<readonly RawClaim[]> {
    return this.claims.run(async () => {
      const taken = this.parts === undefined ? [] : await take(this.parts);
      void this.parts?.cancels.look(taken.map(({ job }) => job.id ?? ''));
      return Promise.all(taken.map((one) => this.toClaim(one)));
    });
  }

  /** What came after the worker was drained: others may take it at once. */
  private async returnUnspent(taken: readonly TakenJob[]): Promise<void> {
    const returned = taken.map((one) =>
      this.settle(toClaim(one, this.nowMs()), { kind: 'return', delayMs: 0, reason: 'the worker is drained' }),
    );
    await unlessAborted(this.claimingEnd.signal, Promise.all(returned));
  }

  /**
   * A job that was handed over comes with its child's ending, when that can be read; else it runs again and finds its
   * result. One that was cancelled in the hands of a worker that lost it has its ending as well.
   */
  private async toClaim(taken: TakenJob): Promise<RawClaim> {
    const claim = toClaim(taken, this.nowMs());
    if (handOverOf(taken.job) === undefined)
      return taken.isMarked === true ? { ...claim, ending: { kind: 'fail', failure: CANCELLED_WHILE_CLAIMED } } : claim;
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
    // While it has not ended its mark is for whoever claims it next.
    const isCancelled =
      settlement.kind === 'fail' && settlement.failure.code === 'CANCELLED' && result !== 'lease-lost';
    if (isCancelled) void this.parts.cancels.forget(jobId);
    this.forget(jobId, token);
    return result;
  }

  /** Of jobs whose endings were settled and not announced, where nobody else announces at this server. Never throws. */
  async announce(announcements: readonly Announcement[]): Promise<void> {
    await this.parts?.announcer.announce(announcements);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.lostListeners.push(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.cancelListeners.push(listener);
  }

  async claimable(): Promise<number> {
    if (this.parts === undefined ? this.isDrained : this.parts.brake.reason !== undefined) return 0; // said aloud
    const { redisUrl, prefix, queue, log } = this.options;
    return countClaimable({ redisUrl, prefix, queue, log });
  }

  async stopClaiming(): Promise<void> {
    if (this.state === 'claiming') this.state = 'draining';
    this.claimingEnd.abort();
    await this.claims.settled();
    if (this.state !== 'draining') return;
    await this.parts?.worker.interruptWait();
    void this.parts?.endings.wakeAnother(); // the marker that our last look may have taken was meant for somebody
  }

  stop(): Promise<void> {
    this.stopping ??= this.close();
    return this.stopping;
  }

  private async open(): Promise<void> {
    const { redisUrl, prefix, queue, version = '(unknown)', isNameChosen = false, log } = this.options;
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:worker:${queue}`, log });
    this.connection = connection;
    await untilReady(connection, redisUrl);
    await enterSchema(connection, prefix, version);
    const facts = await checkedServer(this.options, connection);
    if (this.isStopped()) return;
    this.parts = assembleParts(this.options, { connection, facts, ...this.hooks() });
    const { worker, cancels, completions, start } = this.parts;
    await Promise.all([worker.untilReady(), cancels.start(), completions.prepare()]);
    await start?.enter(isNameChosen);
    await worker.startStalledCheckTimer();
    if (this.isStopped()) return;
    this.leases.start();
    start?.begin();
    this.parts.clockWatch.start();
    await this.parts.parking.start();
  }

  private hooks(): SourceHooks {
    return {
      claimed: this.claimed,
      handOvers: this.handOvers,
      quarantine: this.quarantine,
      isDrained: () => this.isDrained,
      onTaken: (taken) => this.hold(taken),
      onCancelled: (jobIds) => this.cancelListeners.forEach((listener) => listener(jobIds)),
      claimingEnd: this.claimingEnd.signal,
      end: this.end.signal,
    };
  }

  private async close(): Promise<void> {
    this.state = 'stopped';
    this.claimingEnd.abort();
    this.leases.stop();
    await this.claims.settled();
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
    this.parts?.clockWatch.stop();
    this.parts?.parking.stop();
    await within(HAND_BACK_MS, this.parts?.start?.leave() ?? Promise.resolve());
    if (this.connection !== undefined) await closeConnection(this.connection);
    await within(
      HAND_BACK_MS,
      Promise.all([
        this.parts?.clockWatch.settled(),
        this.parts?.parking.settled(),
        this.parts?.start?.settled(),
        this.parts?.mender.settled(),
      ]),
    );
    await within(HAND_BACK_MS, this.opening);
  }

  /** By the clock that its producers are compared with: the server's, where somebody knows it. */
  private nowMs(): number {
    return this.options.serverNowMs?.() ?? Date.now();
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

function toClaim({ job, token }: TakenJob, nowMs: number): RawClaim {
  return {
    jobId: job.id ?? '',
    token,
    name: job.name ?? '',
    data: job.data,
    attempt: job.attemptsMade,
    madeMs: job.timestamp,
    queuedMs: Number.isFinite(job.timestamp) ? Math.max(0, nowMs - job.timestamp) : 0,
    mustFail: job.deferredFailure,
    stalls: job.stalledCounter,
  };
}
