// The caller's signal and the time limits of a call as one signal, whose reason says why nothing came in time.

import { ShoalError } from '@shoal/contract';
import type { Waiting } from '@shoal/queue';

export interface TimeLimits {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
  readonly deadline?: Date | number | undefined;
}

export interface Limited {
  /** Undefined: nothing ends the call but its end. */
  readonly signal: AbortSignal | undefined;
  /** Forgets the timer. */
  readonly end: () => void;
}

/** The longest that a timer of Node waits. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** A call that is too late waits no longer than this for the reason. */
const EXPLAINED_WITHIN_MS = 500;

/** `what` has not come then, in the words of the error. */
export function limited(
  { signal, timeoutMs = Infinity, deadline }: TimeLimits,
  what: string,
  whyWaiting: () => Promise<Waiting>,
): Limited {
  const ms = Math.min(timeoutMs, deadline === undefined ? Infinity : Math.max(0, Number(deadline) - Date.now()));
  if (ms === Infinity) return { signal, end: () => undefined };
  const late = new AbortController();
  const timer = setTimeout(
    () => void tooLate(ms, what, whyWaiting).then((error) => late.abort(error)),
    Math.min(ms, MAX_TIMER_MS),
  );
  const end = (): void => clearTimeout(timer);
  return { signal: signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]), end };
}

/** Says why, as far as the queue server tells it soon. */
async function tooLate(
  ms: number,
  what: string,
  whyWaiting: () => Promise<Waiting>,
): Promise<ShoalError<'DEADLINE_PASSED'>> {
  const soon = new Promise<undefined>((resolve) => void setTimeout(resolve, EXPLAINED_WITHIN_MS, undefined).unref());
  const waiting = await Promise.race([whyWaiting().catch(() => undefined), soon]);
  const why = waiting === undefined ? '' : `: ${waiting.message}`;
  return new ShoalError('DEADLINE_PASSED', `the ${what} had not come within ${ms / 1_000} s${why}`, { timeoutMs: ms });
}
