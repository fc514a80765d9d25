// The public job format, versions 1 and 2: what a producer may put into `data` of a job named "embed", what the worker
// returns, and the only way from one to the other (`parseJob`). Unknown fields are refused by name, so that a
// misspelt option is never silently ignored. Nothing here touches a queue.

import { z } from 'zod';
import {
  MAX_INLINE_BYTES,
  MAX_ROWS_PER_JOB,
  ROWS_EVERY_WORKER_TAKES,
  checkFields,
  checkInputKey,
  checkVersion,
  hex16,
  inputAnywhere,
  keyedInput,
  invalid,
  problemsIn,
  secondTerms,
  termFields,
  termsOf,
  type JobTerms,
  type Meta,
} from './job-terms.ts';
import type { ErrorCode } from './errors.ts';

const outputFields = {
  dtype: z.enum(['f32', 'f16', 'i8', 'binary']).optional().describe('Form of the vectors in the result. Default f32.'),
  dimensions: z
    .int()
    .min(1)
    .max(65_536)
    .optional()
    .describe('Keep only the first so many dimensions, normalized again where vectors have length 1.'),
};
const secondOutput = z.strictObject({
  ...outputFields,
  normalize: z
    .boolean()
    .optional()
    .describe('true: vectors of length 1, also of a model that does not normalize. false: refused of one that does.'),
});

const MAX_PROMPT_NAME = 128;

const truncate = z
  .enum(['end', 'error'])
  .optional()
  .describe('What happens to a text with more tokens than the model takes. Default end.');
const textsUpTo = (most: number) => z.array(z.string()).min(1).max(most);
const inlineTexts = textsUpTo(ROWS_EVERY_WORKER_TAKES);
const secondTexts = textsUpTo(MAX_ROWS_PER_JOB);

/** Of jobs that want their vectors in the return value: it is kept with thousands of jobs. */
export const MAX_RETURNED_ROWS = 8;
/** Of these vectors, in the form that was asked for: 8 rows of 1,024 f32. Bytes. */
export const MAX_RETURNED_BYTES = 32 * 1024;
const returnVectors = z
  .boolean()
  .optional()
  .describe(
    `true: the return value has the vectors as well, as base64 of what lies behind the header of the result. Up to ` +
      `${MAX_RETURNED_ROWS} texts and ${MAX_RETURNED_BYTES} bytes.`,
  );

const first = {
  ...termFields,
  truncate,
  prompt: z
    .enum(['query', 'passage'])
    .optional()
    .describe('Which of the model’s prompts goes before each text. A model without prompts refuses it.'),
  output: z.strictObject(outputFields).optional(),
};
const second = {
  ...secondTerms,
  truncate,
  prompt: z
    .string()
    .min(1)
    .max(MAX_PROMPT_NAME)
    .optional()
    .describe('The same by any name that the model has, or "none" for no prompt at all.'),
  output: secondOutput.optional(),
  payloads: hex16
    .optional()
    .describe('Whoever reads the result reads this set of payload servers: a worker with the same set may use them.'),
};

/** Versions of `data` that are read here. Fields that came after 0.1.0 need version 2. */
export const EMBED_JOB_VERSIONS: readonly number[] = [1, 2];

type Fields = Omit<z.infer<z.ZodObject<typeof second>>, 'v'> & { v: 1 | 2 };
type InlineData = Fields & { texts: z.infer<typeof inlineTexts>; returnVectors?: boolean | undefined };
type KeyedData = Fields & { input: z.infer<typeof inputAnywhere> };
/** `data` of a job as a producer writes it. */
export type EmbedJobData = InlineData | KeyedData;

interface Schemas {
  readonly inline: z.ZodType<InlineData>;
  readonly keyed: z.ZodType<KeyedData>;
  /** Without its input. */
  readonly rest: z.ZodType;
}

const SCHEMAS: Readonly<Record<1 | 2, Schemas>> = {
  1: {
    inline: z.strictObject({ ...first, texts: inlineTexts }),
    keyed: z.strictObject({ ...first, input: keyedInput }),
    rest: z.strictObject(first),
  },
  2: {
    inline: z.strictObject({ ...second, texts: secondTexts, returnVectors }),
    keyed: z.strictObject({ ...second, input: inputAnywhere }),
    rest: z.strictObject({ ...second, returnVectors }),
  },
};
/** All forms of `data`, for the published schema. */
export const EMBED_DATA = z.union([SCHEMAS[1].inline, SCHEMAS[1].keyed, SCHEMAS[2].inline, SCHEMAS[2].keyed]);

export type OutputDtype = 'f32' | 'f16' | 'i8' | 'binary';

export interface OutputOptions {
  readonly dtype: OutputDtype;
  readonly dimensions: number | undefined;
  /** true: length 1, also of a model that does not normalize. false: lengths of their own, which not every model has. */
  readonly normalize?: boolean | undefined;
}

export type JobInput =
  | { readonly form: 'inline'; readonly texts: readonly string[] }
  | ({ readonly form: 'texts'; readonly rows: number } & OnServer)
  | ({
      readonly form: 'tokens';
      readonly rows: number;
      readonly tokens: number;
      readonly tokenizer: string;
    } & OnServer);

interface OnServer {
  /** Name of the payload server on which it lies. Left out: on the queue server, at the input key. */
  readonly store?: string | undefined;
}

/** A checked job: every option has its value, every field its meaning. Made by `parseJob` only. */
export interface EmbedJob extends JobTerms {
  readonly jobId: string;
  readonly input: JobInput;
  readonly rows: number;
  readonly truncate: 'end' | 'error';
  /** A name; undefined asks for none, or for the model's default. */
  readonly prompt: string | undefined;
  readonly output: OutputOptions;
  /** The return value has the vectors as well. */
  readonly returnsVectors?: true | undefined;
  /** The set of payload servers that its reader reads: 16 hex digits. */
  readonly payloads?: string | undefined;
}

/**
 * What a completed job returns: facts and the key of the result, at most 300 bytes of JSON without `meta`, `vectors`
 * and `scores`. The result is at `key` in any case.
 */
export interface EmbedReturn {
  readonly v: 1;
  readonly key: string;
  /** name@revision */
  readonly model: string;
  readonly rows: number;
  readonly dims: number;
  readonly dtype: OutputDtype;
  /** Set where vectors have lengths of their own, because the model does not normalize them and nobody asked for it. */
  readonly normalized?: false;
  readonly device: string;
  readonly precision: string;
  readonly tokens: number;
  /** Rows that were cut at the model's length. */
  readonly truncated: number;
  /** How often a micro-batch with rows of this job was split for lack of memory. */
  readonly splits: number;
  /**
   * Set when the job went through the CPU lane: why, and the peak memory predicted for it, bytes, where something
   * predicts it.
   */
  readonly handedOver?: { readonly reason: ErrorCode; readonly peakBytes?: number };
  readonly ms: { readonly queued: number; readonly run: number };
  /** As the job had it. */
  readonly meta?: Meta;
  /** Where the job asked for them: base64 of the body of the result, rows in the form that was asked for. */
  readonly vectors?: string;
  /** Of a rerank job that asked for them: one for each text, in order, exact as f32. */
  readonly scores?: number[];
}

/**
 * Turns what was found on the queue into a job, or throws JOB_INVALID or JOB_VERSION_UNKNOWN naming every problem at
 * once.
 */
export function parseJob(jobId: string, name: string, data: unknown): EmbedJob {
  if (name !== 'embed')
    throw invalid(jobId, `the job is named "${name.slice(0, 80)}"; this queue takes jobs named "embed"`);
  const checked = checkVersion(jobId, data, EMBED_JOB_VERSIONS);
  const schemas = SCHEMAS['v' in checked && checked.v === 2 ? 2 : 1];
  const hasTexts = 'texts' in checked;
  if (hasTexts && 'input' in checked)
    throw invalid(jobId, 'it has both "texts" and "input"; its input is either in the job or under a key of its own');
  if ('input' in checked) checkInputKey(jobId);
  return toEmbedJob(jobId, hasTexts ? checkFields(jobId, schemas.inline, checked) : keyedData(jobId, checked, schemas));
}

function keyedData(jobId: string, data: object, { keyed, rest }: Schemas): EmbedJobData {
  if ('input' in data) return checkFields(jobId, keyed, data);
  // what else is wrong is told in the same message
  const problems = problemsIn(rest, data);
  throw invalid(
    jobId,
    [`it has no "texts", a list of 1 to ${ROWS_EVERY_WORKER_TAKES} strings`, ...problems].join('; '),
  );
}

function toEmbedJob(jobId: string, data: EmbedJobData): EmbedJob {
  const input = inputOf(jobId, data);
  const returnsVectors = 'returnVectors' in data && data.returnVectors === true;
  if (returnsVectors) checkReturned(jobId, data.texts.length);
  const rows = input.form === 'inline' ? input.texts.length : input.rows;
  return {
    jobId,
    input,
    rows,
    ...termsOf(data, rows),
    truncate: data.truncate ?? 'end',
    prompt: data.prompt,
    output: {
      dtype: data.output?.dtype ?? 'f32',
      dimensions: data.output?.dimensions,
      ...(data.output?.normalize !== undefined && { normalize: data.output.normalize }),
    },
    ...(returnsVectors && { returnsVectors }),
    ...(data.payloads !== undefined && { payloads: data.payloads }),
  };
}

function checkReturned(jobId: string, texts: number): void {
  if (texts > MAX_RETURNED_ROWS)
    throw invalid(
      jobId,
      `it asks for its vectors in the return value and has ${texts} texts; that is for up to ${MAX_RETURNED_ROWS} texts, ` +
        'others read the result key',
    );
}

function inputOf(jobId: string, data: EmbedJobData): JobInput {
  if (!('texts' in data)) {
    if (data.input.store !== undefined && data.fingerprint === undefined)
      throw invalid(
        jobId,
        'its input lies on a payload server, and without a fingerprint nobody can tell that it is the right one',
      );
    return data.input;
  }
  let bytes = 0;
  for (const text of data.texts) bytes += Buffer.byteLength(text);
  if (bytes > MAX_INLINE_BYTES) {
    throw invalid(
      jobId,
      `its texts have ${bytes} bytes, above the ${MAX_INLINE_BYTES} that may travel inside a job; split the ` +
        'job or use an input key',
    );
  }
  return { form: 'inline', texts: data.texts };
}
