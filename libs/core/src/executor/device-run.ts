// One run at the device: rows into the slot, and vectors out of it into the jobs whose rows they are. Each vector of a
// model that normalizes is made to be of length 1 to the last bit of f32, and one that is not even nearly so reaches
// nobody. Those of other models keep their lengths unless the job wants length 1, and have to be numbers.

import { invariant } from '@shoal/contract';
import type { InferenceBackend, RunResult, RunShape, Slot } from '../ports/device.ts';
import { hasInteractive, withDuplicates, type OpenJob, type Row } from './open-job.ts';
import type { Attempt } from './second-tries.ts';
import { pack, squaredLengthOf, writeScaled } from './slot-buffers.ts';

export function runAtDevice(
  backend: InferenceBackend,
  slot: Slot,
  shape: RunShape,
  { batch, isExact }: Attempt,
): Promise<RunResult> {
  pack(slot, batch, shape);
  if (!isExact) return backend.run(slot, shape, { isUrgent: hasInteractive(batch.rows) });
  invariant(backend.runExact !== undefined, 'rows run exactly only where the device can');
  return backend.runExact(slot, shape);
}

export interface Delivered {
  /** Rows whose vector is none that the model can give. */
  readonly refused: readonly Row[];
  /** Jobs whose last row this was, without those that were dropped. */
  readonly done: readonly OpenJob[];
  /** Real tokens of the rows that ran. */
  readonly tokens: number;
  /** How many rows more got the vector of one that ran. */
  readonly duplicates: number;
}

export interface DeliveryTerms {
  readonly dims: number;
  readonly runMs: number;
  /**
   * Of the vectors: `one` to the last bit of f32, or NaN from their first value on; `about one`; `own`, of a model that
   * does not normalize.
   */
  readonly lengths: 'one' | 'about one' | 'own';
  /** Zeros are a vector of the model all the same, of a text that it knows nothing of. */
  readonly mayBeZero: boolean;
}

/** Catches NaN, infinities and zero vectors (but of a model that may give them) before anybody can receive one. */
const MAX_LENGTH_ERROR = 0.01;

export function deliver(
  { embeddings }: Slot,
  rows: readonly Row[],
  { dims, runMs, lengths, mayBeZero }: DeliveryTerms,
): Delivered {
  const refused: Row[] = [];
  const done: OpenJob[] = [];
  let tokens = 0;
  let duplicates = 0;
  for (const [i, row] of rows.entries()) {
    tokens += row.tokens;
    duplicates += row.duplicates.length;
    const factor = factorOf(embeddings, i * dims, dims, { lengths, mayBeZero });
    if (factor === undefined) {
      refused.push(row);
      continue;
    }
    for (const { job, index } of withDuplicates(row)) {
      if (lengths === 'one' || (lengths === 'own' && !wantsUnit(job)))
        job.vectors.set(embeddings.subarray(i * dims, (i + 1) * dims), index * dims);
      else writeScaled(embeddings, i * dims, dims, factor, job.vectors, index * dims);
      job.runMs += runMs / rows.length;
      if (--job.left === 0 && !job.isDropped) done.push(job);
    }
  }
  return { refused, done, tokens, duplicates };
}

function wantsUnit({ order }: OpenJob): boolean {
  return order.output.normalize === true;
}

/** Whether a finished job of a model that does not normalize wants f16 for values that it cannot say. */
export function isBeyondItsForm(job: OpenJob): boolean {
  if (job.order.output.dtype !== 'f16' || wantsUnit(job)) return false;
  // a half way above the largest, numbers are rounded to infinity
  return job.vectors.some((value) => Math.abs(value) >= 65_520);
}

/** What makes the vector one of length 1; undefined when it is none that may be delivered. */
function factorOf(
  embeddings: Float32Array,
  at: number,
  dims: number,
  { lengths, mayBeZero }: Pick<DeliveryTerms, 'lengths' | 'mayBeZero'>,
): number | undefined {
  if (lengths === 'one') return Number.isNaN(embeddings[at]) ? undefined : 1;
  const squaredLength = squaredLengthOf(embeddings, at, dims);
  if (lengths === 'own') {
    if (!Number.isFinite(squaredLength)) return undefined;
    return squaredLength === 0 ? 0 : 1 / Math.sqrt(squaredLength);
  }
  if (mayBeZero && squaredLength === 0) return 0;
  return Math.abs(squaredLength - 1) < MAX_LENGTH_ERROR ? 1 / Math.sqrt(squaredLength) : undefined;
}
