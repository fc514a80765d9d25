// All that a queue has on the server, key by key, for holding two ways of doing the same thing against each other.

import type { Redis } from '../redis/connection.ts';

export type QueueState = Readonly<Record<string, unknown>>;

/**
 * Without `prefix`, wherever it stands. Ids of stream entries are left out, numbers that are times (ms since 1970) are
 * "time"; JSON options are parsed.
 */
export async function queueState(connection: Redis, prefix: string): Promise<QueueState> {
  const keys = (await connection.keys(`${prefix}*`)).toSorted();
  const contents = await Promise.all(keys.map((key) => contentOf(connection, key)));
  return bare(Object.fromEntries(keys.map((key, at) => [key, contents[at]])), prefix);
}

function bare(state: QueueState, prefix: string): QueueState {
  const parsed: QueueState = JSON.parse(JSON.stringify(state).replaceAll(prefix, ''));
  return parsed;
}

async function contentOf(connection: Redis, key: string): Promise<unknown> {
  const type = await connection.type(key);
  switch (type) {
    case 'string':
      return connection.get(key);
    case 'list':
      return connection.lrange(key, 0, -1);
    case 'set':
      return (await connection.smembers(key)).toSorted();
    case 'zset':
      return (await connection.zrange(key, '0', '-1', 'WITHSCORES')).map(withoutTime);
    case 'hash':
      return Object.fromEntries(
        Object.entries(await connection.hgetall(key)).map(([field, value]) => [
          field,
          field === 'opts' ? (JSON.parse(value) as unknown) : withoutTime(value),
        ]),
      );
    case 'stream':
      return (await connection.xrange(key, '-', '+')).map(([, fields]) => fields.map(withoutTime));
    default:
      return type;
  }
}

function withoutTime(value: string): string {
  const number = Number(value);
  return number > Date.UTC(2020) && number < Date.UTC(2100) ? 'time' : value;
}
