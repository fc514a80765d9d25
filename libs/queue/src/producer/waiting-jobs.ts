// Two answers that BullMQ's counts do not give: how long the oldest waiting job of each class has waited, and how many of
// the failed jobs were cancelled. Both are bounded, however long the queue is, and go by the server's clock.

import { INTERACTIVE_ROWS, keySpace } from '@shoal/contract';
import { LEAD_TOKENS } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { COUNT_CANCELLED_JOBS, OLDEST_WAITING } from './lua/scripts.generated.ts';

/** ms, 0 where none waits. */
export interface OldestWaiting {
  readonly interactive: number;
  readonly bulk: number;
}

interface Place {
  readonly prefix: string;
  readonly queue: string;
}

/** Up to four pages take the server half a millisecond. */
const PAGE_JOBS = 200;
/** As many as failed jobs are kept; whoever keeps more sees the rest as failed. */
const MOST_CANCELLED = 5_000;

/**
 * Looks at the head of the line, at where leads begin and at the virtual time, `page` jobs each, not at the whole queue: it
 * is exact unless hundreds of tenants wait at once, and then a little too small.
 */
export async function oldestWaiting(
  connection: Redis,
  { prefix, queue }: Place,
  page: number = PAGE_JOBS,
): Promise<OldestWaiting> {
  const keys = keySpace(prefix);
  const lists = ['wait', 'paused', 'prioritized'].map((name) => keys.job(queue, name));
  const [reply] = await runScript(connection, OLDEST_WAITING, [
    [...lists, keys.order(queue), keys.job(queue, ''), LEAD_TOKENS, INTERACTIVE_ROWS, page],
  ]);
  const [interactive, bulk] = (reply as unknown[]).map((ms) => Math.max(0, Number(ms))) as [number, number];
  return { interactive, bulk };
}

/** Failed jobs that nobody failed: they were taken back. */
export async function countCancelled(connection: Redis, { prefix, queue }: Place): Promise<number> {
  const keys = keySpace(prefix);
  const [count] = await runScript(connection, COUNT_CANCELLED_JOBS, [
    [keys.cancelledJobs(queue), keys.job(queue, 'failed'), keys.job(queue, ''), MOST_CANCELLED],
  ]);
  return Number(count);
}
