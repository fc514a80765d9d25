// Whether another cell could use help, by one look at its queue: what waits there, who claims it, and whether those
// would compute the same as this worker. Decides nothing and claims nothing.

import { keySpace } from '@shoal/contract';
import type { WorkerFacts } from '@shoal/core';
import { liveFacts } from '../lanes/fleet.ts';
import { ALL_WORKERS } from '../lanes/worker-presence.ts';
import type { Redis } from '../redis/connection.ts';
import type { QueuePlace } from '../upkeep/queue-keys.ts';

export interface CellNeed {
  /** Jobs that wait, of both classes. */
  readonly waiting: number;
  /** Jobs that somebody has claimed, alive or not. */
  readonly active: number;
  /** Of live workers that claim; undefined for one that tells nothing of itself. */
  readonly claiming: readonly (WorkerFacts | undefined)[];
  /** Somebody drained all workers of the queue, later ones too, or paused it. */
  readonly isHeldBack: boolean;
}

export async function needOf(connection: Redis, { prefix, queue }: QueuePlace): Promise<CellNeed> {
  const [wait, prioritized, active, paused, drained, facts] = await Promise.all([
    connection.llen(`${prefix}:${queue}:wait`),
    connection.zcard(`${prefix}:${queue}:prioritized`),
    connection.llen(`${prefix}:${queue}:active`),
    connection.hexists(`${prefix}:${queue}:meta`, 'paused'),
    connection.smembers(keySpace(prefix).drained(queue)),
    liveFacts(connection, queue, prefix),
  ]);
  return {
    waiting: wait + prioritized,
    active,
    claiming: [...facts].flatMap(([workerId, told]) => (drained.includes(workerId) ? [] : [told])),
    isHeldBack: paused === 1 || drained.includes(ALL_WORKERS),
  };
}
