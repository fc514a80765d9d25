// One worker for similarity jobs put together: the same claimer and lanes as for embeddings, on the queue `similarity`,
// and beside it an executor that holds collections instead of a model. Constructs and connects; decides nothing.

import { randomUUID } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { SIMILARITY_CPU_QUEUE, SIMILARITY_QUEUE } from '@shoal/contract';
import {
  LoadMeter,
  Pipeline,
  cacheFolder,
  faultPointsFrom,
  readSimilarityJob,
  sizesOf,
  systemClock,
  type Settings,
} from '@shoal/core';
import { Janitor, RedisAnnouncer, defaultWorkerName, serverClock } from '@shoal/queue';
import { collectionsFolder } from '@shoal/similarity';
import { ExecutorNotes } from './executor-notes.ts';
import { ForkedExecutor } from './forked-executor.ts';
import { hostMemory } from '../device/host-memory.ts';
import { openLanes } from './worker-lanes.ts';
import { noting, serveMetrics, type RunningWorker, type WorkerOptions } from './worker.ts';

/** Claims keep the queries of so many runs waiting: one runs, one is to go on with, the rest are on their way. */
const RUNS_IN_POOL = 4;
/**
 * Room for results is reserved by their producers in f32 values a query; no result of this queue is narrower than it
 * says.
 */
const WIDEST_RESULT = 2 ** 31;
const LEAST_BUDGET_BYTES = 1 << 26;

/** Starts claiming. Throws what keeps it from that: CONFIG_INVALID, QUEUE_UNREACHABLE, QUEUE_UNSAFE, SETUP_FAILED. */
export async function startSimilarityWorker({ settings, log, faultPoint }: WorkerOptions): Promise<RunningWorker> {
  const {
    redisUrl,
    prefix,
    leaseMs,
    stalledCheckMs,
    maxRows,
    device,
    kernels,
    smallOnCpu,
    cudaLibrary,
    gpuRetryMs,
    memoryFraction,
    maxDeviceBytes,
  } = settings;
  const cacheDir = cacheFolder(settings.cacheDir);
  const [queue, cpuQueue] = [SIMILARITY_QUEUE, SIMILARITY_CPU_QUEUE];
  const server = { redisUrl, prefix, queue, log };
  const budgetBytes = await memoryBudget(settings);
  const executor = new ForkedExecutor({
    kind: 'similarity',
    ...server,
    cpuQueue,
    folder: collectionsFolder({ ...settings, cacheDir }),
    cacheDir,
    device,
    kernels,
    smallOnCpu,
    cudaLibrary,
    gpuRetryMs,
    memoryFraction,
    maxDeviceBytes,
    threads: settings.threads || Math.min(1_024, availableParallelism()),
    maxRows,
    budgetBytes,
    logLevel: settings.logLevel,
  });
  const workerName = settings.workerName ?? defaultWorkerName(device === 'auto' ? queue : `${queue}-${device}`);
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
    const [announcer, serverNowMs, { recorder }] = await Promise.all([
      keep(RedisAnnouncer.connect(server)),
      serverClock(redisUrl),
      keep(serveMetrics(settings)),
    ]);
    const faults = faultPointsFrom(faultPoint, (signal) => process.kill(process.pid, signal));
    const meter = new LoadMeter();
    const ready = await early;
    const lanes = await keep(
      openLanes({
        source: {
          ...server,
          leaseMs,
          stalledCheckMs,
          workerName,
          quarantineOf: queue,
          isUnsafeAllowed: settings.unsafeServer === 'warn',
          brake: settings,
          onBrake: (reason) => recorder.claimingBraked(reason),
        },
        settings,
        meter,
        faults,
        log,
        cpuQueue,
        workerId,
        ready,
        metrics: recorder,
      }),
    );
    const { source } = lanes;
    opened.push(source);
    const pipeline = await keep(
      new Pipeline({
        source,
        announcer,
        executor,
        log,
        faults,
        serverNowMs,
        clock: systemClock,
        readJob: readSimilarityJob,
        limits: { ...settings, poolTokens: RUNS_IN_POOL * sizesOf(settings, ready.device).maxRows },
        metrics: meter.tap(noting(recorder, notes, log)),
      }),
    );
    const facts = await pipeline.start();
    await announcer.tellDims(WIDEST_RESULT);
    await lanes.show();
    const janitor = await keep(
      new Janitor({
        ...server,
        cpuQueue,
        everyMs: settings.janitorEveryMs,
        clock: systemClock,
        serverNowMs,
        onSwept: (findings) => recorder.janitorSwept(findings),
      }),
    );
    janitor.start();
    log.info({ queue, device: facts.device, budgetBytes }, 'worker ready');
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

/**
 * What is left for this worker of the share of the machine's memory that it and all others may use together.
 * `maxDeviceBytes` is about its own device.
 */
async function memoryBudget({
  device,
  maxDeviceBytes: given,
  memoryFraction,
}: Pick<Settings, 'device' | 'maxDeviceBytes' | 'memoryFraction'>): Promise<number> {
  const maxDeviceBytes = device === 'cpu' ? given : undefined;
  const memory = await hostMemory().read();
  if (memory === undefined) return maxDeviceBytes ?? LEAST_BUDGET_BYTES;
  const left = memoryFraction * memory.totalBytes - (memory.totalBytes - memory.freeBytes);
  return Math.floor(Math.max(LEAST_BUDGET_BYTES, Math.min(left, maxDeviceBytes ?? Number.POSITIVE_INFINITY)));
}
