// Asks for a finished id again: removes the old job with its result and adds the new one, in one transaction. Two
// producers may ask for the same finished job at once. Both watch the job and its result, decide from what they see,
// and change it in one transaction; the slower one's is refused, it looks again and finds the job known, or ready.

import { keySpace, type KeySpace } from '@shoal/contract';
import { Serial } from '@shoal/core/base';
import type { Queue } from 'bullmq';
import { isScriptMissing, openTransaction, queueAdd, queueRemove, type Transaction } from '../bullmq/internals.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { judge, toFound, type Again, type Found } from './job-verdict.ts';
import { fingerprintOf, inGroups, toResult, type AddResult, type NewJob } from './new-job.ts';
import { readsPointers } from './lying-beside.ts';
import { openQueue, type ProducerOptions } from './open-queue.ts';

/**
 * Rounds of WATCH that lost against another producer before the jobs are reported as known, to be looked at again
 * later.
 */
const MAX_REPLACE_ROUNDS = 5;

export class Replacements {
  private readonly options: ProducerOptions;
  private readonly keys: KeySpace;
  /** A connection of its own for WATCH, which holds for all that is sent on a connection. Opened when first needed. */
  private watcher: { readonly connection: Redis; readonly queue: Queue } | undefined;
  private readonly replacing = new Serial();

  constructor(options: ProducerOptions) {
    this.options = options;
    this.keys = keySpace(options.prefix);
  }

  /** One replacement at a time: a WATCH holds for everything on its connection. */
  replace(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    if (jobs.length === 0) return Promise.resolve([]);
    return this.replacing.run(() => translated(() => this.replaceAll(jobs, again)));
  }

  private async replaceAll(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    const results = new Map<string, AddResult>();
    for (const group of inGroups(jobs)) {
      for (let round = 0; round < MAX_REPLACE_ROUNDS; round++)
        if (await this.replaceGroup(group, again, results)) break;
    }
    return jobs.map(({ jobId }) => results.get(jobId) ?? { jobId, outcome: 'known' });
  }

  /** True when the group's results are in; false when somebody else changed one of its jobs meanwhile. */
  private async replaceGroup(jobs: readonly NewJob[], again: Again, results: Map<string, AddResult>): Promise<boolean> {
    const { connection, queue } = await this.readyWatcher();
    await connection.watch(
      ...jobs.flatMap(({ jobId }) => [
        this.keys.job(this.options.queue, jobId),
        this.keys.output(this.options.queue, jobId),
      ]),
    );
    const found = await this.look(connection, jobs);
    const { payloads } = this.options;
    const verdicts = jobs.map((job, i) =>
      judge(job.jobId, fingerprintOf(job), found[i]!, again, readsPointers(job, payloads)),
    );
    const transaction = await openTransaction(queue);
    for (const [i, job] of jobs.entries()) {
      const { kind } = verdicts[i]!;
      if (kind === 'replace' || kind === 'add') this.appendReplacement(transaction, queue, job);
    }
    const replies = await transaction.exec();
    // what was done of it is seen, and completed, in the next round
    if (replies === null || isScriptMissing(replies)) return false;
    const fault = replies.find(([error]) => error !== null)?.[0];
    if (fault) throw fault;
    for (const [i, { jobId }] of jobs.entries()) results.set(jobId, toResult(jobId, verdicts[i]!));
    return true;
  }

  private async look(connection: Redis, jobs: readonly NewJob[]): Promise<Found[]> {
    return Promise.all(
      jobs.map(async ({ jobId }) => {
        const [hash, head] = await Promise.all([
          connection.hmget(this.keys.job(this.options.queue, jobId), 'data', 'finishedOn', 'failedReason'),
          connection.getrangeBuffer(this.keys.output(this.options.queue, jobId), 0, 31),
        ]);
        return toFound(hash, head);
      }),
    );
  }

  /** `judge` has made sure that the result, if there is one, was taken or is this request's own. */
  private appendReplacement(transaction: Transaction, queue: Queue, job: NewJob): void {
    queueRemove(queue, transaction, job.jobId);
    transaction.del(this.keys.output(this.options.queue, job.jobId));
    if (job.input !== undefined) transaction.set(this.keys.input(this.options.queue, job.jobId), job.input);
    queueAdd(queue, transaction, { name: job.name ?? 'embed', data: job.data, opts: { jobId: job.jobId } });
  }

  private async readyWatcher(): Promise<{ connection: Redis; queue: Queue }> {
    const { connection, queue } = (this.watcher ??= this.openWatcher());
    await untilReady(connection, this.options.redisUrl);
    await queue.waitUntilReady();
    // What waited for another socket, or was sent again there, would run on one that watches nothing: it fails instead.
    // Not before the queue is ready, which does not try a second time.
    connection.options.maxRetriesPerRequest = 0;
    connection.options.enableOfflineQueue = false;
    return { connection, queue };
  }

  private openWatcher(): { connection: Redis; queue: Queue } {
    const connection = openConnection({
      url: this.options.redisUrl,
      prefix: this.options.prefix,
      name: 'shoal-producer-watch',
      log: this.options.log,
    });
    return { connection, queue: openQueue(this.options, connection) };
  }

  /** Calls that still wait for the server are rejected. Safe to call twice. */
  async close(): Promise<void> {
    if (this.watcher !== undefined) await closeConnection(this.watcher.connection);
    await Promise.allSettled([this.watcher?.queue.close(), this.replacing.settled()]);
  }
}
