// What the executor of a similarity worker tells of itself now and then: what it holds, where it computed, and from
// which sizes on its GPU is faster. For metrics and the fleet; nothing is decided by it.

import type { Threshold } from './thresholds.ts';

/** What stays in one memory between runs. */
export interface LedgerFacts {
  /** Collections and graphs. */
  readonly residents: number;
  readonly bytes: number;
  readonly budgetBytes: number;
  /** How many have left to make room for others. */
  readonly evictions: number;
}

/** A collection, as a worker that answers from it tells of it. */
export interface CollectionFacts {
  readonly name: string;
  /** All that are there, newest first. */
  readonly versions: readonly number[];
  /** Of the newest, like what follows. */
  readonly rows: number;
  readonly dims: number;
  readonly dtype: 'f32' | 'f16' | 'i8';
  readonly createdMs: number;
  /** name@revision of what made the rows; undefined where it is not known. */
  readonly model?: string;
  /** The tenant that it belongs to; undefined: everybody's. */
  readonly owner?: string;
}

export interface SimilarityFacts {
  readonly host: LedgerFacts;
  /** Of a worker on a GPU. */
  readonly gpu?: LedgerFacts | undefined;
  /** Calls of kernels, by where they ran. */
  readonly calls: { readonly cpu: number; readonly gpu: number };
  /** Calls that the GPU could not do and the CPU did. */
  readonly fallbacks: number;
  /** It failed and everything runs on the CPU; tried again now and then. */
  readonly isGpuLost: boolean;
  /** Of a worker that chooses. */
  readonly breakEvens?: readonly Threshold[] | undefined;
}
