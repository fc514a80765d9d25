// Which workers serve a queue, known to everybody who looks: each writes until when it is alive, by the server's clock,
// and says so again long before, with facts about itself (core's WorkerFacts). One that dies without a word is gone
// when its time is up. Also tells the server's clock.

import { randomUUID } from 'node:crypto';
import { DEFAULT_PREFIX, keySpace } from '@shoal/contract';
import type { HistoryStep, Logger, WorkerFacts } from '@shoal/core';
import {
  closeConnection,
  connected,
  isConnectionFault,
  openConnection,
  untilReady,
  type Redis,
} from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { serverTime } from '../redis/server-time.ts';
import { within } from '../redis/within.ts';
import { noteQueues } from './noted-queues.ts';
import { LIST_WORKERS, SHOW_WORKER } from './lua/scripts.generated.ts';
import { appendStep } from './worker-history.ts';

export interface PresenceOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  /** Where it is seen; left out: in `queue` alone. */
  readonly lanes?: readonly string[] | undefined;
  readonly workerId?: string | undefined;
  readonly facts?: (() => WorkerFacts | StartingFacts) | undefined;
  /** What the worker did since it was asked last; kept for whoever looks at the fleet. Needs `facts`. */
  readonly history?: (() => HistoryStep) | undefined;
  /** It is being started: shown as such, and counted as serving by nobody. */
  readonly isStarting?: boolean | undefined;
  readonly log: Logger;
}

/** What a worker that is being started tells of itself. */
export type StartingFacts = Pick<WorkerFacts, 'device' | 'host' | 'pid' | 'version' | 'name' | 'startedMs'>;

/** In the set of drained workers: all of them, later ones too. */
export const ALL_WORKERS = '*';

const LIFE_MS = 6_000;
const RENEWAL_MS = 2_000;
/** A step of history. */
const STEP_EVERY_MS = 10_000;
/**
 * How long a drained worker that is not seen stays drained: an outage ends no drain, and names that never come back do
 * not pile up.
 */
const DRAINED_MS = 86_400_000;
/** A server that is away is left without a word; the worker's time runs out there. */
const GOODBYE_MS = 500;

export class WorkerPresence {
  readonly workerId: string;
  private readonly connection: Redis;
  private readonly options: PresenceOptions;
  private readonly lanes: readonly string[];
  private readonly end = new AbortController();
  private timer: NodeJS.Timeout | undefined;
  private showing: Promise<void> | undefined;
  /** The first is told at once: of one that dies young there is a word, too. */
  private nextStepMs = 0;
  private stopping: Promise<void> | undefined;

  private constructor(connection: Redis, options: PresenceOptions) {
    this.connection = connection;
    this.options = options;
    this.lanes = options.lanes ?? [options.queue];
    this.workerId = options.workerId ?? randomUUID();
  }

  /** Throws QUEUE_UNREACHABLE. Shows nothing yet. */
  static async connect(options: PresenceOptions): Promise<WorkerPresence> {
    return new WorkerPresence(
      await connected({
        url: options.redisUrl,
        prefix: options.prefix,
        name: `shoal:presence:${options.queue}`,
        log: options.log,
      }),
      options,
    );
  }

  /** Resolves once the worker can be seen. */
  async start(): Promise<void> {
    if (this.stopping !== undefined || this.timer !== undefined) return;
    this.timer = setInterval(() => void this.show(), RENEWAL_MS);
    if (this.options.isStarting !== true) await noteQueues(this.connection, this.options.prefix, this.lanes);
    await this.show();
  }

  /** The worker is not seen any more. Safe to call early or twice. */
  stop(): Promise<void> {
    this.stopping ??= this.leave();
    return this.stopping;
  }

  /** One at a time: while the server is away, or takes no writes, a single call waits for it and says so once. */
  private show(): Promise<void> {
    let isSaid = false;
    const onFault = (fault: Error): void => {
      if (!isSaid && !isConnectionFault(fault)) this.reportFault(fault);
      isSaid = true;
    };
    this.showing ??= runScript(
      this.connection,
      SHOW_WORKER,
      this.lanes.map((lane) => this.callFor(lane)),
      { signal: this.end.signal, onFault },
    )
      .then(() => this.tellHistory())
      .catch((error: unknown) => this.reportFault(error))
      .finally(() => (this.showing = undefined));
    return this.showing;
  }

  private async tellHistory(): Promise<void> {
    if (this.stopping !== undefined || performance.now() < this.nextStepMs) return;
    this.nextStepMs = performance.now() + STEP_EVERY_MS;
    await this.tellStep(false);
  }

  private async tellStep(isLast: boolean): Promise<void> {
    const { history, facts, prefix, queue, log } = this.options;
    if (history === undefined || facts === undefined) return;
    const { device, host } = facts();
    const place = { prefix, workerId: this.workerId };
    await appendStep(this.connection, place, { queue, device, host }, history(), isLast).catch((error: unknown) =>
      log.debug({ err: error }, 'what this worker did lately could not be told'),
    );
  }

  private callFor(lane: string): (string | number)[] {
    const { prefix, queue, facts } = this.options;
    const { shown, told } = this.keysOf(lane);
    return [
      shown,
      told,
      keySpace(prefix).drained(queue),
      this.workerId,
      LIFE_MS,
      facts === undefined ? '' : JSON.stringify(facts()),
      DRAINED_MS,
    ];
  }

  private keysOf(lane: string): { readonly shown: string; readonly told: string } {
    const keys = keySpace(this.options.prefix);
    return this.options.isStarting === true
      ? { shown: keys.starting(lane), told: keys.startingFacts(lane) }
      : { shown: keys.workers(lane), told: keys.facts(lane) };
  }

  private async leave(): Promise<void> {
    const keys = keySpace(this.options.prefix);
    const { queue, isStarting } = this.options;
    const orders = isStarting === true ? [] : [keys.drained(queue), keys.leaving(queue)];
    clearInterval(this.timer);
    this.end.abort();
    await within(
      GOODBYE_MS,
      Promise.all([
        ...this.lanes
          .map((lane) => this.keysOf(lane))
          .flatMap(({ shown, told }) => [
            this.connection.zrem(shown, this.workerId),
            this.connection.hdel(told, this.workerId),
          ]),
        ...orders.map((key) => this.connection.srem(key, this.workerId)),
        ...(this.timer === undefined ? [] : [this.tellStep(true)]),
      ]),
    );
    await closeConnection(this.connection);
    await this.showing;
  }

  private reportFault(error: unknown): void {
    if (this.stopping === undefined)
      this.options.log.warn({ err: error }, 'this worker could not be shown to others, trying again');
  }
}

/** Ids of the workers that serve a queue now. */
export async function liveWorkers(
  connection: Redis,
  queue: string,
  prefix: string = DEFAULT_PREFIX,
): Promise<string[]> {
  return listed(connection, keySpace(prefix).workers(queue));
}

/** Ids of those that are being started for it. */
export async function startingWorkers(connection: Redis, queue: string, prefix: string): Promise<string[]> {
  return listed(connection, keySpace(prefix).starting(queue));
}

async function listed(connection: Redis, key: string): Promise<string[]> {
  const [reply] = await runScript(connection, LIST_WORKERS, [[key]]);
  return Array.isArray(reply) ? reply.map(String) : [];
}

/** Epoch milliseconds by the server's clock. */
export interface ServerClock {
  (): number;
  /** The server's time now, as somebody has just heard it. */
  heard(serverMs: number): void;
}

/** Less is how long an answer takes to come; two clocks drift apart by milliseconds a day. */
const STEP_MS = 1_000;

/** An answer that took longer is asked for anew, so often: the hour is known to half of how long it took. */
const FAIR_MS = 500;
const MOST_ASKED = 5;

/** Read at the start; a clock that is set to another time is followed when that is heard of. Throws QUEUE_UNREACHABLE. */
export async function serverClock(redisUrl: string, prefix?: string): Promise<ServerClock> {
  const connection = openConnection({ url: redisUrl, prefix, name: 'shoal:clock' });
  try {
    await untilReady(connection, redisUrl);
    let { offsetMs, tookMs } = await askTime(connection);
    for (let asked = 1; tookMs > FAIR_MS && asked < MOST_ASKED; asked++) {
      const again = await askTime(connection);
      if (again.tookMs < tookMs) ({ offsetMs, tookMs } = again);
    }
    const heard = (serverMs: number): void => {
      const heardOffsetMs = serverMs - performance.now();
      if (Math.abs(heardOffsetMs - offsetMs) > STEP_MS) offsetMs = heardOffsetMs;
    };
    return Object.assign(() => offsetMs + performance.now(), { heard });
  } finally {
    await closeConnection(connection);
  }
}

/** By how much the server's clock is ahead of this process' own, from half of the way; a call that is sent again takes long. */
async function askTime(connection: Redis): Promise<{ readonly offsetMs: number; readonly tookMs: number }> {
  const askedMs = performance.now();
  const serverMs = await serverTime(connection);
  const tookMs = performance.now() - askedMs;
  return { offsetMs: serverMs - (askedMs + tookMs / 2), tookMs };
}
