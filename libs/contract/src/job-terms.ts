// What jobs of every kind have in common: the fields that say who asks, how urgently and where the answer goes, and the
// way from what was found on the queue to checked data. Unknown fields are refused by name, so that a misspelt option
// is never silently ignored. What a job asks for is the business of job-schema.ts and similarity-schema.ts.

import { z } from 'zod';
import { ShoalError } from './errors.ts';
import { describeIssue, kindOf } from './job-problems.ts';
import { REPLY_CHANNEL, checkQueuedJobId, isGeneratedJobId } from './keys.ts';
import { traceField, type Trace } from './trace.ts';

/** Of version 2, where the facts of all live workers say that they take so many. */
export const MAX_ROWS_PER_JOB = 1_024;
/** So many rows every worker takes, whatever it says; a job of version 1 has no more. */
export const ROWS_EVERY_WORKER_TAKES = 256;
/** A job of so few rows that does not name its class is interactive: somebody waits for it. */
export const INTERACTIVE_ROWS = 8;
/** Of jobs that name none. */
export const DEFAULT_TENANT = 'default';
/** What travels inside a job is for people and small jobs; larger input belongs into an input key. Bytes. */
export const MAX_INLINE_BYTES = 256 * 1024;
/** How long a result waits for a producer that listens, and for one that comes back later. Milliseconds. */
export const LIVE_RESULT_TTL_MS = 300_000;
export const SUBMITTED_RESULT_TTL_MS = 86_400_000;

/**
 * The queue keeps thousands of failed jobs with their reasons: what a job holds by mistake is not repeated to them in
 * full.
 */
const MAX_PROBLEM_CHARACTERS = 2_000;

/** What a job may carry of its producer's own, as compact JSON in UTF-8. Bytes. */
export const MAX_META_BYTES = 2_048;

export const hex16 = z.string().regex(/^[0-9a-f]{16}$/, 'must be 16 lower-case hex digits');

export const termFields = {
  v: z.literal(1),
  fingerprint: hex16
    .optional()
    .describe('What the job asks for, as docs/jobs.md says. Checked by the worker when given.'),
  class: z.enum(['interactive', 'bulk']).optional(),
  tenant: z
    .string()
    .min(1)
    .max(128)
    .refine((tenant) => tenant.isWellFormed(), 'must not hold half of a surrogate pair')
    .optional(),
  deadline: z.int().positive().optional().describe('Epoch milliseconds by the clock of the queue server.'),
  reply: z.string().regex(REPLY_CHANNEL, 'must look like {shoal}:reply:<1 to 64 of A-Z a-z 0-9 _ ->').optional(),
  resultTtlMs: z
    .int()
    .min(1_000)
    .max(30 * 86_400_000)
    .optional(),
};

/** Fields of the producer's own, which come back with the result. Version 2. */
export type Meta = Readonly<Record<string, unknown>>;
const metaField = z
  .record(z.string(), z.unknown())
  .refine((meta) => metaBytes(meta) <= MAX_META_BYTES, {
    error: ({ input }) => `must have at most ${MAX_META_BYTES} bytes as JSON, found ${metaBytes(input)}`,
  })
  .optional()
  .describe(`Fields of your own: at most ${MAX_META_BYTES} bytes as JSON. Returned with the result.`);

/** What jobs of every kind may have with version 2. */
export const secondTerms = { ...termFields, v: z.literal(2), meta: metaField, trace: traceField };

function rowsUpTo(most: number): z.ZodInt {
  return z.int().min(1).max(most);
}

/** As it travels. */
function metaBytes(meta: unknown): number {
  return Buffer.byteLength(JSON.stringify(meta));
}

const keyedTexts = z.strictObject({ form: z.literal('texts'), rows: rowsUpTo(ROWS_EVERY_WORKER_TAKES) });
const keyedTokens = z.strictObject({
  form: z.literal('tokens'),
  rows: rowsUpTo(ROWS_EVERY_WORKER_TAKES),
  tokens: z.int().min(1),
  tokenizer: hex16,
});
/** What lies at the input key of a job of version 1. */
export const keyedInput = z.discriminatedUnion('form', [keyedTexts, keyedTokens]);

const secondTexts = keyedTexts.extend({ rows: rowsUpTo(MAX_ROWS_PER_JOB) });
const secondTokens = keyedTokens.extend({ rows: rowsUpTo(MAX_ROWS_PER_JOB) });
/** The same of version 2. */
export const secondInput = z.discriminatedUnion('form', [secondTexts, secondTokens]);

const store = z
  .string()
  .min(1)
  .max(255)
  .optional()
  .describe('Payload server on which the input lies, instead of the input key. Needs a fingerprint.');
/** The same where it may lie on a payload server. */
export const inputAnywhere = z.discriminatedUnion('form', [
  secondTexts.extend({ store }),
  secondTokens.extend({ store }),
]);

/** Whether the input of a job that was not checked lies at its input key: not in it, nor on a payload server. */
export function needsInputKey(data: unknown): boolean {
  if (typeof data !== 'object' || data === null || !('input' in data)) return false;
  const { input } = data;
  return typeof input !== 'object' || input === null || !('store' in input);
}

/** The common part of a checked job, every field with its meaning. */
export interface JobTerms {
  readonly fingerprint: string | undefined;
  readonly class: 'interactive' | 'bulk';
  readonly tenant: string;
  readonly deadlineMs: number | undefined;
  readonly reply: string | undefined;
  readonly resultTtlMs: number;
  readonly meta?: Meta | undefined;
  readonly trace?: Trace | undefined;
}

type TermFields = Omit<z.infer<z.ZodObject<typeof secondTerms>>, 'v'>;

export function termsOf(data: TermFields, rows: number): JobTerms {
  return {
    fingerprint: data.fingerprint,
    class: data.class ?? (rows <= INTERACTIVE_ROWS ? 'interactive' : 'bulk'),
    tenant: data.tenant ?? DEFAULT_TENANT,
    deadlineMs: data.deadline,
    reply: data.reply,
    resultTtlMs: data.resultTtlMs ?? (data.reply === undefined ? SUBMITTED_RESULT_TTL_MS : LIVE_RESULT_TTL_MS),
    ...(data.meta !== undefined && { meta: data.meta }),
    ...(data.trace !== undefined && { trace: data.trace }),
  };
}

/**
 * An object of a known version, whatever else is in it; throws JOB_INVALID or JOB_VERSION_UNKNOWN. `example`: of such
 * data, for who wrote something else.
 */
export function checkVersion(
  jobId: string,
  data: unknown,
  known: readonly number[] = [1],
  example = '{ "v": 1, "texts": ["hello"] }',
): object {
  checkQueuedJobId(jobId);
  if (typeof data !== 'object' || data === null || Array.isArray(data))
    throw invalid(jobId, `its data is not an object, found ${kindOf(data)}; write for example ${example}`);
  const version: unknown = Reflect.get(data, 'v');
  if (!known.some((one) => one === version)) throw unknownVersion(jobId, version, known);
  return data;
}

/** An input key is named after the job: nobody can have written one for an id that BullMQ made. */
export function checkInputKey(jobId: string): void {
  if (isGeneratedJobId(jobId))
    throw invalid(
      jobId,
      'it says that its input is under a key, which is named after the jobId, but it has an id that BullMQ made; ' +
        'choose a jobId, or put the input into the job itself',
    );
}

/** What the schema makes of the data; throws JOB_INVALID with every problem at once. */
export function checkFields<Schema extends z.ZodType>(jobId: string, schema: Schema, data: object): z.infer<Schema> {
  const parsed = schema.safeParse(data);
  if (!parsed.success) throw invalid(jobId, toldOf(parsed.error, data).join('; '));
  return parsed.data;
}

export function problemsIn(schema: z.ZodType, data: object): string[] {
  const parsed = schema.safeParse(data);
  return parsed.success ? [] : toldOf(parsed.error, data);
}

function toldOf(error: z.core.$ZodError, data: object): string[] {
  return error.issues.map((issue) => describeIssue(issue, data));
}

export function invalid(jobId: string, problem: string): ShoalError<'JOB_INVALID'> {
  const told =
    problem.length > MAX_PROBLEM_CHARACTERS ? `${problem.slice(0, MAX_PROBLEM_CHARACTERS)} … and more` : problem;
  return new ShoalError('JOB_INVALID', `job "${jobId.slice(0, 80)}": ${told}`, { jobId });
}

function unknownVersion(jobId: string, version: unknown, known: readonly number[]): ShoalError {
  const newest = Math.max(...known);
  if (typeof version === 'number' && Number.isInteger(version) && version > newest) {
    return new ShoalError(
      'JOB_VERSION_UNKNOWN',
      `job "${jobId.slice(0, 80)}" has version ${version}; this worker knows ${newest === 1 ? 'version 1' : `versions up to ${newest}`}`,
      { jobId, version },
    );
  }
  return invalid(
    jobId,
    `field "v", the version of the format, must be ${Math.min(...known)}, found ${kindOf(version)}`,
  );
}
