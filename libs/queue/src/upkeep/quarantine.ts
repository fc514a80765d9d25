// Where jobs go that killed their executor: a queue of its own, `<main queue>-quarantine`, that nobody claims from and
// that Bull Board shows. A quarantined job keeps its id, its data, why it is here, and its input under that queue's
// name, so that a person can look at it, give it back or drop it. Judges nobody: that is core's suspects.ts.

import {
  ShoalError,
  invariant,
  isSimilarityKind,
  keySpace,
  parseJob,
  parseSimilarityJob,
  type EmbedJobData,
  type Failure,
  type KeySpace,
  type SimilarityJobData,
  type SimilarityKind,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Queue, type Job } from 'bullmq';
import { queueAdd, runTransaction } from '../bullmq/internals.ts';
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
}

/** Outcomes by which the main lane has the job, or its result: any other leaves the only copy here. */
const HAS_IT: ReadonlySet<AddResult['outcome']> = new Set(['added', 'known', 'ready']);

/** Of the main lane: where its jobs are quarantined. Inputs are at `{shoal}:in:<this>:<jobId>`. */
export function quarantineQueue(mainQueue: string): string {
  return `${mainQueue}-quarantine`;
}

export class Quarantine {
  private readonly options: QuarantineOptions;
  private readonly keys: KeySpace;
  private opened: Promise<{ readonly connection: Redis; readonly queue: Queue }> | undefined;

  /** Connects when it is first used: most workers never put anything in. */
  constructor(options: QuarantineOptions) {
    this.options = options;
    this.keys = keySpace(options.prefix);
  }

  /** Copies a claimed job here, input included. To be called before the job itself ends; may be repeated. */
  async put(lane: string, job: Pick<Job, 'id' | 'name' | 'data'>, failure: Failure): Promise<void> {
    const { id: jobId, name, data } = job;
    invariant(jobId !== undefined, 'a claimed job has an id');
    const { queue } = await this.open();
    const replies = await runTransaction(queue, (transaction) => {
      transaction.copy(this.keys.input(this.options.queue, jobId), this.keys.input(queue.name, jobId), 'REPLACE');
      queueAdd(queue, transaction, {
        name,
        data: { v: 1, failure, lane, job: data } satisfies Record,
        opts: { jobId },
      });
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
    await opened.queue.close().catch(() => undefined);
  }

  private async giveBackOne(producer: JobProducer, jobId: string): Promise<AddResult | undefined> {
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
    const name = isSimilarityKind(found.name) ? found.name : 'embed';
    const { data, hasInput } = checkedData(jobId, name, found.record?.job);
    if (hasInput && found.input === null)
      throw new ShoalError(
        'INPUT_LOST',
        `the input of job "${jobId}" is not in quarantine any more; drop the job and add it anew`,
        { jobId },
      );
    const [result] = await producer.add([
      { jobId, name, data, ...(found.input === null ? {} : { input: found.input }) },
    ]);
    if (result !== undefined && HAS_IT.has(result.outcome)) await this.drop([jobId]);
    return result;
  }

  private async translated<Value>(
    work: (parts: { readonly connection: Redis; readonly queue: Queue }) => Promise<Value>,
  ): Promise<Value> {
    return translated(async () => work(await this.open()));
  }

  private open(): Promise<{ readonly connection: Redis; readonly queue: Queue }> {
    this.opened ??= this.connect().catch((error: unknown) => {
      this.opened = undefined;
      throw error;
    });
    return this.opened;
  }

  private async connect(): Promise<{ readonly connection: Redis; readonly queue: Queue }> {
    const { redisUrl, prefix, queue: name, log } = this.options;
    const connection = openConnection({ url: redisUrl, prefix, name: `shoal:quarantine:${name}`, log });
    try {
      await untilReady(connection, redisUrl);
    } catch (error) {
      await closeConnection(connection);
      throw error;
    }
    const queue = new Queue(quarantineQueue(name), { prefix, connection });
    queue.on('error', (error) => log?.debug({ err: error }, 'queue client reported an error'));
    return { connection, queue };
  }
}

/** Throws what a worker would fail it with. */
function checkedData(
  jobId: string,
  name: 'embed' | SimilarityKind,
  data: unknown,
): { readonly data: EmbedJobData | SimilarityJobData; readonly hasInput: boolean } {
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
