// The one file that touches what BullMQ 6.7.0 does not promise: how to append "add this job" to a transaction, and the
// names of a few keys. bullmq-internals.test.ts states each of these as a contract and names what broke when an upgrade
// breaks it. Everything else in this library uses public methods only. Nothing here decides anything about jobs.

import { checkJobId, invariant } from '@shoal/core';
import { Job, type IRedisTransaction, type JobsOptions, type Queue } from 'bullmq';
import type { ChainableCommander } from 'ioredis';

/** The version that the contract tests were written against; package.json pins it. */
export const BULLMQ_VERSION = '6.7.0';

/**
 * MULTI … EXEC on the queue's connection. Any ioredis command may be appended (`set` with a Buffer and "NX", `hmget`,
 * `getBuffer`, …); strings and Buffers travel as they are. `exec()` resolves to one [error, reply] per appended command, in
 * order. It throws when the server refused the whole transaction (EXECABORT: nothing was done) and when the connection was
 * lost (then nobody knows whether it was done: append only what may be repeated). The omitted commands are those whose
 * signature BullMQ replaces on this object.
 */
export type Transaction = Omit<ChainableCommander, 'hset' | 'hscan' | 'sscan' | 'zrange'>;

export interface QueuedJob {
  readonly name: string;
  readonly data: unknown;
  readonly opts: JobsOptions & { readonly jobId: string };
}

export async function openTransaction(queue: Queue): Promise<Transaction> {
  const client = await queue.getBackend().client;
  // BullMQ extends the ioredis object in place (classes/ioredis-client.js, augmentTransaction), so it still is one.
  return client.multi() as unknown as Transaction;
}

/**
 * Appends "add this job": exactly one command, whose reply is the job's id. An id that exists already is left as it is and
 * the reply is that id all the same, so the caller tells them apart by another command of the transaction. Throws
 * JOB_INVALID, before anything is appended, for an id that cannot be one.
 */
export function queueAdd(queue: Queue, transaction: Transaction, job: QueuedJob): void {
  const jobId = checkJobId(job.opts.jobId);
  const json = new Job(queue, job.name, job.data, job.opts, jobId).asJSON();
  const lengthBefore = transaction.length;
  // The command is appended before the returned promise waits for anything; BullMQ's own addJobs relies on that too.
  void queue.getBackend().addJobToTransaction(transaction as unknown as IRedisTransaction, json, jobId);
  invariant(transaction.length === lengthBefore + 1, 'addJobToTransaction appends exactly one command at once');
}
