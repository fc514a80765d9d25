// Whether jobs wait that a worker could have: asked over a connection of its own that lives as long as the question, so
// that the answer does not depend on anything that may be wedged. For the watchdog; a few questions a minute at most.

import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import { closeConnection, connected } from '../redis/connection.ts';
import { within } from '../redis/within.ts';

export interface ClaimableOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  readonly log: Logger;
}

/** A server that is paused, or busy, for longer cannot tell. */
const ANSWER_MS = 5_000;

/** 0 while the queue is paused or at its own limits. Throws QUEUE_UNREACHABLE when the server does not answer. */
export async function countClaimable({ redisUrl, prefix, queue: name, log }: ClaimableOptions): Promise<number> {
  const connection = await connected({ url: redisUrl, prefix, name: `shoal:claimable:${name}` });
  const queue = new Queue(name, { prefix, connection, skipMetasUpdate: true });
  queue.on('error', (error) => log.debug({ err: error }, 'queue client reported an error'));
  try {
    let answer: [boolean, boolean, number, number] | undefined;
    const asked = Promise.all([
      queue.isPaused(),
      queue.isMaxed(),
      queue.getRateLimitTtl(),
      queue.getJobCountByTypes('wait', 'prioritized'),
    ]);
    await within(
      ANSWER_MS,
      asked.then((found) => (answer = found)),
    );
    if (answer === undefined)
      throw new ShoalError(
        'QUEUE_UNREACHABLE',
        `the queue server took a connection, but did not answer within ${ANSWER_MS} ms`,
      );
    const [isPaused, isMaxed, limitedMs, waiting] = answer;
    return isPaused || isMaxed || limitedMs > 0 ? 0 : waiting;
  } finally {
    await closeConnection(connection);
    await queue.close().catch(() => undefined);
  }
}
