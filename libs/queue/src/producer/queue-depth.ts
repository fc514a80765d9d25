// How full a queue is: jobs by state, the age of the one that waits longest, workers that serve it. For metrics and
// health checks, which must answer while the server is away: a question is never put in line for a connection that is
// lost, and whoever asks while a question is open gets its answer. Writes nothing but a key that shows whether the
// server takes any.

import { DEFAULT_PREFIX, ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import type { CollectionFacts } from '@shoal/core/similarity';
import { Queue } from '../bullmq/package.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { writeRefusal } from '../redis/write-refusal.ts';
import { whyWaiting, type Waiting } from '../lanes/why-waiting.ts';
import { queueService, type QueueService } from '../lanes/queue-service.ts';
import { servedCollections, servedRerankers } from '../lanes/served-queues.ts';
import { liveWorkers } from '../lanes/worker-presence.ts';
import { countCancelled, oldestWaiting, type OldestWaiting } from './waiting-jobs.ts';
import { withSoundKeys } from '../upkeep/queue-keys.ts';
import { parkedJobs, totalOf, type ParkedJobs } from '../worker/parking.ts';

export interface QueueDepth {
  readonly queue: string;
  /** Prioritized jobs count as waiting, cancelled ones not as failed. */
  readonly jobs: Readonly<
    Record<'waiting' | 'active' | 'delayed' | 'parked' | 'completed' | 'failed' | 'cancelled', number>
  >;
  /** The parked ones by their version: they wait for a worker that knows it, and do not count as delayed. */
  readonly parkedByVersion: ParkedJobs;
  /** Of each class, 0 where none waits. By the server's clock and by the one of who added the job. */
  readonly oldestWaitingMs: OldestWaiting;
  readonly workers: number;
}

/** Whether jobs can be accepted and kept, and who would compute them. */
export interface QueueReadiness extends Waiting {
  /** The server's own words where it refuses to write: its disk or memory is full, it is a replica, it still loads. */
  readonly refusal: string | undefined;
}

export interface QueueGaugeOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly queue: string;
  readonly log?: Logger | undefined;
}

export class QueueGauge {
  private readonly options: QueueGaugeOptions;
  private readonly connection: Redis;
  private readonly queue: Queue;
  private reading: Promise<QueueDepth> | undefined;

  private constructor(options: QueueGaugeOptions, connection: Redis) {
    this.options = options;
    this.connection = connection;
    this.queue = this.open(options.queue);
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: QueueGaugeOptions): Promise<QueueGauge> {
    return new QueueGauge(
      options,
      await connected({
        url: options.redisUrl,
        prefix: options.prefix,
        name: `shoal:gauge:${options.queue}`,
        log: options.log,
      }),
    );
  }

  /**
   * Throws QUEUE_DAMAGED, which names them, where keys of the queue are of another type than they should be;
   * QUEUE_UNREACHABLE at once while the connection is lost; waits on a server that does not answer.
   */
  read(): Promise<QueueDepth> {
    this.reading ??= this.whileConnected(() => this.ask(this.queue)).finally(() => (this.reading = undefined));
    return this.reading;
  }

  /** Whose vectors come from this queue. Throws QUEUE_UNREACHABLE. */
  service(): Promise<QueueService | undefined> {
    const { queue, prefix = DEFAULT_PREFIX } = this.options;
    return queueService(this.connection, { prefix, queue });
  }

  /** name@revision of every reranker that a live worker serves, on whatever queue. Throws as `read` does. */
  rerankers(): Promise<readonly string[]> {
    return this.whileConnected(() => servedRerankers(this.connection, this.options.prefix ?? DEFAULT_PREFIX));
  }

  /** Collections that live workers answer from, by name; of two of one name that with the newest version. */
  collections(): Promise<readonly CollectionFacts[]> {
    return this.whileConnected(() => servedCollections(this.connection, this.options.prefix ?? DEFAULT_PREFIX));
  }

  /** Why jobs may not have been answered yet. Throws QUEUE_UNREACHABLE. */
  whyWaiting(): Promise<Waiting> {
    return whyWaiting(this.connection, this.queue, this.options.prefix);
  }

  /** The same, with a write that shows whether the server takes any. Throws as `read` does. */
  readiness(): Promise<QueueReadiness> {
    return this.whileConnected(async () => {
      const { queue, prefix = DEFAULT_PREFIX } = this.options;
      const refusal = await writeRefusal(this.connection, prefix);
      const waiting = await withSoundKeys(this.connection, [{ prefix, queue }], () => this.whyWaiting());
      return { ...waiting, refusal };
    });
  }

  /** The server's own words where it refuses to write. Throws QUEUE_UNREACHABLE as `read` does. */
  writeRefusal(): Promise<string | undefined> {
    return this.whileConnected(() => writeRefusal(this.connection, this.options.prefix));
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    await Promise.allSettled([this.queue.close(), this.reading]);
  }

  private open(name: string): Queue {
    const { prefix = DEFAULT_PREFIX, log } = this.options;
    const queue = new Queue(name, { prefix, connection: this.connection, skipMetasUpdate: true });
    queue.on('error', (error) => log?.debug({ queue: name, reason: error.message }, 'queue reported an error'));
    return queue;
  }

  /**
   * What was sent when the connection broke is sent again by ioredis, whenever that will be; nobody waits for it here.
   */
  private async whileConnected<Answer>(ask: () => Promise<Answer>): Promise<Answer> {
    const lost = new ShoalError('QUEUE_UNREACHABLE', 'the connection to the queue server is lost');
    if (this.connection.status !== 'ready') throw lost;
    const { promise: closed, reject } = Promise.withResolvers<never>();
    const onClose = (): void => reject(lost);
    this.connection.once('close', onClose);
    try {
      return await Promise.race([translated(ask), closed]);
    } finally {
      this.connection.off('close', onClose);
    }
  }

  private async ask(asked: Queue): Promise<QueueDepth> {
    const { prefix = DEFAULT_PREFIX } = this.options;
    const queue = asked.name;
    const place = { prefix, queue };
    const [counts, cancelled, parkedByVersion, oldestWaitingMs, workers] = await withSoundKeys(
      this.connection,
      [place],
      () =>
        Promise.all([
          asked.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'completed', 'failed'),
          countCancelled(this.connection, place),
          parkedJobs(this.connection, place),
          oldestWaiting(this.connection, place),
          liveWorkers(this.connection, queue, prefix),
        ]),
    );
    const { wait = 0, prioritized = 0, active = 0, delayed = 0, completed = 0, failed = 0 } = counts;
    const parked = totalOf(parkedByVersion);
    return {
      queue,
      jobs: {
        waiting: wait + prioritized,
        active,
        delayed: Math.max(0, delayed - parked),
        parked,
        completed,
        failed: Math.max(0, failed - cancelled),
        cancelled,
      },
      parkedByVersion,
      oldestWaitingMs,
      workers: workers.length,
    };
  }
}
