// Which queues a prefix has: main lanes, without their CPU lanes and quarantines. For commands that go over all of them.

import { cpuLaneOf } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { quarantineQueue } from './quarantine-queue.ts';
import { notedQueues } from './noted-queues.ts';

/** By name. Throws QUEUE_UNREACHABLE. */
export function knownQueues(connection: Redis, prefix: string): Promise<string[]> {
  return translated(async () => mainLanes(await notedQueues(connection, prefix)));
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
