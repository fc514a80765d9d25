// Time that passes only when a test says so. Timers fire in the order of their moments, and everything that follows
// from one without further waiting has happened before the next fires. A pipeline that hangs shows as "nothing left to
// wait for".

import { invariant } from '@shoal/contract';
import type { Clock } from '../ports/clock.ts';

interface Timer {
  readonly atMs: number;
  readonly wake: () => void;
}

export class ManualClock implements Clock {
  private currentMs = 0;
  /** In the order in which they were set, which decides between timers of one moment. */
  private readonly timers = new Set<Timer>();

  nowMs(): number {
    return this.currentMs;
  }

  after(delayMs: number, wake: () => void): () => void {
    const timer: Timer = { atMs: this.currentMs + Math.max(0, delayMs), wake };
    this.timers.add(timer);
    return () => void this.timers.delete(timer);
  }

  /** Timers that wait to fire: 0 once everything was stopped properly. */
  get pending(): number {
    return this.timers.size;
  }

  /** Lets `ms` pass. */
  async advance(ms: number): Promise<void> {
    const endMs = this.currentMs + ms;
    await settled();
    for (let next = this.next(); next !== undefined && next.atMs <= endMs; next = this.next()) await this.fire(next);
    this.currentMs = endMs;
  }

  /**
   * Lets time pass until `isDone`, from timer to timer. Throws when no timer is left or `limitMs` has passed: it would
   * never be.
   */
  async advanceUntil(isDone: () => boolean, limitMs = 3_600_000): Promise<void> {
    const endMs = this.currentMs + limitMs;
    await settled();
    while (!isDone()) {
      const next = this.next();
      invariant(next !== undefined, 'a timer is left while a test waits for something');
      invariant(next.atMs <= endMs, `what a test waits for happens within ${limitMs} ms`);
      await this.fire(next);
    }
  }

  /** Lets time pass until `promise` is settled, and gives its value. */
  async advanceUntilSettled<T>(promise: Promise<T>, limitMs?: number): Promise<T> {
    let isSettled = false;
    const watched = promise.finally(() => (isSettled = true));
    watched.catch(() => undefined); // thrown below, when the caller awaits it
    await this.advanceUntil(() => isSettled, limitMs);
    return watched;
  }

  private next(): Timer | undefined {
    let next: Timer | undefined;
    for (const timer of this.timers) if (next === undefined || timer.atMs < next.atMs) next = timer;
    return next;
  }

  private async fire(timer: Timer): Promise<void> {
    this.timers.delete(timer);
    this.currentMs = Math.max(this.currentMs, timer.atMs);
    timer.wake();
    await settled();
  }
}

/** Resolves when every promise that can settle without time or input has done so. */
export function settled(): Promise<void> {
  return new Promise((resolve) => void setImmediate(resolve));
}
