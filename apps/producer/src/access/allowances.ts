// What keys may use a minute: asked before a request becomes jobs, and counted again once its tokens are known. Callers
// see what they have left in the headers that OpenAI's API has for it; batches, which have hours, wait until there is
// something left.

import { setTimeout as after } from 'node:timers/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import type { AccessLink, LimitedKey, Use } from '@shoal/queue';
import { overloaded } from '../problem.ts';
import { callerOf, type Caller } from './caller.ts';

const KINDS = ['requests', 'texts', 'tokens'] as const;
/** A batch looks again after so long at most: others may have used less than they could. */
const LONGEST_WAIT_MS = 10_000;
const SERVER_AWAY_MS = 1_000;

export class Allowances {
  private readonly link: Pick<AccessLink, 'use'>;
  private readonly log: Logger;

  constructor(link: Pick<AccessLink, 'use'>, log: Logger) {
    this.link = link;
    this.log = log;
  }

  /**
   * Takes one request of so many texts from what its key has left. Throws a Problem: 429 `rate_limit_exceeded` with the
   * time until there is something left, 503 where the queue server does not answer.
   */
  async take(request: FastifyRequest, reply: FastifyReply, texts: number): Promise<void> {
    const caller = callerOf(request);
    const key = limitedKey(caller);
    if (key === undefined) return;
    const { waitMs, left } = await this.link.use(key, { requests: 1, texts, tokens: 0 }, true);
    tellHeaders(reply, caller, left);
    if (waitMs === 0) return;
    const used = KINDS.filter((kind) => caller.limits[kind] !== undefined && left[kind] < 1)
      .map((kind) => `${caller.limits[kind]!.toLocaleString('en')} ${kind}`)
      .join(' and ');
    throw overloaded(
      'rate_limit_exceeded',
      `the API key ${key.keyId} may use ${used} a minute, and has; try again in ${Math.ceil(waitMs / 1_000)} s`,
      waitMs / 1_000,
    );
  }

  /** What is known only afterwards; nobody waits for it. */
  spent(request: FastifyRequest, tokens: number): void {
    this.spentBy(limitedKey(callerOf(request)), tokens);
  }

  /**
   * Takes so many texts once the key has something left, however long that takes; at once of a key without limits. Rejects
   * with the reason of the signal, and with nothing else: while the queue server is away it is asked again.
   */
  async wait(key: LimitedKey | undefined, texts: number, signal: AbortSignal): Promise<void> {
    if (key === undefined) return;
    for (;;) {
      signal.throwIfAborted();
      const waitMs = await this.link.use(key, { requests: 0, texts, tokens: 0 }, true).then(
        (allowance) => allowance.waitMs,
        (error: unknown) => (isShoalError(error, 'QUEUE_UNREACHABLE') ? SERVER_AWAY_MS : Promise.reject(error)),
      );
      if (waitMs === 0) return;
      await after(Math.min(waitMs, LONGEST_WAIT_MS), undefined, { signal }).catch(() => undefined);
    }
  }

  /** The same for a key; nobody waits for it. */
  spentBy(key: LimitedKey | undefined, tokens: number): void {
    if (key === undefined || key.limits.tokens === undefined || tokens === 0) return;
    this.link.use(key, { requests: 0, texts: 0, tokens }, false).catch((error: unknown) => {
      this.log.warn({ err: error, keyId: key.keyId, tokens }, 'tokens of a key could not be counted');
    });
  }
}

/** The key whose limits a caller has, if there are any. */
export function limitedKey({ keyId, limits }: Caller): LimitedKey | undefined {
  return keyId === undefined || KINDS.every((kind) => limits[kind] === undefined) ? undefined : { keyId, limits };
}

function tellHeaders(reply: FastifyReply, { limits }: Caller, left: Use): void {
  for (const kind of KINDS) {
    const limit = limits[kind];
    if (limit === undefined) continue;
    void reply.header(`x-ratelimit-limit-${kind}`, String(limit));
    void reply.header(`x-ratelimit-remaining-${kind}`, String(Math.max(0, left[kind])));
    void reply.header(`x-ratelimit-reset-${kind}`, `${Math.max(0, Math.ceil(((limit - left[kind]) * 60) / limit))}s`);
  }
}
