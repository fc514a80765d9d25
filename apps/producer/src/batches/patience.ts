// A call that is asked until it is answered: what is wrong with the queue or its workers passes, and a batch has hours.

import { setTimeout as after } from 'node:timers/promises';
import type { Logger } from '@shoal/core';
import { Problem } from '../problem.ts';
import { isPassing, type Call, type CallAnswer, type Calls, type CallTerms } from './calls.ts';
import type { Endpoint } from './records.ts';

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;

interface Patience {
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/** Rejects with what is not passing, and when the signal is aborted. */
export function answerPatiently(
  calls: Pick<Calls, 'answer'>,
  asked: readonly Call[],
  terms: CallTerms,
  log: Logger,
): Promise<readonly CallAnswer[]> {
  return patiently(() => calls.answer(asked, terms), isPassing, { signal: terms.signal, log });
}

/** Of a body whose model was served when it was handed in: a reranker whose workers are away comes back. */
export function checkPatiently(
  calls: Pick<Calls, 'check'>,
  endpoint: Endpoint,
  body: unknown,
  patience: Patience,
): Promise<Call> {
  const isAway = (error: unknown): boolean =>
    endpoint === '/v1/rerank' && error instanceof Problem && error.facts.code === 'model_not_found';
  return patiently(
    () => calls.check(endpoint, body),
    (error) => isPassing(error) || isAway(error),
    patience,
  );
}

async function patiently<Answer>(
  ask: () => Promise<Answer>,
  isWaitedFor: (error: unknown) => boolean,
  { signal, log }: Patience,
): Promise<Answer> {
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
    signal.throwIfAborted();
    try {
      return await ask();
    } catch (error) {
      signal.throwIfAborted();
      if (!isWaitedFor(error)) throw error;
      log.warn({ err: error, againMs: pauseMs }, 'a request of a batch or a job is asked again');
      await after(pauseMs * (0.75 + Math.random() / 2), undefined, { signal }).catch(() => undefined);
    }
  }
}
