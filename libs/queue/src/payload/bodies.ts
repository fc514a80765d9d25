// What a payload server is to the code that uses it: bytes under keys, for a time. PayloadServer judges how it fares.

export interface Bodies {
  /** Resolves when it can be asked; rejects where that cannot be expected soon. */
  ready(): Promise<void>;
  /** Rejects with what was wrong, in words. */
  put(key: string, value: Buffer, ttlMs: number): Promise<void>;
  /** Undefined where nothing is there. */
  get(key: string): Promise<Buffer | undefined>;
  /** Best effort: nobody waits for it, and what is not deleted ends with its time to live. */
  drop(keys: readonly string[]): void;
  /** It has not answered in time: what is open need not be answered any more. */
  giveUp(): void;
  close(): Promise<void>;
}
