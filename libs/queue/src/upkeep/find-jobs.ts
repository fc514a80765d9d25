// Jobs whose id begins with some characters, for a person who knows a tenant or a run and no whole id. Bounded: looks at
// so many ids of each state and says whether that was all. Reads names only.

import { keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { literally } from '../redis/scan-pattern.ts';
import { translated } from '../redis/translated.ts';
import type { QueuePlace } from './queue-keys.ts';

export interface FoundJob {
  readonly queue: string;
  readonly jobId: string;
  /** In words of BullMQ, with one exception: prioritized jobs wait. */
  readonly state: 'waiting' | 'active' | 'delayed' | 'handed over' | 'failed' | 'completed';
}

export interface FoundJobs {
  readonly jobs: readonly FoundJob[];
  /** Whether every id was looked at, and every one found is among `jobs`. */
  readonly isAll: boolean;
}

export interface FindJobsLimits {
  /** Ids of a state that are looked at. Default 10,000. */
  readonly mostSeen?: number | undefined;
  /** Default 100. */
  readonly mostFound?: number | undefined;
}

const SORTED = [
  ['prioritized', 'waiting'],
  ['delayed', 'delayed'],
  ['waiting-children', 'handed over'],
  ['failed', 'failed'],
  ['completed', 'completed'],
] as const;
const LISTS = [
  ['active', 'active'],
  ['wait', 'waiting'],
  ['paused', 'waiting'],
] as const;
const MOST_SEEN = 10_000;
const MOST_FOUND = 100;
const STEP = 1_000;

/** Of one queue, those that run and wait first. Throws QUEUE_UNREACHABLE. */
export async function findJobs(
  connection: Redis,
  { prefix, queue }: QueuePlace,
  beginning: string,
  { mostSeen = MOST_SEEN, mostFound = MOST_FOUND }: FindJobsLimits = {},
): Promise<FoundJobs> {
  return translated(async () => {
    const { job: keyOf } = keySpace(prefix);
    const jobs: FoundJob[] = [];
    let isAll = true;
    for (const [name, state] of LISTS) {
      const ids = await connection.lrange(keyOf(queue, name), 0, mostSeen);
      isAll &&= ids.length <= mostSeen;
      jobs.push(...ids.flatMap((jobId) => (jobId.startsWith(beginning) ? [{ queue, jobId, state }] : [])));
    }
    for (const [name, state] of SORTED) {
      const found = await scanSorted(connection, keyOf(queue, name), beginning, mostSeen);
      isAll &&= found.isAll;
      jobs.push(...found.ids.map((jobId) => ({ queue, jobId, state })));
    }
    return { jobs: jobs.slice(0, mostFound), isAll: isAll && jobs.length <= mostFound };
  });
}

/** In steps: the server does other work between them. */
async function scanSorted(
  connection: Redis,
  key: string,
  beginning: string,
  mostSeen: number,
): Promise<{ readonly ids: readonly string[]; readonly isAll: boolean }> {
  const ids = new Set<string>();
  let cursor = '0';
  for (let seen = 0; seen < mostSeen; seen += STEP) {
    const [next, members] = await connection.zscan(key, cursor, 'MATCH', `${literally(beginning)}*`, 'COUNT', STEP);
    for (let at = 0; at < members.length; at += 2) ids.add(members[at]!);
    cursor = next;
    if (cursor === '0') break;
  }
  return { ids: [...ids].sort(), isAll: cursor === '0' };
}
