// Says why nothing comes. While jobs are open and none ends for three seconds, the queue is asked; what it says is told
// at once, when it changes, and every half minute. A queue that no worker ever served, while others are served, is most
// likely a wrong name: its jobs are given up after a while, where anything else is waited for.
//
// *resting* until a job is opened; *watching* from then on, a look at a time, until none is open.

import type { Clock } from '@shoal/core';
import { ShoalError } from '@shoal/contract';
import type { Waiting } from '@shoal/queue';

export interface WaitingWatchParts {
  readonly clock: Clock;
  readonly ask: () => Promise<Waiting>;
  /** Jobs that are open, and how many have ended since the client connected. */
  readonly standing: () => { readonly open: number; readonly ended: number };
  /** Undefined: jobs end again, nobody waits any more. */
  readonly onWaiting: (waiting: Waiting | undefined) => void;
  readonly notServedAfterMs: number;
  readonly onNotServed: (error: ShoalError<'NOT_SERVED'>) => void;
}

/** The first look, and those after it. */
const LOOK_AFTER_MS = 3_000;
const TELL_AGAIN_MS = 30_000;

export class WaitingWatch {
  private readonly parts: WaitingWatchParts;
  private cancelLook: (() => void) | undefined;
  private isStopped = false;
  private endedBefore = 0;
  private told: { readonly reason: Waiting['reason']; readonly atMs: number } | undefined;
  private notServedSinceMs: number | undefined;

  constructor(parts: WaitingWatchParts) {
    this.parts = parts;
  }

  /** A job was opened. */
  opened(): void {
    if (this.cancelLook !== undefined || this.isStopped) return;
    this.endedBefore = this.parts.standing().ended;
    this.lookLater();
  }

  stop(): void {
    this.isStopped = true;
    this.cancelLook?.();
  }

  private lookLater(): void {
    this.cancelLook = this.parts.clock.after(LOOK_AFTER_MS, () => void this.look());
  }

  private async look(): Promise<void> {
    const { open, ended } = this.parts.standing();
    if (open === 0 || ended > this.endedBefore) this.goesOn();
    else await this.askAndTell();
    this.endedBefore = this.parts.standing().ended;
    this.cancelLook = undefined;
    if (this.parts.standing().open > 0 && !this.isStopped) this.lookLater();
  }

  private goesOn(): void {
    this.notServedSinceMs = undefined;
    if (this.told === undefined) return;
    this.told = undefined;
    this.parts.onWaiting(undefined);
  }

  private async askAndTell(): Promise<void> {
    const { clock, ask, standing, onWaiting } = this.parts;
    const waiting = await ask().catch(() => undefined); // the outage has its own patience, and says so
    if (waiting === undefined || this.isStopped || standing().open === 0) return;
    const nowMs = clock.nowMs();
    if (waiting.reason !== this.told?.reason || nowMs - this.told.atMs >= TELL_AGAIN_MS) {
      this.told = { reason: waiting.reason, atMs: nowMs };
      onWaiting(waiting);
    }
    this.judge(waiting, nowMs);
  }

  private judge({ reason, message }: Waiting, nowMs: number): void {
    if (reason !== 'not-served') {
      this.notServedSinceMs = undefined;
      return;
    }
    this.notServedSinceMs ??= nowMs;
    const { notServedAfterMs, onNotServed } = this.parts;
    if (nowMs - this.notServedSinceMs < notServedAfterMs) return;
    this.notServedSinceMs = undefined;
    onNotServed(new ShoalError('NOT_SERVED', message));
  }
}
