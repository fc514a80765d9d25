// What became of bodies for payload servers in this executor (results that were put there, or went by the queue server
// because none took them, and inputs that were lost there), and how these servers fare: told to the claimer a second at
// most after something changed, because each message costs its process a wake-up.

import type { FromExecutor, PayloadServerFacts } from '@shoal/core';
import type { ProcessCounts } from '@shoal/queue/payload';

const LOOK_EVERY_MS = 1_000;

/** Returns what ends it and tells the rest. `servers`: undefined where there are none. */
export function tellBodies(
  counted: () => Pick<ProcessCounts, 'payloads'>,
  servers: () => readonly PayloadServerFacts[] | undefined,
  tell: (message: FromExecutor) => void,
): () => void {
  const told = { put: 0, byQueueServer: 0, lost: 0 };
  let toldServers = '';
  const look = (): void => {
    const { put, by_queue_server: byQueueServer, lost } = counted().payloads;
    const news = { put: put - told.put, byQueueServer: byQueueServer - told.byQueueServer, lost: lost - told.lost };
    const now = servers();
    const text = now === undefined ? '' : JSON.stringify(now);
    if (news.put + news.byQueueServer + news.lost === 0 && text === toldServers) return;
    Object.assign(told, { put, byQueueServer, lost });
    tell({ kind: 'bodies', ...news, ...(now !== undefined && text !== toldServers && { servers: now }) });
    toldServers = text;
  };
  const looking = setInterval(look, LOOK_EVERY_MS).unref();
  return () => {
    clearInterval(looking);
    look();
  };
}
