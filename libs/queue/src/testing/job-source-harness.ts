// For tests: a queue on any server as the conformance suite of job sources wants to see it.

import { setTimeout as sleep } from 'node:timers/promises';
import { keySpace } from '@shoal/contract';
import { noLog, type JobSource } from '@shoal/core';
import type { JobRecord, JobSourceHarness } from '@shoal/core/testing';
import { Queue, type Job } from 'bullmq';
import { Canceller } from '../producer/cancel.ts';
import { closeConnection, connected } from '../redis/connection.ts';
import { Quarantine } from '../upkeep/quarantine.ts';

export interface HarnessOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  readonly leaseMs: number;
  readonly open: () => JobSource;
  /** After everything of the harness was closed. */
  readonly onClosed?: () => Promise<void>;
}

export async function jobSourceHarness({
  redisUrl,
  prefix,
  queue: name,
  leaseMs,
  open,
  onClosed,
}: HarnessOptions): Promise<JobSourceHarness> {
  const connection = await connected({ url: redisUrl, prefix, name: `${prefix}:harness` });
  const queue = new Queue(name, { prefix, connection });
  return {
    leaseMs,
    open,
    add: async (jobId, data) => void (await queue.add('embed', data, { jobId, attempts: 3 })),
    inspect: async (jobId) => {
      const job = await queue.getJob(jobId);
      return job === undefined ? undefined : recordOf(job);
    },
    steal: async (jobId) => void (await connection.set(keySpace(prefix).lock(name, jobId), 'a stranger', 'PX', 60_000)),
    cancel: async (jobId) => {
      const canceller = await Canceller.connect({ redisUrl, prefix, queue: name, log: noLog });
      await canceller.cancel([jobId]);
      await canceller.close();
    },
    quarantined: async () => {
      const quarantine = new Quarantine({ redisUrl, prefix, queue: name });
      const jobs = await quarantine.list();
      await quarantine.close();
      return jobs.map(({ jobId }) => jobId);
    },
    passTime: (ms) => sleep(ms),
    close: async () => {
      await queue.close();
      await closeConnection(connection);
      await onClosed?.();
    },
  };
}

async function recordOf(job: Job): Promise<JobRecord | undefined> {
  const state = await job.getState();
  if (state === 'unknown' || state === 'waiting-children' || state === 'prioritized') return undefined;
  return {
    state,
    attempts: job.attemptsMade,
    returnValue: job.returnvalue ?? undefined,
    failedReason: job.failedReason,
  };
}
