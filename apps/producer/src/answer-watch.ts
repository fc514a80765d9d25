// Answers that are being written, and whether their callers read them. An answer holds memory until it is written, so a
// caller that reads nothing for a while, or too slowly to be done in any sensible time, loses its connection.

import type { ServerResponse } from 'node:http';
import type { Clock } from '@shoal/core';

export interface ReadingLimits {
  /** Longest time in which nothing of an answer is taken. */
  readonly stalledMs: number;
  /** On average, once `stalledMs` have gone by. */
  readonly leastBytesPerSecond: number;
}

/** An answer of 17 MB, the largest of embeddings, has about five minutes. */
export const READING: ReadingLimits = { stalledMs: 30_000, leastBytesPerSecond: 64 * 1024 };

const LOOKS = 6;

interface Writing {
  beganMs: number;
  movedMs: number;
  bytes: number;
  /** Since when it waits for this process and not for its caller. */
  waitsSinceMs?: number | undefined;
}

export class AnswerWatch {
  private readonly clock: Clock;
  private readonly limits: ReadingLimits;
  private readonly writing = new Map<ServerResponse, Writing>();
  private cancelLook: (() => void) | undefined;

  constructor(clock: Clock, limits: ReadingLimits = READING) {
    this.clock = clock;
    this.limits = limits;
  }

  /** The answer is about to be written. */
  began(answer: ServerResponse): void {
    const nowMs = this.clock.nowMs();
    this.writing.set(answer, { beganMs: nowMs, movedMs: nowMs, bytes: 0 });
    answer.once('close', () => {
      this.writing.delete(answer);
      if (this.writing.size > 0) return;
      this.cancelLook?.();
      this.cancelLook = undefined;
    });
    this.lookLater();
  }

  /** So much more of it was taken. */
  moved(answer: ServerResponse, bytes: number): void {
    const writing = this.writing.get(answer);
    if (writing === undefined) return;
    writing.movedMs = this.clock.nowMs();
    writing.bytes += bytes;
  }

  /** It waits for this process and not for its caller, who is given that time back. */
  waits(answer: ServerResponse): void {
    const writing = this.writing.get(answer);
    if (writing !== undefined) writing.waitsSinceMs = this.clock.nowMs();
  }

  goesOn(answer: ServerResponse): void {
    const writing = this.writing.get(answer);
    if (writing?.waitsSinceMs === undefined) return;
    const waitedMs = this.clock.nowMs() - writing.waitsSinceMs;
    writing.waitsSinceMs = undefined;
    writing.movedMs += waitedMs;
    writing.beganMs += waitedMs;
  }

  private lookLater(): void {
    this.cancelLook ??= this.clock.after(this.limits.stalledMs / LOOKS, () => {
      this.cancelLook = undefined;
      for (const [answer, writing] of this.writing) if (this.isTooSlow(writing)) answer.destroy();
      if (this.writing.size > 0) this.lookLater();
    });
  }

  private isTooSlow({ beganMs, movedMs, bytes, waitsSinceMs }: Writing): boolean {
    if (waitsSinceMs !== undefined) return false;
    const { stalledMs, leastBytesPerSecond } = this.limits;
    const nowMs = this.clock.nowMs();
    const allowedMs = stalledMs + (bytes / leastBytesPerSecond) * 1_000;
    return nowMs - movedMs >= stalledMs || nowMs - beganMs >= allowedMs;
  }
}
