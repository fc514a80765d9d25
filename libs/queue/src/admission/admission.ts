// Decides whether there is room for more: reserves rows and bytes for jobs before they are added, by tenant and in
// total, and says how long to wait when there is none. A reservation is kept by job id until the result was
// acknowledged, the job failed or was removed; what was missed (a reader that died, a result that expired) is found by
// `recountAdmission`. Jobs that are put on the queue by hand have no reservation: workers stop claiming before memory
// ends, see claim-brake.ts.
//
// A reservation counts in two parts. *Queued*: its rows and the bytes of its input, until the job ended. *Owed*: the
// bytes of its result, reserved from the beginning, so that everything accepted can be delivered even when nobody reads
// for a while.
//
// Who waits for room stands in line at the door: it was told when its turn will be, and nobody who comes later passes
// it. A tenth of the room is kept for interactive jobs, which pass the door while there is any.
//
// While room is ample (ample-room.ts) nobody asks first: the reservation travels with the jobs.
//
// Why: docs/decisions/claiming-and-order.md#room-is-reserved-by-producers-and-guarded-by-workers

import {
  DEFAULT_PREFIX,
  ShoalError,
  invariant,
  keySpace,
  mainTenant,
  type EmbedJob,
  type OutputDtype,
} from '@shoal/contract';
import { AmpleRoom } from './ample-room.ts';
import type { Redis } from '../redis/connection.ts';
import { countRefused } from '../redis/process-counts.ts';
import { runScript } from '../redis/script.ts';
import { ADMIT_JOBS, RECOUNT_ROOM, RELEASE_ROOM, TELL_DIMS } from './lua/scripts.generated.ts';

export interface AdmissionLimits {
  /** Rows of a queue that wait or run. */
  readonly maxQueuedRows: number;
  /** Bytes of inputs and results of all queues; undefined: `maxMemoryShare` of what the server may use. */
  readonly maxQueuedBytes: number | undefined;
  /** Of rows and bytes, most that one tenant may have, 0 to 1. */
  readonly maxTenantShare: number;
}

export const DEFAULT_LIMITS: AdmissionLimits = {
  maxQueuedRows: 4_000_000,
  maxQueuedBytes: undefined,
  maxTenantShare: 0.8,
};

export interface WantedRoom {
  readonly job: Pick<EmbedJob, 'jobId' | 'tenant' | 'class' | 'rows' | 'input' | 'output'>;
  readonly inputBytes: number;
}

export interface AdmissionAnswer {
  /** So many of the jobs, from the first on, have their reservation. */
  readonly admitted: number;
  /** How long the next one has to wait; undefined when all were admitted. */
  readonly refused:
    | { readonly retryAfterMs: number; readonly reason: 'rows' | 'bytes' | 'tenant' | 'line' }
    | undefined;
}

/**
 * Of what the server may use, for inputs and results. The rest is for job hashes, buffers and what is added by hand.
 */
const BYTES_SHARE = 0.6;
/** Nothing is admitted above this share of maxmemory, whatever it is filled with. */
const MOST_MEMORY_SHARE = 0.75;
/** Of the machine's memory, where the server has no limit of its own. */
const MACHINE_SHARE = 0.5;
/** INFO takes the server about 50 µs, so it is not asked with every job. */
const MEMORY_READ_MS = 500;
/** Where room is ample an older reading will do, while a new one is under way. */
const MEMORY_KNOWN_MS = 5_000;
const INTERACTIVE_RESERVE = 0.1;
/** Of a job's hash, list entries and events, beside data, input and result (measured 0.9 KB a waiting job, 2026-11). */
const JOB_BYTES = 1_024;
const BYTES_PER_DIM: Readonly<Record<OutputDtype, number>> = { f32: 4, f16: 2, i8: 1, binary: 0.125 };
/** Of a model of which no worker has told. */
const UNKNOWN_DIMS = 1_024;
const JOBS_PER_CALL = 500;

export interface AdmissionOptions {
  readonly prefix?: string | undefined;
  /** The main lane of a model. */
  readonly queue: string;
  /** Who asks: one line at the door for each. */
  readonly caller: string;
  readonly limits?: Partial<AdmissionLimits> | undefined;
}

export class Admission {
  private readonly connection: Redis;
  private readonly options: AdmissionOptions;
  private readonly limits: AdmissionLimits;
  private memory: { readonly readMs: number; readonly limitBytes: number; readonly isFull: boolean } | undefined;
  private memoryIsRead: Promise<unknown> | undefined;
  private readonly ample = new AmpleRoom(() => performance.now());

  constructor(connection: Redis, options: AdmissionOptions) {
    this.connection = connection;
    this.options = options;
    this.limits = { ...DEFAULT_LIMITS, ...options.limits };
  }

  /**
   * Where room is ample: reserves it for all of the jobs, and whoever calls may add them meanwhile. Undefined where it
   * has to be asked for first.
   */
  admitMeanwhile(jobs: readonly WantedRoom[]): Promise<unknown> | undefined {
    const { memory } = this;
    const ageMs = memory === undefined ? Infinity : performance.now() - memory.readMs;
    if (memory === undefined || memory.isFull || ageMs > MEMORY_KNOWN_MS || jobs.length > JOBS_PER_CALL)
      return undefined;
    if (ageMs > MEMORY_READ_MS)
      this.memoryIsRead ??= this.askMemory()
        .catch(() => undefined)
        .finally(() => (this.memoryIsRead = undefined));
    const { maxQueuedRows, maxQueuedBytes = memory.limitBytes } = this.limits;
    const wanted = {
      tenants: jobs.map(({ job }) => mainTenant(job.tenant)),
      share: Math.max(
        sum(jobs.map(({ job }) => job.rows)) / maxQueuedRows,
        sum(jobs.map(mostBytesOf)) / maxQueuedBytes,
      ),
    };
    return this.ample.whileAmple(wanted, () => this.ask(jobs, memory.limitBytes, true));
  }

  /**
   * Reserves room for as many of the jobs as there is, in order. One that has a reservation keeps it. `isForced`:
   * limits do not hold for what was let in before. Throws QUEUE_FULL when the server is almost full, whatever fills it.
   */
  async admit(jobs: readonly WantedRoom[], isForced = false): Promise<AdmissionAnswer> {
    const memory = await this.readMemory();
    if (memory.isFull && !isForced) {
      countRefused('memory');
      throw serverFull();
    }
    for (let at = 0; at < jobs.length; at += JOBS_PER_CALL) {
      const answer = await this.ask(jobs.slice(at, at + JOBS_PER_CALL), memory.limitBytes, isForced);
      if (answer.refused === undefined) continue;
      countRefused(answer.refused.reason);
      return { admitted: at + answer.admitted, refused: answer.refused };
    }
    return { admitted: jobs.length, refused: undefined };
  }

  /** For jobs that were taken off the queue. */
  async release(jobIds: readonly string[]): Promise<void> {
    await releaseAdmission(this.connection, this.options, jobIds, 'all');
  }

  private async ask(jobs: readonly WantedRoom[], memoryBytes: number, isForced: boolean): Promise<AdmissionAnswer> {
    const { queue, prefix, caller } = this.options;
    const { maxQueuedRows, maxQueuedBytes = memoryBytes, maxTenantShare } = this.limits;
    const head = [
      queue,
      caller,
      maxQueuedRows,
      maxQueuedBytes,
      maxTenantShare,
      INTERACTIVE_RESERVE,
      UNKNOWN_DIMS,
      isForced ? 1 : 0,
    ];
    const [reply] = await runScript(
      this.connection,
      ADMIT_JOBS,
      [[...keysOf(prefix, queue), keySpace(prefix).door(queue), ...head, ...jobs.flatMap(toArguments)]],
      { isRefusalReply: true },
    );
    invariant(Array.isArray(reply), 'the admission script answers with a list');
    const [admitted, retryAfterMs, reason] = [Number(reply[0]), Number(reply[1]), String(reply[2])];
    this.ample.learn(
      jobs.map(({ job }) => mainTenant(job.tenant)),
      Number(reply[3]) / 1_000,
    );
    return {
      admitted,
      refused:
        admitted === jobs.length
          ? undefined
          : { retryAfterMs, reason: reason as NonNullable<AdmissionAnswer['refused']>['reason'] },
    };
  }

  private async readMemory(): Promise<{ readonly limitBytes: number; readonly isFull: boolean }> {
    const nowMs = performance.now();
    if (this.memory?.isFull === false && nowMs - this.memory.readMs < MEMORY_READ_MS) return this.memory;
    return this.askMemory();
  }

  private async askMemory(): Promise<{ readonly limitBytes: number; readonly isFull: boolean }> {
    const nowMs = performance.now();
    const { usedBytes, maxBytes, machineBytes } = await readServerMemory(this.connection);
    const mayUse = maxBytes > 0 ? maxBytes : machineBytes * MACHINE_SHARE;
    this.memory = {
      readMs: nowMs,
      limitBytes: Math.floor(mayUse * BYTES_SHARE),
      isFull: usedBytes > mayUse * MOST_MEMORY_SHARE,
    };
    return this.memory;
  }
}

/** `queued`: the job ended, its result is owed. `all`: nothing of it is left. */
export async function releaseAdmission(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
  jobIds: readonly string[],
  part: 'queued' | 'all',
  signal?: AbortSignal,
): Promise<void> {
  if (jobIds.length > 0)
    await runScript(connection, RELEASE_ROOM, [[...keysOf(prefix, queue), queue, part === 'all' ? 1 : 0, ...jobIds]], {
      signal,
    });
}

/**
 * What a result of this queue has; told by its workers, so that reservations are right. Waits for a server that is
 * away; throws QUEUE_UNREACHABLE.
 */
export async function tellDims(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
  dims: number,
  signal?: AbortSignal,
): Promise<void> {
  await runScript(connection, TELL_DIMS, [[keySpace(prefix).load(), `dims ${queue}`, dims]], { signal });
}

export interface RecountOptions {
  readonly prefix?: string | undefined;
  readonly queue: string;
  /** A reservation is made before its job is added: one without a job is left alone for so long. Default a minute. */
  readonly graceMs?: number;
  /** After each step. */
  readonly onStep?: () => Promise<void>;
}

/**
 * Every queue that may have reservations, also of models whose workers are gone: what they hold counts for all queues.
 */
export async function queuesWithLoad(connection: Redis, prefix: string = DEFAULT_PREFIX): Promise<string[]> {
  const fields = await connection.hkeys(keySpace(prefix).load());
  return [...new Set(fields.flatMap((field) => /^(?:rows|dims) (\S+)$/.exec(field)?.[1] ?? []))];
}

export interface Recounted {
  /** Reservations of which nothing was left. */
  readonly released: number;
  /** Those of them that were of results whose time to live ended before anybody read them. */
  readonly expired: number;
}

/**
 * For the janitor: releases what belongs to no job and no unread result any more. Walks in small steps.
 */
export async function recountAdmission(
  connection: Redis,
  { prefix = DEFAULT_PREFIX, queue, graceMs = 60_000, onStep }: RecountOptions,
  signal?: AbortSignal,
): Promise<Recounted> {
  const keys = keySpace(prefix);
  let [released, expired] = [0, 0];
  let cursor = '0';
  do {
    if (signal?.aborted === true) break;
    const [next, found] = await connection.hscan(keys.admitted(queue), cursor, 'COUNT', 100);
    cursor = next;
    const jobIds = found.filter((_, at) => at % 2 === 0);
    if (jobIds.length === 0) continue;
    const [count] = await runScript(
      connection,
      RECOUNT_ROOM,
      [[...keysOf(prefix, queue), queue, keys.job(queue, ''), keys.output(queue, ''), graceMs, ...jobIds]],
      { signal },
    );
    const [over, unread] = count as readonly number[];
    released += Number(over);
    expired += Number(unread);
    await onStep?.();
  } while (cursor !== '0');
  return { released, expired };
}

export interface AdmissionLoad {
  /** Of the queue. */
  readonly rows: number;
  /** Inputs and results of all queues that are reserved. */
  readonly bytes: number;
  /** Of these, results that nobody has acknowledged. */
  readonly unreadBytes: number;
}

export async function readAdmission(
  connection: Redis,
  { prefix, queue }: Pick<AdmissionOptions, 'prefix' | 'queue'>,
): Promise<AdmissionLoad> {
  const [rows, bytes, unread] = await connection.hmget(keySpace(prefix).load(), `rows ${queue}`, 'bytes', 'unread');
  return { rows: Number(rows ?? 0), bytes: Number(bytes ?? 0), unreadBytes: Number(unread ?? 0) };
}

export interface ServerMemory {
  readonly usedBytes: number;
  /** 0: no limit. */
  readonly maxBytes: number;
  readonly machineBytes: number;
}

export async function readServerMemory(connection: Redis): Promise<ServerMemory> {
  const info = await connection.info('memory');
  const field = (name: string): number => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)?.[1] ?? 0);
  // Buffers for replicas and for the append-only file pass, and do not count against maxmemory.
  return {
    usedBytes: field('used_memory') - field('mem_not_counted_for_evict'),
    maxBytes: field('maxmemory'),
    machineBytes: field('total_system_memory'),
  };
}

export function admissionRefused({
  retryAfterMs,
  reason,
}: NonNullable<AdmissionAnswer['refused']>): ShoalError<'ADMISSION_REFUSED'> {
  const why = {
    rows: 'as many rows wait as the queue takes (maxQueuedRows)',
    bytes: 'inputs and results fill their share of the server (maxQueuedBytes)',
    tenant: 'this tenant fills its share of the queue (maxTenantShare)',
    line: 'others wait for room in the queue as well',
  }[reason];
  return new ShoalError('ADMISSION_REFUSED', `${why}; try again in ${(retryAfterMs / 1_000).toFixed(1)} s`, {
    retryAfterMs,
    reason,
  });
}

/** Whatever the result will have: its dimensions may not be known yet. */
function mostBytesOf(wanted: WantedRoom): number {
  const { rows, output } = wanted.job;
  return queuedBytesOf(wanted) + rows * BYTES_PER_DIM.f32 * (output.dimensions ?? UNKNOWN_DIMS);
}

function queuedBytesOf({ job: { input }, inputBytes }: WantedRoom): number {
  const inlineBytes = input.form === 'inline' ? sum(input.texts.map((text) => Buffer.byteLength(text))) : 0;
  return inputBytes + inlineBytes + JOB_BYTES;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function serverFull(): ShoalError<'QUEUE_FULL'> {
  return new ShoalError(
    'QUEUE_FULL',
    `the memory of the queue server is more than ${MOST_MEMORY_SHARE * 100} % full; let workers and readers ` +
      'catch up and repeat the call, or raise maxmemory',
  );
}

function keysOf(prefix: string | undefined, queue: string): [admitted: string, load: string, drain: string] {
  const keys = keySpace(prefix);
  return [keys.admitted(queue), keys.load(), keys.drain(queue)];
}

function toArguments(wanted: WantedRoom): (string | number)[] {
  const { jobId, tenant, class: kind, rows, output } = wanted.job;
  return [
    jobId,
    mainTenant(tenant),
    kind === 'interactive' ? 'i' : 'b',
    rows,
    queuedBytesOf(wanted),
    BYTES_PER_DIM[output.dtype],
    output.dimensions ?? 0,
  ];
}
