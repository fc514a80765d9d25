// What happened in a fleet in the last ten minutes and its state now does not show: executors that were lost and
// replaced, workers that died without a word, and those that left in order and did not come back. Judged from what
// workers told of themselves meanwhile (worker-history.ts). For `shoal fleet status` and the fleet page.

import { DEFAULT_PREFIX } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { closeConnection, connected } from '../redis/connection.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { serverTime } from '../redis/server-time.ts';
import { translated } from '../redis/translated.ts';
import { readHistory, workersWithHistory, type HistoryOwner, type WorkerHistory } from './worker-history.ts';

export const LATELY_MS = 600_000;
/** Of the keys of a server, so many steps of the walk that finds who died: a million keys. */
const MOST_SCANS = 200;

/** How often executors of one worker were lost in the last ten minutes, and to what. */
export interface ExecutorLosses {
  readonly workerId: string;
  readonly count: number;
  /** As the worker's log has them, most first: "killed by SIGKILL". */
  readonly reasons: readonly { readonly reason: string; readonly count: number }[];
}

/** A worker that told something in the last ten minutes and is not alive. */
export interface AbsentWorker {
  readonly workerId: string;
  readonly owner: HistoryOwner;
  /** When it was last heard of, epoch ms by the server's clock. */
  readonly lastMs: number;
  /** It left in order; otherwise it died without a word. */
  readonly hasLeft: boolean;
  /** A live worker of the same name. */
  readonly successor: string | undefined;
}

export interface Lately {
  readonly losses: readonly ExecutorLosses[];
  readonly absent: readonly AbsentWorker[];
}

export interface LatelyRead {
  readonly histories: readonly WorkerHistory[];
  /** False where the server has more keys than were walked over: of workers that died some may be missing. */
  readonly isWhole: boolean;
}

/** Of all workers of the prefix, dead ones too. Throws QUEUE_UNREACHABLE. */
export async function readLately({
  redisUrl: url,
  prefix = DEFAULT_PREFIX,
  log,
}: {
  readonly redisUrl: ServerAddress;
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}): Promise<LatelyRead> {
  const connection = await connected({ url, prefix, name: 'shoal:lately', log });
  try {
    return await translated(async () => {
      const [nowMs, { workerIds, isWhole }] = await Promise.all([
        serverTime(connection),
        workersWithHistory(connection, prefix, MOST_SCANS),
      ]);
      const span = { nowMs: Math.floor(nowMs), lengthMs: LATELY_MS };
      const read = workerIds.map((workerId) => readHistory(connection, { prefix, workerId }, span));
      return { histories: (await Promise.all(read)).filter(({ steps }) => steps.length > 0), isWhole };
    });
  } finally {
    await closeConnection(connection);
  }
}

/** Of one queue, or of all where none is named. `live`: ids of workers that are alive. Pure. */
export function latelyOf(histories: readonly WorkerHistory[], live: readonly string[], queue?: string): Lately {
  const own = histories.filter(({ owner }) => queue === undefined || owner?.queue === queue);
  return {
    losses: own.map(lossesIn).filter(({ count }) => count > 0),
    absent: own.flatMap((history) => absentIn(history, live)),
  };
}

export function lossesIn({ workerId, steps }: WorkerHistory): ExecutorLosses {
  const counts = new Map<string, number>();
  for (const [event, count] of steps.flatMap(({ events }) => Object.entries(events))) {
    const [, reason] = /^lost (.*)$/.exec(event) ?? [];
    if (reason !== undefined) counts.set(reason, (counts.get(reason) ?? 0) + count);
  }
  const reasons = [...counts].map(([reason, count]) => ({ reason, count })).toSorted((a, b) => b.count - a.count);
  return { workerId, count: reasons.reduce((sum, { count }) => sum + count, 0), reasons };
}

/** "killed by SIGKILL", or of several "4 × killed by SIGKILL, 1 × exit code 1". */
export function reasonsText({ reasons }: ExecutorLosses): string {
  return reasons.map(({ reason, count }) => (reasons.length === 1 ? reason : `${count} × ${reason}`)).join(', ');
}

function absentIn({ workerId, owner, steps }: WorkerHistory, live: readonly string[]): AbsentWorker[] {
  const last = steps.at(-1);
  if (last === undefined || owner === undefined || live.includes(workerId)) return [];
  return [{ workerId, owner, lastMs: last.atMs, hasLeft: last.isLast, successor: successorOf(workerId, live) }];
}

/** One of the same name: an id is the name of a worker over all its lives, and eight digits of this one. */
export function successorOf(workerId: string, live: readonly string[]): string | undefined {
  return live.find((id) => id !== workerId && nameOf(id) === nameOf(workerId));
}

function nameOf(workerId: string): string {
  return workerId.replace(/-[0-9a-f]{8}$/, '');
}
