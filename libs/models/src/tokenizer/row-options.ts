// What a tokenizer needs besides its facts, and how each ends its rows.

import type { Encoded } from '@shoal/core';
import type { Ends } from './ends.ts';

export interface RowOptions {
  /** Of tokenizer.json. */
  readonly hash: string;
  /** Longest row in tokens, special tokens included. */
  readonly maxTokens: number;
}

/** Most ids of a row before those behind its text, which have the last places. */
export function roomBefore({ behind }: Pick<Ends, 'behind'>, maxTokens: number): number {
  return maxTokens - behind.length;
}

/** A row of the ids before and of its text, cut to `most` and with the ids behind it. */
export function endedRow(ids: number[], { behind }: Pick<Ends, 'behind'>, most: number): Encoded {
  const isTruncated = ids.length > most;
  if (isTruncated) ids.length = most;
  for (const id of behind) ids.push(id);
  return { ids, isTruncated };
}
