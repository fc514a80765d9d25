// What is kept with a job that has ended, or has changed its lane.

import type { EmbedReturn } from './embed-job.ts';
import type { Failure } from './errors.ts';
import type { SimilarityReturn } from './similarity-job.ts';

/** The return value of a completed job of any kind. */
export type JobReturn = EmbedReturn | SimilarityReturn;

/** Why a job goes to the CPU lane, kept with it for whoever asks later. */
export interface HandOver {
  readonly reason: Failure;
  /** Memory the run was predicted to need at its peak, bytes; undefined when nothing predicts it. */
  readonly peakBytes: number | undefined;
}
