// Which queue server a client was given.

import type { ServerAddress } from '@shoal/queue';
import type { ClientOptions } from './embedding.ts';

/** By URL, or as a connection whose settings are taken; one of the two is there. */
export function serverOf({ redisUrl, connection }: Pick<ClientOptions, 'redisUrl' | 'connection'>): ServerAddress {
  return redisUrl ?? connection ?? '';
}
