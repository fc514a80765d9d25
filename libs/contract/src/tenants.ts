// Tenants and their users. A tenant "acme/alice" is a user of the tenant "acme": it has its jobs to itself, and shares the
// turns, the room and the lead of acme with acme's other users (docs/order.md).

import { createHash } from 'node:crypto';

/** Of a name that goes into a tenant as it is; others go by their digest. */
const PLAIN_USER = /^[A-Za-z0-9._@+=-]{1,60}$/;
/** OpenAI says no limit; longer ones are no name of anybody. */
export const MAX_USER_CHARACTERS = 512;

/** The tenant whose turns and room a job's tenant shares: what is before the first "/". */
export function mainTenant(tenant: string): string {
  const end = tenant.indexOf('/');
  return end <= 0 ? tenant : tenant.slice(0, end);
}

/**
 * The tenant of a user of `tenant`, a name without "/" and of up to 64 characters. A user of other letters than
 * `A-Z a-z 0-9 . _ @ + = -`, or of more than 60, goes by "sha256-" and the first 16 hex digits of its digest.
 */
export function userTenant(tenant: string, user: string): string {
  const name = PLAIN_USER.test(user) ? user : `sha256-${createHash('sha256').update(user).digest('hex').slice(0, 16)}`;
  return `${tenant}/${name}`;
}
