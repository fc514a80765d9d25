// What a job leaves behind: its vectors in the form it asked for, or its scores, and the facts it returns.

import { encodeBody, encodeResult, type ModelKind, type ResultHeader, type EmbedReturn } from '@shoal/contract';
import type { InferenceBackend } from '../ports/device.ts';
import type { JobOrder } from '../protocol.ts';
import type { OpenJob } from './open-job.ts';

/** Decimal digits by which every f32 is told from all others. */
const F32_DIGITS = 9;

export interface EmbedResultParts {
  readonly backend: Pick<InferenceBackend, 'dims' | 'device' | 'precision' | 'toHalves' | 'checksum'>;
  /** name@revision */
  readonly model: string;
  /** Default: an embedder. */
  readonly kind?: ModelKind | undefined;
  /** The model's vectors have length 1. Default true. */
  readonly isNormalized?: boolean | undefined;
  /** Of what the result is kept under: the job's id, or more where BullMQ made that. */
  readonly resultKey: (resultId: string) => string;
}

/** Header and body (SHL1). */
export function embedResult(
  parts: EmbedResultParts,
  { order, fingerprint, rows, vectors, truncated }: OpenJob,
): Buffer {
  const { backend } = parts;
  const { dims, body } = bodyOf(parts, order, rows, vectors);
  return encodeResult(
    {
      dtype: order.output.dtype,
      rows,
      dims,
      fingerprint,
      isTruncated: truncated > 0,
      isSimulated: backend.device.startsWith('sim:'),
    },
    body,
    backend.checksum,
  );
}

/** Rows in the form that was asked for. */
function bodyOf(parts: EmbedResultParts, order: JobOrder, rows: number, vectors: Float32Array) {
  const { backend } = parts;
  const output = { ...order.output, keepsLengths: keepsLengths(parts, order) };
  return encodeBody(vectors, rows, backend.dims, output, backend.toHalves);
}

export function embedValue(
  parts: EmbedResultParts,
  { order, rows, tokens, truncated, splits, runMs, vectors }: OpenJob,
): EmbedReturn {
  const dims = Math.min(order.output.dimensions ?? parts.backend.dims, parts.backend.dims);
  return {
    ...commonValue(parts, order),
    rows,
    dims,
    tokens,
    truncated,
    splits,
    ms: { queued: Math.round(order.queuedMs), run: Math.round(runMs) },
    ...(order.returnsVectors && returned(parts, order, rows, vectors)),
  };
}

/** What a job wants in its return value: its vectors as base64, or its scores. */
function returned(
  parts: EmbedResultParts,
  order: JobOrder,
  rows: number,
  vectors: Float32Array,
): Pick<EmbedReturn, 'vectors' | 'scores'> {
  if (parts.kind === 'reranker')
    return { scores: Array.from(vectors, (score) => Number(score.toPrecision(F32_DIGITS))) };
  return { vectors: Buffer.from(bodyOf(parts, order, rows, vectors).body).toString('base64') };
}

/**
 * The value of a job whose result somebody committed before: what its header tells. Tokens and times of that run are
 * not known any more.
 */
export function repeatedValue(
  parts: EmbedResultParts,
  order: JobOrder,
  { rows, dims, isTruncated }: ResultHeader,
): EmbedReturn {
  return {
    ...commonValue(parts, order),
    rows,
    dims,
    tokens: 0,
    truncated: isTruncated ? 1 : 0,
    splits: 0,
    ms: { queued: Math.round(order.queuedMs), run: 0 },
  };
}

function keepsLengths({ isNormalized = true }: EmbedResultParts, { output }: JobOrder): boolean {
  return !isNormalized && output.normalize !== true;
}

function commonValue(
  parts: EmbedResultParts,
  order: JobOrder,
): Pick<EmbedReturn, 'v' | 'key' | 'model' | 'dtype' | 'normalized' | 'device' | 'precision'> {
  const { backend, model, resultKey } = parts;
  return {
    v: 1,
    key: resultKey(order.resultId ?? order.jobId),
    model,
    dtype: order.output.dtype,
    ...(parts.kind !== 'reranker' && keepsLengths(parts, order) && { normalized: false as const }),
    device: backend.device,
    precision: backend.precision,
  };
}
