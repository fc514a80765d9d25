// Jobs of a version that no worker here knows yet: nothing is failed for being new. A worker that meets one parks it: it
// is delayed, ever longer up to ten minutes and for as long as it takes, with its input and its room kept, and its
// version is noted. Workers look every two seconds whether something is parked that they know, and let it go at once:
// in the order in which it was added, each tenant in its turn.
//
// A note that was lost, as with a worker that died between two writes, costs nothing but time: the delay ends by itself.
//
// Why: docs/decisions/queue.md#jobs-that-are-too-new-are-parked

import { keySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { backoffMs, type Backoff } from '@shoal/core/base';
import type { TakenJob } from '../bullmq/batch-worker.ts';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { COUNT_PARKED, RELEASE_PARKED } from './lua/scripts.generated.ts';

export interface ParkingOptions {
  readonly connection: Redis;
  readonly prefix: string;
  readonly queue: string;
  /** The newest version of jobs that this worker reads. */
  readonly newestVersion: number;
  /** A worker that claims nothing lets nothing go. */
  readonly isDrained: () => boolean;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/** How many jobs of each version are parked, by version; "other" for what is beyond the first eight. */
export type ParkedJobs = Readonly<Record<string, number>>;

/**
 * A worker that does not know a version meets its jobs again so often: 100,000 parked ones are 170 claims a second. One
 * that does know it lets them go by itself.
 */
const PARKED: Backoff = { firstMs: 60_000, mostMs: 600_000 };
/** Jitter keeps forty workers from looking in one millisecond. */
const LOOK_MS = { least: 1_750, spread: 500 } as const;
/** After a look that let as many go as a call can. */
const NEXT_CALL_MS = 100;
/** So many take the server some 2 ms; older workers beside this one may park them again. */
const MOST_RELEASED = 500;
const MOST_VERSIONS = 8;
/** One line a version and minute, however many jobs. */
const SAY_EVERY_MS = 60_000;

export class Parking {
  private readonly options: ParkingOptions;
  private readonly said = new Map<number, { readonly untilMs: number; jobs: number }>();
  private timer: NodeJS.Timeout | undefined;
  private looking: Promise<void> | undefined;

  constructor(options: ParkingOptions) {
    this.options = options;
  }

  /** What is parked already and known here is let go when it resolves. */
  async start(): Promise<void> {
    this.lookLater(await this.look());
  }

  /** Safe to call early or twice. */
  stop(): void {
    clearTimeout(this.timer);
  }

  async settled(): Promise<void> {
    await this.looking;
  }

  /** The one ending of the claim. Throws as Job.moveToDelayed does. */
  async park({ job, token }: TakenJob, version: number): Promise<void> {
    const { connection, prefix, queue, log } = this.options;
    await job.moveToDelayed(Date.now() + backoffMs(Math.max(0, job.attemptsStarted - 1), PARKED), token);
    this.say(version);
    await connection
      .zadd(keySpace(prefix).parked(queue), version, job.id ?? '')
      .catch((error: unknown) => log.debug({ err: error }, 'a parked job was not noted; its delay ends by itself'));
  }

  private lookLater(released: number): void {
    if (this.options.signal.aborted) return;
    this.timer = setTimeout(
      () => (this.looking = this.look().then((more) => this.lookLater(more))),
      released < MOST_RELEASED ? LOOK_MS.least + Math.random() * LOOK_MS.spread : NEXT_CALL_MS,
    );
  }

  /** How many were let go. */
  private async look(): Promise<number> {
    const { connection, newestVersion, isDrained, signal, log } = this.options;
    if (isDrained()) return 0;
    try {
      const jobs = await releaseParked(connection, this.options, newestVersion, signal);
      if (jobs > 0) log.info({ jobs, newestVersion }, 'parked jobs may be claimed: this worker knows their version');
      return jobs;
    } catch (error) {
      if (!signal.aborted) log.debug({ err: error }, 'parked jobs could not be looked for, trying again');
      return 0;
    }
  }

  private say(version: number): void {
    const said = this.said.get(version);
    if (said !== undefined && said.untilMs > performance.now()) {
      said.jobs++;
      return;
    }
    this.said.set(version, { untilMs: performance.now() + SAY_EVERY_MS, jobs: 1 });
    this.options.log.warn(
      { version, newestVersion: this.options.newestVersion, jobs: said?.jobs ?? 1, code: 'JOB_VERSION_UNKNOWN' },
      'jobs are parked: they are of a newer version than this worker reads; update the workers (docs/upgrade.md)',
    );
  }
}

/** How many were let go, at most 500 a call. */
export async function releaseParked(
  connection: Redis,
  { prefix, queue }: Pick<ParkingOptions, 'prefix' | 'queue'>,
  newestVersion: number,
  signal?: AbortSignal,
): Promise<number> {
  const keys = keySpace(prefix);
  const [released] = await runScript(
    connection,
    RELEASE_PARKED,
    [
      [
        keys.parked(queue),
        ...['delayed', 'wait', 'events', 'marker', ''].map((name) => keys.job(queue, name)),
        newestVersion,
        MOST_RELEASED,
      ],
    ],
    { signal },
  );
  return Number(released);
}

export async function parkedJobs(
  connection: Redis,
  { prefix, queue }: Pick<ParkingOptions, 'prefix' | 'queue'>,
): Promise<ParkedJobs> {
  const keys = keySpace(prefix);
  const [reply] = await runScript(connection, COUNT_PARKED, [
    [keys.parked(queue), keys.job(queue, 'delayed'), MOST_VERSIONS],
  ]);
  const told = (reply as unknown[]).map(String);
  return Object.fromEntries(
    told.flatMap((version, at) => (at % 2 === 0 ? [[version, Number(told[at + 1])] as const] : [])),
  );
}

/** "3 of them are parked: no worker knew their version (99)". */
export function wordsOfParked(parked: ParkedJobs): string {
  const count = totalOf(parked);
  const versions = Object.keys(parked);
  return (
    `${count.toLocaleString('en')} of them ${count === 1 ? 'is' : 'are'} parked: no worker knew ` +
    `${count === 1 ? 'its version' : `their version${versions.length === 1 ? '' : 's'}`} (${versions.join(', ')})`
  );
}

export function totalOf(parked: ParkedJobs): number {
  return Object.values(parked).reduce((sum, count) => sum + count, 0);
}
