// Puts the parts of a BullJobSource together, once the server answered: what takes jobs, ends them, hears of cancelled
// ones, and stops claiming while the server has no room. Decides nothing and keeps nothing.

import { randomUUID } from 'node:crypto';
import type { Logger } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import { BatchWorker, KEEP_COMPLETED, type KeptJobs, type TakenJob } from '../bullmq/batch-worker.ts';
import { Completions } from '../bullmq/finish.ts';
import { limitEvents } from '../bullmq/internals.ts';
import { CANCEL_MARK, CancelListener } from '../producer/cancel.ts';
import type { Redis } from '../redis/connection.ts';
import { checkServer, type ServerFacts } from '../redis/server-check.ts';
import { KeyMender } from '../upkeep/key-mender.ts';
import type { Quarantine } from '../upkeep/quarantine.ts';
import { RedisAnnouncer } from './announcer.ts';
import { ClockWatch } from './clock-watch.ts';
import { ClaimBrake, DEFAULT_BRAKE, type BrakeLimits, type ServerPressure } from './claim-brake.ts';
import { ClaimBursts } from './claim-bursts.ts';
import { orderWaiting, type WaitingOrder } from './fair-order.ts';
import type { HandOvers } from './hand-over.ts';
import { JobEndings } from './job-endings.ts';
import { Parking } from './parking.ts';
import { StalledLines } from './stalled-lines.ts';
import { giveBackPredecessors, tokenPrefixOf } from './worker-identity.ts';
import { WorkerStart } from './worker-start.ts';

export interface BullJobSourceOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly queue: string;
  /** How long a claim lasts without renewal; renewed at a third of it. */
  readonly leaseMs: number;
  /** How often jobs whose lease ran out are looked for. */
  readonly stalledCheckMs: number;
  /** Shown as `processedBy` of a job. */
  readonly workerId?: string;
  /** Of Shoal; written down by the first that uses the prefix. */
  readonly version?: string | undefined;
  /** What this worker is called over all its lives: what a dead one of this name had claimed goes back at the start. */
  readonly workerName?: string | undefined;
  /** Somebody chose the name: no other worker that lives may have it. */
  readonly isNameChosen?: boolean | undefined;
  /** The main lane, under whose name jobs are quarantined; left out, they only fail. */
  readonly quarantineOf?: string | undefined;
  /** The CPU lane that jobs of this queue may be handed over to; left out, what would go there fails. */
  readonly handOverTo?: string | undefined;
  readonly faults?: FaultPoints | undefined;
  /** When to stop claiming because the server has no room for results; see claim-brake.ts. */
  readonly brake?: BrakeLimits | undefined;
  /** See checkServer. */
  readonly isUnsafeAllowed?: boolean | undefined;
  /** Another source of this process says what is doubtful about the server. */
  readonly isServerTold?: boolean | undefined;
  /** Bulk jobs alone are claimed, with `claimBulk`. */
  readonly isBulkAlone?: boolean | undefined;
  /** How many finished jobs stay; left out: 1,000 completed and 5,000 failed ones. */
  readonly keep?: KeptJobs | undefined;
  /** The newest version of jobs that the worker reads: what is parked of it is let go. Left out: none. */
  readonly newestVersion?: number | undefined;
  /** Told of the server's time again and again, epoch ms. */
  readonly onServerTime?: ((serverMs: number) => void) | undefined;
  /** Told of each job whose lease ran out and that waits again. */
  readonly onStalled?: ((jobId: string) => void) | undefined;
  /** Epoch ms by the clock of the queue server. Left out: the one of this machine. */
  readonly serverNowMs?: (() => number) | undefined;
  readonly onBrake?: ((reason: ServerPressure | undefined) => void) | undefined;
  readonly log: Logger;
}

/** What exists once the server answered and was found safe. */
export interface SourceParts {
  readonly facts: ServerFacts;
  readonly worker: BatchWorker;
  readonly bursts: ClaimBursts;
  readonly brake: ClaimBrake;
  readonly endings: JobEndings;
  readonly announcer: RedisAnnouncer;
  readonly completions: Completions;
  readonly cancels: CancelListener;
  readonly mender: KeyMender;
  readonly clockWatch: ClockWatch;
  readonly parking: Parking;
  /** Of a worker that has a name. */
  readonly start: WorkerStart | undefined;
}

/** What the source has before it has parts. */
export interface SourceHooks {
  /** Claims that are held, by token. */
  readonly claimed: ReadonlyMap<string, TakenJob>;
  readonly handOvers: HandOvers | undefined;
  readonly quarantine: Quarantine | undefined;
  readonly isDrained: () => boolean;
  readonly onTaken: (taken: TakenJob) => void;
  readonly onCancelled: (jobIds: readonly string[]) => void;
  /** Claims nothing after it. */
  readonly claimingEnd: AbortSignal;
  /** Tries nothing again after it. */
  readonly end: AbortSignal;
}

export interface SourceWiring extends SourceHooks {
  readonly connection: Redis;
  readonly facts: ServerFacts;
}

const MAX_EVENTS = 1_000;

/** Throws for a server that is not safe; says what is doubtful about it. */
export async function checkedServer(options: BullJobSourceOptions, connection: Redis): Promise<ServerFacts> {
  const { prefix, queue, log, isUnsafeAllowed, isServerTold = false } = options;
  const { facts, warnings } = await checkServer(connection, { isUnsafeAllowed });
  for (const warning of isServerTold ? [] : warnings) log.warn({ server: facts.version }, warning);
  await limitEvents(connection, prefix, queue, MAX_EVENTS).catch((error: unknown) =>
    log.debug({ err: error }, 'the stream of events was not bounded'),
  );
  return facts;
}

export function assembleParts(options: BullJobSourceOptions, wiring: SourceWiring): SourceParts {
  const { connection, facts, claimed, end: signal, claimingEnd, handOvers, quarantine, onCancelled } = wiring;
  const { redisUrl, prefix, queue, leaseMs, log } = options;
  const place = { connection, prefix, queue, log };
  const mender = new KeyMender({ ...place, signal });
  const { stalledCheckMs, onServerTime } = options;
  const clockWatch = new ClockWatch({ ...place, stalledCheckMs, onServerTime, signal });
  const worker = openWorker(options, connection, mender);
  const completions = new Completions({ ...place, kept: options.keep?.completed ?? KEEP_COMPLETED, signal });
  const announcer = new RedisAnnouncer({ ...place, sendEndings: () => completions.flush(), signal });
  const open = (): number => claimed.size;
  const { newestVersion = 0 } = options;
  const parking = new Parking({ ...place, newestVersion, isDrained: wiring.isDrained, signal });
  const endings = new JobEndings({
    ...place,
    announcer,
    completions,
    handOvers,
    quarantine,
    parking,
    open,
    signal,
    mender,
  });
  const cancels = new CancelListener({
    redisUrl,
    prefix,
    connection,
    log,
    lane: queue,
    everyMs: leaseMs / 3,
    held: () => [...claimed.values()].map(({ job }) => job.id ?? ''),
    onCancelled,
  });
  const bursts = new ClaimBursts({
    untilMarker: () => worker.untilMarker(),
    takeNow: (count) => worker.takeNow(count),
    order: () => order(options, wiring, mender),
    onFault: (error) => mender.met(error),
    onTaken: wiring.onTaken,
    onLate: (taken) => endings.giveBack(taken, 0),
    signal: claimingEnd,
    log,
  });
  const start = startOf(options, wiring, worker);
  const brake = new ClaimBrake({
    ...place,
    limits: options.brake ?? DEFAULT_BRAKE,
    inFlight: open,
    isDrained: wiring.isDrained,
    onChange: options.onBrake,
    signal: claimingEnd,
  });
  return { facts, worker, bursts, brake, endings, announcer, completions, cancels, mender, clockWatch, parking, start };
}

/** Nothing is known of a worker without a name: its leases bring back what it had. */
function startOf(options: BullJobSourceOptions, wiring: SourceWiring, worker: BatchWorker): WorkerStart | undefined {
  const { prefix, queue, workerName: name = '', log } = options;
  const { connection, end: signal } = wiring;
  if (name === '') return undefined;
  const start = new WorkerStart({
    connection,
    prefix,
    queue,
    name,
    start: tokenPrefixOf(name),
    onLook: async (isOver) => {
      await giveBackPredecessors({ connection, worker, prefix, queue, name, isOver, log });
    },
    signal,
    log,
  });
  return start;
}

function openWorker(options: BullJobSourceOptions, connection: Redis, mender: KeyMender): BatchWorker {
  const { prefix, queue, leaseMs, stalledCheckMs, keep, workerName = '', log } = options;
  const worker = new BatchWorker({
    connection,
    prefix,
    queue,
    workerId: options.workerId ?? (workerName || randomUUID()),
    leaseMs,
    stalledCheckMs,
    keep,
    tokenPrefix: tokenPrefixOf(workerName),
    mark: CANCEL_MARK,
    isBulkAlone: options.isBulkAlone,
  });
  worker.on('error', (error) => {
    mender.met(error);
    log.debug({ err: error }, 'queue client reported an error');
  });
  const stalled = new StalledLines(log);
  worker.on('stalled', (jobId) => {
    options.onStalled?.(jobId);
    stalled.add(jobId);
  });
  return worker;
}

/** Undefined when that failed: without an order jobs are claimed as they came, which is better than not at all. */
async function order(
  { prefix, queue, log }: BullJobSourceOptions,
  { connection, end }: SourceWiring,
  mender: KeyMender,
): Promise<WaitingOrder | undefined> {
  try {
    const found = await orderWaiting(connection, { prefix, queue }, end);
    if (found.setAside > 0)
      log.error(
        { queue, jobs: found.setAside, code: 'JOB_INVALID' },
        'jobs were set aside whose id is a name that the queue keeps for itself; see shoal queue repair',
      );
    return found;
  } catch (error) {
    mender.met(error);
    if (!end.aborted) log.warn({ err: error }, 'waiting jobs could not be put in order');
    return undefined;
  }
}
