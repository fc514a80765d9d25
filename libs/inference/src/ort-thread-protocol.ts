// What the executor's main thread and its ort thread say to each other. Token ids and vectors lie in shared memory.

import type { MemoryReading } from '@shoal/core';
import type { LineOptions, RunRequest } from './ort-line.ts';

export type OrtThreadData = Omit<LineOptions, 'arenaBytes'>;

/**
 * Before the first run: the arena begins with room for a tensor of one vector for each of so many tokens, and one short
 * row runs.
 */
export interface PrepareRequest {
  readonly reserveTokens: number;
}

export type ToOrtThread = RunRequest | PrepareRequest | 'close';

export type OrtThreadMessage =
  | { readonly kind: 'ready' }
  | { readonly kind: 'prepared' }
  | { readonly kind: 'unfit'; readonly message: string }
  | { readonly kind: 'started'; readonly slot: number }
  | { readonly kind: 'ran'; readonly slot: number; readonly runMs: number; readonly memory: MemoryReading | undefined }
  | { readonly kind: 'failed'; readonly slot: number; readonly message: string };
