// Puts jobs on a queue: input and job in one step of the server, an id never twice, and a plain answer per job about
// what was found under its id. Every call may be repeated as a whole after any fault, because a job that is there
// already is only reported. It does not wait for results (result-reader.ts reads them, @shoal/client waits) and it
// never computes a fingerprint.

import { randomUUID } from 'node:crypto';
import {
  DEFAULT_PREFIX,
  ShoalError,
  keySpace,
  parseJob,
  parseSimilarityJob,
  type EmbedJob,
  type EmbedJobData,
  type KeySpace,
  type SimilarityJob,
  type SimilarityJobData,
  type SimilarityKind,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Queue } from 'bullmq';
import { Admission, admissionRefused, type AdmissionLimits, type WantedRoom } from '../admission/admission.ts';
import { addAndLook } from '../bullmq/add.ts';
import { isScriptMissing, openTransaction, queueAdd, queueRemove, type Transaction } from '../bullmq/internals.ts';
import { closeConnection, connected, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { judge, toFound, type Again, type Found, type Verdict } from './job-verdict.ts';
import { runScript, runScriptOver } from '../redis/script.ts';
import { translated } from '../redis/translated.ts';
import { DISCARD_INPUT, READ_ENDINGS } from './lua/scripts.generated.ts';

export interface ProducerOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  /** The main lane of a model, e.g. embed-minilm. */
  readonly queue: string;
  /** How much the queue takes; see admission.ts. */
  readonly limits?: Partial<AdmissionLimits> | undefined;
  readonly log?: Logger | undefined;
}

export interface NewJob {
  /** Stable and chosen by the caller: it is what makes adding twice safe. */
  readonly jobId: string;
  /** Default "embed". */
  readonly name?: 'embed' | SimilarityKind | undefined;
  /** Must carry its fingerprint, or a conflict could not be seen. */
  readonly data: EmbedJobData | SimilarityJobData;
  /** SHI1 or SHQ1 bytes; exactly when `data` says that there are some. */
  readonly input?: Buffer | undefined;
  /**
   * What `parseJob` or `parseSimilarityJob` made of `data`, fingerprint included, where it is at hand: nothing is
   * checked twice.
   */
  readonly parsed?: EmbedJob | SimilarityJob | undefined;
}

export interface AddOptions {
  readonly again?: Again;
  /** These jobs were let in before, so limits do not hold for them: what was taken must be finished. */
  readonly isKnown?: boolean;
}

export type AddResult =
  /**
   * `added`: it waits now. `known`: the same request waits or runs already. `ready`: its result is there to be fetched.
   */
  | { readonly jobId: string; readonly outcome: 'added' | 'known' | 'ready' }
  /** Only with again 'never': it ended, and left nothing to fetch. */
  | { readonly jobId: string; readonly outcome: 'finished'; readonly failedReason: string | undefined }
  /** There is no room for it now: `error.fields.retryAfterMs` says when to come back. */
  | { readonly jobId: string; readonly outcome: 'refused'; readonly error: ShoalError<'ADMISSION_REFUSED'> }
  | { readonly jobId: string; readonly outcome: 'conflict'; readonly error: ShoalError<'JOB_ID_CONFLICT'> };

export interface JobState {
  readonly jobId: string;
  /** `unknown`: there is no such job, or not any more. */
  readonly state: 'waiting' | 'active' | 'delayed' | 'completed' | 'failed' | 'unknown';
  readonly failedReason: string | undefined;
}

export interface JobEnding {
  readonly jobId: string;
  /** `open`: it has not ended. `unknown`: there is no such job, or not any more. */
  readonly state: 'open' | 'completed' | 'failed' | 'unknown';
  readonly failedReason: string | undefined;
}

/**
 * Larger groups are not faster, and block the server for longer (two bulk adds of 250 in flight beat one of 500,
 * 2026-11).
 */
const JOBS_PER_GROUP = 50;
/**
 * The server does nothing else while it runs a transaction of replacements: 8 MB take it about 10 ms. A larger input
 * goes alone.
 */
const BYTES_PER_GROUP = 8 << 20;
/** Events are read by nobody here; the stream would otherwise keep 10,000 entries with every return value. */
const EVENTS_KEPT = 100;
/**
 * Rounds of WATCH that lost against another producer before the jobs are reported as known, to be looked at again
 * later.
 */
const MAX_REPLACE_ROUNDS = 5;

export class JobProducer {
  private readonly options: ProducerOptions;
  private readonly keys: KeySpace;
  private readonly connection: Redis;
  private readonly queue: Queue;
  private readonly admission: Admission;
  /** A connection of its own for WATCH, which holds for all that is sent on a connection. Opened when first needed. */
  private watcher: { readonly connection: Redis; readonly queue: Queue } | undefined;
  private replacing: Promise<unknown> = Promise.resolve();

  private constructor(options: ProducerOptions, connection: Redis) {
    this.options = options;
    this.keys = keySpace(options.prefix);
    this.connection = connection;
    this.queue = openQueue(options, connection);
    this.admission = new Admission(connection, {
      prefix: options.prefix,
      queue: options.queue,
      caller: randomUUID(),
      limits: options.limits,
    });
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: ProducerOptions): Promise<JobProducer> {
    return new JobProducer(
      options,
      await connected({ url: options.redisUrl, prefix: options.prefix, name: 'shoal-producer', log: options.log }),
    );
  }

  /**
   * The connection broke, or came back: what the server acknowledged last may be lost, so open jobs should be added
   * again.
   */
  onConnection(listener: (event: 'lost' | 'back') => void): void {
    watchConnection(this.connection, listener);
  }

  /**
   * Adds jobs with their inputs, up to 50 a call of the script, all calls in flight at once; one result per job, in
   * order. As soon as there is no room for one, it and all after it are refused. Throws JOB_INVALID before anything is
   * sent, QUEUE_FULL and QUEUE_UNREACHABLE: then some may have been added, and the whole call should be repeated.
   */
  async add(
    jobs: readonly NewJob[],
    { again = 'when-used-up', isKnown = false }: AddOptions = {},
  ): Promise<AddResult[]> {
    const wanted = jobs.map(roomFor);
    const admitting = this.admission.admitMeanwhile(wanted);
    if (admitting !== undefined)
      return (await Promise.all([this.addAdmitted(jobs, again), translated(() => admitting)]))[0];
    const { admitted, refused } = await translated(() => this.admission.admit(wanted, isKnown));
    const added = await this.addAdmitted(jobs.slice(0, admitted), again);
    return refused === undefined
      ? added
      : [
          ...added,
          ...jobs
            .slice(admitted)
            .map(({ jobId }): AddResult => ({ jobId, outcome: 'refused', error: admissionRefused(refused) })),
        ];
  }

  private async addAdmitted(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    if (again === 'always') return this.replace(jobs, again);
    return (await Promise.all(inGroups(jobs).map((group) => this.addGroup(group, again)))).flat();
  }

  /**
   * Whether jobs ended, in order, in one round trip: for whoever has not heard of them. It costs the server the same
   * whatever waits there.
   */
  async endings(jobIds: readonly string[]): Promise<JobEnding[]> {
    const found = await translated(() =>
      runScriptOver(
        this.connection,
        READ_ENDINGS,
        jobIds.map((jobId) => ({ keys: [this.keys.job(this.options.queue, jobId)], values: [] })),
      ),
    );
    return (found as (readonly Buffer[] | null)[]).map((ending, at): JobEnding => {
      const [state = 'open', failedReason] = (ending ?? []).map(String);
      return { jobId: jobIds[at]!, state: state as JobEnding['state'], failedReason };
    });
  }

  /** States of any jobs, in order, in one round trip. */
  async states(jobIds: readonly string[]): Promise<JobState[]> {
    return translated(() =>
      Promise.all(
        jobIds.map(async (jobId) => {
          const [state, failedReason] = await Promise.all([
            this.queue.getJobState(jobId),
            this.connection.hget(this.keys.job(this.options.queue, jobId), 'failedReason'),
          ]);
          return { jobId, state: toState(state), failedReason: state === 'failed' ? (failedReason ?? '') : undefined };
        }),
      ),
    );
  }

  /**
   * Cancels what still waits, inputs included, and says which jobs that were. Running and finished jobs are left alone.
   */
  async remove(jobIds: readonly string[]): Promise<string[]> {
    if (jobIds.length === 0) return [];
    return translated(async () => {
      const waiting = (await this.states(jobIds)).filter(({ state }) => state === 'waiting' || state === 'delayed');
      const removed = await Promise.all(
        waiting.map(async ({ jobId }) => ((await this.queue.remove(jobId)) === 1 ? [jobId] : [])),
      );
      await runScript(
        this.connection,
        DISCARD_INPUT,
        removed.flat().map((jobId) => this.jobAndInput(jobId)),
      );
      await this.admission.release(removed.flat());
      return removed.flat();
    });
  }

  /** Number of jobs by state; prioritized ones count as waiting. */
  async counts(): Promise<Readonly<Record<'waiting' | 'active' | 'delayed' | 'completed' | 'failed', number>>> {
    return translated(async () => {
      const {
        wait = 0,
        prioritized = 0,
        active = 0,
        delayed = 0,
        completed = 0,
        failed = 0,
      } = await this.queue.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'completed', 'failed');
      return { waiting: wait + prioritized, active, delayed, completed, failed };
    });
  }

  /** Calls that still wait for the server are rejected. Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    if (this.watcher !== undefined) await closeConnection(this.watcher.connection);
    await Promise.allSettled([this.queue.close(), this.watcher?.queue.close(), this.replacing]);
  }

  // ---- one group of jobs ------------------------------------------------------------------------------------------

  private async addGroup(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    const found = await translated(() => this.addAndLook(jobs));
    const judged = jobs.map((job, i) => ({
      job,
      found: found[i]!,
      verdict: judge(job.jobId, fingerprintOf(job), found[i]!, again),
    }));
    const ofKind = (kind: Verdict['kind']) => judged.filter(({ verdict }) => verdict.kind === kind);
    await this.remove(
      ofKind('conflict')
        .filter(({ found: { data } }) => data === undefined)
        .map(({ job }) => job.jobId),
    );
    const replaced = await this.replace(
      ofKind('replace').map(({ job }) => job),
      again,
    );
    return judged.map(({ job, verdict }) =>
      verdict.kind === 'replace' ? replaced.shift()! : toResult(job.jobId, verdict),
    );
  }

  /** Looks under each id and adds the job where there is none. What is returned is what was there before. */
  private async addAndLook(jobs: readonly NewJob[]): Promise<Found[]> {
    return addAndLook(
      this.connection,
      this.queue,
      this.keys,
      jobs.map(({ jobId, name = 'embed', data, input }) => ({ jobId, name, data, input })),
    );
  }

  private jobAndInput(jobId: string): [job: string, input: string] {
    return [this.keys.job(this.options.queue, jobId), this.keys.input(this.options.queue, jobId)];
  }

  // ---- asking for a finished id again ---------------------------------------------------------------------------

  /** One replacement at a time: a WATCH holds for everything on its connection. */
  private replace(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    if (jobs.length === 0) return Promise.resolve([]);
    const replaced = this.replacing.then(() => translated(() => this.replaceAll(jobs, again)));
    this.replacing = replaced.catch(() => undefined);
    return replaced;
  }

  /**
   * Two producers may ask for the same finished job at once. Both watch the job and its result, decide from what they
   * see, and change it in one transaction; the slower one's is refused, it looks again and finds the job known, or
   * ready.
   */
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
    const verdicts = jobs.map((job, i) => judge(job.jobId, fingerprintOf(job), found[i]!, again));
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
}

/** Calls the listener for outages after this moment, never for the first connection or a close of our own. */
export function watchConnection(connection: Redis, listener: (event: 'lost' | 'back') => void): void {
  let isLost = false;
  connection.on('reconnecting', () => {
    if (isLost) return;
    isLost = true;
    listener('lost');
  });
  connection.on('ready', () => {
    if (!isLost) return;
    isLost = false;
    listener('back');
  });
}

function openQueue({ prefix = DEFAULT_PREFIX, queue: name, log }: ProducerOptions, connection: Redis): Queue {
  const queue = new Queue(name, { prefix, connection, streams: { events: { maxLen: EVENTS_KEPT } } });
  queue.on('error', (error) => log?.debug({ queue: name, reason: error.message }, 'queue reported an error'));
  return queue;
}

function inGroups(jobs: readonly NewJob[]): NewJob[][] {
  const groups: NewJob[][] = [];
  let bytes = Infinity;
  for (const job of jobs) {
    const open = groups.at(-1);
    bytes += job.input?.length ?? 0;
    if (open !== undefined && open.length < JOBS_PER_GROUP && bytes <= BYTES_PER_GROUP) {
      open.push(job);
      continue;
    }
    groups.push([job]);
    bytes = job.input?.length ?? 0;
  }
  return groups;
}

/** Columns that a matrix of scores is expected to have while nobody here knows its collection. */
const UNKNOWN_COLUMNS = 16_384;

/** Checks a job, and says what room it needs. */
function roomFor(newJob: NewJob): WantedRoom {
  const {
    jobId,
    name = 'embed',
    data,
    input,
    parsed: job = name === 'embed' ? parseJob(jobId, name, data) : parseSimilarityJob(jobId, name, data),
  } = newJob;
  if (!('request' in job)) {
    checkWhole(newJob, job.fingerprint, job.input.form === 'inline');
    return { job, inputBytes: input?.length ?? 0 };
  }
  checkWhole(newJob, job.fingerprint, !(job.input.form === 'vectors' && job.input.queries.form === 'key'));
  return {
    job: { ...job, input: { form: 'texts', rows: job.rows }, output: { dtype: 'f32', dimensions: valuesPerRow(job) } },
    inputBytes: input?.length ?? JSON.stringify(data).length,
  };
}

/** Of a result, as f32 values for each query. */
function valuesPerRow({ request, input }: SimilarityJob): number {
  if (request.kind !== 'cosine') return 1 + 3 * request.k;
  const against = input.form === 'vectors' ? input.against : undefined;
  if (against === undefined) return UNKNOWN_COLUMNS;
  return against.form === 'inline' ? against.matrix.rows : against.rows;
}

function checkWhole({ jobId, input }: NewJob, fingerprint: string | undefined, isInline: boolean): void {
  const problem =
    fingerprint === undefined
      ? 'its data has no fingerprint; without one a reused id could not be told from a repeated request'
      : isInline !== (input === undefined)
        ? 'its data says ' +
          `${
            isInline ? 'that its input is inline, but there is an input' : 'that there is an input, but none was given'
          }`
        : undefined;
  if (problem !== undefined) throw new ShoalError('JOB_INVALID', `job "${jobId}": ${problem}`, { jobId });
}

function fingerprintOf({ data }: NewJob): string {
  return data.fingerprint ?? '';
}

function toResult(jobId: string, verdict: Verdict): AddResult {
  switch (verdict.kind) {
    case 'conflict':
      return { jobId, outcome: 'conflict', error: verdict.error };
    case 'finished':
      return { jobId, outcome: 'finished', failedReason: verdict.failedReason };
    case 'add':
    case 'replace':
      return { jobId, outcome: 'added' };
    case 'known':
    case 'ready':
      return { jobId, outcome: verdict.kind };
  }
}

function toState(state: Awaited<ReturnType<Queue['getJobState']>>): JobState['state'] {
  switch (state) {
    case 'prioritized':
    case 'waiting-children':
      return 'waiting';
    default:
      return state;
  }
}
