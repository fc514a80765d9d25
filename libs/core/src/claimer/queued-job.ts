// What the claimer must know of a job, whatever it asks for: how large it is, who waits for it, and how an executor is
// told. The claimer never looks further; which jobs a queue has is said by the function it reads them with.

import {
  parseJob,
  parsePart,
  parseRerankJob,
  parseSimilarityJob,
  resultIdOf,
  type EmbedJob,
  type JobTerms,
  type ModelKind,
  type RerankJob,
} from '@shoal/contract';
import type { RawClaim } from '../ports/queue.ts';
import type { AnyOrder, JobOrder } from '../protocol.ts';

export interface QueuedJob extends Pick<JobTerms, 'class' | 'deadlineMs' | 'reply' | 'resultTtlMs' | 'meta' | 'trace'> {
  readonly jobId: string;
  readonly rows: number;
  /** It takes no room: its rows come to the pool as there is some. */
  readonly isPart?: true;
  /** How many tokens it takes of the pool, when the job itself says so. */
  readonly tokens: number | undefined;
  /** What an executor is told of it. `remainingMs`: how long it may still begin to run; undefined: for ever. */
  order(remainingMs: number | undefined): AnyOrder;
}

/** Returns a checked job; throws a ShoalError with the code that the job fails with. */
export type ReadJob = (claim: RawClaim) => QueuedJob;

/** Whether somebody waits for it: it goes before bulk work, and its ending is told at once. */
export function isUrgent(job: Pick<QueuedJob, 'class'>): boolean {
  return job.class === 'interactive';
}

/** Where the result of a claimed job is kept, if not under its id. */
export function resultIdFor({ jobId, madeMs = 0 }: RawClaim): string | undefined {
  const resultId = resultIdOf(jobId, madeMs);
  return resultId === jobId ? undefined : resultId;
}

/** Reads the jobs of an embedding queue, which are named "embed". */
export function readEmbedJob(claim: RawClaim): QueuedJob {
  const job = parseJob(claim.jobId, claim.name, claim.data);
  return toQueued(claim, job, job);
}

/** Reads the jobs of a reranker's queue, which are named "rerank": each row is a pair, its result one f32. */
export function readRerankJob(claim: RawClaim): QueuedJob {
  const job = parseRerankJob(claim.jobId, claim.name, claim.data);
  const output = { dtype: 'f32', dimensions: undefined } as const;
  return toQueued(claim, job, { prompt: undefined, output, returnsVectors: job.returnsScores });
}

/** How the jobs of a model's queue are read. */
export const READ_JOBS: Readonly<Record<ModelKind, ReadJob>> = { embedder: readEmbedJob, reranker: readRerankJob };

function toQueued(
  claim: RawClaim,
  job: EmbedJob | RerankJob,
  { prompt, output, returnsVectors }: Pick<EmbedJob, 'prompt' | 'output' | 'returnsVectors'>,
): QueuedJob {
  const { input, fingerprint, truncate, resultTtlMs } = job;
  const payloads = 'payloads' in job ? job.payloads : undefined;
  return {
    ...job,
    tokens: input.form === 'tokens' ? input.tokens : undefined,
    order: (remainingMs): JobOrder => ({
      jobId: claim.jobId,
      lane: claim.lane,
      ...(claim.cell !== undefined && { cell: claim.cell }),
      resultId: resultIdFor(claim),
      token: claim.token,
      queuedMs: claim.queuedMs,
      class: job.class,
      tenant: job.tenant,
      input,
      fingerprint,
      truncate,
      prompt,
      output,
      ...(returnsVectors && { returnsVectors }),
      resultTtlMs,
      ...(payloads !== undefined && { payloads }),
      requestId: job.trace?.requestId,
      remainingMs,
    }),
  };
}

/** Reads the jobs of a lane of parts, which are named "part". */
export function readPart(claim: RawClaim): QueuedJob {
  const job = parsePart(claim.jobId, claim.name, claim.data);
  const { part, fingerprint, resultTtlMs, tenant } = job;
  return {
    ...job,
    isPart: true,
    tokens: 0,
    order: (remainingMs) => ({
      jobId: claim.jobId,
      ...(claim.cell !== undefined && { cell: claim.cell }),
      token: claim.token,
      queuedMs: claim.queuedMs,
      class: job.class,
      tenant,
      part,
      fingerprint,
      resultTtlMs,
      requestId: job.trace?.requestId,
      remainingMs,
    }),
  };
}

/** Reads the jobs of the queue `similarity`. A query stands for a token: the pool there is filled by queries. */
export function readSimilarityJob(claim: RawClaim): QueuedJob {
  const job = parseSimilarityJob(claim.jobId, claim.name, claim.data);
  const { rows, request, input, fingerprint, resultTtlMs } = job;
  return {
    ...job,
    tokens: rows,
    order: (remainingMs) => ({
      jobId: claim.jobId,
      lane: claim.lane,
      resultId: resultIdFor(claim),
      token: claim.token,
      queuedMs: claim.queuedMs,
      class: job.class,
      rows,
      request,
      input,
      fingerprint,
      resultTtlMs,
      requestId: job.trace?.requestId,
      remainingMs,
    }),
  };
}
