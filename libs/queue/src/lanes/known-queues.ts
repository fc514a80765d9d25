// Which queues a prefix has: main lanes, without their CPU lanes and quarantines. For commands that go over all of them.

import { cpuLaneOf } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { literally } from '../redis/scan-pattern.ts';
import { translated } from '../redis/translated.ts';
import { quarantineQueue } from '../upkeep/quarantine.ts';

export interface KnownQueues {
  /** By name. */
  readonly queues: readonly string[];
  /** False where the server has more keys than were looked at: others may be missing. */
  readonly isWhole: boolean;
}

const SCAN_STEP = 5_000;
/** Some 100 ms of the server's time, in steps below one. */
const MOST_SCANNED = 1_000_000;

/**
 * A queue has a hash `<prefix>:<name>:meta` as soon as anybody opened it to add or to work. Throws QUEUE_UNREACHABLE.
 */
export function knownQueues(connection: Redis, prefix: string, mostKeys: number = MOST_SCANNED): Promise<KnownQueues> {
  return translated(async () => {
    const [start, end] = [`${prefix}:`, ':meta'];
    const match = `${literally(start)}*${end}`;
    const names = new Set<string>();
    let cursor = '0';
    let seen = 0;
    do {
      const [next, keys] = await connection.scan(cursor, 'MATCH', match, 'COUNT', SCAN_STEP, 'TYPE', 'hash');
      for (const key of keys) names.add(key.slice(start.length, -end.length));
      cursor = next;
      seen += SCAN_STEP;
    } while (cursor !== '0' && seen < mostKeys);
    return { queues: mainLanes([...names]), isWhole: cursor === '0' };
  });
}

/** A lane or a quarantine is one where its main lane is there as well, or where its name alone says so. */
export function mainLanes(names: readonly string[]): string[] {
  const mains = names.flatMap((name) => {
    if (name === '' || name.includes(':')) return [];
    for (const rest of [cpuLaneOf(''), quarantineQueue('')]) {
      if (!name.endsWith(rest)) continue;
      const main = name.slice(0, -rest.length);
      if (rest === quarantineQueue('') || names.includes(main)) return [main];
    }
    return [name];
  });
  return [...new Set(mains)].toSorted();
}
