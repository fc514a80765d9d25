// A queue on the server that is there, for commands that only look at it or set it right. They start no server, since
// an empty one would only seem to answer.

import { ShoalError } from '@shoal/contract';
import { cacheFolder, storeFolders, type Settings } from '@shoal/core';
import { attachRunningServer } from '@shoal/private-server';
import { BoardQueues } from '@shoal/queue';
import { settingsOf } from '../settings.ts';
import { untilItAnswers } from './queue-connection.ts';
import { say, type Terminal } from '../terminal.ts';

export interface RunningQueue {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
}

/** Runs `use` with the queue that the flags name, or their model's; QUEUE_UNREACHABLE when no server runs. */
export async function withRunningQueue(
  terminal: Terminal,
  flags: { readonly queue?: string },
  use: (place: RunningQueue) => Promise<void>,
): Promise<void> {
  await withRunningServer(terminal, flags, async (server, settings) => {
    const queue = flags.queue ?? (await queueOfModel(terminal, settings));
    await use({ ...server, queue });
  });
}

/** The store is loaded for a model alone: --queue needs none. */
async function queueOfModel(terminal: Terminal, settings: Settings): Promise<string> {
  const { queueOfNamed } = await import('@shoal/models');
  return queueOfNamed(settings.model, storeFolders(settings, terminal.environment));
}

/** The same with the server alone. */
export async function withRunningServer(
  terminal: Terminal,
  flags: object,
  use: (server: Omit<RunningQueue, 'queue'>, settings: Settings) => Promise<void>,
): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const cacheDir = cacheFolder(settings.cacheDir, terminal.environment);
  const server = await attachRunningServer({
    cacheDir,
    redisUrl: settings.redisUrl,
    signal: terminal.signal,
    onProgress: (step) => say(terminal, step),
  });
  if (server === undefined)
    throw new ShoalError(
      'QUEUE_UNREACHABLE',
      'no private queue server of this user is running, and this command starts none. Start one with shoal up, ' +
        'or name another with REDIS_URL',
      { cacheDir },
    );
  try {
    const place = { redisUrl: server.url, prefix: settings.prefix };
    if (!server.isPrivate)
      await untilItAnswers({ ...place, signal: terminal.signal, onSlow: (line) => say(terminal, line) });
    await use(place, settings);
  } finally {
    await server.release();
  }
}

/**
 * Zeros of a queue that nobody ever used look like an idle one: a name that this server has never seen, while it has
 * others, is most likely written wrongly. Throws USAGE with those that there are.
 */
export async function refuseUnseen({ redisUrl, prefix, queue }: RunningQueue): Promise<void> {
  const board = await BoardQueues.connect({ redisUrl, prefix });
  try {
    const names = (await board.find()).map(({ name }) => name);
    if (names.length === 0 || names.includes(queue) || (await board.isSeen(queue))) return;
    throw new ShoalError(
      'USAGE',
      `this server has never seen a queue ${queue}; there are ${names.join(', ')}. Name one with --queue, or its model ` +
        'with --model (SHOAL_MODEL)',
      { queue, names },
    );
  } finally {
    await board.close();
  }
}
