import { partFingerprint, partId, type Part } from '@shoal/contract';
import type { PartOrder } from '@shoal/core';

/** What a claimer gives its executor for a part that it claimed under this token. */
export function orderOf(part: Part, token: string): PartOrder {
  const fingerprint = partFingerprint(part);
  return {
    jobId: partId(part),
    token,
    queuedMs: 1,
    class: 'bulk',
    part,
    fingerprint,
    resultTtlMs: 60_000,
    remainingMs: undefined,
  };
}
