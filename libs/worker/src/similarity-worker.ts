// One worker for similarity jobs put together: the same claimer as for embeddings, on the queue `similarity`, and beside it an
// executor that holds collections instead of a model. Constructs and connects; decides nothing.

import { randomUUID } from 'node:crypto';
import { availableParallelism, hostname } from 'node:os';
import { LoadMeter, Pipeline, SIMILARITY_CPU_QUEUE, SIMILARITY_QUEUE, cacheFolder, faultPointsFrom, readSimilarityJob, systemClock, type Settings } from '@shoal/core';
import { BullJobSource, DrainableSource, Fleet, FleetWatch, Janitor, WorkerPresence, defaultWorkerName, serverClock } from '@shoal/queue';
import { RedisAnnouncer } from '@shoal/queue/payload';
import { collectionsFolder } from '@shoal/similarity';
import { ExecutorNotes } from './executor-notes.ts';
import { ForkedExecutor } from './forked-executor.ts';
import { hostMemory } from './host-memory.ts';
import { followDrain } from './worker-lanes.ts';
import { noting, serveMetrics, type RunningWorker, type WorkerOptions } from './worker.ts';

/** Claims keep the queries of so many runs waiting: one runs, one is to go on with, the rest are on their way. */
const RUNS_IN_POOL = 4;
/** Room for results is reserved by their producers in f32 values a query; no result of this queue is narrower than it says. */
const WIDEST_RESULT = 2 ** 31;
const LEAST_BUDGET_BYTES = 1 << 26;

/** Starts claiming. Throws what keeps it from that: CONFIG_INVALID, QUEUE_UNREACHABLE, QUEUE_UNSAFE, SETUP_FAILED. */
export async function startSimilarityWorker({ settings, log, faultPoint }: WorkerOptions): Promise<RunningWorker> {
  const { redisUrl, prefix, leaseMs, stalledCheckMs, maxRows } = settings;
  const cacheDir = cacheFolder(settings.cacheDir);
  const queue = SIMILARITY_QUEUE;
  const server = { redisUrl, prefix, queue, log };
  const budgetBytes = await memoryBudget(settings);
  const executor = new ForkedExecutor({ kind: 'similarity', ...server, folder: collectionsFolder({ ...settings, cacheDir }), kernels: settings.kernels, threads: settings.threads || availableParallelism(), maxRows, budgetBytes, logLevel: settings.logLevel });
  const workerName = settings.workerName ?? defaultWorkerName(queue);
  const workerId = `${workerName}-${randomUUID().slice(0, 8)}`;
  const notes = new ExecutorNotes({ cacheDir, name: workerName, log });
  const opened = [executor, notes] as { stop(): Promise<void> }[];
  const keep = async <Part extends { stop(): Promise<void> }>(part: Promise<Part> | Part): Promise<Part> => {
    opened.push(await part);
    return part;
  };
  try {
    await notes.untilPredecessorsLeft();
    const early = executor.startEarly();
    const [announcer, serverNowMs, { recorder }] = await Promise.all([keep(RedisAnnouncer.connect(server)), serverClock(redisUrl), keep(serveMetrics(settings))]);
    const faults = faultPointsFrom(faultPoint, (signal) => process.kill(process.pid, signal));
    const meter = new LoadMeter();
    const source = new DrainableSource(await keep(new BullJobSource({
      ...server, leaseMs, stalledCheckMs, workerName, workerId, faults, quarantineOf: queue, isUnsafeAllowed: settings.unsafeServer === 'warn', brake: settings, onBrake: (reason) => recorder.claimingBraked(reason),
    })));
    const { device, precision, model } = await early;
    const presence = await keep(WorkerPresence.connect({
      ...server, workerId,
      facts: () => ({ ...meter.load(), device, precision, model, lanes: ['main'], isDrained: source.isDrained, host: hostname(), pid: process.pid, memoryBytes: meter.memoryBytes }),
    }));
    const fleet = await Fleet.connect({ redisUrl, prefix, queue, log });
    const watch = new FleetWatch({ read: () => fleet.read(), onView: (view) => followDrain(view, { workerId, source, log }), clock: systemClock, log });
    await keep({ stop: () => watch.stop().then(() => fleet.close()) });
    await watch.start();
    const pipeline = await keep(new Pipeline({
      source, announcer, executor, log, faults, serverNowMs, clock: systemClock, readJob: readSimilarityJob,
      limits: { ...settings, poolTokens: RUNS_IN_POOL * maxRows }, metrics: meter.tap(noting(recorder, notes, log)),
    }));
    const facts = await pipeline.start();
    await announcer.tellDims(WIDEST_RESULT);
    await presence.start();
    const janitor = await keep(new Janitor({ ...server, cpuQueue: SIMILARITY_CPU_QUEUE, everyMs: settings.janitorEveryMs, clock: systemClock, serverNowMs, onSwept: (findings) => recorder.janitorSwept(findings) }));
    janitor.start();
    log.info({ queue, device, budgetBytes }, 'worker ready');
    const stop = async (): Promise<void> => {
      await pipeline.stop();
      await Promise.all(opened.map((part) => part.stop()));
    };
    return { facts, failed: pipeline.failed, stop };
  } catch (error) {
    executor.kill('the worker did not start');
    await Promise.allSettled(opened.map((part) => part.stop()));
    throw error;
  }
}

/** What is left for this worker of the share that it and all others may use together. */
async function memoryBudget({ maxDeviceBytes, memoryFraction }: Pick<Settings, 'maxDeviceBytes' | 'memoryFraction'>): Promise<number> {
  const memory = await hostMemory().read();
  if (memory === undefined) return maxDeviceBytes ?? LEAST_BUDGET_BYTES;
  const left = memoryFraction * memory.totalBytes - (memory.totalBytes - memory.freeBytes);
  return Math.floor(Math.max(LEAST_BUDGET_BYTES, Math.min(left, maxDeviceBytes ?? Number.POSITIVE_INFINITY)));
}
