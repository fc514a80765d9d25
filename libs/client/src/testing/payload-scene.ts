// What tests of payload servers share: a worker of core's pipeline on a simulated device that has such servers, what it
// says of itself, texts large enough to go there, a result that nobody has taken, and calls in whose middle something
// happens.

import type { Redis } from 'ioredis';
import { keySpace, mainQueue } from '@shoal/contract';
import { WORKER_FACTS, openLaneWorker, type LaneWorker } from '@shoal/queue/testing';
import type { ShoalClient } from '../shoal-client.ts';

export const MODEL = { name: 'fake', revision: '0123456789ab' };
export const QUEUE = mainQueue(MODEL.name);
export const DIMS = 64;
/** Rows of a job: its input has 28 KB and its result 51. */
export const ROWS = 200;

/** Each of nine words, which fit the simulated device, and none like another. */
export function texts(count: number): string[] {
  return Array.from({ length: count }, (_, at) => `${at} ${'antidisestablish '.repeat(8)}`);
}

export function startWorker(place: {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly payloadServers: string;
}): Promise<LaneWorker> {
  return openLaneWorker({ ...place, role: 'gpu', leaseMs: 15_000, queue: QUEUE, dims: DIMS });
}

/** What the worker says of itself. */
export async function tell(redis: Redis, prefix: string, payloads: string | undefined): Promise<void> {
  const keys = keySpace(prefix);
  await redis.zadd(keys.workers(QUEUE), Date.now() + 50_000, 'w');
  await redis.hset(keys.facts(QUEUE), 'w', JSON.stringify({ ...WORKER_FACTS, jobVersion: 2, payloads }));
}

/** The first job of the run has its result, and its reader has not taken it until it is told to end. */
export async function leaveUntaken(
  client: ShoalClient,
  runId: string,
  asked: readonly string[],
): Promise<() => Promise<unknown>> {
  const stream = client.embedStream(
    asked.map((text) => ({ text })),
    { runId },
  );
  await stream.next();
  return () => stream.return(undefined);
}

/**
 * What calls of these texts gave, one behind the other until all that was to happen has happened: on a quick machine the
 * first of them may be over before it does.
 */
export async function callsUntil(
  happened: Promise<unknown>,
  client: ShoalClient,
  asked: readonly string[],
): Promise<readonly Float32Array[]> {
  const end = new AbortController();
  const over = happened.finally(() => end.abort());
  over.catch(() => undefined); // awaited below
  const found: Float32Array[] = [];
  do found.push((await client.embed(asked)).vectors);
  while (!end.signal.aborted);
  await over;
  return found;
}
