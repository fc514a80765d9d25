// Nothing waits silently: when a claim has waited long, the queue is asked in another way whether jobs wait. If they
// do, twice in a row while the same claim still waits, then claiming is wedged (a dead connection that nobody reports,
// a bug in a library) and the worker has to leave so that its supervisor starts another. A paused queue, an empty one
// and a server that is away are no wedges; the last is reported.
//
// Why: docs/decisions/queue.md#a-command-without-an-answer-for-20-seconds-reconnects

import { ShoalError } from '@shoal/contract';
import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';

export interface ClaimWatchParts {
  readonly clock: Clock;
  readonly timeoutMs: number;
  readonly log: Logger;
  /** How many jobs wait and may be claimed; throws while nobody can tell. */
  readonly claimable: () => Promise<number>;
  readonly onWedged: (error: ShoalError) => void;
}

export class ClaimWatch {
  private readonly parts: ClaimWatchParts;
  /** The time since which the claim that is under way waits; undefined while none is. */
  private sinceMs: number | undefined;
  /** How many claims were begun; the number of the last one. */
  private claims = 0;
  /** The number of the claim that waited, at the last look, while jobs did; 0 when there was none. */
  private suspect = 0;
  private cancel: () => void = () => undefined;
  private isStopped = false;

  constructor(parts: ClaimWatchParts) {
    this.parts = parts;
  }

  start(): void {
    const { clock, timeoutMs } = this.parts;
    this.cancel = clock.after(
      timeoutMs / 2,
      () => void this.look().finally(() => (this.isStopped ? undefined : this.start())),
    );
  }

  stop(): void {
    this.isStopped = true;
    this.cancel();
  }

  /** Watches a claim: it is under way until `work` ends. */
  async during<Claims>(work: Promise<Claims>): Promise<Claims> {
    this.claims++;
    this.sinceMs = this.parts.clock.nowMs();
    try {
      return await work;
    } finally {
      this.sinceMs = undefined;
    }
  }

  private async look(): Promise<void> {
    const { clock, timeoutMs, claimable, log, onWedged } = this.parts;
    const { sinceMs, claims } = this;
    if (sinceMs === undefined || clock.nowMs() - sinceMs < timeoutMs) return;
    try {
      const waiting = await claimable();
      if (this.isStopped || this.sinceMs === undefined || this.claims !== claims) return;
      const waitedMs = Math.round(clock.nowMs() - sinceMs);
      if (waiting > 0 && this.suspect === claims) return onWedged(wedged(waiting, waitedMs));
      this.suspect = waiting > 0 ? claims : 0;
    } catch (error) {
      log.warn({ err: error }, 'nobody can tell whether jobs wait');
    }
  }
}

function wedged(waiting: number, waitedMs: number): ShoalError<'QUEUE_STUCK'> {
  return new ShoalError(
    'QUEUE_STUCK',
    `${waiting} jobs wait in the queue, but claiming has brought none for ${waitedMs} ms; this worker leaves, ` +
      'so that the one that is started in its place connects anew',
    { waiting, waitedMs },
  );
}
