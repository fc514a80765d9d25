// What a fuzzer knows of a format: sound files to damage, our reader, and a second reader that shares no code with it.
// Our reader runs in a process that may die; the second one beside the fuzzer, and decides what was read wrongly.

import { createHash } from 'node:crypto';
import type { Dice } from './dice.ts';
import type { Kind } from './mutations.ts';

/** What was read, as its parts: two readers agree when all parts do. */
export type Values = readonly (string | number | bigint | Uint8Array | undefined)[];

export interface FuzzedReader {
  readonly name: string;
  readonly kind: Kind;
  /** Sound files; every one is read, and read the same by the second reader, before anything is damaged. */
  seeds(): Promise<readonly Buffer[]>;
  /** Files of about so many bytes that readers of this format have been slow at or fallen over, by name. */
  hard?(characters: number): Readonly<Record<string, Buffer>>;
  /** The share of all cases in which the second reader may say that it cannot tell. Default 0.02. */
  readonly mostUndecided?: number;
  /**
   * What our reader makes of `bytes`, also to be found at `path`. Throws what a person would see. `variant`: which of
   * the ways to read (from 0) is taken, where there are several.
   */
  read(bytes: Buffer, path: string, variant: number): Promise<Values>;
  /**
   * What a plain reader makes of them. Undefined: this is no such file. 'unknown': it cannot tell, so that only clock,
   * memory and kind of error count.
   */
  readAgain(bytes: Buffer, variant: number): Values | undefined | 'unknown' | Promise<Values | undefined | 'unknown'>;
  /** Codes that an error may have; every other error is a finding. */
  readonly codes: readonly string[];
  /** Whether our reader has to take what the second one takes. */
  readonly takesAll?: boolean;
  readonly variants?: number;
  /** The ending of `path`, with its dot. */
  readonly extension?: string;
  /** Makes checksums right again, so that what lies behind them is reached. */
  mend?(bytes: Buffer, dice: Dice): Buffer;
}

/** Short, whatever was read. */
export function digestOf(values: Values): string {
  const hash = createHash('sha256');
  for (const value of values) {
    const bytes = value instanceof Uint8Array ? value : Buffer.from(`${typeof value} ${String(value)}`);
    hash.update(`${bytes.byteLength} `).update(bytes);
  }
  return hash.digest('hex').slice(0, 32);
}

export function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
