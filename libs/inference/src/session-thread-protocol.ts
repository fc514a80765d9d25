// What the executor's main thread and a session's thread say to each other. Token ids and vectors lie in shared memory.

import type { MemoryReading } from '@shoal/core';
import type { Provider } from './provider.ts';

/** What a thread opens its session with. */
export interface SessionThreadOptions {
  readonly graphPath: string;
  /** The same model in fp32, for rows that the graph's own precision turned into NaN; opened at the first need. */
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
  readonly secondFrom: SharedArrayBuffer;
  readonly embeddings: SharedArrayBuffer;
}

export interface RunRequest {
  readonly slot: number;
  readonly rows: number;
  readonly width: number;
  /** Whether it runs before everything that waits. */
  readonly isUrgent: boolean;
  /** Whether it runs on the exact graph. */
  readonly isExact: boolean;
}

/**
 * Before the first run: the arena begins with room for a tensor of one vector for each of so many tokens, and one short
 * row runs.
 */
export interface PrepareRequest {
  readonly reserveTokens: number;
}

export type ToSessionThread = RunRequest | PrepareRequest | 'close';

export type FromSessionThread =
  | { readonly kind: 'ready' }
  | { readonly kind: 'prepared' }
  | { readonly kind: 'unfit'; readonly message: string }
  | { readonly kind: 'started'; readonly slot: number }
  | { readonly kind: 'ran'; readonly slot: number; readonly runMs: number; readonly memory: MemoryReading | undefined }
  | { readonly kind: 'failed'; readonly slot: number; readonly message: string };
