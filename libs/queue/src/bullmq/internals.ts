// The one file that touches what BullMQ 6.7.0 does not promise: how to append "add this job" to a transaction, and the
// names of a few keys. internals.test.ts states each of these as a contract and names what broke when an upgrade
// breaks it. Everything else in this library uses public methods only. Nothing here decides anything about jobs.

import { REPLY_CHANNEL, checkQueuedJobId, invariant, keySpace } from '@shoal/contract';
import type { IRedisTransaction, JobsOptions } from 'bullmq';
import type { ChainableCommander } from 'ioredis';
import { Job, type Queue } from './package.ts';
import { KEEP_FAILED } from './batch-worker.ts';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { FAIL_WAITING_JOB } from './lua/scripts.generated.ts';

/** The version that the contract tests were written against; package.json pins it. */
export const BULLMQ_VERSION = '6.7.0';

/**
 * MULTI … EXEC on the queue's connection. Any ioredis command may be appended (`set` with a Buffer and "NX", `hmget`,
 * `getBuffer`, …); strings and Buffers travel as they are. `exec()` resolves to one [error, reply] per appended
 * command, in order. It throws when the server refused the whole transaction (EXECABORT: nothing was done) and when the
 * connection was lost (then nobody knows whether it was done: append only what may be repeated). A script that the
 * server has forgotten fails alone while the other commands are done; isScriptMissing tells. The omitted commands are
 * those whose signature BullMQ replaces on this object.
 */
export type Transaction = Omit<ChainableCommander, 'hset' | 'hscan' | 'sscan' | 'zrange'>;

export interface QueuedJob {
  readonly name: string;
  readonly data: unknown;
  readonly opts: JobsOptions & { readonly jobId: string };
}

type Replies = Awaited<ReturnType<Transaction['exec']>>;

export async function openTransaction(queue: Queue): Promise<Transaction> {
  const client = await queue.getBackend().client;
  // BullMQ extends the ioredis object in place (classes/ioredis-client.js, augmentTransaction), so it still is one.
  const transaction = client.multi() as unknown as Transaction;
  const exec = transaction.exec.bind(transaction);
  return Object.assign(transaction, {
    async exec(): Promise<Replies> {
      const replies = await exec();
      if (isScriptMissing(replies)) await loadScripts(client as unknown as Redis);
      return replies;
    },
  });
}

/**
 * Whether the server had forgotten a script of the transaction (SCRIPT FLUSH; it keeps the last 500 that came by EVAL).
 * They are loaded again by then: whoever may repeat the transaction finds them.
 */
export function isScriptMissing(replies: Replies): boolean {
  return replies?.some(([error]) => error?.message.startsWith('NOSCRIPT') === true) ?? false;
}

/** A transaction that may be done twice, and is when the server had forgotten one of its scripts. */
export async function runTransaction(
  queue: Queue,
  append: (transaction: Transaction) => void,
): Promise<NonNullable<Replies>> {
  const run = async (): Promise<Replies> => {
    const transaction = await openTransaction(queue);
    append(transaction);
    return transaction.exec();
  };
  const replies = await run();
  return (isScriptMissing(replies) ? await run() : replies) ?? [];
}

/**
 * ioredis sends a script's text once a socket, then its hash, and the text again only when that very command is refused
 * (Script.js). In a transaction the command is queued and the refusal lies among EXEC's replies: without this every
 * later transaction on the socket would fail as well. What came by SCRIPT LOAD is not pushed out by others.
 */
async function loadScripts(client: Redis): Promise<void> {
  const scripts = Object.values(
    Reflect.get(client, 'scriptsSet') as Readonly<Record<string, { readonly lua: string }>>,
  );
  await Promise.all(scripts.map(({ lua }) => client.script('LOAD', lua)));
}

/**
 * Appends "add this job": exactly one command, whose reply is the job's id. An id that exists already is left as it is
 * and the reply is that id all the same, so the caller tells them apart by another command of the transaction. Throws
 * JOB_INVALID, before anything is appended, for an id that cannot be one; one that BullMQ made can.
 */
export function queueAdd(queue: Queue, transaction: Transaction, job: QueuedJob): void {
  const jobId = checkQueuedJobId(job.opts.jobId);
  const json = new Job(queue, job.name, job.data, job.opts, jobId).asJSON();
  const lengthBefore = transaction.length;
  const { parentKey } = json;
  // The command is appended before the returned promise waits for anything; BullMQ's own addJobs relies on that too.
  void queue
    .getBackend()
    .addJobToTransaction(
      transaction as unknown as IRedisTransaction,
      json,
      jobId,
      parentKey === undefined ? {} : { parentKey, parentDependenciesKey: `${parentKey}:dependencies` },
    );
  invariant(transaction.length === lengthBefore + 1, 'addJobToTransaction appends exactly one command at once');
}

/**
 * Appends "remove this job", whatever its state, exactly one command whose reply is 1, or 0 when there is no such job
 * or a worker holds it. Its children, input and result stay. Only for jobs that are being watched.
 */
export function queueRemove(queue: Queue, transaction: Transaction, jobId: string): void {
  const args = [queue.toKey(jobId), queue.toKey('repeat'), jobId, 0, queue.toKey('')];
  void queue.getBackend().execCommand(transaction as unknown as IRedisTransaction, 'removeJob', args);
}

/**
 * Appends "this active job waits for its child": exactly one command. Its reply is 0 when it does, 1 when that child is
 * not pending, and negative when the lock does not have this token (isLockLost knows these codes).
 */
export function queueWaitForChild(
  queue: Queue,
  transaction: Transaction,
  jobId: string,
  token: string,
  child: { readonly queue: Queue; readonly jobId: string },
): void {
  const args = queue
    .getBackend()
    .moveToWaitingChildrenArgs(jobId, token, { child: { id: child.jobId, queue: child.queue.qualifiedName } });
  void queue.getBackend().execCommand(transaction as unknown as IRedisTransaction, 'moveToWaitingChildren', args);
}

/** Appends "this is the job's progress": exactly one command, whose reply is 0, or -1 when there is no such job. */
export function queueProgress(queue: Queue, transaction: Transaction, jobId: string, progress: object): void {
  const args = [queue.toKey(jobId), queue.toKey('events'), queue.toKey('meta'), jobId, JSON.stringify(progress)];
  void queue.getBackend().execCommand(transaction as unknown as IRedisTransaction, 'updateProgress', args);
}

/** Where BullMQ keeps how the children of a job ended: return values, and failures that are the parent's to judge. */
export function childEndKeys(queue: Queue, jobId: string): [processed: string, failed: string] {
  return [queue.toKey(`${jobId}:processed`), queue.toKey(`${jobId}:failed`)];
}

export interface FailedWaiting {
  /** `failed`: it waited, and has failed now. */
  readonly state: 'failed' | 'active' | 'waiting-children' | 'finished' | 'unknown';
  /** Where its producer waits. */
  readonly reply: string | undefined;
}

/**
 * Fails a job that waits, prioritized and delayed ones included; says where one is that does not. Old failures beyond
 * what workers keep go, a few a call.
 */
export async function failWaiting(
  connection: Redis,
  {
    prefix,
    queue,
    jobId,
    reason,
  }: { readonly prefix: string; readonly queue: string; readonly jobId: string; readonly reason: string },
): Promise<FailedWaiting> {
  const lists = ['wait', 'prioritized', 'delayed', 'waiting-children', 'failed', 'events'].map(
    (name) => `${prefix}:${queue}:${name}`,
  );
  const [reply] = await runScript(connection, FAIL_WAITING_JOB, [
    [
      `${prefix}:${queue}:${jobId}`,
      ...lists,
      keySpace(prefix).cancelledJobs(queue),
      jobId,
      reason,
      `${prefix}:${queue}:`,
      KEEP_FAILED,
    ],
  ]);
  const [state, data] = (reply as unknown[]).map(String);
  return { state: state as FailedWaiting['state'], reply: data === undefined ? undefined : replyIn(data) };
}

/** Data that nobody has checked. */
function replyIn(data: string): string | undefined {
  try {
    const parsed: unknown = JSON.parse(data);
    const reply: unknown = typeof parsed === 'object' && parsed !== null ? Reflect.get(parsed, 'reply') : undefined;
    return typeof reply === 'string' && REPLY_CHANNEL.test(reply) ? reply : undefined;
  } catch {
    return undefined;
  }
}

/** As BullMQ's own check does for each job whose lease ran out. */
export async function countStall(connection: Redis, jobKey: string): Promise<void> {
  await connection.hincrby(jobKey, 'stc', 1);
}

/**
 * Wakes one idle worker of a queue. Handing back a prioritized job puts no marker, and a marker that a stopping worker
 * took is gone with it: an idle fleet would sleep until its next look. A marker too many costs one look.
 */
export async function wakeIdleWorker(connection: Redis, prefix: string, queue: string): Promise<void> {
  await connection.zadd(`${prefix}:${queue}:marker`, 0, '0');
}

/**
 * Bounds the stream of events of a queue; BullMQ's default keeps the last 10,000. A Queue made elsewhere may set it
 * again.
 */
export async function limitEvents(connection: Redis, prefix: string, queue: string, maxEvents: number): Promise<void> {
  await connection.hset(`${prefix}:${queue}:meta`, 'opts.maxLenEvents', maxEvents);
}

/**
 * Of an error thrown by a settling method of Job: the job is no longer ours to settle (gone, no lock, another's lock,
 * not active).
 */
export function isLockLost(error: unknown): boolean {
  return error instanceof Error && LOCK_LOST_CODES.has(Reflect.get(error, 'code'));
}

/** The same error, for who finds it out without a settling method. */
export function lockLost(jobId: string, code: number = -6): Error {
  return Object.assign(new Error(`the lock of job ${jobId} is not ours (${code})`), { code });
}

/** JobNotExist, JobLockNotExist, JobNotInState and JobLockMismatch of BullMQ's ErrorCode, which it does not export. */
const LOCK_LOST_CODES: ReadonlySet<unknown> = new Set([-1, -2, -3, -6]);
