// Which versions of Redis and Valkey the queue runs on, and how versions compare. Needs neither bullmq nor ioredis.

export type ServerName = 'Valkey' | 'Redis';

/** BZPOPMIN with a wait below 10 ms came with Redis 7.0.8; BullMQ uses it. Every Valkey has it. */
export const OLDEST_REDIS = '7.0.8';
/** Older ones are warned of. */
const ADVISED = { Redis: '7.2.0', Valkey: '8.0.0' } as const;
/** What there is to choose from, for sentences. */
export const ADVISED_SERVERS = 'Redis 7.2 or Valkey 8 and later';

export function isTooOld(name: ServerName, version: string): boolean {
  return name === 'Redis' && isOlder(version, OLDEST_REDIS);
}

export function isBelowAdvised(name: ServerName, version: string): boolean {
  return isOlder(version, ADVISED[name]);
}

/**
 * Compares three numbers between dots; what follows them ("-rc1") does not count, and what is no number is older than
 * any.
 */
export function isOlder(version: string, than: string): boolean {
  const [have, wanted] = [version, than].map((text) => text.split('.').map(Number.parseFloat));
  for (let index = 0; index < 3; index++) {
    const [part, other] = [have?.[index] ?? 0, wanted?.[index] ?? 0];
    if (part !== other) return !(part > other);
  }
  return false;
}

/** 9.1.2 → 9.1 */
export function series(version: string): string {
  return version.split('.').slice(0, 2).join('.');
}
