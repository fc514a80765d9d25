// Stops a worker from claiming while the queue server has no room for its results: above a share of its memory, or
// while results that nobody has read fill theirs. A claim turns a small input into a large result; a 60 MB server
// filled to 70 % with inputs and without a reader took 230 of 3,600 results and then refused everything (2026-11).
// Frees nothing, fails nothing: claiming goes on by itself once readers have caught up. A worker that somebody drained
// (`shoal fleet drain`) claims nothing either, until it is resumed.
//
// States: *open*; *memory*, above `maxMemoryShare`: only a few jobs at a time while none is in flight, because inputs
// alone may be what fills the server, and nothing but running them makes them fewer; *unread* (and *memory* near the
// end): no claims; *drained*, whatever the server has: no claims.
//
// Why: docs/decisions/claiming-and-order.md#room-is-reserved-by-producers-and-guarded-by-workers

import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from '@shoal/core';
import { unlessAborted } from '@shoal/core/base';
import { readAdmission, readServerMemory } from '../admission/admission.ts';
import type { Redis } from '../redis/connection.ts';

export interface BrakeLimits {
  /** Share of maxmemory above which jobs are claimed only one after another, 0 to 1. */
  readonly maxMemoryShare: number;
  /** Share of maxmemory that unread results may fill before claiming stops. */
  readonly maxUnreadShare: number;
}

export const DEFAULT_BRAKE: BrakeLimits = { maxMemoryShare: 0.8, maxUnreadShare: 0.5 };

/** What the server has no room for. */
export type ServerPressure = 'memory' | 'unread';

export type BrakeReason = ServerPressure | 'drained';

export interface ClaimBrakeOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  readonly limits: BrakeLimits;
  /** Jobs claimed and not settled. */
  readonly inFlight: () => number;
  readonly isDrained: () => boolean;
  /** Told of each change of the server's room; undefined: it has some. */
  readonly onChange: ((pressure: ServerPressure | undefined) => void) | undefined;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/** INFO takes the server about 50 µs; in this time a worker commits a few MB at most. */
const LOOK_MS = 250;
const FRESH_MS = 5_000;
/** Above this not even single jobs are claimed: the rest is for writes that end jobs. */
const LAST_SHARE = 0.92;
/** Once on, the brake is let go this far below its limit, or it would flutter. */
const SLACK = 0.05;
const JOBS_AT_A_TIME = 4;

interface Reading {
  readonly atMs: number;
  readonly memoryShare: number;
  readonly unreadShare: number;
}

export class ClaimBrake {
  private readonly options: ClaimBrakeOptions;
  private reading: Reading | undefined;
  private looking: Promise<void> | undefined;
  private pressure: ServerPressure | undefined;

  constructor(options: ClaimBrakeOptions) {
    this.options = options;
  }

  /** Why claiming is held back now, known for certain: a reading that is old says nothing. */
  get reason(): BrakeReason | undefined {
    if (this.options.isDrained()) return 'drained';
    return performance.now() - (this.reading?.atMs ?? -Infinity) < FRESH_MS ? this.pressure : undefined;
  }

  /** How many of `limit` jobs may be claimed now; 0 while the brake is on. */
  async allowed(limit: number): Promise<number> {
    return this.options.isDrained() ? 0 : this.allowedByServer(limit);
  }

  /** Like `allowed`, but waits until there is at least one; 0 only when claiming has ended. */
  async untilAllowed(limit: number): Promise<number> {
    const { signal } = this.options;
    for (let jobs = await this.allowed(limit); ; jobs = await this.allowed(limit)) {
      if (jobs > 0 || signal.aborted) return signal.aborted ? 0 : jobs;
      await sleep(LOOK_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  private async allowedByServer(limit: number): Promise<number> {
    const ageMs = performance.now() - (this.reading?.atMs ?? -Infinity);
    if (ageMs > LOOK_MS) this.looking ??= this.look().finally(() => (this.looking = undefined));
    if (this.pressure !== undefined || this.reading === undefined)
      // a server that is away must not hold up a goodbye
      await unlessAborted(this.options.signal, this.looking ?? Promise.resolve());
    if (this.pressure === undefined) return limit;
    const isLast = this.pressure === 'unread' || (this.reading?.memoryShare ?? 0) > LAST_SHARE;
    return isLast || this.options.inFlight() > 0 ? 0 : Math.min(limit, JOBS_AT_A_TIME);
  }

  /** A server that does not answer keeps no brake on: claiming itself waits for it. */
  private async look(): Promise<void> {
    const { connection, prefix, queue, log } = this.options;
    try {
      const [memory, load] = await Promise.all([
        readServerMemory(connection),
        readAdmission(connection, { prefix, queue }),
      ]);
      const mayUse = memory.maxBytes > 0 ? memory.maxBytes : memory.machineBytes;
      this.reading = {
        atMs: performance.now(),
        memoryShare: memory.usedBytes / mayUse,
        unreadShare: load.unreadBytes / mayUse,
      };
      this.change(this.reading);
    } catch (error) {
      log.debug({ err: error }, 'the memory of the queue server could not be read');
    }
  }

  private change({ memoryShare, unreadShare }: Reading): void {
    const {
      limits: { maxMemoryShare, maxUnreadShare },
      log,
      onChange,
    } = this.options;
    const slack = this.pressure === undefined ? 0 : SLACK;
    const reason =
      unreadShare > maxUnreadShare - slack ? 'unread' : memoryShare > maxMemoryShare - slack ? 'memory' : undefined;
    if (reason === this.pressure) return;
    const facts = {
      reason,
      memoryPercent: Math.round(100 * memoryShare),
      unreadPercent: Math.round(100 * unreadShare),
    };
    if (reason === undefined) log.info(facts, 'the queue server has room again, claiming goes on');
    else
      log.warn(
        { ...facts, code: 'QUEUE_FULL' },
        reason === 'unread'
          ? 'claiming stopped until results are read'
          : 'claiming slowed down, the memory of the queue server is almost full',
      );
    this.pressure = reason;
    onChange?.(reason);
  }
}
