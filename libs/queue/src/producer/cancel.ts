// Takes jobs back from wherever they are. One that waits fails at once, by the hand of whoever cancels. One that a
// worker has gets a mark in its hash, and a broadcast tells all workers of its lane; the one that holds it drops its
// rows and fails it. A broadcast that was missed is made up for by the mark, which is looked for after every claim,
// after every reconnect and now and then; and since the mark is part of the job, it is gone with it when the id is used
// again. One that is handed over meanwhile has its mark before the move, which then does not happen (hand-over.ts), or
// is followed into the CPU lane. A job that completes before the worker has heard stays completed.

import { cpuLaneOf, failedReason, isReservedJobId, keySpace, type Failure, type KeySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import { failWaiting, type FailedWaiting } from '../bullmq/internals.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { closeConnection, connected, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { RedisAnnouncer } from '../worker/announcer.ts';
import { runScript } from '../redis/script.ts';
import { translated } from '../redis/translated.ts';
import { CANCEL_CLAIMED_JOB, FIND_CANCELLED_JOBS } from './lua/scripts.generated.ts';

/** In the hash of a cancelled job that a worker has. */
export const CANCEL_MARK = 'shoalCancelled';
/**
 * How long workers look for marks after somebody has made one; a claim does not last longer without one of their looks.
 */
const LOOK_FOR_MS = 86_400_000;

export interface CancelOptions {
  readonly redisUrl: ServerAddress;
  readonly prefix: string;
  /** The main lane of the model. */
  readonly queue: string;
  readonly log: Logger;
}

export interface CancelResult {
  readonly jobId: string;
  /**
   * `cancelled`: it has failed. `asked`: a worker has it and was told. `finished`, `unknown`: there is nothing to
   * cancel.
   */
  readonly outcome: 'cancelled' | 'asked' | 'finished' | 'unknown';
}

const FAILURE: Failure = { code: 'CANCELLED', message: 'the job was cancelled before a worker had claimed it' };

export class Canceller {
  private readonly options: CancelOptions;
  private readonly connection: Redis;
  private readonly announcer: RedisAnnouncer;
  private readonly cpu: Queue;

  private constructor(options: CancelOptions, connection: Redis, announcer: RedisAnnouncer) {
    this.options = options;
    this.connection = connection;
    this.announcer = announcer;
    this.cpu = new Queue(this.cpuQueue, { prefix: options.prefix, connection, skipMetasUpdate: true });
    this.cpu.on('error', (error) => options.log.debug({ err: error }, 'queue client reported an error'));
  }

  /** Throws QUEUE_UNREACHABLE. */
  static async connect(options: CancelOptions): Promise<Canceller> {
    const connection = await connected({
      url: options.redisUrl,
      prefix: options.prefix,
      name: `shoal:cancel:${options.queue}`,
      log: options.log,
    });
    try {
      return new Canceller(options, connection, await RedisAnnouncer.connect(options));
    } catch (error) {
      await closeConnection(connection);
      throw error;
    }
  }

  /** One result per id, in order. May be repeated. */
  async cancel(jobIds: readonly string[]): Promise<CancelResult[]> {
    return translated(() =>
      Promise.all(jobIds.map(async (jobId) => ({ jobId, outcome: await this.cancelOne(jobId) }))),
    );
  }

  async close(): Promise<void> {
    await Promise.all([this.announcer.stop(), closeConnection(this.connection)]);
    await this.cpu.close().catch(() => undefined);
  }

  private async cancelOne(jobId: string): Promise<CancelResult['outcome']> {
    const { queue, prefix } = this.options;
    if (isReservedJobId(jobId)) return 'unknown';
    const found = await failWaiting(this.connection, { prefix, queue, jobId, reason: failedReason(FAILURE) });
    switch (found.state) {
      case 'failed':
        return this.announce(jobId, found);
      case 'active':
        return this.cancelActive(jobId);
      case 'waiting-children':
        return this.cancelHandedOver(jobId);
      default:
        return found.state;
    }
  }

  private async announce(jobId: string, { reply }: FailedWaiting): Promise<'cancelled'> {
    await this.announcer.announce([
      { jobId, outcome: 'failed', reply, resultTtlMs: 0, isUrgent: true, wasRepeated: false },
    ]);
    return 'cancelled';
  }

  /** A worker of the main lane has it, or has handed it over since that was seen. */
  private async cancelActive(jobId: string): Promise<CancelResult['outcome']> {
    const marked = await this.mark(this.options.queue, jobId);
    if (marked === 'moved') return this.cancelHandedOver(jobId);
    return marked === 'marked' ? 'asked' : 'finished';
  }

  /** A CPU worker has it, or its child is gone and the job is back in the main lane. */
  private async cancelHandedOver(jobId: string): Promise<CancelResult['outcome']> {
    const { queue, prefix } = this.options;
    await this.cpu.remove(jobId); // nothing, while a CPU worker has it; else the job waits in the main lane again
    if ((await this.mark(this.cpuQueue, jobId)) === 'marked') return 'asked';
    const found = await failWaiting(this.connection, { prefix, queue, jobId, reason: failedReason(FAILURE) });
    if (found.state === 'failed') return this.announce(jobId, found);
    return found.state === 'active' ? this.cancelActive(jobId) : 'finished';
  }

  private async mark(lane: string, jobId: string): Promise<'marked' | 'moved' | 'finished'> {
    const keys = keySpace(this.options.prefix);
    const message = JSON.stringify({ v: 1, jobIds: [jobId] });
    const call = [
      keys.job(lane, jobId),
      keys.cancelled(lane),
      keys.job(lane, 'waiting-children'),
      keys.cancels(lane),
      message,
      LOOK_FOR_MS,
      jobId,
      CANCEL_MARK,
    ];
    const [marked] = await runScript(this.connection, CANCEL_CLAIMED_JOB, [call]);
    return String(marked) as 'marked' | 'moved' | 'finished';
  }

  private get cpuQueue(): string {
    return cpuLaneOf(this.options.queue);
  }
}

export interface CancelListenerOptions extends Omit<CancelOptions, 'queue'> {
  /** The lane that is claimed from. */
  readonly lane: string;
  /** For looking at marks. */
  readonly connection: Redis;
  readonly everyMs: number;
  /** Ids of the claims that are held. */
  readonly held: () => readonly string[];
  /** Jobs of the lane that were cancelled, held or not. */
  readonly onCancelled: (jobIds: readonly string[]) => void;
}

/** A worker's ear: hears the broadcasts of its lane and looks for marks. */
export class CancelListener {
  private readonly options: CancelListenerOptions;
  private readonly keys: KeySpace;
  private readonly subscriber: Redis;
  private timer: NodeJS.Timeout | undefined;

  constructor(options: CancelListenerOptions) {
    this.options = options;
    this.keys = keySpace(options.prefix);
    this.subscriber = openConnection({
      url: options.redisUrl,
      prefix: options.prefix,
      name: `shoal:cancels:${options.lane}`,
      log: options.log,
    });
    // By ioredis itself nobody would catch its failure when the connection closes meanwhile: an unhandled rejection
    // (6.0.0).
    this.subscriber.options.autoResubscribe = false;
    this.subscriber.on('message', (_channel: string, text: string) => options.onCancelled(jobIdsIn(text)));
  }

  /** Hears from when it resolves. Throws QUEUE_UNREACHABLE. */
  async start(): Promise<void> {
    await untilReady(this.subscriber, this.options.redisUrl);
    await this.subscriber.subscribe(this.keys.cancels(this.options.lane));
    this.subscriber.on('ready', () => void this.hearAgain());
    this.timer = setInterval(() => void this.look(this.options.held()), this.options.everyMs);
  }

  /** Safe to call early or twice. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    await closeConnection(this.subscriber);
  }

  /** For claims as they come; nobody waits for it. */
  async look(jobIds: readonly string[]): Promise<void> {
    const { prefix, lane, connection, onCancelled, log } = this.options;
    if (jobIds.length === 0) return;
    try {
      if ((await connection.exists(this.keys.cancelled(lane))) === 0) return;
      const [marked] = await runScript(connection, FIND_CANCELLED_JOBS, [
        [this.keys.cancelled(lane), keySpace(prefix).job(lane, ''), CANCEL_MARK, ...jobIds],
      ]);
      if (Array.isArray(marked) && marked.length > 0) onCancelled(marked.map(String));
    } catch (error) {
      log.debug({ err: error }, 'cancelled jobs could not be looked for, trying again');
    }
  }

  /** Whoever retries a job that failed wants it to run. */
  async forget(jobId: string): Promise<void> {
    const { connection, lane } = this.options;
    await connection.hdel(this.keys.job(lane, jobId), CANCEL_MARK).catch(() => undefined);
  }

  private async hearAgain(): Promise<void> {
    const { lane, held, log } = this.options;
    try {
      await this.subscriber.subscribe(this.keys.cancels(lane));
    } catch (error) {
      log.debug({ err: error }, 'cancels are not heard, trying again with the next connection');
    }
    await this.look(held());
  }
}

function jobIdsIn(text: string): string[] {
  try {
    const message: unknown = JSON.parse(text);
    const jobIds: unknown =
      typeof message === 'object' && message !== null && Reflect.get(message, 'v') === 1
        ? Reflect.get(message, 'jobIds')
        : undefined;
    return Array.isArray(jobIds) ? jobIds.filter((jobId) => typeof jobId === 'string') : [];
  } catch {
    return []; // anybody may publish on a channel
  }
}
