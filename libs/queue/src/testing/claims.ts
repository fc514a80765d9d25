// Claims of a test that knows how many there have to be: a claim hands over what it has at once, so it takes several.

import type { JobSource, RawClaim } from '@shoal/core';

type Claiming = Pick<JobSource, 'claim'>;

/**
 * A source that was stopped, as after a test that took too long, gives none at once: who asked it on and on would keep
 * the process from everything else.
 */
export async function claimSome(source: Claiming, limit: number): Promise<readonly RawClaim[]> {
  const claims = await source.claim(limit);
  if (claims.length === 0) throw new Error('the source was stopped');
  return claims;
}

export async function claimAll(source: Claiming, count: number): Promise<RawClaim[]> {
  const claims: RawClaim[] = [];
  while (claims.length < count) claims.push(...(await claimSome(source, count - claims.length)));
  return claims;
}
