// Where jobs go that killed their executor: a queue of its own, `<main queue>-quarantine`, that nobody claims from and
// that Bull Board shows. A quarantined job keeps its id, its data, why it is here, and its input under that queue's
// name, so that a person can look at it, give it back or drop it. Judges nobody: that is core's suspects.ts.

import { createHash } from 'node:crypto';
import {
  ShoalError,
  invariant,
  isGeneratedJobId,
  isReservedJobId,
  isSimilarityKind,
  keySpace,
  parseJob,
  parseRerankJob,
  parseSimilarityJob,
  type EmbedJobData,
  type Failure,
  type KeySpace,
  type RerankJobData,
  type SimilarityJobData,
  type SimilarityKind,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Queue, type Job } from '../bullmq/package.ts';
import { noteQueues } from '../lanes/noted-queues.ts';
import { quarantineQueue } from '../lanes/quarantine-queue.ts';
import { queueAdd, queueRemove, runTransaction } from '../bullmq/internals.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { JobProducer } from '../producer/job-producer.ts';
import type { AddResult } from '../producer/new-job.ts';
import { translated } from '../redis/translated.ts';

export interface QuarantineOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main lane of the model. */
  readonly queue: string;
  readonly log?: Logger | undefined;
}

export interface QuarantinedJob {
  /** Here. Where BullMQ made the id, the time of the job is part of it: two jobs may have had the same number. */
  readonly jobId: string;
  readonly failure: Failure;
  /** The lane it ran in last. */
  readonly lane: string;
  /** Epoch ms, by the clock of the worker that gave up on it. */
  readonly sinceMs: number;
  /** As its producer wrote it. */
  readonly data: unknown;
  /** Bytes of its input key; 0 when its texts are in `data`. */
  readonly inputBytes: number;
}

/** What such a job holds as `data`. */
interface Record {
  readonly v: 1;
  readonly failure: Failure;
  readonly lane: string;
  readonly job: unknown;
  /** Of the job in its lane. Left out: as here. */
  readonly jobId?: string;
  /** Its timestamp, which is part of the name of its result where BullMQ made its id. Left out: nobody knows. */
  readonly madeMs?: number;
}

/** What becomes of a job that has no id that it could have. */
export interface Rescued extends Pick<Job, 'name' | 'data'> {
  /** Its id here, and in the lane that it is given back to. */
  readonly id: string;
  /** The id that its input is named after. */
  readonly inputOf: string;
}

/** Outcomes by which the main lane has the job, or its result: any other leaves the only copy here. */
const HAS_IT: ReadonlySet<AddResult['outcome']> = new Set(['added', 'known', 'ready']);

export class Quarantine {
  private readonly options: QuarantineOptions;
  private readonly keys: KeySpace;
  private opened: Promise<Opened> | undefined;

  /** Connects when it is first used: most workers never put anything in. */
  constructor(options: QuarantineOptions) {
    this.options = options;
    this.keys = keySpace(options.prefix);
  }

  /** Copies a claimed job here, input included. To be called before the job itself ends; may be repeated. */
  async put(lane: string, job: Pick<Job, 'id' | 'name' | 'data' | 'timestamp'>, failure: Failure): Promise<void> {
    const { id: jobId, name, data, timestamp: madeMs } = job;
    invariant(jobId !== undefined, 'a claimed job has an id');
    const record = { v: 1, failure, lane, job: data, jobId, madeMs } satisfies Record;
    await this.keep(quarantineIdOf(jobId, madeMs), name, record, jobId);
  }

  /** Keeps a job that was set aside because no job may have its id. May be repeated. */
  async putRescued(lane: string, { id, name, data, inputOf }: Rescued, failure: Failure): Promise<void> {
    await this.keep(id, name, { v: 1, failure, lane, job: data as unknown }, inputOf);
  }

  /** One that lay here under the same id before goes: its data would not be that of the input. */
  private async keep(id: string, name: string, record: Record, inputOf: string): Promise<void> {
    const { queue } = await this.open();
    const replies = await runTransaction(queue, (transaction) => {
      transaction.copy(this.keys.input(this.options.queue, inputOf), this.keys.input(queue.name, id), 'REPLACE');
      queueRemove(queue, transaction, id);
      queueAdd(queue, transaction, { name, data: record, opts: { jobId: id } });
    });
    for (const [error] of replies) if (error !== null) throw error;
  }

  /** The newest first. */
  async list(first = 0, count = 100): Promise<QuarantinedJob[]> {
    return this.translated(async ({ connection, queue }) => {
      const jobs = await queue.getJobs(['waiting', 'prioritized'], first, first + count - 1, false);
      return Promise.all(
        jobs.map(async (job) => toQuarantined(job, await connection.strlen(this.keys.input(queue.name, job.id ?? '')))),
      );
    });
  }

  /**
   * Adds jobs to the main lane again, under their ids, and takes those out of here that it has then. One result per
   * job, in order; undefined for an id that is not here.
   */
  async giveBack(jobIds: readonly string[]): Promise<(AddResult | undefined)[]> {
    const { redisUrl, prefix, queue: name, log } = this.options;
    const producer = await JobProducer.connect({ redisUrl, prefix, queue: name, log });
    try {
      const results: (AddResult | undefined)[] = [];
      for (const jobId of jobIds) results.push(await this.giveBackOne(producer, jobId));
      return results;
    } finally {
      await producer.close();
    }
  }

  /** Takes jobs out of here, inputs included. Says which were here. */
  async drop(jobIds: readonly string[]): Promise<string[]> {
    return this.translated(async ({ connection, queue }) => {
      const dropped = await Promise.all(
        jobIds.map(async (jobId) => {
          if (isReservedJobId(jobId)) return [];
          const isHere = (await queue.getJobState(jobId)) !== 'unknown';
          await queue.remove(jobId);
          await connection.unlink(this.keys.input(queue.name, jobId));
          return isHere ? [jobId] : [];
        }),
      );
      return dropped.flat();
    });
  }

  /** Safe to call early or twice. */
  async close(): Promise<void> {
    const opened = await this.opened?.catch(() => undefined);
    if (opened === undefined) return;
    await closeConnection(opened.connection);
    await Promise.allSettled([opened.queue.close(), opened.main.close()]);
  }

  private async giveBackOne(producer: JobProducer, jobId: string): Promise<AddResult | undefined> {
    if (isReservedJobId(jobId)) return undefined;
    const found = await this.translated(async ({ connection, queue }) => {
      const job = await queue.getJob(jobId);
      return job === undefined
        ? undefined
        : {
            name: job.name,
            record: recordOf(job),
            input: await connection.getBuffer(this.keys.input(queue.name, jobId)),
          };
    });
    if (found === undefined) return undefined;
    const name = isSimilarityKind(found.name) || found.name === 'rerank' ? found.name : 'embed';
    const ownId = found.record?.jobId ?? jobId;
    const { data, hasInput } = checkedData(ownId, name, found.record?.job);
    if (hasInput && found.input === null)
      throw new ShoalError(
        'INPUT_LOST',
        `the input of job "${jobId}" is not in quarantine any more; drop the job and add it anew`,
        { jobId },
      );
    const isPlain = data.fingerprint === undefined || isGeneratedJobId(ownId);
    const [result] = isPlain
      ? [await this.returnPlain({ jobId: ownId, name, data, madeMs: found.record?.madeMs, input: found.input })]
      : await producer.add([{ jobId: ownId, name, data, ...(found.input === null ? {} : { input: found.input }) }]);
    if (result !== undefined && HAS_IT.has(result.outcome)) await this.drop([jobId]);
    return result;
  }

  /**
   * A job of plain BullMQ, which no reservation of room was ever made for: as its producer added it, at the time at which
   * it was added. The failed one of the same id makes room for it.
   */
  private returnPlain({ jobId, name, data, madeMs = Date.now(), input }: PlainReturn): Promise<AddResult> {
    return this.translated(async ({ connection, main }) => {
      const [known, finishedOn, failedReason] = await connection.hmget(
        main.toKey(jobId),
        'data',
        'finishedOn',
        'failedReason',
      );
      const isHere = typeof known === 'string';
      if (isHere && known !== JSON.stringify(data)) return { jobId, outcome: 'conflict', error: idInUse(jobId) };
      if (isHere && typeof finishedOn !== 'string') return { jobId, outcome: 'known' };
      if (isHere && typeof failedReason !== 'string') return { jobId, outcome: 'ready' };
      const replies = await runTransaction(main, (transaction) => {
        if (input !== null) transaction.set(this.keys.input(main.name, jobId), input);
        if (isHere) queueRemove(main, transaction, jobId);
        queueAdd(main, transaction, { name, data, opts: { jobId, timestamp: madeMs } });
      });
      for (const [error] of replies) if (error !== null) throw error;
      return { jobId, outcome: 'added' };
    });
  }

  private async translated<Value>(work: (parts: Opened) => Promise<Value>): Promise<Value> {
    return translated(async () => work(await this.open()));
  }

  private open(): Promise<Opened> {
    this.opened ??= this.connect().catch((error: unknown) => {
      this.opened = undefined;
      throw error;
    });
    return this.opened;
  }

  private async connect(): Promise<Opened> {
    const { redisUrl, prefix, queue: name, log } = this.options;
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:quarantine:${name}`, log });
    try {
      await untilReady(connection, redisUrl);
    } catch (error) {
      await closeConnection(connection);
      throw error;
    }
    const open = (queueName: string, more: object): Queue => {
      const queue = new Queue(queueName, { prefix, connection, ...more });
      queue.on('error', (error) => log?.debug({ err: error }, 'queue client reported an error'));
      return queue;
    };
    void noteQueues(connection, prefix, [quarantineQueue(name)]);
    return { connection, queue: open(quarantineQueue(name), {}), main: open(name, { skipMetasUpdate: true }) };
  }
}

interface Opened {
  readonly connection: Redis;
  readonly queue: Queue;
  /** The main lane. */
  readonly main: Queue;
}

interface PlainReturn {
  readonly jobId: string;
  readonly name: string;
  readonly data: unknown;
  readonly madeMs: number | undefined;
  readonly input: Buffer | null;
}

const LONGEST_ID = 256;

/** Under which id a job lies here: its own, unless BullMQ made that and may make it again. */
export function quarantineIdOf(jobId: string, madeMs: number): string {
  if (!isGeneratedJobId(jobId)) return jobId;
  const id = `${jobId.replaceAll(':', '@')}@${madeMs}`;
  const hash = createHash('sha256').update(id).digest('hex').slice(0, 16);
  return id.length <= LONGEST_ID ? id : `${id.slice(0, LONGEST_ID - 17)}@${hash}`;
}

function idInUse(jobId: string): ShoalError<'JOB_ID_CONFLICT'> {
  return new ShoalError('JOB_ID_CONFLICT', `the id "${jobId}" is in use for other input by now`, { jobId });
}

/** Throws what a worker would fail it with. */
function checkedData(
  jobId: string,
  name: 'embed' | 'rerank' | SimilarityKind,
  data: unknown,
): { readonly data: EmbedJobData | RerankJobData | SimilarityJobData; readonly hasInput: boolean } {
  if (name === 'rerank')
    return { data: data as RerankJobData, hasInput: parseRerankJob(jobId, name, data).input.form !== 'inline' };
  if (name === 'embed')
    return { data: data as EmbedJobData, hasInput: parseJob(jobId, name, data).input.form !== 'inline' };
  const { input } = parseSimilarityJob(jobId, name, data);
  return { data: data as SimilarityJobData, hasInput: input.form === 'vectors' && input.queries.form === 'key' };
}

function recordOf(job: Job): Record | undefined {
  const record: unknown = job.data;
  return typeof record === 'object' && record !== null && Reflect.get(record, 'v') === 1
    ? (record as Record)
    : undefined;
}

function toQuarantined(job: Job, inputBytes: number): QuarantinedJob {
  const record = recordOf(job);
  const failure = record?.failure ?? { code: 'QUARANTINED', message: 'somebody else put it here' };
  return {
    jobId: job.id ?? '',
    failure,
    lane: record?.lane ?? '',
    sinceMs: job.timestamp,
    data: record?.job,
    inputBytes,
  };
}
