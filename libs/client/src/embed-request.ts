// Turns the texts of one job into what goes onto the queue: token ids when the client has a tokenizer, else the texts,
// and the fingerprint of the whole request. Long work is cut into slices, so that the caller's event loop stays alive.

import {
  ShoalError,
  checkJobId,
  encodeTexts,
  encodeTokens,
  fingerprintOf,
  parseJob,
  type EmbedJobData,
  type OutputDtype,
  type OutputOptions,
} from '@shoal/contract';
import type { Encoded, Tokenizer } from '@shoal/core';
import { loopTurn } from '@shoal/core/base';
import type { NewJob } from '@shoal/queue';
import type { JobRequest } from './job-request.ts';

/** What all jobs of one call have in common. */
export interface RequestTerms {
  /** The call's own id, tenant included. */
  readonly requestId: string;
  /** name@revision */
  readonly model: string;
  readonly tokenizer: Tokenizer | undefined;
  readonly prompts: { readonly query: string; readonly passage: string } | undefined;
  readonly tenant: string;
  readonly reply: string;
  readonly truncate: 'end' | 'error';
  readonly prompt: 'query' | 'passage' | undefined;
  readonly output: { readonly dtype?: OutputDtype; readonly dimensions?: number } | undefined;
  readonly class: 'interactive' | 'bulk' | undefined;
  /** Epoch milliseconds, after which a job that has not begun never runs. */
  readonly deadline?: number | undefined;
  readonly resultTtlMs?: number | undefined;
}

export interface EmbedRequest extends JobRequest {
  readonly rows: number;
  /** Asked for; undefined: all that the model has. */
  readonly dimensions: number | undefined;
  /** Known when the client tokenized: tokens of each row, and the rows that were cut. */
  readonly tokens: readonly number[] | undefined;
  readonly truncated: readonly number[] | undefined;
}

/** Texts up to this many bytes travel inside the job; finished jobs are kept for a while, inputs are not. */
const MAX_INLINE_TEXT_BYTES = 4_096;
/** Longest stretch of tokenizing without a turn of the event loop. */
const SLICE_MS = 8;
/** A text of fewer UTF-16 units is encoded in one go. */
const LONG_TEXT = 16_384;

/** Throws INPUT_TOO_LONG when `truncate` is "error" and a text does not fit, JOB_INVALID for an impossible id. */
export async function makeRequest(jobId: string, texts: readonly string[], terms: RequestTerms): Promise<EmbedRequest> {
  checkJobId(jobId);
  const tokenizer = tokenizerFor(terms);
  return tokenizer === undefined ? textRequest(jobId, texts, terms) : tokenRequest(jobId, texts, terms, tokenizer);
}

/** A prompt whose words are not known here must be put before the texts by the worker, so the texts have to travel. */
function tokenizerFor({ tokenizer, prompt, prompts }: RequestTerms): Tokenizer | undefined {
  return prompt !== undefined && prompts === undefined ? undefined : tokenizer;
}

async function tokenRequest(
  jobId: string,
  texts: readonly string[],
  terms: RequestTerms,
  tokenizer: Tokenizer,
): Promise<EmbedRequest> {
  const encoded = await encodeInSlices(texts, terms, tokenizer);
  const truncated = encoded.flatMap(({ isTruncated }, row) => (isTruncated ? [row] : []));
  const [tooLong] = truncated;
  if (tooLong !== undefined && terms.truncate === 'error') throw inputTooLong(jobId, tooLong, tokenizer.maxTokens);
  const tokens = encoded.map(({ ids }) => ids.length);
  const input = encodeTokens(encoded.map(({ ids }) => ids));
  const form = {
    form: 'tokens',
    rows: texts.length,
    tokens: tokens.reduce((sum, count) => sum + count, 0),
    tokenizer: tokenizer.hash,
  } as const;
  return finish(
    jobId,
    texts.length,
    terms,
    input,
    (common) => ({ jobId, data: { ...common, input: form }, input }),
    tokens,
    truncated,
  );
}

function textRequest(jobId: string, texts: readonly string[], terms: RequestTerms): EmbedRequest {
  const input = encodeTexts(texts);
  const toJob = (common: CommonData): NewJob =>
    input.length > MAX_INLINE_TEXT_BYTES
      ? { jobId, data: { ...common, input: { form: 'texts', rows: texts.length } }, input }
      : { jobId, data: { ...common, texts: [...texts] } };
  return finish(jobId, texts.length, terms, input, toJob, undefined, undefined);
}

type CommonData = Omit<EmbedJobData, 'texts' | 'input'>;

function finish(
  jobId: string,
  rows: number,
  terms: RequestTerms,
  input: Buffer,
  toJob: (common: CommonData) => NewJob,
  tokens: readonly number[] | undefined,
  truncated: readonly number[] | undefined,
): EmbedRequest {
  const { model, prompt, truncate, output } = terms;
  const fingerprint = fingerprintOf({ model, prompt, truncate, output: outputOf(output) }, input);
  const common: CommonData = {
    v: 1,
    fingerprint,
    tenant: terms.tenant,
    reply: terms.reply,
    ...(terms.class === undefined ? {} : { class: terms.class }),
    ...(terms.deadline === undefined ? {} : { deadline: terms.deadline }),
    ...(terms.resultTtlMs === undefined ? {} : { resultTtlMs: terms.resultTtlMs }),
    ...(truncate === 'end' ? {} : { truncate }),
    ...(prompt === undefined ? {} : { prompt }),
    ...(output === undefined ? {} : { output }),
  };
  const job = toJob(common);
  // a wrong option is this call's problem, not that of the jobs it would travel with
  const parsed = parseJob(jobId, 'embed', job.data);
  return {
    jobId,
    requestId: terms.requestId,
    rows,
    dimensions: output?.dimensions,
    fingerprint,
    job: { ...job, parsed },
    tokens,
    truncated,
  };
}

function outputOf(output: RequestTerms['output']): OutputOptions {
  return { dtype: output?.dtype ?? 'f32', dimensions: output?.dimensions };
}

async function encodeInSlices(
  texts: readonly string[],
  { prompt, prompts }: RequestTerms,
  tokenizer: Tokenizer,
): Promise<Encoded[]> {
  const prefix = prompt === undefined ? '' : (prompts?.[prompt] ?? '');
  const encoded: Encoded[] = [];
  let sliceStart = performance.now();
  const turn = async (): Promise<void> => {
    if (performance.now() - sliceStart < SLICE_MS) return;
    await loopTurn();
    sliceStart = performance.now();
  };
  for (const text of texts) {
    const whole = prefix + text;
    if (whole.length < LONG_TEXT || tokenizer.encodeSteps === undefined) encoded.push(tokenizer.encode(whole));
    else {
      const steps = tokenizer.encodeSteps(whole);
      let step = steps.next();
      for (; step.done !== true; step = steps.next()) await turn();
      encoded.push(step.value);
    }
    await turn();
  }
  return encoded;
}

function inputTooLong(jobId: string, row: number, maxTokens: number): ShoalError<'INPUT_TOO_LONG'> {
  return new ShoalError(
    'INPUT_TOO_LONG',
    `job "${jobId}", row ${row} has more than the ${maxTokens} tokens the model takes; shorten it or ask with ` +
      'truncate "end"',
    { jobId, row },
  );
}
