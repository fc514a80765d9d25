// What a payload server is to the code that uses it: bytes under keys, for a time. PayloadServer judges how it fares.

export interface Bodies {
  /** Resolves when it can be asked; rejects where that cannot be expected soon. */
  ready(): Promise<void>;
  /** Rejects with what was wrong, in words. The same bytes may be put again; other bytes under their key may be refused. */
  put(key: string, value: Buffer, ttlMs: number): Promise<void>;
  /** Undefined where nothing is there. */
  get(key: string): Promise<Buffer | undefined>;
  /** Deletes them, and rejects with what was wrong: what is not deleted ends with its time to live. */
  drop(keys: readonly string[]): Promise<void>;
  /** Asks whether it is there and lets us in, without a body. Rejects with what was wrong. */
  look(): Promise<Looked>;
  /** It has not answered in time: what is open need not be answered any more. */
  giveUp(): void;
  close(): Promise<void>;
  /** Which place that is, where its name does not say it. */
  readonly where?: string;
  /** What is wrong with a place that takes bodies and gives them back, for whoever looks after it. */
  remarks?(): Promise<readonly Remark[]>;
}

export interface Looked {
  /** Where it has a memory of its own and tells it; `maxBytes` 0: no limit. */
  readonly memory?: { readonly usedBytes: number; readonly maxBytes: number };
}

export interface Remark {
  readonly found: string;
  /** What to do. */
  readonly cure: string;
}
