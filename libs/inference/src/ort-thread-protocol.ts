// What the executor's main thread and its ort thread say to each other. Token ids and vectors lie in shared memory.

export interface OrtThreadData {
  readonly graphPath: string;
  readonly provider: 'cpu';
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
}

export type OrtThreadMessage =
  | { readonly kind: 'ready' }
  | { readonly kind: 'unfit'; readonly message: string }
  | { readonly kind: 'started'; readonly slot: number }
  | { readonly kind: 'ran'; readonly slot: number; readonly runMs: number }
  | { readonly kind: 'failed'; readonly slot: number; readonly message: string };
