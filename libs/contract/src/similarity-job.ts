// The public format of similarity jobs, versions 1 and 2: what a producer may put into `data` of a job named "cosine", "topk",
// "rescore" or "spread" on the queue `similarity`, what the worker returns, and the only way from one to the other
// (`parseSimilarityJob`). Everything that can be seen without the collection is refused here, by the producer already.

import { z } from 'zod';
import { ShoalError, type ErrorCode } from './errors.ts';
import {
  MAX_INLINE_BYTES,
  checkFields,
  checkInputKey,
  checkVersion,
  invalid,
  secondTerms,
  termFields,
  termsOf,
  type JobTerms,
  type Meta,
} from './job-terms.ts';
import { rankingBytes } from './result-format.ts';
import { RESULT_HEADER_BYTES } from './result-header.ts';
import { MAX_VALUE, firstIncomparable, type Matrix } from './vectors-format.ts';

export const SIMILARITY_KINDS = ['cosine', 'topk', 'rescore', 'spread'] as const;
export type SimilarityKind = (typeof SIMILARITY_KINDS)[number];
export type SimilarityMetric = 'cosine' | 'dot' | 'l2';

/** A larger result is for a collection, not for a key of the queue server, which sends it in one piece. */
export const MAX_RESULT_BYTES = 64 * 1024 * 1024;
export const MAX_DIMS = 65_536;
/** Activation that has gone so many edges is noise, whatever the decay. */
const MAX_STEPS = 64;

/** And sets of seeds: a matrix of scores is as large as both of its sides. */
const MAX_QUERIES = 256;

const dims = z.int().min(1).max(MAX_DIMS);
const named = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(@[1-9][0-9]{0,8})?$/,
    'must be name@version, e.g. docs@3, or docs, the newest',
  );
const graph = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/, 'must be the name of a graph: up to 64 of A-Z a-z 0-9 _ . -');
const metric = z.enum(['cosine', 'dot', 'l2']).optional();
const names = z.boolean().optional();
const k = z.int().min(1, 'must be at least 1').max(1_000_000);
const rowId = z.int().min(0);
const seedField = z.union([rowId, z.tuple([rowId, z.number().gt(0).max(MAX_VALUE)])]);

const inlineVectors = z.strictObject({ vectors: z.base64(), dims });
const keyedVectors = z.strictObject({ key: z.strictObject({ rows: z.int().min(1).max(MAX_QUERIES), dims }) });
// The form of most jobs first: each that does not fit is tried, and costs the list of its problems.
const vectors = z.union([keyedVectors, inlineVectors]);
const queries = z.union([
  keyedVectors,
  inlineVectors,
  z.strictObject({ texts: z.array(z.string()).min(1).max(MAX_QUERIES) }),
]);
const candidates = z.union([z.array(z.array(rowId)).min(1).max(MAX_QUERIES), z.literal('key')]);

const fields = {
  cosine: { collection: named.optional(), queries, against: vectors.optional(), metric },
  topk: { collection: named, queries, k, metric, names },
  rescore: { collection: named, queries, candidates, k, metric, names },
  spread: {
    graph,
    k,
    seeds: z.array(z.array(seedField).min(1)).min(1).max(MAX_QUERIES),
    steps: z.int().min(1).max(MAX_STEPS).optional(),
    decay: z.number().gt(0).max(1).optional(),
    threshold: z.number().min(0).optional(),
  },
};
const second = {
  cosine: z.strictObject({ ...secondTerms, ...fields.cosine }),
  topk: z.strictObject({ ...secondTerms, ...fields.topk }),
  rescore: z.strictObject({ ...secondTerms, ...fields.rescore }),
  spread: z.strictObject({ ...secondTerms, ...fields.spread }),
};
type Given<Kind extends SimilarityKind> = Kind extends SimilarityKind
  ? Omit<z.infer<(typeof second)[Kind]>, 'v'> & { v: 1 | 2 }
  : never;
/** `data` of a job as a producer writes it. */
export type SimilarityJobData = { [Kind in SimilarityKind]: Given<Kind> }[SimilarityKind];

/** Versions of `data` that are read here; `meta` and `trace` need version 2. */
export const SIMILARITY_JOB_VERSIONS: readonly number[] = [1, 2];
type Schemas = { readonly [Kind in SimilarityKind]: z.ZodType<Given<Kind>> };
const SCHEMAS: Readonly<Record<1 | 2, Schemas>> = {
  1: {
    cosine: z.strictObject({ ...termFields, ...fields.cosine }),
    topk: z.strictObject({ ...termFields, ...fields.topk }),
    rescore: z.strictObject({ ...termFields, ...fields.rescore }),
    spread: z.strictObject({ ...termFields, ...fields.spread }),
  },
  2: second,
};

/** All forms of `data` of a kind, for the published schema. */
export function similarityData(kind: SimilarityKind): z.ZodType {
  return z.union([SCHEMAS[1][kind], SCHEMAS[2][kind]]);
}

/** Vectors that came with the job, or that its input key has. */
export type VectorInput =
  | { readonly form: 'inline'; readonly matrix: Matrix }
  | { readonly form: 'key'; readonly rows: number; readonly dims: number };

/** A node that begins with an activation of 1, or of what is said. */
export type Seed = number | readonly [node: number, activation: number];
/** Where one spread begins. */
export type SeedSet = readonly Seed[];

export function nodeOf(seed: Seed): number {
  return typeof seed === 'number' ? seed : seed[0];
}

export function activationOf(seed: Seed): number {
  return typeof seed === 'number' ? 1 : seed[1];
}

interface Ranked {
  readonly k: number;
}

/** What is computed, without what it is computed from: jobs with equal requests run together. */
export type SimilarityRequest =
  | { readonly kind: 'cosine'; readonly collection: string | undefined; readonly metric: SimilarityMetric }
  | ({
      readonly kind: 'topk' | 'rescore';
      readonly collection: string;
      readonly metric: SimilarityMetric;
      /** The answer has the names of rows beside their ids. */
      readonly names?: true;
    } & Ranked)
  | ({
      readonly kind: 'spread';
      readonly graph: string;
      readonly steps: number;
      readonly decay: number;
      readonly threshold: number;
    } & Ranked);

/** What it is computed from. Inputs with the form "key" lie together in the job's one input key. */
export type SimilarityInput =
  | {
      readonly form: 'vectors';
      readonly queries: VectorInput;
      readonly against: VectorInput | undefined;
      readonly candidates: readonly BigUint64Array[] | 'key' | undefined;
    }
  | { readonly form: 'seeds'; readonly seeds: readonly SeedSet[] };

/** A checked job. Made by `parseSimilarityJob` only. `rows`: its queries, or sets of seeds. */
export interface SimilarityJob extends JobTerms {
  readonly jobId: string;
  readonly rows: number;
  readonly request: SimilarityRequest;
  readonly input: SimilarityInput;
}

/** What a completed job returns: facts and the key of the result, some 300 bytes of JSON. */
export interface SimilarityReturn {
  readonly v: 1;
  readonly key: string;
  readonly kind: SimilarityKind;
  /**
   * name@version of the collection that was searched, or name of the graph; absent where the job brought all vectors
   * itself. The name alone where a job that asked for the newest version had its result before this run.
   */
  readonly collection?: string;
  /** name@revision of the model that made the rows of the collection; absent where it is not known. */
  readonly model?: string;
  readonly rows: number;
  /** Columns of the matrix, or the `k` that was asked for. */
  readonly dims: number;
  readonly dtype: 'f32' | 'ranking';
  /** What computed it. */
  readonly device: string;
  /** Set when the worker's GPU could not and its CPU did: why. */
  readonly fellBack?: ErrorCode;
  /** Set when the job went through the CPU lane: why. */
  readonly handedOver?: { readonly reason: ErrorCode; readonly peakBytes?: number };
  /** How often a tile was halved for lack of memory while this job ran. */
  readonly splits: number;
  readonly ms: { readonly queued: number; readonly run: number };
  /** As the job had it. */
  readonly meta?: Meta;
}

/** What of a return value tells which rows were compared with; of what is none, nothing. */
export function searchedIn(returnValue: string | undefined): Pick<SimilarityReturn, 'collection' | 'model'> {
  try {
    const { collection, model }: { readonly collection?: unknown; readonly model?: unknown } = Object(
      JSON.parse(returnValue ?? '{}'),
    );
    return {
      ...(typeof collection === 'string' ? { collection } : {}),
      ...(typeof model === 'string' ? { model } : {}),
    };
  } catch {
    return {};
  }
}

export function isSimilarityKind(name: string): name is SimilarityKind {
  return (SIMILARITY_KINDS as readonly string[]).includes(name);
}

/**
 * Turns what was found on the queue into a job, or throws JOB_INVALID, JOB_VERSION_UNKNOWN, DIMENSIONS_MISMATCH,
 * VECTOR_INVALID, RESULT_TOO_LARGE or TEXTS_NOT_EMBEDDED.
 */
export function parseSimilarityJob(jobId: string, name: string, data: unknown): SimilarityJob {
  if (!isSimilarityKind(name))
    throw invalid(
      jobId,
      `the job is named "${name.slice(0, 80)}"; this queue takes jobs named ` +
        `${SIMILARITY_KINDS.map((kind) => `"${kind}"`).join(', ')}`,
    );
  const job = readJob(jobId, name, checkVersion(jobId, data, SIMILARITY_JOB_VERSIONS));
  if (job.input.form === 'vectors' && job.input.queries.form === 'key') checkInputKey(jobId);
  return job;
}

function readJob(jobId: string, name: SimilarityKind, data: object): SimilarityJob {
  const schemas = SCHEMAS['v' in data && data.v === 2 ? 2 : 1];
  switch (name) {
    case 'cosine':
      return cosineJob(jobId, checkFields(jobId, schemas.cosine, data));
    case 'topk':
      return topKJob(jobId, checkFields(jobId, schemas.topk, data));
    case 'rescore':
      return rescoreJob(jobId, checkFields(jobId, schemas.rescore, data));
    case 'spread':
      return spreadJob(jobId, checkFields(jobId, schemas.spread, data));
  }
}

function cosineJob(jobId: string, data: Given<'cosine'>): SimilarityJob {
  if ((data.collection === undefined) === (data.against === undefined))
    throw invalid(
      jobId,
      'cosine compares its queries either with a "collection" or with the vectors in "against"; give one of the two',
    );
  const input = vectorsOf(jobId, data);
  const { queries: own, against } = input;
  if (against !== undefined && dimsOf(own) !== dimsOf(against))
    throw dimensionsMismatch(
      `job "${jobId}": its queries have ${dimsOf(own)} dimensions, what they are compared with has ${dimsOf(against)}`,
    );
  if (against !== undefined) checkSize(jobId, 4 * rowsOf(own) * rowsOf(against));
  return {
    jobId,
    rows: rowsOf(own),
    ...termsOf(data, rowsOf(own)),
    request: { kind: 'cosine', collection: data.collection, metric: data.metric ?? 'cosine' },
    input,
  };
}

function topKJob(jobId: string, data: Given<'topk'>): SimilarityJob {
  const input = vectorsOf(jobId, data);
  return {
    ...ranked(jobId, data, rowsOf(input.queries)),
    request: { kind: 'topk', ...rankingOf(data) },
    input,
  };
}

function rescoreJob(jobId: string, data: Given<'rescore'>): SimilarityJob {
  const input = vectorsOf(jobId, data);
  const rows = rowsOf(input.queries);
  if (data.candidates === 'key' && input.queries.form !== 'key')
    throw invalid(
      jobId,
      'its candidates are said to be in the input key, but its queries are not there; both go together',
    );
  if (data.candidates !== 'key' && data.candidates.length !== rows)
    throw invalid(
      jobId,
      `it has ${rows} queries and ${data.candidates.length} lists of candidates; each query has one`,
    );
  const lists =
    data.candidates === 'key' ? data.candidates : data.candidates.map((ids) => BigUint64Array.from(ids, BigInt));
  return {
    ...ranked(jobId, data, rows),
    request: { kind: 'rescore', ...rankingOf(data) },
    input: { ...input, candidates: lists },
  };
}

function spreadJob(jobId: string, data: Given<'spread'>): SimilarityJob {
  const { graph: name, seeds, steps = 3, decay = 0.5, threshold = 0 } = data;
  return {
    ...ranked(jobId, data, seeds.length),
    request: { kind: 'spread', graph: name, steps, decay, threshold, k: data.k },
    input: { form: 'seeds', seeds },
  };
}

function rankingOf({ collection, metric: asked = 'cosine', k: most, names: isNamed }: Given<'topk' | 'rescore'>) {
  return { collection, metric: asked, k: most, ...(isNamed === true ? { names: true as const } : {}) };
}

function ranked(
  jobId: string,
  data: Given<'topk' | 'rescore' | 'spread'>,
  rows: number,
): Pick<SimilarityJob, 'jobId' | 'rows' | keyof JobTerms> {
  checkSize(jobId, rankingBytes(rows, rows * data.k));
  return { jobId, rows, ...termsOf(data, rows) };
}

function checkSize(jobId: string, bodyBytes: number): void {
  if (bodyBytes + RESULT_HEADER_BYTES > MAX_RESULT_BYTES)
    throw resultTooLarge(
      `job "${jobId}": its result may have ${bodyBytes} bytes, above the ${MAX_RESULT_BYTES} of one result; ` +
        'ask for fewer rows or a smaller k',
    );
}

function vectorsOf(
  jobId: string,
  data: Given<'cosine' | 'topk' | 'rescore'>,
): Extract<SimilarityInput, { form: 'vectors' }> {
  if ('texts' in data.queries) {
    throw new ShoalError(
      'TEXTS_NOT_EMBEDDED',
      `job "${jobId}" has texts as queries; similarity workers run no model: embed them on the queue of the ` +
        'model first (the SDK does so by itself) and send the vectors',
      { jobId },
    );
  }
  const against = 'against' in data ? data.against : undefined;
  const own = vectorInput(jobId, 'queries', data.queries);
  const others = against === undefined ? undefined : vectorInput(jobId, 'against', against);
  if (rowsOf(own) > MAX_QUERIES) throw invalid(jobId, `it has ${rowsOf(own)} queries; a job has 1 to ${MAX_QUERIES}`);
  if (others !== undefined && others.form !== own.form)
    throw invalid(jobId, 'its queries and what they are compared with must both be inline or both be in the input key');
  return { form: 'vectors', queries: own, against: others, candidates: undefined };
}

function vectorInput(jobId: string, field: string, given: z.infer<typeof vectors>): VectorInput {
  if ('key' in given) return { form: 'key', ...given.key };
  if (given.vectors.length > MAX_INLINE_BYTES)
    throw invalid(
      jobId,
      `${field} has ${given.vectors.length} bytes of base64, above the ${MAX_INLINE_BYTES} that may travel ` +
        'inside a job; use an input key',
    );
  const bytes = Uint8Array.from(Buffer.from(given.vectors, 'base64'));
  const rows = bytes.length / (4 * given.dims);
  if (!Number.isInteger(rows) || rows < 1)
    throw dimensionsMismatch(
      `job "${jobId}": ${field} has ${bytes.length} bytes, which are no whole rows of ${given.dims} f32 values`,
    );
  const matrix = { values: new Float32Array(bytes.buffer), rows, dims: given.dims };
  checkValues(jobId, field, matrix);
  return { form: 'inline', matrix };
}

/** Throws VECTOR_INVALID where a value is NaN, infinite or beyond what can be compared. */
export function checkValues(jobId: string, field: string, { values, dims: width }: Matrix): void {
  const at = firstIncomparable(values);
  if (at !== undefined)
    throw new ShoalError(
      'VECTOR_INVALID',
      `job "${jobId}": row ${Math.floor(at / width)} of ${field} holds ${String(values[at])} at dimension ` +
        `${at % width}; only numbers between ±${MAX_VALUE.toExponential(0)} can be compared`,
      { jobId },
    );
}

export function rowsOf(input: VectorInput): number {
  return input.form === 'inline' ? input.matrix.rows : input.rows;
}

export function dimsOf(input: VectorInput): number {
  return input.form === 'inline' ? input.matrix.dims : input.dims;
}

export function dimensionsMismatch(message: string): ShoalError<'DIMENSIONS_MISMATCH'> {
  return new ShoalError('DIMENSIONS_MISMATCH', message);
}

export function resultTooLarge(message: string): ShoalError<'RESULT_TOO_LARGE'> {
  return new ShoalError('RESULT_TOO_LARGE', message);
}
