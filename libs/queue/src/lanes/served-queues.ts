// Which queues live workers serve, and which models. For messages and lists; nothing that a job does depends on it.

import { SIMILARITY_CPU_QUEUE, SIMILARITY_QUEUE, rerankQueue } from '@shoal/contract';
import type { CollectionFacts } from '@shoal/core/similarity';
import type { Redis } from '../redis/connection.ts';
import { liveFacts } from './fleet.ts';
import { notedQueues } from './noted-queues.ts';
import { liveWorkers } from './worker-presence.ts';

/** Of this prefix's queues, those that live workers serve now, by name. */
export async function servedQueues(connection: Redis, prefix: string): Promise<readonly string[]> {
  const alive = await Promise.all(
    (await notedQueues(connection, prefix)).map(async (queue) =>
      (await liveWorkers(connection, queue, prefix)).length > 0 ? [queue] : [],
    ),
  );
  return alive.flat();
}

/** name@revision of every reranker that a live worker serves now and tells of. */
export async function servedRerankers(connection: Redis, prefix: string): Promise<readonly string[]> {
  const queues = (await servedQueues(connection, prefix)).filter((queue) => queue.startsWith(rerankQueue('')));
  const told = await Promise.all(queues.map((queue) => liveFacts(connection, queue, prefix)));
  const models = told.flatMap((facts) => [...facts.values()].flatMap((one) => one?.model ?? []));
  return [...new Set(models)].sort();
}

/** What live workers tell of the collections that they answer from, by name. */
export async function servedCollections(connection: Redis, prefix: string): Promise<readonly CollectionFacts[]> {
  const lanes = [SIMILARITY_QUEUE, SIMILARITY_CPU_QUEUE];
  const told = await Promise.all(lanes.map((queue) => liveFacts(connection, queue, prefix)));
  const byName = new Map<string, CollectionFacts>();
  for (const one of told.flatMap((facts) => [...facts.values()].flatMap((worker) => worker?.collections ?? []))) {
    const known = byName.get(one.name);
    if ((known?.versions[0] ?? 0) < (one.versions[0] ?? 0)) byName.set(one.name, one);
  }
  return [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}
