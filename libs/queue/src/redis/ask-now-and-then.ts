// A connection on which nothing is asked never finds out that its other end has gone without a word: a cable, a firewall
// that forgets who is silent, a machine that lost power. One that only listens would hear nothing for as long as it lives;
// of those that write now and then each would cost the first who asks on it DEAF_MS, one after the other.

import type { Redis } from './connection.ts';

/**
 * A command that got no answer for so long waits on a dead connection (a proxy that swallows replies, a peer that
 * vanished without a word): it is connected anew and what was open is sent again. The longest wait that is meant is 2 s
 * (BZPOPMIN).
 */
export const DEAF_MS = 20_000;
const EVERY_MS = 10_000;

/** From now on it asks, until it is closed; an answer that does not come ends it, and it is made anew (DEAF_MS). */
export function askNowAndThen(connection: Redis): void {
  const timer = setInterval(() => {
    if (connection.status === 'ready') void connection.ping().catch(() => undefined);
  }, EVERY_MS).unref();
  connection.once('end', () => clearInterval(timer));
}
