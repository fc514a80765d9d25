// What jobs of every kind have in common: the fields that say who asks, how urgently and where the answer goes, and the
// way from what was found on the queue to checked data. Unknown fields are refused by name, so that a misspelt option
// is never silently ignored. What a job asks for is the business of job-schema.ts and similarity-schema.ts.

import { z } from 'zod';
import { ShoalError } from './errors.ts';
import { REPLY_CHANNEL, checkJobId } from './keys.ts';

export const MAX_ROWS_PER_JOB = 256;
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

export const hex16 = z.string().regex(/^[0-9a-f]{16}$/, 'must be 16 lower-case hex digits');

export const termFields = {
  v: z.literal(1),
  fingerprint: hex16.optional().describe('See fingerprint.ts. Checked by the worker when given.'),
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

export const rowCount = z.int().min(1).max(MAX_ROWS_PER_JOB);

/** The common part of a checked job, every field with its meaning. */
export interface JobTerms {
  readonly fingerprint: string | undefined;
  readonly class: 'interactive' | 'bulk';
  readonly tenant: string;
  readonly deadlineMs: number | undefined;
  readonly reply: string | undefined;
  readonly resultTtlMs: number;
}

type TermFields = z.infer<z.ZodObject<typeof termFields>>;

export function termsOf(data: TermFields, rows: number): JobTerms {
  return {
    fingerprint: data.fingerprint,
    class: data.class ?? (rows <= INTERACTIVE_ROWS ? 'interactive' : 'bulk'),
    tenant: data.tenant ?? DEFAULT_TENANT,
    deadlineMs: data.deadline,
    reply: data.reply,
    resultTtlMs: data.resultTtlMs ?? (data.reply === undefined ? SUBMITTED_RESULT_TTL_MS : LIVE_RESULT_TTL_MS),
  };
}

/** An object of version 1, whatever else is in it; throws JOB_INVALID or JOB_VERSION_UNKNOWN. */
export function checkVersion(jobId: string, data: unknown): object {
  checkJobId(jobId);
  if (typeof data !== 'object' || data === null || Array.isArray(data))
    throw invalid(jobId, 'its data is not an object');
  const version: unknown = Reflect.get(data, 'v');
  if (version !== 1) throw unknownVersion(jobId, version);
  return data;
}

/** What the schema makes of the data; throws JOB_INVALID with every problem at once. */
export function checkFields<Schema extends z.ZodType>(jobId: string, schema: Schema, data: object): z.infer<Schema> {
  const parsed = schema.safeParse(data);
  if (!parsed.success) throw invalid(jobId, parsed.error.issues.map(describeIssue).join('; '));
  return parsed.data;
}

export function invalid(jobId: string, problem: string): ShoalError<'JOB_INVALID'> {
  const told =
    problem.length > MAX_PROBLEM_CHARACTERS ? `${problem.slice(0, MAX_PROBLEM_CHARACTERS)} … and more` : problem;
  return new ShoalError('JOB_INVALID', `job "${jobId.slice(0, 80)}": ${told}`, { jobId });
}

function describeIssue(issue: z.core.$ZodIssue): string {
  const path = issue.path.map(String).join('.');
  if (issue.code === 'unrecognized_keys') {
    return (
      `unknown field${issue.keys.length > 1 ? 's' : ''} ` +
      `${issue.keys.map((key) => `"${key}"`).join(', ')}${path ? ` in ${path}` : ''}`
    );
  }
  return `${path || 'data'}: ${issue.message}`;
}

function unknownVersion(jobId: string, version: unknown): ShoalError {
  if (typeof version === 'number' && Number.isInteger(version) && version > 1) {
    return new ShoalError(
      'JOB_VERSION_UNKNOWN',
      `job "${jobId.slice(0, 80)}" has version ${version}; this worker knows version 1`,
      { jobId, version },
    );
  }
  return invalid(jobId, `field "v" must be 1, found ${JSON.stringify(version) ?? 'nothing'}`);
}
