// Takes away what nobody needs any more, and puts right what nobody else does: inputs without a job, results that would
// stay for ever, reservations of jobs that are gone, damaged jobs (repair.ts). Every worker has a janitor; one of them
// sweeps at a time, in turn. A sweep looks at every key of its queue once, in steps of a millisecond or two of the
// server's time, with a rest after each; it is never in anybody's way, and may be cut short at any step.
//
// An input is taken only after two sweeps, a whole interval apart, found no unfinished job for it in any lane or in
// quarantine. When it was first seen so is kept on the server: the second sweep may be another worker's.
//
// States: *new* → *waiting* (for the next sweep) ⇄ *sweeping* → *stopped*.
//
// Why: docs/decisions/queue.md#the-janitor-keeps-what-it-saw-on-the-server

import { randomUUID } from 'node:crypto';
import { invariant, keySpace, type KeySpace } from '@shoal/contract';
import type { Clock, Logger, SweepFindings } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import { tidyNotedQueues } from '../lanes/noted-queues.ts';
import { queuesWithLoad, recountAdmission } from '../admission/admission.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { quarantineQueue } from '../lanes/quarantine-queue.ts';
import { repairQueue } from './repair.ts';
import { literally } from '../redis/scan-pattern.ts';
import { BEGIN_SWEEP, END_SWEEP, SWEEP_STEP } from './lua/scripts.generated.ts';
import { RENEW_LOCK } from '../redis/lua/scripts.generated.ts';

export interface JanitorOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main lane of the model; its CPU lane and its quarantine are swept with it. */
  readonly queue: string;
  readonly cpuQueue: string;
  /** From one sweep to the next, and how long an input must have been without a job. */
  readonly everyMs: number;
  /** Finished jobs that ended longer ago are taken away; 0 or left out: none for their age. */
  readonly keepMs?: number | undefined;
  readonly clock: Clock;
  /** Epoch milliseconds by the server's clock. */
  readonly serverNowMs: () => number;
  /** After each step of a sweep; 0 rests not at all. */
  readonly restMs?: number;
  readonly onSwept?: ((findings: SweepFindings) => void) | undefined;
  readonly log: Logger;
}

/** A worker that has just started has other things to do. */
const FIRST_SWEEP_MS = 30_000;
const REST_MS = 10;
/** A janitor that died with the broom in its hand is missed for so long; renewed with every step. */
const LOCK_MS = 30_000;
/** So many inputs take the server 1 to 2 ms a step; 500 took 8 (Valkey 9.1 on a busy machine, 2026-11). */
const SCAN_STEP = 100;
/** Finished jobs; 100 take the server 2 ms. */
const REMOVED_AT_ONCE = 100;
/** What a result gets that has no time to live: nobody of ours wrote it. */
const STRAY_RESULT_MS = 86_400_000;

export class Janitor {
  private readonly options: JanitorOptions;
  private readonly keys: KeySpace;
  /** While it sweeps: between two sweeps nothing is held open. */
  private sweeper: Redis | undefined;
  private readonly end = new AbortController();
  private cancelTimer: () => void = () => undefined;
  private endRest: () => void = () => undefined;
  private sweeping: Promise<unknown> = Promise.resolve();
  private stopping: Promise<void> | undefined;

  constructor(options: JanitorOptions) {
    this.options = options;
    this.keys = keySpace(options.prefix);
  }

  start(): void {
    this.schedule(Math.min(FIRST_SWEEP_MS, this.options.everyMs));
  }

  /** Safe to call early or twice. */
  stop(): Promise<void> {
    this.stopping ??= this.close();
    return this.stopping;
  }

  /**
   * One sweep now, if it is time for one and nobody else is at it; undefined when not. Never throws: the next one may
   * succeed.
   */
  async sweep(): Promise<SweepFindings | undefined> {
    const { redisUrl, prefix, queue, clock, log, onSwept } = this.options;
    const token = randomUUID();
    const startedMs = clock.nowMs();
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:janitor:${queue}` });
    this.sweeper = connection;
    try {
      await untilReady(connection, redisUrl);
      if (!(await this.begin(token))) return undefined;
      const findings = await this.sweepAll(token);
      if (findings === undefined) return undefined;
      const swept = { ...findings, durationMs: clock.nowMs() - startedMs };
      if (Object.entries(findings).some(([, count]) => count > 0))
        log.info({ queue, ...swept }, 'janitor found something to do');
      onSwept?.(swept);
      return swept;
    } catch (error) {
      if (!this.isOver) log.warn({ queue, err: error }, 'janitor was interrupted, it will sweep again');
      return undefined;
    } finally {
      await closeConnection(connection);
    }
  }

  private schedule(delayMs: number): void {
    this.cancelTimer = this.options.clock.after(delayMs, () => {
      this.sweeping = this.sweep().finally(() => {
        if (!this.isOver) this.schedule(this.options.everyMs);
      });
    });
  }

  private async close(): Promise<void> {
    this.end.abort();
    this.cancelTimer();
    this.endRest();
    if (this.sweeper !== undefined) await closeConnection(this.sweeper);
    await this.sweeping;
  }

  private get connection(): Redis {
    invariant(this.sweeper !== undefined, 'only a sweep asks the server');
    return this.sweeper;
  }

  private async begin(token: string): Promise<boolean> {
    const { queue, everyMs, serverNowMs } = this.options;
    const [began] = await this.run(BEGIN_SWEEP, [
      this.keys.janitor(queue),
      this.keys.jobless(queue),
      token,
      LOCK_MS,
      serverNowMs(),
      everyMs,
    ]);
    return began === 1;
  }

  /** Undefined when it had to stop half-way. */
  private async sweepAll(token: string): Promise<Omit<SweepFindings, 'durationMs'> | undefined> {
    const { queue, cpuQueue: cpu, prefix, everyMs, serverNowMs } = this.options;
    const step = (): Promise<void> => this.stepped(token);
    const found = await this.takeAndAge(token);
    let [reservations, resultsExpired] = [0, 0];
    for (const loaded of new Set([queue, ...(await queuesWithLoad(this.connection, prefix))])) {
      const place = { prefix, queue: loaded, onStep: step };
      const { released, expired } = await recountAdmission(this.connection, place, this.end.signal);
      reservations += released;
      resultsExpired += expired;
    }
    const repaired = { moved: 0, setAside: 0, mended: 0, failed: 0, requeued: 0, released: 0, removed: 0 };
    for (const lane of [queue, cpu]) {
      const report = await repairQueue({
        connection: this.connection,
        prefix,
        queue: lane,
        onStep: step,
        signal: this.end.signal,
      });
      for (const kind of ['moved', 'setAside', 'mended', 'failed', 'requeued', 'released', 'removed'] as const)
        repaired[kind] += report[kind];
    }
    const finishedRemoved = await this.removeFinished(step);
    await tidyNotedQueues(this.connection, prefix);
    if (this.isOver) return undefined;
    await this.run(END_SWEEP, [this.keys.janitor(queue), this.keys.jobless(queue), token, serverNowMs(), everyMs]);
    return {
      ...found,
      reservations,
      resultsExpired,
      jobsMended: repaired.mended,
      jobsFailed: repaired.failed,
      jobsRequeued: repaired.requeued,
      parentsReleased: repaired.released,
      finishedRemoved,
      idsRemoved: repaired.removed + repaired.setAside + repaired.moved,
    };
  }

  /** Records, and the texts in them, of jobs that ended so long ago. */
  private async removeFinished(step: () => Promise<void>): Promise<number> {
    const { queue: main, cpuQueue, prefix, keepMs = 0, log } = this.options;
    if (keepMs === 0) return 0;
    let removed = 0;
    for (const name of [main, cpuQueue]) {
      const queue = new Queue(name, { prefix, connection: this.connection, skipMetasUpdate: true });
      queue.on('error', (error) => log.debug({ queue: name, reason: error.message }, 'queue reported an error'));
      for (const state of ['completed', 'failed'] as const) {
        for (let taken = REMOVED_AT_ONCE; taken === REMOVED_AT_ONCE && !this.isOver; removed += taken) {
          taken = (await queue.clean(keepMs, REMOVED_AT_ONCE, state)).length;
          await step();
        }
      }
      await queue.close();
    }
    return removed;
  }

  /**
   * One look at every key: inputs without a job, results that would stay. The server finds and judges them; little of
   * it is sent.
   */
  private async takeAndAge(token: string): Promise<Pick<SweepFindings, 'inputs' | 'inputBytes' | 'strayResults'>> {
    const { queue, cpuQueue: cpu, prefix, everyMs, serverNowMs } = this.options;
    const quarantine = quarantineQueue(queue);
    const kinds = [
      [queue, [queue, cpu]],
      [quarantine, [quarantine]],
    ] as const;
    const inputs = kinds.flatMap(([owner, lanes]) => [
      this.keys.input(owner, ''),
      lanes.length,
      ...lanes.map((lane) => this.keys.job(lane, '')),
    ]);
    // {shoal}:in:<queue>:<job id>, {shoal}:in:<queue>-quarantine:…, {shoal}:out:<queue>:…
    const pattern = `${literally(prefix)}:[io]*:${literally(queue)}*`;
    const found = { inputs: 0, inputBytes: 0, strayResults: 0 };
    let cursor = '0';
    do {
      const [step] = await this.run(SWEEP_STEP, [
        this.keys.janitor(queue),
        this.keys.jobless(queue),
        token,
        LOCK_MS,
        serverNowMs(),
        everyMs,
        cursor,
        pattern,
        SCAN_STEP,
        this.keys.output(queue, ''),
        STRAY_RESULT_MS,
        ...inputs,
      ]);
      if (!Array.isArray(step)) throw anotherSweeps();
      const [next, taken, bytes, strays] = step.map(String);
      cursor = next!;
      found.inputs += Number(taken);
      found.inputBytes += Number(bytes);
      found.strayResults += Number(strays);
      await this.rest();
    } while (cursor !== '0' && !this.isOver);
    return found;
  }

  /** Between two steps. Throws when the broom was taken from us: we were too slow, and somebody else sweeps. */
  private async stepped(token: string): Promise<void> {
    const { queue } = this.options;
    const [isOurs] = await this.run(RENEW_LOCK, [this.keys.janitor(queue), token, LOCK_MS]);
    if (isOurs !== 1) throw anotherSweeps();
    await this.rest();
  }

  private async rest(): Promise<void> {
    const { clock, restMs = REST_MS } = this.options;
    if (restMs === 0 || this.isOver) return;
    await new Promise<void>((resolve) => {
      const cancel = clock.after(restMs, resolve);
      this.endRest = () => {
        cancel();
        resolve();
      };
    });
  }

  private run(
    called: Parameters<typeof runScript>[1],
    values: Parameters<typeof runScript>[2][number],
  ): Promise<unknown[]> {
    return runScript(this.connection, called, [values], { signal: this.end.signal });
  }

  private get isOver(): boolean {
    return this.end.signal.aborted;
  }
}

function anotherSweeps(): Error {
  return new Error('another janitor sweeps');
}
