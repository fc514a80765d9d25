// Turns a question about similarity into the jobs that ask it: so many queries a job, each with its input, small ones
// inside the job, and the fingerprint of the whole. Checks by the format's own schema before anything is sent.

import {
  INTERACTIVE_ROWS,
  encodeComparands,
  parseSimilarityJob,
  similarityFingerprint,
  type Comparands,
  type Matrix,
  type Meta,
  type SeedSet,
  type SimilarityJobData,
  type SimilarityKind,
  type SimilarityMetric,
  type SimilarityRequest,
  type Trace,
} from '@shoal/contract';
import type { JobRequest } from './job-request.ts';

/** What goes into every job of one call. */
export interface SimilarityTerms {
  readonly tenant: string;
  readonly reply: string;
  readonly class: 'interactive' | 'bulk' | undefined;
  readonly deadline?: number | undefined;
  readonly resultTtlMs?: number | undefined;
  readonly meta?: Meta | undefined;
  readonly trace?: Trace | undefined;
  /** Id of the job whose first query is number `first`. */
  readonly jobIdOf: (first: number) => string;
}

export type SimilarityQuestion =
  | {
      readonly kind: 'topk';
      readonly collection: string;
      readonly k: number;
      readonly metric: SimilarityMetric | undefined;
      readonly names?: boolean | undefined;
    }
  | {
      readonly kind: 'rescore';
      readonly collection: string;
      readonly k: number;
      readonly metric: SimilarityMetric | undefined;
      readonly names?: boolean | undefined;
      readonly candidates: readonly BigUint64Array[];
    }
  | { readonly kind: 'cosine'; readonly collection: string; readonly metric: SimilarityMetric | undefined }
  | { readonly kind: 'cosine'; readonly against: Matrix; readonly metric: SimilarityMetric | undefined };

export interface SpreadQuestion {
  readonly graph: string;
  readonly k: number;
  readonly steps: number | undefined;
  readonly decay: number | undefined;
  readonly threshold: number | undefined;
}

/** Vectors up to so many bytes travel inside the job; finished jobs are kept for a while, inputs are not. */
const MAX_INLINE_VECTOR_BYTES = 4_096;
/**
 * As many as the SDK puts texts into a job: enough that the queue costs little, few enough that several workers share a
 * call.
 */
const QUERIES_PER_JOB = 64;

/** One job for every 64 queries, in order. Throws what `parseSimilarityJob` throws. */
export function compareRequests(question: SimilarityQuestion, queries: Matrix, terms: SimilarityTerms): JobRequest[] {
  return chunks(queries.rows).map(({ first, count }) => {
    const part = {
      values: queries.values.subarray(first * queries.dims, (first + count) * queries.dims),
      rows: count,
      dims: queries.dims,
    };
    return compareRequest(
      terms.jobIdOf(first),
      question.kind === 'rescore'
        ? { ...question, candidates: question.candidates.slice(first, first + count) }
        : question,
      part,
      terms,
    );
  });
}

export function spreadRequests(
  { graph, k, ...options }: SpreadQuestion,
  seeds: readonly SeedSet[],
  terms: SimilarityTerms,
): JobRequest[] {
  return chunks(seeds.length).map(({ first, count }) => {
    const sets = seeds
      .slice(first, first + count)
      .map((set) => set.map((seed): number | [number, number] => (typeof seed === 'number' ? seed : [...seed])));
    const jobId = terms.jobIdOf(first);
    return finished(
      jobId,
      'spread',
      { ...common(terms, count), graph, k, seeds: sets, ...given(options) },
      (request) => similarityFingerprint(request, sets),
      undefined,
    );
  });
}

function compareRequest(
  jobId: string,
  question: SimilarityQuestion,
  queries: Matrix,
  terms: SimilarityTerms,
): JobRequest {
  const against = 'against' in question ? question.against : undefined;
  const candidates = 'candidates' in question ? question.candidates : undefined;
  const compared: Comparands = { queries, against, candidates };
  const bytes =
    4 * (queries.values.length + (against?.values.length ?? 0)) +
    8 * (candidates ?? []).reduce((sum, ids) => sum + ids.length, 0);
  const isInline = bytes <= MAX_INLINE_VECTOR_BYTES;
  const { kind, metric } = question;
  const data = {
    ...common(terms, queries.rows),
    ...given({ metric }),
    ...('collection' in question ? { collection: question.collection } : {}),
    ...('k' in question ? { k: question.k } : {}),
    ...('names' in question && question.names === true ? { names: true } : {}),
    queries: vectorsField(queries, isInline),
    ...(against === undefined ? {} : { against: vectorsField(against, isInline) }),
    ...(candidates === undefined
      ? {}
      : { candidates: isInline ? candidates.map((ids) => Array.from(ids, Number)) : 'key' }),
  } as SimilarityJobData;
  const encoded = encodeComparands(compared);
  return finished(
    jobId,
    kind,
    data,
    (request) => similarityFingerprint(request, compared, encoded),
    isInline ? undefined : encoded,
  );
}

function finished(
  jobId: string,
  name: SimilarityKind,
  data: SimilarityJobData,
  fingerprintOf: (request: SimilarityRequest) => string,
  input: Buffer | undefined,
): JobRequest {
  const parsed = parseSimilarityJob(jobId, name, data);
  const fingerprint = fingerprintOf(parsed.request);
  return {
    jobId,
    fingerprint,
    job: { jobId, name, data: { ...data, fingerprint }, input, parsed: { ...parsed, fingerprint } },
  };
}

function common({ tenant, reply, class: kind, deadline, resultTtlMs, meta, trace }: SimilarityTerms, rows: number) {
  return {
    v: meta === undefined && trace === undefined ? (1 as const) : (2 as const),
    tenant,
    reply,
    class: kind ?? (rows <= INTERACTIVE_ROWS ? ('interactive' as const) : ('bulk' as const)),
    ...(deadline !== undefined && { deadline }),
    ...(resultTtlMs !== undefined && { resultTtlMs }),
    ...given({ meta, trace }),
  };
}

function vectorsField({ values, rows, dims }: Matrix, isInline: boolean) {
  return isInline
    ? { vectors: Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64'), dims }
    : { key: { rows, dims } };
}

function chunks(rows: number): { readonly first: number; readonly count: number }[] {
  return Array.from({ length: Math.ceil(rows / QUERIES_PER_JOB) }, (_, chunk) => {
    const first = chunk * QUERIES_PER_JOB;
    return { first, count: Math.min(QUERIES_PER_JOB, rows - first) };
  });
}

/** Fields that have a value: an option that is undefined is one that nobody chose. */
function given<Fields extends object>(fields: Fields): { [Key in keyof Fields]?: NonNullable<Fields[Key]> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [Key in keyof Fields]?: NonNullable<Fields[Key]>;
  };
}
