// What a call ends with that its caller took back.

import { ShoalError, isShoalError } from '@shoal/contract';

/**
 * A ShoalError INTERRUPTED that is called AbortError, as everywhere in Node, with the signal's reason as `cause`. A
 * reason that says itself why, the time limit of a call, is what the call ends with.
 */
export function abortError(reason: unknown, message = 'the call was stopped before its answer came'): ShoalError {
  if (isShoalError(reason, 'DEADLINE_PASSED')) return reason;
  const error = new ShoalError('INTERRUPTED', message, {}, reason);
  error.name = 'AbortError';
  return error;
}
