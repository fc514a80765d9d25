// What a key of an HTTP caller has left of its limits a minute, counted on the queue server so that it holds over all
// HTTP processes. Asked once for each request of a limited key; a server that is away answers with its error at once.

import { DEFAULT_PREFIX, invariant, keySpace } from '@shoal/contract';
import type { KeyLimits } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { runScriptOnce } from '../redis/script.ts';
import { translated } from '../redis/translated.ts';
import { USE_ALLOWANCE } from './lua/scripts.generated.ts';

export interface Use {
  readonly requests: number;
  readonly texts: number;
  readonly tokens: number;
}

/** A key, and what it may use a minute. */
export interface LimitedKey {
  readonly keyId: string;
  readonly limits: KeyLimits;
}

export interface Allowance {
  /** How long to wait, in milliseconds; 0: it was taken. */
  readonly waitMs: number;
  /** Of each limit, less than nothing where more was taken than there was. 0 where there is no limit. */
  readonly left: Use;
}

/**
 * Takes `use` from what the key has left. With `isAsked` nothing is taken unless at least one is left of every limit.
 * A call whose reply is lost may be counted twice. Throws QUEUE_UNREACHABLE or QUEUE_REFUSES_WRITES.
 */
export async function useAllowance(
  connection: Redis,
  prefix: string = DEFAULT_PREFIX,
  { keyId, limits }: LimitedKey,
  use: Use,
  isAsked: boolean,
): Promise<Allowance> {
  const { requests = 0, texts = 0, tokens = 0 } = limits;
  const answer = await translated(() =>
    runScriptOnce(connection, USE_ALLOWANCE, [
      keySpace(prefix).allowance(keyId),
      isAsked ? 1 : 0,
      requests,
      texts,
      tokens,
      use.requests,
      use.texts,
      use.tokens,
    ]),
  );
  invariant(Array.isArray(answer) && answer.length === 4, 'the script answers with four numbers');
  const [waitMs, ...left] = answer.map(Number) as [number, number, number, number];
  return { waitMs, left: { requests: left[0], texts: left[1], tokens: left[2] } };
}
