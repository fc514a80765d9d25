// The public job format, version 1: what a producer may put into `data` of a job named "embed", what the worker
// returns, and the only way from one to the other (`parseJob`). Unknown fields are refused by name, so that a
// misspelt option is never silently ignored. Nothing here touches a queue.

import { z } from 'zod';
import { ShoalError, type ErrorCode } from './errors.ts';
import { REPLY_CHANNEL, checkJobId } from './keys.ts';

export const MAX_ROWS_PER_JOB = 256;
/** A job of so few rows that does not name its class is interactive: somebody waits for it. */
export const INTERACTIVE_ROWS = 8;
/** Inline texts are for people and small jobs; larger input belongs into an input key. Bytes of UTF-8. */
export const MAX_INLINE_BYTES = 256 * 1024;
/** How long a result waits for a producer that listens, and for one that comes back later. Milliseconds. */
export const LIVE_RESULT_TTL_MS = 300_000;
export const SUBMITTED_RESULT_TTL_MS = 86_400_000;

/** The queue keeps thousands of failed jobs with their reasons: what a job holds by mistake is not repeated to them in full. */
const MAX_PROBLEM_CHARACTERS = 2_000;

const hex16 = z.string().regex(/^[0-9a-f]{16}$/, 'must be 16 lower-case hex digits');

const outputOptions = z.strictObject({
  dtype: z.enum(['f32', 'f16', 'i8', 'binary']).optional().describe('Form of the vectors in the result. Default f32.'),
  dimensions: z.int().min(1).max(65_536).optional().describe('Keep only the first so many dimensions, normalized again.'),
  normalize: z.literal(true).optional().describe('Vectors are L2-normalized inside the model graph; they cannot be had otherwise.'),
});

const options = {
  v: z.literal(1),
  fingerprint: hex16.optional().describe('See fingerprint.ts. Checked by the worker when given.'),
  class: z.enum(['interactive', 'bulk']).optional(),
  tenant: z.string().min(1).max(128).optional(),
  deadline: z.int().positive().optional().describe('Epoch milliseconds by the clock of the queue server.'),
  reply: z.string().regex(REPLY_CHANNEL, 'must look like {shoal}:reply:<1 to 64 of A-Z a-z 0-9 _ ->').optional(),
  resultTtlMs: z.int().min(1_000).max(30 * 86_400_000).optional(),
  truncate: z.enum(['end', 'error']).optional().describe('What happens to a text with more tokens than the model takes. Default end.'),
  prompt: z.enum(['query', 'passage']).optional().describe('Which of the model’s prompts goes before each text, where it has any.'),
  output: outputOptions.optional(),
};

const rows = z.int().min(1).max(MAX_ROWS_PER_JOB);

const inlineJob = z.strictObject({ ...options, texts: z.array(z.string()).min(1).max(MAX_ROWS_PER_JOB) });
const keyedJob = z.strictObject({
  ...options,
  input: z.discriminatedUnion('form', [
    z.strictObject({ form: z.literal('texts'), rows }),
    z.strictObject({ form: z.literal('tokens'), rows, tokens: z.int().min(1), tokenizer: hex16 }),
  ]),
});

/** `data` of a job as a producer writes it. */
export type EmbedJobData = z.infer<typeof inlineJob> | z.infer<typeof keyedJob>;
export type OutputDtype = 'f32' | 'f16' | 'i8' | 'binary';

export interface OutputOptions {
  readonly dtype: OutputDtype;
  readonly dimensions: number | undefined;
}

export type JobInput =
  | { readonly form: 'inline'; readonly texts: readonly string[] }
  | { readonly form: 'texts'; readonly rows: number }
  | { readonly form: 'tokens'; readonly rows: number; readonly tokens: number; readonly tokenizer: string };

/** A checked job: every option has its value, every field its meaning. Made by `parseJob` only. */
export interface EmbedJob {
  readonly jobId: string;
  readonly input: JobInput;
  readonly rows: number;
  readonly fingerprint: string | undefined;
  readonly class: 'interactive' | 'bulk';
  readonly tenant: string;
  readonly deadlineMs: number | undefined;
  readonly reply: string | undefined;
  readonly resultTtlMs: number;
  readonly truncate: 'end' | 'error';
  readonly prompt: 'query' | 'passage' | undefined;
  readonly output: OutputOptions;
}

/** What a completed job returns: facts and the key of the result, at most 300 bytes of JSON. The vectors are at `key`. */
export interface EmbedReturn {
  readonly v: 1;
  readonly key: string;
  /** name@revision */
  readonly model: string;
  readonly rows: number;
  readonly dims: number;
  readonly dtype: OutputDtype;
  readonly device: string;
  readonly precision: string;
  readonly tokens: number;
  /** Rows that were cut at the model's length. */
  readonly truncated: number;
  /** How often a micro-batch with rows of this job was split for lack of memory. */
  readonly splits: number;
  /** Set when the job went through the CPU lane: why, and the peak memory predicted for it, bytes, where something predicts it. */
  readonly handedOver?: { readonly reason: ErrorCode; readonly peakBytes?: number };
  readonly ms: { readonly queued: number; readonly run: number };
}

/** Turns what was found on the queue into a job, or throws JOB_INVALID or JOB_VERSION_UNKNOWN naming every problem at once. */
export function parseJob(jobId: string, name: string, data: unknown): EmbedJob {
  checkJobId(jobId);
  if (name !== 'embed') throw invalid(jobId, `the job is named "${name.slice(0, 80)}"; this queue takes jobs named "embed"`);
  if (typeof data !== 'object' || data === null || Array.isArray(data)) throw invalid(jobId, 'its data is not an object');
  const version: unknown = Reflect.get(data, 'v');
  if (version !== 1) throw unknownVersion(jobId, version);
  const parsed = 'texts' in data ? inlineJob.safeParse(data) : keyedJob.safeParse(data);
  if (!parsed.success) throw invalid(jobId, parsed.error.issues.map(describeIssue).join('; '));
  return toEmbedJob(jobId, parsed.data);
}

function toEmbedJob(jobId: string, data: EmbedJobData): EmbedJob {
  const input = inputOf(jobId, data);
  const rowCount = input.form === 'inline' ? input.texts.length : input.rows;
  return {
    jobId,
    input,
    rows: rowCount,
    fingerprint: data.fingerprint,
    class: data.class ?? (rowCount <= INTERACTIVE_ROWS ? 'interactive' : 'bulk'),
    tenant: data.tenant ?? 'default',
    deadlineMs: data.deadline,
    reply: data.reply,
    resultTtlMs: data.resultTtlMs ?? (data.reply === undefined ? SUBMITTED_RESULT_TTL_MS : LIVE_RESULT_TTL_MS),
    truncate: data.truncate ?? 'end',
    prompt: data.prompt,
    output: { dtype: data.output?.dtype ?? 'f32', dimensions: data.output?.dimensions },
  };
}

function inputOf(jobId: string, data: EmbedJobData): JobInput {
  if (!('texts' in data)) return data.input;
  let bytes = 0;
  for (const text of data.texts) bytes += Buffer.byteLength(text);
  if (bytes > MAX_INLINE_BYTES) {
    throw invalid(jobId, `its texts have ${bytes} bytes, above the ${MAX_INLINE_BYTES} that may travel inside a job; split the job or use an input key`);
  }
  return { form: 'inline', texts: data.texts };
}

function describeIssue(issue: z.core.$ZodIssue): string {
  const path = issue.path.map(String).join('.');
  if (issue.code === 'unrecognized_keys') {
    return `unknown field${issue.keys.length > 1 ? 's' : ''} ${issue.keys.map((key) => `"${key}"`).join(', ')}${path ? ` in ${path}` : ''}`;
  }
  return `${path || 'data'}: ${issue.message}`;
}

function invalid(jobId: string, problem: string): ShoalError<'JOB_INVALID'> {
  const told = problem.length > MAX_PROBLEM_CHARACTERS ? `${problem.slice(0, MAX_PROBLEM_CHARACTERS)} … and more` : problem;
  return new ShoalError('JOB_INVALID', `job "${jobId.slice(0, 80)}": ${told}`, { jobId });
}

function unknownVersion(jobId: string, version: unknown): ShoalError {
  if (typeof version === 'number' && Number.isInteger(version) && version > 1) {
    return new ShoalError('JOB_VERSION_UNKNOWN', `job "${jobId.slice(0, 80)}" has version ${version}; this worker knows version 1`, { jobId, version });
  }
  return invalid(jobId, `field "v" must be 1, found ${JSON.stringify(version) ?? 'nothing'}`);
}
