// The ways in which a job ends here other than by its result, each as the outcome that the claimer is told. Decides
// nothing: who ends, and when, is for the executor to say.

import type { Failure, JobReturn, ModelKind } from '@shoal/contract';
import type { JobOrder, JobOutcome, OrderTerms } from '../protocol.ts';
import type { Row } from './open-job.ts';

export function failed({ jobId, token }: OrderTerms, failure: Failure): JobOutcome {
  return { kind: 'failed', jobId, token, failure };
}

export function unstarted({ jobId, token }: OrderTerms): JobOutcome {
  return { kind: 'unstarted', jobId, token };
}

/** A result of the same request was there before. */
export function already({ jobId, token }: OrderTerms, value: JobReturn): JobOutcome {
  return { kind: 'already', jobId, token, value };
}

/** The deadline passed while rows of the job still waited. */
export function tooLate(order: OrderTerms): JobOutcome {
  const message =
    `the deadline passed ${order.remainingMs} ms after the job reached the device's queue, before all its ` +
    'rows had run';
  return failed(order, { code: 'DEADLINE_PASSED', message });
}

/** What a model makes of a row. */
export interface Made {
  readonly kind?: ModelKind | undefined;
  readonly isNormalized?: boolean | undefined;
}

/**
 * The vector of a row was not of length 1, or of a model that does not normalize no numbers, or a score was none, in fp32
 * either.
 */
export function unsound(order: OrderTerms, { index, tokens }: Row, { kind, isNormalized }: Made): JobOutcome {
  const vector = `a vector ${isNormalized === false ? 'with values that are no numbers' : 'that is not of length 1'}`;
  const found = kind === 'reranker' ? 'a score that is no number' : vector;
  return failed(order, { code: 'INFERENCE_FAILED', message: `row ${index} gave ${found} (${tokens} tokens)` });
}

/** Vectors that keep their lengths have values that f16 cannot say. */
export function beyondForm(order: OrderTerms): JobOutcome {
  const message =
    'its vectors keep their lengths and have values beyond the 65,504 that f16 can say; ask for dtype "f32", or for ' +
    '"normalize"';
  return failed(order, { code: 'INFERENCE_FAILED', message });
}

/** A row that does not fit this device even alone, and what it would have taken. */
export interface TooLarge {
  readonly width: number;
  readonly message: string;
  readonly peakBytes: number | undefined;
}

/** Moves the job to the CPU lane, or fails it where that is where it is (`isLast`). */
export function tooLarge(order: JobOrder, { width, message, peakBytes }: TooLarge, isLast: boolean): JobOutcome {
  const reason: Failure = {
    code: 'OUT_OF_VRAM',
    message: `a row of ${width} tokens does not fit this device alone: ${message}`,
  };
  if (isLast) return failed(order, reason);
  return { kind: 'hand-over', jobId: order.jobId, token: order.token, handOver: { reason, peakBytes } };
}
