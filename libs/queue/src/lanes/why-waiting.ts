// Why nothing comes: one look at a queue, and one sentence for whoever waits for it, in the command, the SDK and over
// HTTP alike. Tells what is found, never what could be; reads only.

import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_PREFIX, keySpace, mainQueue, rerankQueue } from '@shoal/contract';
import type { Queue } from 'bullmq';
import type { Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { parkedJobs, wordsOfParked, type ParkedJobs } from '../worker/parking.ts';
import { servedQueues } from './served-queues.ts';
import { ALL_WORKERS, liveWorkers } from './worker-presence.ts';

/**
 * `not-served`: no worker is there and none ever was, while workers serve other queues; most likely the name of the
 * model is wrong. `busy`: workers are there, and take the jobs as they can.
 */
export type WaitingReason = 'server-away' | 'paused' | 'drained' | 'no-worker' | 'not-served' | 'busy';

export interface Waiting {
  readonly reason: WaitingReason;
  /** What is found and what to do, for a person. */
  readonly message: string;
  /** Jobs that wait, and jobs that run. */
  readonly waiting: number;
  readonly active: number;
  /** Live workers that claim. */
  readonly workers: number;
  /** Live workers that claim nothing until they are resumed. */
  readonly drained: number;
  readonly isPaused: boolean;
}

const AWAY: Waiting = {
  reason: 'server-away',
  message: 'the queue server does not answer; what it has is kept, and goes on when it is back',
  waiting: 0,
  active: 0,
  workers: 0,
  drained: 0,
  isPaused: false,
};

/** A process that was stopped takes connections, and so does one that is busy with a single command. */
const SILENT: Waiting = {
  ...AWAY,
  message:
    'the queue server takes connections and says nothing: it is stopped (kill -CONT lets it go on) or busy with one long ' +
    'command; what it has is kept',
};
/** The server answers in a millisecond; a script of others may take it a second. */
const SILENT_AFTER_MS = 5_000;

/** Why jobs of `queue`, a main lane, may not have been answered yet. Throws QUEUE_UNREACHABLE. */
export async function whyWaiting(
  connection: Redis,
  queue: Queue,
  prefix: string = DEFAULT_PREFIX,
  silentAfterMs: number = SILENT_AFTER_MS,
): Promise<Waiting> {
  if (connection.status !== 'ready') return AWAY; // a question would be put in line until it is back
  const late = new AbortController();
  const silence = sleep(silentAfterMs, SILENT, { signal: late.signal, ref: false }).catch(() => SILENT);
  try {
    return await Promise.race([look(connection, queue, prefix), silence]);
  } finally {
    late.abort();
  }
}

async function look(connection: Redis, queue: Queue, prefix: string): Promise<Waiting> {
  return translated(async () => {
    const [counts, isPaused, parked, alive, drained] = await Promise.all([
      queue.getJobCounts('wait', 'prioritized', 'delayed', 'active', 'completed'),
      queue.isPaused(),
      parkedJobs(connection, { prefix, queue: queue.name }),
      liveWorkers(connection, queue.name, prefix),
      connection.smembers(keySpace(prefix).drained(queue.name)),
    ]);
    const { wait = 0, prioritized = 0, delayed = 0, active = 0, completed = 0 } = counts;
    const waiting = wait + prioritized + delayed;
    const claiming = drained.includes(ALL_WORKERS) ? [] : alive.filter((workerId) => !drained.includes(workerId));
    const seen = { queue: queue.name, waiting, active, parked, alive: alive.length, workers: claiming.length };
    const reason = reasonOf(seen, isPaused);
    const served = reason === 'no-worker' && completed === 0 ? await servedQueues(connection, prefix) : [];
    return {
      ...(served.length === 0
        ? { reason, message: wordsOf(seen, reason) }
        : { reason: 'not-served' as const, message: notServed(queue.name, served) }),
      waiting,
      active,
      workers: claiming.length,
      drained: alive.length - claiming.length,
      isPaused,
    };
  });
}

interface Seen {
  readonly queue: string;
  readonly waiting: number;
  readonly active: number;
  readonly parked: ParkedJobs;
  readonly alive: number;
  readonly workers: number;
}

function reasonOf({ alive, workers }: Seen, isPaused: boolean): WaitingReason {
  if (isPaused) return 'paused';
  if (workers > 0) return 'busy';
  return alive > 0 ? 'drained' : 'no-worker';
}

function wordsOf({ queue, waiting, active, parked, alive, workers }: Seen, reason: WaitingReason): string {
  const tooNew = Object.keys(parked).length === 0 ? '' : `, ${wordsOfParked(parked)}`;
  const backlog = `${counted(waiting, 'job waits', 'jobs wait')} and ${counted(active, 'runs', 'run')}${tooNew}`;
  switch (reason) {
    case 'paused':
      return `the queue ${queue} is paused, ${backlog}; shoal queue resume --queue ${queue} lets it go on`;
    case 'drained':
      return (
        `${alive === 1 ? 'the only worker' : `all ${alive} workers`} of ${queue} ${alive === 1 ? 'is' : 'are'} ` +
        `drained, ${backlog}; shoal fleet resume all --queue ${queue} lets them claim again`
      );
    case 'no-worker':
      return `no worker serves ${queue}, ${backlog}; start one with shoal worker or shoal up`;
    default:
      return `${counted(workers, 'worker serves', 'workers serve')} ${queue}, ${backlog}`;
  }
}

function notServed(queue: string, served: readonly string[]): string {
  const isModel = [mainQueue(''), rerankQueue('')].some((start) => queue.startsWith(start));
  return (
    `no worker serves ${queue}, and none ever did; served now: ${served.join(', ')}. ` +
    `${isModel ? 'Is the name of the model right? ' : ''}If it is, start a worker for it`
  );
}

function counted(count: number, one: string, many: string): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}
