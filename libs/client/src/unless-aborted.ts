// Work that nobody waits for any longer once a signal is aborted.

import { ShoalError, isShoalError } from '@shoal/contract';

/**
 * What `work` gives, or INTERRUPTED as soon as the signal is aborted. The work goes on: the line that it opens is there
 * for the next call.
 */
export async function unlessAborted<Value>(
  signal: AbortSignal | undefined,
  work: () => Promise<Value>,
): Promise<Value> {
  if (signal === undefined) return work();
  const aborted = Promise.withResolvers<never>();
  const stop = (): void => aborted.reject(interrupted(signal.reason));
  signal.addEventListener('abort', stop, { once: true });
  try {
    // A signal that is aborted already never says so again, neither before the work nor between its end and our turn.
    if (signal.aborted) throw interrupted(signal.reason);
    const value = await Promise.race([work(), aborted.promise]);
    if (signal.aborted) throw interrupted(signal.reason);
    return value;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

/** A ShoalError as reason that says itself why is what the call ends with. */
export function interrupted(reason: unknown): ShoalError {
  if (isShoalError(reason, 'DEADLINE_PASSED')) return reason;
  return new ShoalError('INTERRUPTED', 'the request was stopped before its answer came', {}, reason);
}
