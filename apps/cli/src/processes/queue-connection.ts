// The first contact of a command with a queue server that is not its own: patient with one that is slow, as that is said,
// and left at once when the person interrupts.

import { closeConnection, openConnection, untilReady, type Redis } from '@shoal/queue';

export interface ConnectionTerms {
  readonly redisUrl: string;
  readonly prefix: string;
  /** Closes the connection: whatever waits for the server is rejected. */
  readonly signal: AbortSignal;
  /** Told once when the server is slow. */
  readonly onSlow?: ((line: string) => void) | undefined;
}

/** Runs `use` with a connection to a queue server that answers. Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
export async function withConnection<Result>(
  { redisUrl, prefix, signal, onSlow }: ConnectionTerms,
  use: (connection: Redis) => Promise<Result>,
): Promise<Result> {
  signal.throwIfAborted();
  const connection = openConnection({ url: redisUrl, prefix, name: 'shoal-cli' });
  const leave = (): void => void closeConnection(connection);
  signal.addEventListener('abort', leave, { once: true });
  try {
    await untilReady(connection, redisUrl, { onSlow });
    return await use(connection);
  } finally {
    signal.removeEventListener('abort', leave);
    await closeConnection(connection);
  }
}

/** Resolves when it answers; throws as withConnection does. */
export function untilItAnswers(terms: ConnectionTerms): Promise<void> {
  return withConnection(terms, async () => undefined);
}
