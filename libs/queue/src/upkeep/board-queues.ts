// The queues of a prefix as BullMQ's own objects, for a dashboard to look at. Nothing on the server is changed by
// finding or reading them. A job whose hash is damaged comes back as one that says so: BullMQ would throw, and one such
// job would hide the listing it is in.
//
// Why: docs/decisions/command-and-setup.md#bull-board-is-fenced-in

import { DEFAULT_PREFIX } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import type { JobType } from 'bullmq';
import { Job, Queue } from '../bullmq/package.ts';
import { closeConnection, connected, isPassingFault, type Redis } from '../redis/connection.ts';
import { isQueueSeen, notedQueues } from '../lanes/noted-queues.ts';
import { translated } from '../redis/translated.ts';

export type { Job as BoardJob, Queue as BoardQueue } from 'bullmq';

export interface BoardQueuesOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}

/** Name of what stands in for a job that cannot be read. */
export const UNREADABLE_JOB = 'unreadable';

export class BoardQueues {
  private readonly connection: Redis;
  private readonly prefix: string;
  private readonly log: Logger | undefined;
  private readonly queues = new Map<string, Queue>();

  private constructor(connection: Redis, { prefix = DEFAULT_PREFIX, log }: BoardQueuesOptions) {
    this.connection = connection;
    this.prefix = prefix;
    this.log = log;
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: BoardQueuesOptions): Promise<BoardQueues> {
    return new BoardQueues(
      await connected({ url: options.redisUrl, prefix: options.prefix, name: 'shoal:board', log: options.log }),
      options,
    );
  }

  /** Every queue there is now, by name; one that was found before is the same object. Throws QUEUE_UNREACHABLE. */
  async find(): Promise<readonly Queue[]> {
    const names = await translated(() => notedQueues(this.connection, this.prefix));
    for (const name of names) if (!this.queues.has(name)) this.queues.set(name, this.open(name));
    return names.map((name) => this.queues.get(name)!);
  }

  /** Whether anybody ever served or added to a queue, also one that is not listed yet. Throws QUEUE_UNREACHABLE. */
  isSeen(queue: string): Promise<boolean> {
    return translated(() => isQueueSeen(this.connection, this.prefix, queue));
  }

  /** Whether the server can be asked now; while it cannot, questions wait until it is back. */
  get isConnected(): boolean {
    return this.connection.status === 'ready';
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    await Promise.allSettled([...this.queues.values()].map((queue) => queue.close()));
  }

  private open(name: string): Queue {
    const queue = new ForgivingQueue(name, { prefix: this.prefix, connection: this.connection, skipMetasUpdate: true });
    queue.on('error', (error) => this.log?.debug({ queue: name, reason: error.message }, 'queue reported an error'));
    return queue;
  }
}

class ForgivingQueue extends Queue {
  override async getJob(jobId: string): Promise<Job | undefined> {
    try {
      return await super.getJob(jobId);
    } catch (error) {
      if (isPassingFault(error)) throw error;
      return new Job(
        this,
        UNREADABLE_JOB,
        { problem: error instanceof Error ? error.message : String(error) },
        {},
        jobId,
      );
    }
  }

  /** The script behind the list stops at a job whose key is no hash at all; then they are read one by one. */
  override async getJobs(types?: JobType[] | JobType, start = 0, end = -1, asc = false): Promise<Job[]> {
    try {
      return await super.getJobs(types, start, end, asc);
    } catch (error) {
      if (isPassingFault(error)) throw error;
    }
    const jobIds = await this.getRanges(types === undefined ? [] : [types].flat(), start, end, asc);
    return (await Promise.all(jobIds.map((jobId) => this.getJob(jobId)))).filter((job) => job !== undefined);
  }
}
