// Who claims: a name that a worker keeps over its lives, and the process that it is now. Both are part of every lock
// token, so that a worker which starts under the name of one that died finds what that one had claimed and gives it
// back at once, instead of waiting for leases. A process is believed gone where its pid can be looked up and is nobody's:
// on the same boot of the same machine, in the same pid namespace. Anywhere else its start tells (worker-start.ts).
//
// Why: docs/decisions/claiming-and-order.md#lock-tokens-name-the-process

import { hostname } from 'node:os';
import { keySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { isAlive, ownIdentity, placeOfPids } from '@shoal/fetch';
import { countStall } from '../bullmq/internals.ts';
import type { BatchWorker } from '../bullmq/batch-worker.ts';
import type { Redis } from '../redis/connection.ts';

/** `<name>~<where>~<pid>~<start time>`; BullMQ's own part of a token follows after another "~". */
export function tokenPrefixOf(name: string): string {
  const { pid, startTime } = ownIdentity();
  return [name, placeOfPids(), pid, startTime].join('~');
}

/** Two workers of one device have the same default name, and different processes. */
export function defaultWorkerName(device: string): string {
  return `${hostname()}-${device}`.replaceAll(/[^A-Za-z0-9_.-]/g, '-').slice(-64);
}

/** Whether this token was made by a process of the same name that is gone. */
export function isPredecessors(token: string, name: string): boolean {
  const [theirName, place, pid, startTime] = token.split('~');
  if (theirName !== name || place !== placeOfPids() || startTime === undefined) return false;
  return !isAlive({ pid: Number(pid), startTime });
}

export interface PredecessorOptions {
  readonly connection: Redis;
  readonly worker: BatchWorker;
  readonly prefix: string;
  readonly queue: string;
  readonly name: string;
  /** Whether a lock token was made by a process of this name that is gone. */
  readonly isOver: (token: string) => boolean;
  readonly log: Logger;
}

/**
 * Gives back what dead processes of this name had claimed; says how many jobs those were. A stall is counted for each.
 */
export async function giveBackPredecessors({
  connection,
  worker,
  prefix,
  queue,
  name,
  isOver,
  log,
}: PredecessorOptions): Promise<number> {
  const keys = keySpace(prefix);
  const jobIds = await connection.lrange(`${prefix}:${queue}:active`, 0, -1);
  if (jobIds.length === 0) return 0;
  const tokens = await connection.mget(jobIds.map((jobId) => keys.lock(queue, jobId)));
  const theirs = jobIds.flatMap((jobId, at) => (isOver(tokens[at] ?? '') ? [{ jobId, token: tokens[at]! }] : []));
  const results = await Promise.allSettled(
    theirs.map(async ({ jobId, token }) => {
      await countStall(connection, keys.job(queue, jobId));
      await worker.giveBack(jobId, token);
    }),
  );
  const count = results.filter(({ status }) => status === 'fulfilled').length;
  if (theirs.length > 0)
    log.info({ jobs: count, name }, 'gave back what a worker of this name had claimed before it died');
  return count;
}
