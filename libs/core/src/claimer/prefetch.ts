// What a worker claims beyond its pool: what the device eats until claimed jobs have come into it, and while nobody
// answers. Pure; whoever asks tells the time.
//
// By Little's law that much is always on its way. Counted as if it waited in the pool already, it would be missing
// there, and batches cut from a small pool are small: at 12.6 M tokens a second and 70 ms a pool of 1.3 M tokens held
// 0.45 M, and batches had 48 k tokens instead of 60 k (two H100 behind one server, 2026-11).
//
// Why: docs/decisions/claiming-and-order.md#what-the-device-eats-meanwhile-is-claimed-ahead

import { ArrivalRate } from '../base/arrival-rate.ts';

/** Weight of the newest job in the mean time that jobs take to get into the pool. */
const NEWEST_WEIGHT = 0.1;
/**
 * A server that writes 500 MB a second to its file, and processes that collect garbage, stand still for so long now and
 * then. A pool that was full for 100 ms of two H100 ran empty in one of three windows of 3 s, one for 200 ms never
 * (2026-11).
 */
const STILL_MS = 100;

export class Prefetch {
  private readonly eaten = new ArrivalRate();
  private fillMs = 0;

  /** A job is in the pool so long after it was asked for. Not to be told of claims that waited for jobs to come. */
  filled(ms: number): void {
    this.fillMs += NEWEST_WEIGHT * (ms - this.fillMs);
  }

  /** The device has run so many real tokens. */
  ran(tokens: number, nowMs: number): void {
    this.eaten.add(tokens, nowMs);
  }

  /** Real tokens to be claimed beyond those that are to wait in the pool. */
  tokens(nowMs: number): number {
    return this.eaten.perMs(nowMs) * (this.fillMs + STILL_MS);
  }
}
