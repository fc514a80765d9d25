// The texts of planned jobs, and what their vectors must be: whoever gets a result can say whose it is.

import {
  ROWS_EVERY_WORKER_TAKES,
  encodeTexts,
  encodeTokens,
  fingerprintOf,
  openResult,
  type EmbedJobData,
} from '@shoal/contract';
import { deliveredVector, type FakeTokenizer } from '@shoal/core/testing';
import type { NewJob } from '@shoal/queue';
import { digestOf } from './digest.ts';
import type { PlannedJob } from './plan.ts';
import { MODEL } from './site.ts';

const DIMS = 8;

export interface MadeJob {
  readonly job: NewJob;
  readonly fingerprint: string;
  /** Of its rows. */
  readonly want: string;
}

/** `reply`: the channel that its producer listens to. */
export function makeJob(planned: PlannedJob, tokenizer: FakeTokenizer, terms: Partial<EmbedJobData>): MadeJob {
  const { id: jobId, form, resultTtlMs } = planned;
  const texts = textsOf(planned);
  const rows = texts.map((text) => tokenizer.encode(text).ids);
  const input = form === 'inline' ? encodeTexts(texts) : encodeTokens(rows);
  const output = { dtype: 'f32', dimensions: undefined } as const;
  const fingerprint = fingerprintOf({ model: MODEL, prompt: undefined, truncate: 'end', output }, input);
  const v = rows.length > ROWS_EVERY_WORKER_TAKES ? 2 : 1;
  const common = { v, fingerprint, class: planned.class, resultTtlMs, ...terms } as const;
  const want = digestOf(Buffer.concat(rows.map((ids) => bytesOf(deliveredVector(ids, DIMS)))));
  if (form === 'inline') return { job: { jobId, data: { ...common, texts } as EmbedJobData }, fingerprint, want };
  const tokens = rows.reduce((sum, { length }) => sum + length, 0);
  const keyed = { form, rows: rows.length, tokens, tokenizer: tokenizer.hash } as const;
  return { job: { jobId, data: { ...common, input: keyed } as EmbedJobData, input }, fingerprint, want };
}

/** Unlike those of any other job. */
export function textsOf({ id, words }: PlannedJob): string[] {
  return words.map((count, row) => Array.from({ length: count }, (_, word) => `${id}r${row}w${word}`).join(' '));
}

/** Whether a row, by its token ids, is one of a job that kills whoever runs it. */
export function poisonIn(jobs: readonly PlannedJob[], tokenizer: FakeTokenizer): (ids: readonly number[]) => boolean {
  const rows = jobs.filter(({ isPoison }) => isPoison === true).flatMap((job) => textsOf(job));
  const deadly = new Set(rows.map((text) => tokenizer.encode(text).ids.join(' ')));
  return (ids) => deadly.size > 0 && deadly.has(ids.join(' '));
}

export function digestOfRows(values: Float32Array): string {
  return digestOf(bytesOf(values));
}

/** What a result says: whose rows it has, and its bytes. Throws for what is no result. */
export function seen(bytes: Buffer): { readonly fingerprint: string; readonly digest: string; readonly got: string } {
  const { header, body } = openResult(bytes);
  const digest = digestOf(body);
  return { fingerprint: header.fingerprint, digest, got: digest };
}

function bytesOf(vector: Float32Array): Buffer {
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength);
}
