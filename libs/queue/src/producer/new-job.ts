// A job on its way to the queue: what a producer hands over, what room it needs, in which groups it travels, and what
// its producer is told of it. Pure.

import {
  ShoalError,
  checkJobId,
  parseJob,
  parsePart,
  parseRerankJob,
  parseSimilarityJob,
  type EmbedJob,
  type EmbedJobData,
  type PartJob,
  type PartJobData,
  type RerankJob,
  type RerankJobData,
  type SimilarityJob,
  type SimilarityJobData,
  type SimilarityKind,
} from '@shoal/contract';
import type { WantedRoom } from '../admission/admission.ts';
import type { Again, Verdict } from './job-verdict.ts';

export interface NewJob {
  /** Stable and chosen by the caller: it is what makes adding twice safe. */
  readonly jobId: string;
  /** Default "embed". */
  readonly name?: 'embed' | 'rerank' | 'part' | SimilarityKind | undefined;
  /** Must carry its fingerprint, or a conflict could not be seen. */
  readonly data: EmbedJobData | RerankJobData | SimilarityJobData | PartJobData;
  /** SHI1 or SHQ1 bytes; exactly when `data` says that there are some. */
  readonly input?: Buffer | undefined;
  /**
   * What `parseJob` and its like made of `data`, fingerprint included, where it is at hand:
   * nothing is checked twice.
   */
  readonly parsed?: ParsedJob | undefined;
  /**
   * Input and result may lie on the producer's payload servers, because all who serve the queue have the same, and because
   * what is lost there is asked for again: never of a job whose result is fetched later by somebody else.
   */
  readonly mayLieBeside?: boolean | undefined;
}

type ParsedJob = EmbedJob | RerankJob | SimilarityJob | PartJob;

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

export function inGroups(jobs: readonly NewJob[]): NewJob[][] {
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

/** Of a reranker. */
const ONE_SCORE_A_ROW = { output: { dtype: 'f32', dimensions: 1 } } as const;

/** Of a part: its pointer is a line, and its rows are read by whoever has it. */
const PART_ROOM = { rows: 1, input: { form: 'texts', rows: 1 }, output: { dtype: 'f32', dimensions: 256 } } as const;

/** Checks a job, and says what room it needs. */
export function roomFor(newJob: NewJob): WantedRoom {
  const { data, input, parsed: job = parsedOf(newJob) } = newJob;
  if ('part' in job) {
    checkWhole(newJob, job.fingerprint, true);
    return { job: { ...job, ...PART_ROOM }, inputBytes: JSON.stringify(data).length };
  }
  if (!('request' in job)) {
    checkWhole(newJob, job.fingerprint, job.input.form === 'inline');
    return { job: 'output' in job ? job : { ...job, ...ONE_SCORE_A_ROW }, inputBytes: input?.length ?? 0 };
  }
  checkWhole(newJob, job.fingerprint, !(job.input.form === 'vectors' && job.input.queries.form === 'key'));
  return {
    job: { ...job, input: { form: 'texts', rows: job.rows }, output: { dtype: 'f32', dimensions: valuesPerRow(job) } },
    inputBytes: input?.length ?? JSON.stringify(data).length,
  };
}

function parsedOf({ jobId, name = 'embed', data }: NewJob): ParsedJob {
  if (name === 'embed') return parseJob(jobId, name, data);
  if (name === 'part') return parsePart(jobId, name, data);
  return name === 'rerank' ? parseRerankJob(jobId, name, data) : parseSimilarityJob(jobId, name, data);
}

/** Of a result, as f32 values for each query. */
function valuesPerRow({ request, input }: SimilarityJob): number {
  if (request.kind !== 'cosine') return 1 + 3 * request.k;
  const against = input.form === 'vectors' ? input.against : undefined;
  if (against === undefined) return UNKNOWN_COLUMNS;
  return against.form === 'inline' ? against.matrix.rows : against.rows;
}

function checkWhole({ jobId, input }: NewJob, fingerprint: string | undefined, isInline: boolean): void {
  checkJobId(jobId);
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

export function fingerprintOf({ data }: NewJob): string {
  return data.fingerprint ?? '';
}

export function toResult(jobId: string, verdict: Verdict): AddResult {
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
