// What the executor's main thread and its ort thread say to each other. Token ids and vectors lie in shared memory.

import type { MemoryReading } from '@shoal/core';
import type { Provider } from './provider.ts';

export interface OrtThreadData {
  readonly graphPath: string;
  /** The same model in fp32, for rows that the graph's own precision turned into NaN. */
  readonly exactGraphPath: string | undefined;
  readonly provider: Provider;
  /** Threads of one run. */
  readonly threads: number;
  readonly dims: number;
  readonly slots: readonly SharedSlot[];
}

export interface SharedSlot {
  readonly ids: SharedArrayBuffer;
  readonly lengths: SharedArrayBuffer;
  readonly embeddings: SharedArrayBuffer;
}

export interface RunRequest {
  readonly slot: number;
  readonly rows: number;
  readonly width: number;
  /** Before everything that waits. */
  readonly isUrgent: boolean;
  /** On the exact graph. */
  readonly isExact: boolean;
}

/** Before the first run: the arena begins with room for a tensor of one vector for each of so many tokens, and one short row runs. */
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
