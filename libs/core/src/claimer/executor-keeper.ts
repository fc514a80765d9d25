// Keeps an executor at work for as long as the worker needs one: starts it, gives it jobs, watches it, replaces it when
// it dies, and finds out who kills it. What the jobs are for and how they end is the pipeline's business; the keeper
// says only that a job is to end without running, and how.
//
// States of the executor: *none* (the first is still starting, or the last is gone and no other is needed); *up*;
// *replacing* (it died, and the next is starting).
//
// Whatever happens to the executor: its jobs stay claimed, their leases are renewed, and they are dispatched again to
// the next one. That costs no attempt. Jobs that were at the device when it died run alone first (suspects.ts); the
// others are *held* until that is over, and go back to the queue when it takes longer than one more death.

import { backoffMs, type Backoff } from '../base/backoff.ts';
import type { ClaimedJob } from './claimed-job.ts';
import { deadlinePassed, failed, quarantined, returned, type Ending } from './endings.ts';
import { ExecutorWatch } from './executor-watch.ts';
import type { Sleeps } from './sleeps.ts';
import { Suspects } from './suspects.ts';
import type { Clock } from '../ports/clock.ts';
import type { ExecutorLink } from '../ports/link.ts';
import type { Logger } from '../ports/logger.ts';
import type { LossReason, Metrics } from '../ports/metrics.ts';
import type { AnyOrder, FromExecutor } from '../protocol.ts';

export interface ExecutorKeeperParts {
  readonly executor: ExecutorLink;
  readonly clock: Clock;
  /** Epoch milliseconds by the clock of the queue server: deadlines are told in it. */
  readonly serverNowMs: () => number;
  readonly log: Logger;
  readonly metrics: Metrics;
  /** How long an executor may be silent, and a run may last. */
  readonly timeoutMs: number;
  /** Every job that is claimed, by its id. Others add and remove; see `claimed` and `forget`. */
  readonly claimed: ReadonlyMap<string, ClaimedJob>;
  /** The pauses between attempts to start an executor. */
  readonly sleeps: Sleeps;
  /** Whether the worker needs an executor still: it starts or claims. */
  readonly isNeeded: () => boolean;
  /** Another executor is up and has nothing yet; it gets all claimed jobs next. */
  readonly onReplaced: () => void;
  /** This job has its ending and is to be forgotten. */
  readonly onEnded: (open: ClaimedJob, ending: Ending) => void;
  readonly onFatal: (error: unknown) => void;
}

/** A job that so many executors were about to read when they died without running anything is failed. */
const MAX_EXECUTOR_DEATHS = 20;
/**
 * So many recycled executors in a row without one job done: the next is taken for a death, and somebody for its cause.
 */
const MAX_VAIN_RECYCLES = 5;
/** So many executors in a row that die before one answers: the device does not work, the worker ends. */
const MAX_FAILED_STARTS = 5;
/** The pause between two starts that failed, longer each time. */
const START_PAUSE: Backoff = { firstMs: 100, mostMs: 5_000 };

export class ExecutorKeeper {
  private readonly parts: ExecutorKeeperParts;
  private readonly suspects = new Suspects();
  private readonly watch: ExecutorWatch;
  private state: 'none' | 'up' | 'replacing' = 'none';
  /** Numbers of micro-batches that are at the device. */
  private readonly atDevice = new Set<number>();
  /** How many claims the executor has. */
  private dispatched = 0;
  /** Set when the executor is killed for what no job of it did. */
  private blameless: string | undefined;
  /** Why this keeper killed the executor, where it did. */
  private killedFor: LossReason | undefined;
  private vainRecycles = 0;
  private replacing: Promise<void> = Promise.resolve();

  constructor(parts: ExecutorKeeperParts) {
    const { clock, log, timeoutMs, executor } = parts;
    this.parts = parts;
    this.watch = new ExecutorWatch({
      clock,
      log,
      timeoutMs,
      ping: (sequence) => (this.state === 'up' ? executor.send({ kind: 'ping', sequence }) : undefined),
      onHung: (reason) => {
        this.killedFor = 'silence';
        executor.kill(reason);
      },
      onSilent: (reason) => this.silent(reason),
      openJobs: () => this.dispatched,
    });
  }

  // ---- start and stop -------------------------------------------------------------------------------------------

  /** Starts the first executor; resolves with its `ready`. */
  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    this.parts.executor.onLost((reason) => (this.replacing = this.replace(reason)));
    const ready = await this.startOne();
    if (this.parts.isNeeded()) this.state = 'up';
    return ready;
  }

  /** Asks the executor from now on whether it lives. */
  beginToWatch(): void {
    this.watch.start();
  }

  /**
   * Lets the executor finish what it has begun, within `timeoutMs`; resolves when its process is gone. Ends all sleeps,
   * the pauses between attempts to start another with them.
   */
  async stop(timeoutMs: number): Promise<void> {
    const { executor, sleeps } = this.parts;
    const exited = this.isUp ? executor.stop() : undefined;
    if (exited !== undefined) await Promise.race([exited, sleeps.sleep(timeoutMs)]);
    if (this.isUp) this.state = 'none';
    this.watch.stop();
    sleeps.wake();
    executor.kill('drained');
    await (exited ?? executor.stop());
    await this.replacing;
  }

  private async startOne(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    const ready = await this.parts.executor.start();
    this.parts.metrics.executorReady(ready.pid);
    return ready;
  }

  /** Jobs of a micro-batch that is at the device. */
  jobsOf(batch: number): ReadonlySet<string> | undefined {
    return this.suspects.jobsOf(batch);
  }

  private get isUp(): boolean {
    return this.state === 'up';
  }

  // ---- what it has ----------------------------------------------------------------------------------------------

  /** Whether it is worth while to claim jobs: they would go to the executor at once. */
  get takesJobs(): boolean {
    return this.isUp && !this.suspects.isIsolating;
  }

  /** These jobs were just claimed. When one of them must run alone, what is held goes back to the queue. */
  claimed(fresh: readonly ClaimedJob[]): void {
    const mustIsolate = this.suspects.claimed(fresh.map(({ claim: { jobId, stalls = 0 } }) => ({ jobId, stalls })));
    if (mustIsolate) this.giveBackHeld(); // the worker may die of them, and others with it
  }

  /** Gives jobs to the executor. While there is none or suspects are alone there they are held, and sent later. */
  send(jobs: Iterable<ClaimedJob>, isQueueDrained: boolean): void {
    if (!this.isUp) return;
    if (this.suspects.isIsolating) return this.sendSuspects();
    this.sendNow(jobs, isQueueDrained);
  }

  /** Tells the executor to forget a job whose rows are not at the device yet; those that are there go on. */
  drop(jobId: string): void {
    this.parts.executor.send({ kind: 'drop', jobIds: [jobId] });
  }

  /** The job is claimed no more. The next group of suspects may be due then, or everybody again. */
  forget({ claim: { jobId }, isDispatched }: ClaimedJob): void {
    if (isDispatched) this.dispatched--;
    const wasIsolating = this.suspects.isIsolating;
    this.suspects.forget(jobId);
    if (!wasIsolating || this.state === 'replacing') return;
    if (this.suspects.isIsolating) return this.send([], true);
    const { log, claimed } = this.parts;
    log.info({ held: claimed.size }, 'suspects have run, everybody may again');
    this.send(claimed.values(), true);
  }

  /** Sends the first group of suspects, once nothing else is at the executor. */
  private sendSuspects(): void {
    if (this.dispatched > 0) return;
    const { claimed } = this.parts;
    const group = this.suspects.group.flatMap((jobId) => claimed.get(jobId) ?? []);
    this.sendNow(group, true);
  }

  private sendNow(jobs: Iterable<ClaimedJob>, isQueueDrained: boolean): void {
    const orders = [...jobs].flatMap((open) => this.ordered(open));
    if (orders.length > 0) this.parts.executor.send({ kind: 'run', jobs: orders, isQueueDrained });
  }

  /** Makes the order for a job; none when its deadline has passed, which is its ending. */
  private ordered(open: ClaimedJob): AnyOrder[] {
    const { claim, job } = open;
    const { claimed, serverNowMs, onEnded } = this.parts;
    if (claimed.get(claim.jobId) !== open || open.isDispatched) return []; // given back meanwhile
    const remainingMs = job.deadlineMs === undefined ? undefined : job.deadlineMs - serverNowMs();
    if (remainingMs !== undefined && remainingMs <= 0) {
      onEnded(open, deadlinePassed(claim, job));
      return [];
    }
    open.isDispatched = true;
    this.dispatched++;
    return [job.order(remainingMs)];
  }

  /** Returns what is held to the queue, where other workers find it; suspects stay. */
  private giveBackHeld(): void {
    const suspects = new Set(this.suspects.all());
    for (const open of this.parts.claimed.values()) {
      if (open.isDispatched || suspects.has(open.claim.jobId)) continue;
      this.parts.onEnded(open, returned('suspects run alone on this worker'));
    }
  }

  // ---- what it says ---------------------------------------------------------------------------------------------

  /** Learns from a message that the executor lives, who is at the device, and whether it must be recycled. */
  hear(message: FromExecutor): void {
    if (message.kind !== 'pong') this.watch.progressed();
    switch (message.kind) {
      case 'pong':
        return this.watch.answered(message.runningMs);
      case 'outcomes':
        this.vainRecycles = 0;
        return;
      case 'began':
        this.atDevice.add(message.batch);
        this.parts.metrics.atDevice(this.atDevice.size);
        return this.suspects.began(message.batch, message.jobIds);
      case 'ran':
      case 'split':
      case 'refused':
        this.atDevice.delete(message.batch);
        this.parts.metrics.atDevice(this.atDevice.size);
        return this.suspects.ended(message.batch);
      case 'recycle':
        return this.recycle(message.reason);
      default:
        return; // sizes and numbers are the pipeline's business
    }
  }

  private recycle(reason: string): void {
    const { executor, log, metrics, claimed } = this.parts;
    this.killedFor = 'sticky';
    if (++this.vainRecycles > MAX_VAIN_RECYCLES) return executor.kill(reason);
    log.warn({ reason, jobs: claimed.size }, 'recycling the executor');
    metrics.executorRecycled(reason);
    this.killBlameless(reason);
  }

  private silent(reason: string): void {
    if (!this.isUp) return;
    const { log, claimed } = this.parts;
    log.error({ code: 'EXECUTOR_LOST', reason, jobs: claimed.size }, 'executor silent, starting another');
    this.killedFor = 'silence';
    this.killBlameless(reason);
  }

  private killBlameless(reason: string): void {
    this.blameless = reason;
    this.parts.executor.kill(reason);
  }

  // ---- death and replacement ------------------------------------------------------------------------------------

  private async replace(reason: string): Promise<void> {
    const { isNeeded, claimed, onReplaced } = this.parts;
    if (!this.isUp) return;
    this.state = 'none';
    if (!isNeeded()) return; // what it had goes back to the queue
    this.state = 'replacing';
    this.judgeDeath(reason);
    const isStarted = await this.startAnother();
    this.state = 'none';
    // whoever stops the pipeline stops the executor as well
    if (!isStarted || !isNeeded()) return;
    this.state = 'up';
    this.watch.renewed();
    onReplaced();
    this.send(claimed.values(), true);
  }

  /** Whoever was at the device is suspect, unless the executor was killed for something else. */
  private judgeDeath(reason: string): void {
    const { suspects, blameless } = this;
    const { claimed, log, metrics } = this.parts;
    this.blameless = undefined;
    this.atDevice.clear();
    metrics.atDevice(0);
    metrics.executorLost(this.killedFor ?? (reason.startsWith('exit code') ? 'exit' : 'signal'), reason);
    this.killedFor = undefined;
    const dispatched = [...claimed.values()].filter((open) => open.isDispatched);
    const unread = dispatched.filter(({ job, size }) => !size.isFilled && job.isPart !== true);
    for (const open of claimed.values()) open.isDispatched = false;
    this.dispatched = 0;
    const parts = dispatched.filter(({ job }) => job.isPart === true);
    if (blameless !== undefined) return suspects.clearDevice();
    const { isIsolating: wasIsolating, isDeviceEmpty: wasDeviceEmpty } = suspects;
    const convicted = suspects.executorDied();
    log.error(
      { code: 'EXECUTOR_LOST', reason, jobs: claimed.size, suspects: suspects.all().length },
      'executor lost, starting another',
    );
    for (const jobId of convicted) this.convict(jobId, reason);
    // its end crossed the news of its run; nobody would wait for it in vain
    for (const jobId of suspects.all()) if (!claimed.has(jobId)) suspects.forget(jobId);
    if (wasIsolating) this.giveBackHeld(); // it is one of them; others need not wait until it is found
    if (wasDeviceEmpty) this.countUnexplained(unread, 'died before they had read this job');
    // a part would be alone at the device for minutes: it is not tried, and bears its deaths
    this.countUnexplained(parts, 'died while they had this part');
  }

  private convict(jobId: string, reason: string): void {
    const open = this.parts.claimed.get(jobId);
    if (open === undefined) return;
    const what = `its executor ended each time it was alone at the device (${reason})`;
    this.parts.onEnded(open, quarantined(open.claim, `${what}; its input is kept in quarantine`, open.job));
  }

  /**
   * Nothing was at the device: it died as it opened, or over the input of one of these. Nobody can be tried, so
   * patience is all there is.
   */
  private countUnexplained(unexplained: readonly ClaimedJob[], died: string): void {
    for (const open of unexplained) {
      if (++open.unexplainedDeaths < MAX_EXECUTOR_DEATHS) continue;
      const message = `${MAX_EXECUTOR_DEATHS} executors ${died}`;
      this.parts.onEnded(open, failed(open.claim, { code: 'EXECUTOR_LOST', message }, open.job));
    }
  }

  /** Whether another executor is up. The worker ends when executors fail to start again and again. */
  private async startAnother(): Promise<boolean> {
    const { isNeeded, log, sleeps, onFatal } = this.parts;
    for (let failedStarts = 1; ; failedStarts++) {
      try {
        await this.startOne();
        return true;
      } catch (error) {
        if (!isNeeded()) return false;
        log.error({ err: error, failedStarts }, 'executor did not start');
        if (failedStarts >= MAX_FAILED_STARTS) {
          onFatal(error);
          return false;
        }
        await sleeps.sleep(backoffMs(failedStarts, START_PAUSE));
        if (!isNeeded()) return false;
      }
    }
  }
}
