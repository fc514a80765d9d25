// Whether the queue server takes writes, found out by making one: what INFO says of disks and memory is a guess at what
// the server will answer.

import { DEFAULT_PREFIX, keySpace } from '@shoal/contract';
import { isPassingRefusal, isServerFull, type Redis } from './connection.ts';

/** The key is gone by itself before anybody could count it. */
const GONE_AFTER_MS = 1;

/**
 * The server's own words where it refuses a write now (MISCONF, OOM, READONLY, NOPERM …), undefined where it took one.
 * Rejects when the connection is closed, like every command.
 */
export async function writeRefusal(connection: Redis, prefix: string = DEFAULT_PREFIX): Promise<string | undefined> {
  try {
    await connection.set(keySpace(prefix).writeProbe(), '', 'PX', GONE_AFTER_MS);
    return undefined;
  } catch (error) {
    if (isServerFull(error) || isPassingRefusal(error) || isDenied(error)) return (error as Error).message;
    throw error;
  }
}

function isDenied(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('NOPERM');
}
