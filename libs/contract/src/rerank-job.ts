// The public format of rerank jobs: what a producer may put into `data` of a job named "rerank", and the only way from
// there to a checked job (`parseRerankJob`). Such jobs carry version 2, as everything that came after 0.1.0. Unknown
// fields are refused by name. Nothing here touches a queue.

import { z } from 'zod';
import {
  MAX_INLINE_BYTES,
  MAX_ROWS_PER_JOB,
  ROWS_EVERY_WORKER_TAKES,
  checkFields,
  checkInputKey,
  checkVersion,
  invalid,
  problemsIn,
  secondInput,
  secondTerms,
  termsOf,
  type JobTerms,
} from './job-terms.ts';

const VERSION = 2;
const EXAMPLE = '{ "v": 2, "query": "how do magnets work", "texts": ["iron atoms align"] }';

const options = {
  ...secondTerms,
  truncate: z
    .enum(['end', 'error'])
    .optional()
    .describe('What happens to a pair with more tokens than the model takes. Default end.'),
  returnScores: z.boolean().optional().describe('true: the return value has the scores as well.'),
};

const inlineJob = z.strictObject({
  ...options,
  query: z.string().describe('What the texts are weighed against.'),
  texts: z.array(z.string()).min(1).max(MAX_ROWS_PER_JOB),
});
const keyedJob = z.strictObject({
  ...options,
  input: secondInput,
});

/** All forms of `data`, for the published schema. */
export const RERANK_DATA = z.union([inlineJob, keyedJob]);

/** `data` of a job as a producer writes it. */
export type RerankJobData = z.infer<typeof inlineJob> | z.infer<typeof keyedJob>;

export type RerankInput =
  | { readonly form: 'inline'; readonly query: string; readonly texts: readonly string[] }
  | { readonly form: 'texts'; readonly rows: number }
  | { readonly form: 'tokens'; readonly rows: number; readonly tokens: number; readonly tokenizer: string };

/** A checked job: every option has its value, every field its meaning. Made by `parseRerankJob` only. */
export interface RerankJob extends JobTerms {
  readonly jobId: string;
  readonly input: RerankInput;
  /** Pairs, and so scores. */
  readonly rows: number;
  readonly truncate: 'end' | 'error';
  /** The return value has the scores as well. */
  readonly returnsScores?: true | undefined;
}

/**
 * Turns what was found on the queue into a job, or throws JOB_INVALID or JOB_VERSION_UNKNOWN naming every problem at
 * once.
 */
export function parseRerankJob(jobId: string, name: string, data: unknown): RerankJob {
  if (name !== 'rerank')
    throw invalid(jobId, `the job is named "${name.slice(0, 80)}"; this queue takes jobs named "rerank"`);
  const checked = checkVersion(jobId, data, [VERSION], EXAMPLE);
  const inline = ['query', 'texts'].filter((field) => field in checked);
  if ('input' in checked && inline.length > 0)
    throw invalid(
      jobId,
      `it has both "${inline.join('", "')}" and "input"; query and texts are either in the job or under a key of its own`,
    );
  if ('input' in checked) checkInputKey(jobId);
  else if (inline.length === 0) {
    // what else is wrong is told in the same message
    const problems = problemsIn(inlineJob.omit({ query: true, texts: true }), checked);
    throw invalid(
      jobId,
      [`it has no "query", a string, and no "texts", a list of 1 to ${ROWS_EVERY_WORKER_TAKES}`, ...problems].join(
        '; ',
      ),
    );
  }
  return toRerankJob(jobId, checkFields(jobId, 'input' in checked ? keyedJob : inlineJob, checked));
}

function toRerankJob(jobId: string, data: RerankJobData): RerankJob {
  const input: RerankInput = 'input' in data ? data.input : { form: 'inline', query: data.query, texts: data.texts };
  if (input.form === 'inline') checkInlineBytes(jobId, input);
  const rows = input.form === 'inline' ? input.texts.length : input.rows;
  const returnsScores = data.returnScores === true && { returnsScores: true as const };
  return { jobId, input, rows, ...termsOf(data, rows), truncate: data.truncate ?? 'end', ...returnsScores };
}

function checkInlineBytes(jobId: string, { query, texts }: Extract<RerankInput, { form: 'inline' }>): void {
  const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), Buffer.byteLength(query));
  if (bytes <= MAX_INLINE_BYTES) return;
  throw invalid(
    jobId,
    `its query and texts have ${bytes} bytes, above the ${MAX_INLINE_BYTES} that may travel inside a job; split the ` +
      'job or use an input key',
  );
}
