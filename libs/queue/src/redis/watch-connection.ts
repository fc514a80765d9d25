// Tells when a connection breaks and when it is back.

import type { Redis } from './connection.ts';

/** Calls the listener for outages after this moment, never for the first connection or a close of our own. */
export function watchConnection(connection: Redis, listener: (event: 'lost' | 'back') => void): void {
  let isLost = false;
  connection.on('reconnecting', () => {
    if (isLost) return;
    isLost = true;
    listener('lost');
  });
  connection.on('ready', () => {
    if (!isLost) return;
    isLost = false;
    listener('back');
  });
}
