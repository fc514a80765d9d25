// Turns the texts of one job into what goes onto the queue: token ids when the client has a tokenizer, else the texts,
// and the fingerprint of the whole request. Long work is cut into slices, so that the caller's event loop stays alive.

import {
  ROWS_EVERY_WORKER_TAKES,
  ShoalError,
  checkJobId,
  encodeTexts,
  encodeTokens,
  fingerprintOf,
  parseJob,
  promptText,
  type EmbedJobData,
  type OutputDtype,
  type OutputOptions,
  type Prompts,
} from '@shoal/contract';
import type { Encoded, Tokenizer } from '@shoal/core';
import { loopTurn } from '@shoal/core/base';
import type { NewJob } from '@shoal/queue';
import { MAX_INLINE_TEXT_BYTES, termFieldsOf, type CallTerms, type RowsRequest } from './job-request.ts';

/** What all jobs of one call have in common. */
export interface RequestTerms extends CallTerms {
  readonly tokenizer: Tokenizer | undefined;
  /** Of the model, where they are known here. */
  readonly prompts: Prompts | undefined;
  /** Whether the model's vectors have length 1, where that is known here. */
  readonly isNormalized?: boolean | undefined;
  readonly prompt: string | undefined;
  readonly output:
    | { readonly dtype?: OutputDtype; readonly dimensions?: number; readonly normalize?: boolean }
    | undefined;
}

/** Longest stretch of tokenizing without a turn of the event loop. */
const SLICE_MS = 8;
/**
 * More texts begin with a turn: jobs of 64 are tokenized in 1 to 2 ms, and many calls that come at once, or many jobs of
 * one call, would hold the event loop together.
 */
const FEW_TEXTS = 8;
/** A text of fewer UTF-16 units is encoded in one go. */
const LONG_TEXT = 16_384;

/** Throws INPUT_TOO_LONG when `truncate` is "error" and a text does not fit, JOB_INVALID for an impossible id. */
export async function makeRequest(jobId: string, texts: readonly string[], terms: RequestTerms): Promise<RowsRequest> {
  checkJobId(jobId);
  const tokenizer = tokenizerFor(terms);
  return tokenizer === undefined ? textRequest(jobId, texts, terms) : tokenRequest(jobId, texts, terms, tokenizer);
}

/** What only a worker can judge, or do, of a call. */
export interface AskedOfWorkers {
  /** Of jobs; 2 only for what workers of 0.1.0 do not know. */
  readonly version: 1 | 2;
  /** Whose words the worker puts before the texts. */
  readonly prompt: string | undefined;
  readonly normalize: boolean | undefined;
  /** Whether jobs have fields of their producer's own. */
  readonly hasMeta: boolean;
}

/** The same for all jobs of a call, and whatever workers are there: an id asked for again has the same fingerprint. */
export function askedOfWorkers(terms: RequestTerms): AskedOfWorkers {
  const prompt = tokenizerFor(terms) === undefined ? terms.prompt : undefined;
  const isNamed = prompt !== undefined && prompt !== 'query' && prompt !== 'passage';
  const { isNormalized, output: { normalize } = {} } = terms;
  // what the model does anyhow is not asked for
  const asked = normalize === isNormalized ? undefined : normalize;
  const hasMeta = terms.meta !== undefined;
  return { version: isNamed || asked !== undefined || hasMeta ? 2 : 1, prompt, normalize: asked, hasMeta };
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
): Promise<RowsRequest> {
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
    terms,
    { input, rows: texts.length },
    (common) => ({ jobId, data: { ...common, input: form }, input }),
    tokens,
    truncated,
  );
}

function textRequest(jobId: string, texts: readonly string[], terms: RequestTerms): RowsRequest {
  const input = encodeTexts(texts);
  const toJob = (common: CommonData): NewJob =>
    input.length > MAX_INLINE_TEXT_BYTES
      ? { jobId, data: { ...common, input: { form: 'texts', rows: texts.length } }, input }
      : { jobId, data: { ...common, texts: [...texts] } };
  return finish(jobId, terms, { input, rows: texts.length }, toJob, undefined, undefined);
}

type CommonData = Omit<EmbedJobData, 'texts' | 'input'>;

function finish(
  jobId: string,
  terms: RequestTerms,
  { input, rows }: { readonly input: Buffer; readonly rows: number },
  toJob: (common: CommonData) => NewJob,
  tokens: readonly number[] | undefined,
  truncated: readonly number[] | undefined,
): RowsRequest {
  const { model, truncate } = terms;
  const { version, normalize, ...named } = askedOfWorkers(terms);
  const isSide = terms.prompt === 'query' || terms.prompt === 'passage';
  const prompt = isSide ? terms.prompt : named.prompt; // of other names token ids alone tell
  const { normalize: _, ...rest } = terms.output ?? {};
  const asked = { ...rest, ...(normalize !== undefined && { normalize }) };
  const output = Object.keys(asked).length === 0 ? undefined : asked;
  const fingerprint = fingerprintOf({ model, prompt, truncate, output: outputOf(output) }, input);
  const common: CommonData = {
    v: terms.trace === undefined && rows <= ROWS_EVERY_WORKER_TAKES ? version : 2,
    fingerprint,
    ...termFieldsOf(terms),
    ...(prompt === undefined ? {} : { prompt }),
    ...(output === undefined ? {} : { output }),
  };
  const job = toJob(common);
  // a wrong option is this call's problem, not that of the jobs it would travel with
  const parsed = parseJob(jobId, 'embed', job.data);
  return {
    jobId,
    requestId: terms.requestId,
    rows: parsed.rows,
    fingerprint,
    job: { ...job, parsed },
    tokens,
    truncated,
  };
}

function outputOf(output: EmbedJobData['output']): OutputOptions {
  return { dtype: output?.dtype ?? 'f32', dimensions: output?.dimensions, normalize: output?.normalize };
}

async function encodeInSlices(
  texts: readonly string[],
  { prompt, prompts, tenant }: RequestTerms,
  tokenizer: Tokenizer,
): Promise<Encoded[]> {
  const prefix = prompts === undefined ? '' : (promptText(prompts, prompt) ?? '');
  const encoded: Encoded[] = [];
  if (texts.length > FEW_TEXTS) await loopTurn(tenant);
  let sliceStart = performance.now();
  const turn = async (): Promise<void> => {
    if (performance.now() - sliceStart < SLICE_MS) return;
    await loopTurn(tenant);
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
