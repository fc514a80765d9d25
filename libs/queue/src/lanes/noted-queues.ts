// Every queue of a prefix that was ever served or added to: a set that workers and producers keep, so that whoever lists
// queues need not read every key name of the server. A queue to which plain BullMQ alone has added is entered by the next
// sweep of a worker, which reads all names anyway, and one of which nothing is left leaves the set then. Where nobody has
// kept the set yet (workers of 0.1.0 alone), whoever lists scans. Listing changes nothing on the server.

import { keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { literally } from '../redis/scan-pattern.ts';

/** Keys a SCAN step looks at. A server with a million keys takes 200 steps, each under a millisecond of its time. */
const SCAN_STEP = 5_000;
/** What BullMQ keeps of a queue: one that has none of it was obliterated. */
const SIGNS = ['meta', 'wait', 'prioritized', 'active', 'delayed', 'waiting-children', 'completed', 'failed'];

/** Enters queues, lanes and quarantines by name. Lists alone depend on it: a fault is nobody's trouble. */
export async function noteQueues(connection: Redis, prefix: string, queues: readonly string[]): Promise<void> {
  await connection.sadd(keySpace(prefix).queues(), ...queues).catch(() => undefined);
}

/** Lanes and quarantines by name, of which something is left. Throws as the server does. */
export async function notedQueues(connection: Redis, prefix: string): Promise<readonly string[]> {
  const names = await connection.smembers(keySpace(prefix).queues());
  if (names.length === 0) return (await scanQueues(connection, prefix)).toSorted();
  const gone = new Set(await goneOf(connection, prefix, names));
  return names.filter((queue) => !gone.has(queue)).toSorted();
}

/** Whether anybody ever served or added to a queue, also one that is not entered yet. */
export async function isQueueSeen(connection: Redis, prefix: string, queue: string): Promise<boolean> {
  return (await goneOf(connection, prefix, [queue])).length === 0;
}

/** Puts the set right by a look at every key name; for who does so every ten minutes at most. */
export async function tidyNotedQueues(connection: Redis, prefix: string): Promise<void> {
  const found = await scanQueues(connection, prefix);
  if (found.length > 0) await noteQueues(connection, prefix, found);
  const gone = await goneOf(connection, prefix, await connection.smembers(keySpace(prefix).queues()));
  if (gone.length > 0) await connection.srem(keySpace(prefix).queues(), ...gone);
}

async function goneOf(connection: Redis, prefix: string, queues: readonly string[]): Promise<string[]> {
  const keys = keySpace(prefix);
  const signs = await Promise.all(
    queues.map((queue) => connection.exists([keys.workers(queue), ...SIGNS.map((sign) => keys.job(queue, sign))])),
  );
  return queues.filter((_, at) => signs[at] === 0);
}

/** A queue has a hash `<prefix>:<name>:meta` as soon as anybody opened it to add or to work. */
async function scanQueues(connection: Redis, prefix: string): Promise<string[]> {
  const [start, end] = [`${prefix}:`, ':meta'];
  const match = `${literally(start)}*${end}`;
  const names = new Set<string>();
  let cursor = '0';
  do {
    const [next, keys] = await connection.scan(cursor, 'MATCH', match, 'COUNT', SCAN_STEP, 'TYPE', 'hash');
    for (const key of keys) names.add(key.slice(start.length, -end.length));
    cursor = next;
  } while (cursor !== '0');
  return [...names].filter((name) => name !== '' && !name.includes(':'));
}
