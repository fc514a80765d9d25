// Puts jobs on a queue: input and job in one step of the server, an id never twice, and a plain answer per job about
// what was found under its id. Every call may be repeated as a whole after any fault, because a job that is there
// already is only reported. It does not wait for results (result-reader.ts reads them, @shoal/client waits) and it
// never computes a fingerprint.

import { randomUUID } from 'node:crypto';
import { DEFAULT_PREFIX, RESULT_HEADER_BYTES, cpuLaneOf, keySpace, type KeySpace } from '@shoal/contract';
import type { WorkerFacts } from '@shoal/core';
import type { Queue } from 'bullmq';
import { noteQueues } from '../lanes/noted-queues.ts';
import { Admission, admissionRefused, type WantedRoom } from '../admission/admission.ts';
import { addAndLook } from '../bullmq/add.ts';
import { liveFacts } from '../lanes/fleet.ts';
import { whyWaiting, type Waiting } from '../lanes/why-waiting.ts';
import { askOnce, bytesOf, valueOf } from '../redis/command-pipeline.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { countAdded } from '../redis/process-counts.ts';
import { runScript, runScriptOver } from '../redis/script.ts';
import { translated } from '../redis/translated.ts';
import { within } from '../redis/within.ts';
import { watchConnection } from '../redis/watch-connection.ts';
import { addSpans } from './add-spans.ts';
import { Durability } from './durability.ts';
import { lyingBeside, readsPointers } from './lying-beside.ts';
import { judge, type Again, type Found, type Verdict } from './job-verdict.ts';
import { DISCARD_INPUT, READ_ENDINGS } from './lua/scripts.generated.ts';
import { fingerprintOf, inGroups, roomFor, toResult, type AddOptions, type AddResult, type NewJob } from './new-job.ts';
import { openQueue, type ProducerOptions } from './open-queue.ts';
import { Replacements } from './replacements.ts';
import { RequestRecords } from './request-records.ts';

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

/** One that claims jobs of the queue, or those that are handed over, and what it tells of itself. */
export interface ServingWorker {
  readonly workerId: string;
  /** Undefined for a worker that tells nothing, or nothing that can be read. */
  readonly facts: WorkerFacts | undefined;
}

/** Who asks about workers waits no longer for the answer: without one, jobs go their way. */
const FACTS_WITHIN_MS = 2_000;

export class JobProducer {
  /** Of requests of several jobs that somebody comes back for. */
  readonly records: RequestRecords;
  private readonly options: ProducerOptions;
  private readonly keys: KeySpace;
  private readonly connection: Redis;
  private readonly queue: Queue;
  private readonly admission: Admission;
  private readonly replacements: Replacements;
  private readonly durability: Durability;
  /**
   * Whether the call of `add` that was made last asks for room before it adds, so that it may be refused. Known as soon
   * as it was made.
   */
  hadToAsk = false;

  private constructor(options: ProducerOptions, connection: Redis) {
    this.options = options;
    this.keys = keySpace(options.prefix);
    this.connection = connection;
    this.queue = openQueue(options, connection);
    this.records = new RequestRecords(connection, this.keys, options.queue);
    this.replacements = new Replacements(options);
    this.durability = new Durability(options);
    this.admission = new Admission(connection, {
      prefix: options.prefix,
      queue: options.queue,
      caller: randomUUID(),
      limits: options.limits,
    });
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: ProducerOptions): Promise<JobProducer> {
    const { redisUrl: url, prefix = DEFAULT_PREFIX, queue, log } = options;
    const connection = await connected({ url, prefix, name: 'shoal-producer', log });
    void noteQueues(connection, prefix, [queue]);
    return new JobProducer(options, connection);
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
   * sent, QUEUE_FULL, QUEUE_REFUSES_WRITES and QUEUE_UNREACHABLE: then some may have been added, and the whole call
   * should be repeated.
   */
  async add(jobs: readonly NewJob[], options: AddOptions = {}): Promise<AddResult[]> {
    const { tracer, queue } = this.options;
    if (tracer?.isOn !== true) return this.addUntraced(jobs, options);
    const spans = addSpans(tracer, queue, jobs);
    let results: AddResult[] | undefined;
    try {
      return (results = await this.addUntraced(spans.jobs, options));
    } finally {
      spans.end(results);
    }
  }

  private async addUntraced(
    jobs: readonly NewJob[],
    { again = 'when-used-up', isKnown = false }: AddOptions,
  ): Promise<AddResult[]> {
    const wanted = jobs.map(roomFor);
    const admitting = this.admission.admitMeanwhile(wanted);
    this.hadToAsk = admitting === undefined;
    if (admitting !== undefined)
      return counted(wanted, (await Promise.all([this.addAdmitted(jobs, again), translated(() => admitting)]))[0]);
    const { admitted, refused } = await translated(() => this.admission.admit(wanted, isKnown));
    const added = counted(wanted, await this.addAdmitted(jobs.slice(0, admitted), again));
    return refused === undefined
      ? added
      : [
          ...added,
          ...jobs
            .slice(admitted)
            .map(({ jobId }): AddResult => ({ jobId, outcome: 'refused', error: admissionRefused(refused) })),
        ];
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

  /** Whether something lies under each of these ids, in order: a job in whatever state, or a result. */
  async known(jobIds: readonly string[]): Promise<boolean[]> {
    const { queue } = this.options;
    return translated(async () => {
      const replies = await askOnce(
        this.connection,
        jobIds.map((jobId) => ['EXISTS', this.keys.job(queue, jobId), this.keys.output(queue, jobId)]),
      );
      return replies.map((reply) => Number(valueOf(reply)) > 0);
    });
  }

  /** The first bytes of results, in order: enough for `decodeResultHeader`; none where there is no result. */
  async resultHeads(jobIds: readonly string[]): Promise<Buffer[]> {
    const { queue } = this.options;
    return translated(async () => {
      const replies = await askOnce(
        this.connection,
        jobIds.map((jobId) => ['GETRANGE', this.keys.output(queue, jobId), 0, RESULT_HEADER_BYTES - 1]),
      );
      return replies.map((reply) => bytesOf(reply) ?? Buffer.alloc(0));
    });
  }

  /** Return values of completed jobs as they are stored, in order; undefined where there is none, or not any more. */
  async returnValues(jobIds: readonly string[]): Promise<(string | undefined)[]> {
    return translated(async () => {
      const replies = await askOnce(
        this.connection,
        jobIds.map((jobId) => ['HGET', this.keys.job(this.options.queue, jobId), 'returnvalue']),
      );
      return replies.map((reply) => bytesOf(reply)?.toString());
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
      this.options.payloads?.forget(removed.flat());
      return removed.flat();
    });
  }

  /**
   * Resolves when what was added so far is on the disk of a server that keeps an append-only file, for whoever does not
   * stay to add it again; on a slow disk after five seconds at the latest. Throws QUEUE_UNREACHABLE.
   */
  durable(): Promise<void> {
    return this.durability.settled();
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

  /** Why jobs of this queue may not have been answered yet. Throws QUEUE_UNREACHABLE. */
  whyWaiting(): Promise<Waiting> {
    return whyWaiting(this.connection, this.queue, this.options.prefix);
  }

  /** Live workers of both lanes; undefined while the server is away, or does not answer within two seconds. */
  async workers(): Promise<readonly ServingWorker[] | undefined> {
    if (this.connection.status !== 'ready') return undefined; // a question would be put in line until it is back
    const { queue, prefix = DEFAULT_PREFIX } = this.options;
    let found: readonly ServingWorker[] | undefined;
    const look = async (): Promise<void> => {
      const lanes = [queue, cpuLaneOf(queue)].map((lane) => liveFacts(this.connection, lane, prefix));
      const byId = new Map((await Promise.all(lanes)).flatMap((lane) => [...lane]));
      found = [...byId].map(([workerId, facts]) => ({ workerId, facts }));
    };
    await within(FACTS_WITHIN_MS, look());
    return found;
  }

  /** Calls that still wait for the server are rejected. Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    await Promise.allSettled([this.queue.close(), this.replacements.close(), this.durability.close()]);
  }

  private async addAdmitted(given: readonly NewJob[], again: Again): Promise<AddResult[]> {
    const { payloads, prefix = DEFAULT_PREFIX, queue } = this.options;
    const jobs = payloads === undefined ? given : await lyingBeside(given, { payloads, prefix, queue });
    if (again === 'always') return this.replacements.replace(jobs, again);
    return (await Promise.all(inGroups(jobs).map((group) => this.addGroup(group, again)))).flat();
  }

  private async addGroup(jobs: readonly NewJob[], again: Again): Promise<AddResult[]> {
    const found = await translated(() => this.addAndLook(jobs));
    const judged = jobs.map((job, i) => ({
      job,
      found: found[i]!,
      verdict: judge(job.jobId, fingerprintOf(job), found[i]!, again, readsPointers(job, this.options.payloads)),
    }));
    const ofKind = (kind: Verdict['kind']) => judged.filter(({ verdict }) => verdict.kind === kind);
    // no job was there, so the script added one beside a result that must not answer it
    await this.remove(
      [...ofKind('conflict'), ...ofKind('replace')]
        .filter(({ found: { data } }) => data === undefined)
        .map(({ job }) => job.jobId),
    );
    const replaced = await this.replacements.replace(
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

/** For the metrics of this process. */
function counted(wanted: readonly WantedRoom[], results: AddResult[]): AddResult[] {
  for (const [at, { outcome }] of results.entries()) if (outcome === 'added') countAdded(wanted[at]!.job.class);
  return results;
}
