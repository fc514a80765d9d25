// What the claimer must know of a job, whatever it asks for: how large it is, who waits for it, and how an executor is
// told. The claimer never looks further; which jobs a queue has is said by the function it reads them with.

import { parseJob, type JobTerms, parseSimilarityJob } from '@shoal/contract';
import type { RawClaim } from '../ports/queue.ts';
import type { AnyOrder } from '../protocol.ts';

export interface QueuedJob extends Pick<JobTerms, 'class' | 'deadlineMs' | 'reply' | 'resultTtlMs'> {
  readonly jobId: string;
  readonly rows: number;
  /** What it takes of the pool, where the job says so. */
  readonly tokens: number | undefined;
  order(remainingMs: number | undefined): AnyOrder;
}

/** A checked job; throws a ShoalError with the code that the job fails with. */
export type ReadJob = (claim: RawClaim) => QueuedJob;

/** Jobs named "embed". */
export function readEmbedJob(claim: RawClaim): QueuedJob {
  const job = parseJob(claim.jobId, claim.name, claim.data);
  const { input, fingerprint, truncate, prompt, output, resultTtlMs } = job;
  return {
    ...job,
    tokens: input.form === 'tokens' ? input.tokens : undefined,
    order: (remainingMs) => ({
      jobId: claim.jobId,
      lane: claim.lane,
      token: claim.token,
      queuedMs: claim.queuedMs,
      class: job.class,
      tenant: job.tenant,
      input,
      fingerprint,
      truncate,
      prompt,
      output,
      resultTtlMs,
      remainingMs,
    }),
  };
}

/** Jobs of the queue `similarity`. A query takes the place of a token: the pool is filled by queries there. */
export function readSimilarityJob(claim: RawClaim): QueuedJob {
  const job = parseSimilarityJob(claim.jobId, claim.name, claim.data);
  const { rows, request, input, fingerprint, resultTtlMs } = job;
  return {
    ...job,
    tokens: rows,
    order: (remainingMs) => ({
      jobId: claim.jobId,
      lane: claim.lane,
      token: claim.token,
      queuedMs: claim.queuedMs,
      class: job.class,
      rows,
      request,
      input,
      fingerprint,
      resultTtlMs,
      remainingMs,
    }),
  };
}
