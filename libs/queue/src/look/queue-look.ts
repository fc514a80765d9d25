// One connection for whoever looks over all queues of a prefix: which there are, whose jobs wait, and why one job is
// where it is. Reads only.

import { DEFAULT_PREFIX } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { knownQueues } from '../lanes/known-queues.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { findJob } from './job-sighting.ts';
import { readTenants, type Tenants } from './tenants.ts';
import { whyJob, whyUnknown, type JobSighting } from './why-job.ts';

export interface QueueLookOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}

export interface JobAnswer {
  readonly jobId: string;
  /** One sentence for a person: why the job is where it is, or that nobody knows it. */
  readonly why: string;
  /** Everything that was found under the id, what the sentence is about first; empty where there is nothing. */
  readonly found: readonly (JobSighting & { readonly why: string })[];
  /** Main lanes that were looked at. */
  readonly queues: readonly string[];
}

export class QueueLook {
  private readonly connection: Redis;
  private readonly prefix: string;

  private constructor(connection: Redis, prefix: string) {
    this.connection = connection;
    this.prefix = prefix;
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect({ redisUrl, prefix = DEFAULT_PREFIX, log }: QueueLookOptions): Promise<QueueLook> {
    return new QueueLook(await connected({ url: redisUrl, prefix, name: 'shoal:look', log }), prefix);
  }

  /** Main lanes of the prefix, by name. Throws QUEUE_UNREACHABLE. */
  queues(): Promise<string[]> {
    return knownQueues(this.connection, this.prefix);
  }

  /** Throws QUEUE_UNREACHABLE. */
  tenants(queue: string): Promise<Tenants> {
    return readTenants(this.connection, { prefix: this.prefix, queue });
  }

  /** Where the job is and why, over these main lanes, or all. Throws QUEUE_UNREACHABLE. */
  async why(jobId: string, queues?: readonly string[]): Promise<JobAnswer> {
    return whyOfJob(this.connection, this.prefix, jobId, queues ?? (await this.queues()));
  }

  /** Safe to call twice. */
  close(): Promise<void> {
    return closeConnection(this.connection);
  }
}

/** The same over a connection that somebody has. */
export async function whyOfJob(
  connection: Redis,
  prefix: string,
  jobId: string,
  queues: readonly string[],
): Promise<JobAnswer> {
  const found = await findJob(connection, prefix, jobId, queues);
  const sightings = found.map((seen) => ({ ...seen, why: whyJob(seen) }));
  return { jobId, why: sightings[0]?.why ?? whyUnknown(jobId, queues), found: sightings, queues };
}
