// The payload servers of all queues for embedding at one look, and what is wrong with them, a queue at a time because
// workers of one queue must have the same. Pure.

import { payloadsSeen, type PayloadServerSeen, type PayloadsHere } from '@shoal/queue';
import type { QueueReading } from './fleet-reading.ts';

export interface PayloadsReading {
  readonly servers: readonly PayloadServerSeen[];
  /** Of queues for embedding. */
  readonly workers: number;
  readonly troubles: readonly string[];
}

/** Undefined where nobody has any. */
export function payloadsOf(
  queues: readonly QueueReading[],
  here: PayloadsHere | undefined,
): PayloadsReading | undefined {
  const embedding = queues.filter(({ queue }) => queue.startsWith('embed-'));
  const workers = embedding.flatMap((queue) => queue.workers);
  const all = payloadsSeen(workers, here);
  if (all === undefined) return undefined;
  const served = embedding.filter((queue) => queue.workers.length > 0);
  const troubles =
    served.length < 2
      ? all.troubles
      : served.flatMap(({ queue, workers: own }) =>
          (payloadsSeen(own, here)?.troubles ?? []).map((trouble) => `${queue}: ${trouble}`),
        );
  return { servers: all.servers, workers: workers.length, troubles };
}
