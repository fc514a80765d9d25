// Why a download failed, as a closed set that callers decide on: another source may help against `unreachable`, nothing
// helps against `mismatch`. Everything is thrown as SETUP_FAILED; callers that fetch a model translate the code.

import { isShoalError, ShoalError } from '@shoal/contract';

export type FetchReason =
  /** Nobody answered, or not in time, or the answer broke off. */
  | 'unreachable'
  /** The other side answered and does not have it, or not for this platform. */
  | 'not-found'
  /** The bytes are not the pinned ones. Nothing was kept. */
  | 'mismatch'
  /** python3 or its pip is missing. */
  | 'missing-tool'
  | 'disk-full'
  | 'failed';

export function fetchFailure(reason: FetchReason, message: string, cause?: unknown): ShoalError<'SETUP_FAILED'> {
  return new ShoalError('SETUP_FAILED', message, { reason }, cause);
}

/** The reason of an error that this library threw; undefined for any other. */
export function fetchReason(error: unknown): FetchReason | undefined {
  return isShoalError(error, 'SETUP_FAILED') ? (error.fields['reason'] as FetchReason | undefined) : undefined;
}

/** "expected abc…, got def…" in one form everywhere. */
export function mismatch(what: string, expected: string, found: string): ShoalError<'SETUP_FAILED'> {
  return fetchFailure(
    'mismatch',
    `${what} is not the file that was pinned: sha256 should be ${expected} and is ${found}. ` +
      'Nothing was kept. Try again; if it happens again, something between here and the source changes files.',
  );
}
