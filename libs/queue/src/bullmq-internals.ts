// The one file that touches what BullMQ 6.7.0 does not promise: how to append "add this job" to a transaction, and the
// names of a few keys. bullmq-internals.test.ts states each of these as a contract and names what broke when an upgrade
// breaks it. Everything else in this library uses public methods only. Nothing here decides anything about jobs.

import { checkJobId, invariant } from '@shoal/core';
import { Job, type IRedisTransaction, type JobsOptions, type Queue } from 'bullmq';
import type { ChainableCommander } from 'ioredis';
import type { Redis } from './connection.ts';

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

/**
 * Appends "remove this job", whatever its state, exactly one command whose reply is 1, or 0 when there is no such job or a
 * worker holds it. Its children, input and result stay. Only for jobs that are being watched.
 */
export function queueRemove(queue: Queue, transaction: Transaction, jobId: string): void {
  const args = [queue.toKey(jobId), queue.toKey('repeat'), jobId, 0, queue.toKey('')];
  void queue.getBackend().execCommand(transaction as unknown as IRedisTransaction, 'removeJob', args);
}

/**
 * Wakes one idle worker of a queue. Handing back a prioritized job puts no marker, and a marker that a stopping worker took
 * is gone with it: an idle fleet would sleep until its next look. A marker too many costs one look.
 */
export async function wakeIdleWorker(connection: Redis, prefix: string, queue: string): Promise<void> {
  await connection.zadd(`${prefix}:${queue}:marker`, 0, '0');
}

/** Bounds the stream of events of a queue; BullMQ's default keeps the last 10,000. A Queue made elsewhere may set it again. */
export async function limitEvents(connection: Redis, prefix: string, queue: string, maxEvents: number): Promise<void> {
  await connection.hset(`${prefix}:${queue}:meta`, 'opts.maxLenEvents', maxEvents);
}

/** Of an error thrown by a settling method of Job: the job is no longer ours to settle (gone, no lock, another's lock, not active). */
export function isLockLost(error: unknown): boolean {
  return error instanceof Error && LOCK_LOST_CODES.has(Reflect.get(error, 'code'));
}

/** JobNotExist, JobLockNotExist, JobNotInState and JobLockMismatch of BullMQ's ErrorCode, which it does not export. */
const LOCK_LOST_CODES: ReadonlySet<unknown> = new Set([-1, -2, -3, -6]);
