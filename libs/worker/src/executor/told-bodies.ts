// How many results this executor put on payload servers, and how many went by the queue server because none took them:
// told to the claimer a second at most after they changed, because each message costs its process a wake-up.

import type { FromExecutor } from '@shoal/core';
import type { ProcessCounts } from '@shoal/queue/payload';

const LOOK_EVERY_MS = 1_000;

/** Returns what ends it and tells the rest. */
export function tellBodies(
  counted: () => Pick<ProcessCounts, 'payloads'>,
  tell: (message: FromExecutor) => void,
): () => void {
  const told = { put: 0, byQueueServer: 0 };
  const look = (): void => {
    const { put, by_queue_server: byQueueServer } = counted().payloads;
    const news = { put: put - told.put, byQueueServer: byQueueServer - told.byQueueServer };
    if (news.put + news.byQueueServer === 0) return;
    Object.assign(told, { put, byQueueServer });
    tell({ kind: 'bodies', ...news });
  };
  const looking = setInterval(look, LOOK_EVERY_MS).unref();
  return () => {
    clearInterval(looking);
    look();
  };
}
