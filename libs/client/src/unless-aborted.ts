// Work that nobody waits for any longer once a signal is aborted.

import { abortError } from './abort-error.ts';

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
  const stop = (): void => aborted.reject(abortError(signal.reason));
  signal.addEventListener('abort', stop, { once: true });
  try {
    // A signal that is aborted already never says so again, neither before the work nor between its end and our turn.
    if (signal.aborted) throw abortError(signal.reason);
    const value = await Promise.race([work(), aborted.promise]);
    if (signal.aborted) throw abortError(signal.reason);
    return value;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
