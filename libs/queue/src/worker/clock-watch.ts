// A worker's eye on the clock of the queue server. Times to live are absolute there: after a step back, locks of workers
// that died, and the pause between two checks for lost leases, would last by that step longer, and their jobs with them.
// Every look tells the server what was seen last, so that a step is noticed by whoever looks next, also after a restart.
//
// Why: docs/decisions/claiming-and-order.md#a-step-of-the-servers-clock-is-noticed-on-the-server

import { keySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { WATCH_CLOCK } from './lua/scripts.generated.ts';

export interface ClockWatchOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  readonly stalledCheckMs: number;
  /** Told of the server's time at each look, epoch ms. */
  readonly onServerTime?: ((serverMs: number) => void) | undefined;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

export interface ClockLook {
  readonly serverMs: number;
  /** By how much the clock went back since the last look, ms. */
  readonly backMs: number;
  readonly locksShortened: number;
}

/** A look costs the server four commands. */
const MOST_BETWEEN_LOOKS_MS = 1_000;
/** Most that a look may take whose hour is told on. */
const FAIR_MS = 2_000;
/** Most that the setting `leaseMs` may be: of locks whose token does not tell their lease. */
const LONGEST_LEASE_MS = 600_000;

/** `isThorough`: every lock is looked at, whatever the clock did. */
export async function lookAtClock(
  connection: Redis,
  { prefix, queue, stalledCheckMs }: Pick<ClockWatchOptions, 'prefix' | 'queue' | 'stalledCheckMs'>,
  isThorough: boolean,
  signal?: AbortSignal,
): Promise<ClockLook> {
  const keys = keySpace(prefix);
  const [reply] = await runScript(
    connection,
    WATCH_CLOCK,
    [
      [
        keys.clock(queue),
        ...['active', 'stalled-check', 'limiter', 'meta'].map((name) => keys.job(queue, name)),
        keys.job(queue, ''),
        stalledCheckMs,
        LONGEST_LEASE_MS,
        isThorough ? 1 : 0,
      ],
    ],
    { signal },
  );
  const [serverMs, backMs, locksShortened] = (reply as unknown[]).map(Number) as [number, number, number];
  return { serverMs, backMs, locksShortened };
}

export class ClockWatch {
  private readonly options: ClockWatchOptions;
  private timer: NodeJS.Timeout | undefined;
  private looking: Promise<void> | undefined;

  constructor(options: ClockWatchOptions) {
    this.options = options;
  }

  start(): void {
    this.timer = setInterval(
      () => (this.looking ??= this.look().finally(() => (this.looking = undefined))),
      Math.min(this.options.stalledCheckMs, MOST_BETWEEN_LOOKS_MS),
    );
  }

  /** Safe to call early or twice. A look that waits for a server that is away ends with its connection. */
  stop(): void {
    clearInterval(this.timer);
  }

  async settled(): Promise<void> {
    await this.looking;
  }

  private async look(): Promise<void> {
    const { connection, queue, onServerTime, signal, log } = this.options;
    try {
      const askedMs = performance.now();
      const { serverMs, backMs, locksShortened } = await lookAtClock(connection, this.options, false, signal);
      if (performance.now() - askedMs <= FAIR_MS) onServerTime?.(serverMs); // an older one is wrong by as much
      if (backMs > 0)
        log.warn({ queue, backMs, locksShortened }, 'the clock of the queue server went back, leases were shortened');
    } catch (error) {
      if (!signal.aborted) log.debug({ err: error }, 'the clock of the queue server could not be looked at');
    }
  }
}
