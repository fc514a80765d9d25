// Adds a group of jobs in one call of one script: what BullMQ 6.7.0's addStandardJob keeps of a job, with the job's
// input, and what was found under each id before; add.test.ts compares all that either leaves behind. It knows
// jobs that just wait: no priority, delay, parent or repetition.
//
// A job of one text took the server 94 µs of CPU by BullMQ's script in a transaction, 12 of it for what is done: the
// rest is what each call costs, and the functions that BullMQ's script makes anew each time. It takes 28 so, and the
// producer 20 instead of 94 (50 jobs a call, Valkey 9.1, 2026-11).
//
// Why: docs/decisions/queue.md#jobs-are-added-claimed-and-completed-many-in-a-call

import { randomUUID } from 'node:crypto';
import { ShoalError, checkJobId, type KeySpace } from '@shoal/contract';
import { Job, type Queue } from './package.ts';
import type { Redis } from '../redis/connection.ts';
import { toFound, type Found } from '../producer/job-verdict.ts';
import { askOnce, valueOf, type Argument, type Command } from '../redis/command-pipeline.ts';
import { runScriptOnce } from '../redis/script.ts';
import { STAGED_FROM_BYTES, STAGED_TTL_MS } from '../redis/staging.ts';
import { ADD_JOBS } from './lua/scripts.generated.ts';

export interface AddedJob {
  readonly jobId: string;
  readonly name: string;
  readonly data: unknown;
  readonly input?: Buffer | undefined;
}

/** What is staged is used by the next command: only a server that was away between the two has lost it. */
const MAX_ROUNDS = 4;

const NOT_STAGED = 'not-staged';

/**
 * Adds each job whose id is free, and says what was under each id before, in order; an id that comes twice is found the
 * second time. All is sent in one turn of the event loop, and may be done twice: what was added is found. Throws what
 * the server refused it for, after which either nothing was done or, where one id is no job at all (WRONGTYPE),
 * everything but that one.
 */
export async function addAndLook(
  connection: Redis,
  queue: Queue,
  keys: KeySpace,
  jobs: readonly AddedJob[],
): Promise<Found[]> {
  const found: Found[] = [];
  let open = jobs.map((_, index) => index);
  for (let round = 0; open.length > 0; round++) {
    if (round === MAX_ROUNDS)
      throw new ShoalError(
        'QUEUE_UNREACHABLE',
        'the queue server lost large inputs before it added their jobs, again and again; repeat the call as a whole',
        {},
      );
    const answers = await addOnce(
      connection,
      queue,
      keys,
      open.map((index) => jobs[index]!),
    );
    for (const [at, index] of open.entries()) if (answers[at] !== undefined) found[index] = answers[at];
    open = open.filter((_, at) => answers[at] === undefined);
  }
  return found;
}

/** Undefined for a job whose large input was not there any more. */
async function addOnce(
  connection: Redis,
  queue: Queue,
  keys: KeySpace,
  jobs: readonly AddedJob[],
): Promise<(Found | undefined)[]> {
  const token = randomUUID(); // another call with the same id must not write there before the script has come
  const staged = jobs.flatMap(({ jobId, input }, at) =>
    input !== undefined && isLarge(input) ? [{ at, key: keys.staged(queue.name, jobId, `${token}-${at}`), input }] : [],
  );
  const places = new Map(staged.map(({ at, key }) => [at, key]));
  const values = [
    ...queueKeys(queue),
    queue.toKey(''),
    keys.input(queue.name, ''),
    keys.output(queue.name, ''),
    jobs.length,
    ...jobs.flatMap((job, at) => argumentsOf(queue, job, places.get(at))),
  ];
  const [stagings, replies] = await Promise.all([
    askOnce(
      connection,
      staged.map(({ key, input }): Command => ['SET', key, input, 'PX', STAGED_TTL_MS]),
    ),
    runScriptOnce(connection, ADD_JOBS, values),
  ]).catch((error: unknown) => {
    // a full server has no room for it; else it expires
    if (staged.length > 0) void connection.unlink(staged.map(({ key }) => key)).catch(() => undefined);
    throw error;
  });
  const answers = (replies as (readonly (Buffer | null)[] | null)[]).map(toAnswer);
  for (const [nth, { at }] of staged.entries()) if (answers[at] === undefined) valueOf(stagings[nth]!);
  return answers;
}

function toAnswer(reply: readonly (Buffer | null)[] | null): Found | undefined {
  const [data, finishedOn, failedReason, head, fault] = reply ?? [];
  if (fault?.toString() === NOT_STAGED) return undefined;
  if (fault !== undefined && fault !== null) throw new Error(fault.toString());
  return toFound(
    [data, finishedOn, failedReason].map((field) => field?.toString() ?? null),
    head ?? Buffer.alloc(0),
  );
}

function queueKeys(queue: Queue): string[] {
  return ['wait', 'meta', 'id', 'active', 'events', 'marker'].map((name) => queue.toKey(name));
}

/**
 * Throws JOB_INVALID for an id that cannot be one. What BullMQ would have packed of the options is what their JSON has.
 */
function argumentsOf(queue: Queue, { jobId, name, data, input }: AddedJob, staged: string | undefined): Argument[] {
  const json = new Job(queue, name, data, { jobId }, checkJobId(jobId)).asJSON();
  const fields = [jobId, json.name, json.data, JSON.stringify(json.opts), json.timestamp];
  if (staged !== undefined) return [...fields, 'l', staged];
  return input === undefined ? [...fields, '-'] : [...fields, 's', input];
}

/** Nothing large passes through a script; see staging.ts. */
function isLarge(input: Buffer): boolean {
  return input.length >= STAGED_FROM_BYTES;
}
