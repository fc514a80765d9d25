// For tests and benches: where jobs of a lane worker's two lanes are, exactly, at one moment; and a run in which
// workers that hand over, or run what was handed over, are killed again and again. Everything that is then wrong is
// told, nothing is repaired.

import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { encodeTexts, keySpace, openResult, type EmbedReturn } from '@shoal/contract';
import { noLog, systemClock } from '@shoal/core';
import { FakeTokenizer, deliveredVector } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { openTransaction, queueAdd } from '../bullmq/internals.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { Janitor } from '../upkeep/janitor.ts';
import { acknowledge } from '../payload.ts';
import { FIND_PLACES } from './lua/scripts.generated.ts';
import { GPU_WIDTH, LANE_CPU_QUEUE, LANE_QUEUE, startLaneWorker, type LaneWorkerOptions } from './lane-worker.ts';

const LEASE_MS = 900;
const DIMS = 8;

/** A job that may be claimed or is claimed; where the child's lane shows nothing, or a child that has ended. */
const IN_MAIN_LANE = /^(wait|active|prioritized|delayed)\|(completed|failed)?\|0$/;
const IN_CPU_LANE = /^waiting-children\|(wait|active|prioritized|delayed)\|1$/;
const ENDED = /^(completed|failed)\|(completed|failed)?\|0$/;

/** As "main lane|CPU lane|pending children", by job. */
export async function placesOf(connection: Redis, prefix: string, jobIds: readonly string[]): Promise<string[]> {
  const places = await connection.eval(
    FIND_PLACES.lua,
    2,
    `${prefix}:${LANE_QUEUE}`,
    `${prefix}:${LANE_CPU_QUEUE}`,
    ...jobIds,
  );
  return (places as unknown[]).map(String);
}

/** Jobs that are in no place or in more than one. */
export async function misplaced(connection: Redis, prefix: string, jobIds: readonly string[]): Promise<string[]> {
  const places = await placesOf(connection, prefix, jobIds);
  return jobIds.flatMap((jobId, index) =>
    [IN_MAIN_LANE, IN_CPU_LANE, ENDED].some((place) => place.test(places[index] ?? ''))
      ? []
      : [`${jobId}: ${places[index]}`],
  );
}

/** Texts of a job; one in two jobs has a row that does not fit the simulated GPU. */
export function textsOf(index: number): string[] {
  const wide = Array.from({ length: GPU_WIDTH + 4 }, (_, word) => `w${index}x${word}`).join(' ');
  return [`small ${index}`, index % 2 === 0 ? wide : `also small ${index}`];
}

export function isHandedOver(index: number): boolean {
  return index % 2 === 0;
}

/** Inline jobs and jobs with an input key in turns of two, so that each kind is handed over. */
export async function addJobs(connection: Redis, prefix: string, jobIds: readonly string[]): Promise<void> {
  const queue = new Queue(LANE_QUEUE, { prefix, connection });
  for (let first = 0; first < jobIds.length; first += 50) {
    const transaction = await openTransaction(queue);
    for (const [offset, jobId] of jobIds.slice(first, first + 50).entries()) {
      const index = first + offset;
      const texts = textsOf(index);
      const isInline = index % 4 < 2;
      if (!isInline) transaction.set(keySpace(prefix).input(LANE_QUEUE, jobId), encodeTexts(texts), 'NX');
      queueAdd(queue, transaction, {
        name: 'embed',
        data: isInline ? { v: 1, texts } : { v: 1, input: { form: 'texts', rows: texts.length } },
        opts: { jobId },
      });
    }
    await transaction.exec();
  }
  await queue.close();
}

/** What is wrong with a job that should have completed; each result is acknowledged once and then again. */
export async function wrongs(connection: Redis, prefix: string, jobIds: readonly string[]): Promise<string[]> {
  const queue = new Queue(LANE_QUEUE, { prefix, connection });
  const found = await Promise.all(
    jobIds.map(async (jobId, index) => {
      const job = await queue.getJob(jobId);
      const state = await job?.getState();
      const value = job?.returnvalue as EmbedReturn | null | undefined;
      if (state !== 'completed' || value === null || value === undefined)
        return [`${jobId} is ${state}: ${job?.failedReason}`];
      return [
        ...(await wrongsOfResult(connection, prefix, jobId, index)),
        ...((value.handedOver?.reason === 'OUT_OF_VRAM') === isHandedOver(index)
          ? []
          : [`${jobId} says ${JSON.stringify(value.handedOver)}`]),
        ...(await leftBehind(connection, prefix, jobId)),
      ];
    }),
  );
  await queue.close();
  return found.flat();
}

async function wrongsOfResult(connection: Redis, prefix: string, jobId: string, index: number): Promise<string[]> {
  const keys = keySpace(prefix);
  const tokenizer = new FakeTokenizer();
  const [first] = await acknowledge(connection, keys, LANE_QUEUE, [jobId]);
  const [again] = await acknowledge(connection, keys, LANE_QUEUE, [jobId]);
  const expected = Buffer.concat(
    textsOf(index).map((text) => Buffer.from(deliveredVector(tokenizer.encode(text).ids, DIMS).buffer)),
  );
  const isRight = first?.kind === 'body' && openResult(first.bytes).body.equals(expected);
  return [
    ...(isRight ? [] : [`${jobId} has no result, or another one (${first?.kind})`]),
    ...(again?.kind === 'taken' ? [] : [`${jobId} can be had twice (${again?.kind})`]),
  ];
}

async function leftBehind(connection: Redis, prefix: string, jobId: string): Promise<string[]> {
  const keys = keySpace(prefix);
  const places = [keys.input(LANE_QUEUE, jobId), keys.lock(LANE_QUEUE, jobId), keys.lock(LANE_CPU_QUEUE, jobId)];
  return (await connection.exists(...places)) === 0 ? [] : [`${jobId} left its input or a lock behind`];
}

export interface CrashOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly jobs: number;
  readonly seed: number;
  /** Most changes that a worker of either kind lives to see before it is killed. */
  readonly mostChanges: number;
}

export interface CrashReport {
  readonly jobs: number;
  readonly handedOver: number;
  readonly kills: { readonly gpu: number; readonly cpu: number };
  readonly misplaced: readonly string[];
  readonly wrong: readonly string[];
  /** Jobs that were claimed again after a worker died: at most so many were computed twice. */
  readonly stalled: number;
}

/**
 * Jobs go through both lanes while first this, then that worker is killed, after a number of changes that the seed
 * decides.
 */
export async function crashHandOvers({
  redisUrl,
  prefix,
  jobs,
  seed,
  mostChanges,
}: CrashOptions): Promise<CrashReport> {
  const connection = openConnection({ url: redisUrl, prefix, name: 'crash' });
  const random = randomFrom(seed);
  const jobIds = Array.from({ length: jobs }, (_, index) => `j-${index}`);
  await addJobs(connection, prefix, jobIds);
  const start = (role: LaneWorkerOptions['role']): Promise<ChildProcess> =>
    startLaneWorker({ redisUrl, prefix, role, leaseMs: LEASE_MS });
  const workers = { gpu: await start('gpu'), cpu: await start('cpu') };
  const kills = { gpu: 0, cpu: 0 };
  const misplacedEver: string[] = [];
  while ((await endedOf(connection, prefix)) < jobs) {
    const role = random() < 0.6 ? 'gpu' : 'cpu';
    await changes(connection, prefix, 1 + Math.floor(random() * mostChanges), jobs);
    await kill(workers[role]);
    kills[role]++;
    misplacedEver.push(...(await misplaced(connection, prefix, jobIds)));
    workers[role] = await start(role);
  }
  await Promise.all(Object.values(workers).map(kill));
  const stalled = await stalledOf(connection, prefix, jobIds);
  await sweepTwice(redisUrl, prefix);
  const report = {
    jobs,
    kills,
    stalled,
    handedOver: jobIds.filter((_, index) => isHandedOver(index)).length,
    misplaced: [...misplacedEver, ...(await misplaced(connection, prefix, jobIds))],
    wrong: await wrongs(connection, prefix, jobIds),
  };
  await closeConnection(connection);
  return report;
}

/** A worker killed between completing a job and announcing it leaves the job's input; that is a janitor's to take. */
async function sweepTwice(redisUrl: string, prefix: string): Promise<void> {
  const everyMs = 600_000;
  for (const sweep of [1, 2]) {
    const janitor = new Janitor({
      redisUrl,
      prefix,
      queue: LANE_QUEUE,
      cpuQueue: LANE_CPU_QUEUE,
      everyMs,
      clock: systemClock,
      restMs: 0,
      log: noLog,
      serverNowMs: () => 1_000_000_000_000 + sweep * 2 * everyMs,
    });
    await janitor.sweep();
    await janitor.stop();
  }
}

export async function kill(worker: ChildProcess): Promise<void> {
  if (worker.exitCode !== null || worker.signalCode !== null) return;
  const gone = once(worker, 'exit');
  worker.kill('SIGKILL');
  await gone;
}

async function endedOf(connection: Redis, prefix: string): Promise<number> {
  const [completed, failed] = await Promise.all(
    ['completed', 'failed'].map((set) => connection.zcard(`${prefix}:${LANE_QUEUE}:${set}`)),
  );
  return (completed ?? 0) + (failed ?? 0);
}

/** Waits until so many jobs more were handed over, run or ended, or all have ended. */
async function changes(connection: Redis, prefix: string, count: number, jobs: number): Promise<void> {
  const progress = async (): Promise<number> =>
    (await endedOf(connection, prefix)) +
    (await connection.zcard(`${prefix}:${LANE_CPU_QUEUE}:completed`)) +
    (await connection.zcard(`${prefix}:${LANE_QUEUE}:waiting-children`));
  const from = await progress();
  while (Math.abs((await progress()) - from) < count && (await endedOf(connection, prefix)) < jobs) await sleep(2);
}

async function stalledOf(connection: Redis, prefix: string, jobIds: readonly string[]): Promise<number> {
  const counters = await Promise.all(
    jobIds.flatMap((jobId) =>
      [LANE_QUEUE, LANE_CPU_QUEUE].map((queue) => connection.hget(keySpace(prefix).job(queue, jobId), 'stc')),
    ),
  );
  return counters.filter((counter) => counter !== null).length;
}

/** From 0 to 1, the same for the same seed. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}
