// One worker for similarity jobs put together: the same claimer and lanes as for embeddings, on the queue `similarity`,
// and beside it an executor that holds collections instead of a model. Constructs and connects; decides nothing.
//
// Why: docs/decisions/similarity-cpu.md#a-similarity-worker-is-a-worker-of-its-own-kind

import { availableParallelism } from 'node:os';
import { SIMILARITY_CPU_QUEUE, SIMILARITY_JOB_VERSIONS, SIMILARITY_QUEUE } from '@shoal/contract';
import { cacheFolder, readSimilarityJob, sizesOf, type Settings } from '@shoal/core';
import { defaultWorkerName } from '@shoal/queue';
import { collectionsFolder } from '@shoal/similarity';
import { CollectionsTold } from './collections-told.ts';
import { ForkedExecutor } from './forked-executor.ts';
import { hostMemory } from '../device/host-memory.ts';
import { startClaiming, type RunningWorker, type WorkerOptions } from './start-claiming.ts';

/** Claims keep the queries of so many runs waiting: one runs, one is to go on with, the rest are on their way. */
const RUNS_IN_POOL = 4;
/**
 * Room for results is reserved by their producers in f32 values a query; no result of this queue is narrower than it
 * says.
 */
const WIDEST_RESULT = 2 ** 31;
const LEAST_BUDGET_BYTES = 1 << 26;

/** Starts claiming. Throws what keeps it from that: CONFIG_INVALID, QUEUE_UNREACHABLE, QUEUE_UNSAFE, SETUP_FAILED. */
export async function startSimilarityWorker(options: WorkerOptions): Promise<RunningWorker> {
  const { settings, log } = options;
  const { redisUrl, prefix, device, kernels, smallOnCpu, cudaLibrary } = settings;
  const cacheDir = cacheFolder(settings.cacheDir);
  const [queue, cpuQueue] = [SIMILARITY_QUEUE, SIMILARITY_CPU_QUEUE];
  const server = { redisUrl, prefix, queue, log };
  const folder = collectionsFolder({ ...settings, cacheDir });
  const budgetBytes = await memoryBudget(settings);
  const workerName = settings.workerName ?? defaultWorkerName(device === 'auto' ? queue : `${queue}-${device}`);
  options.sayWho?.({ worker: workerName, queue });
  const executor = new ForkedExecutor({
    kind: 'similarity',
    ...server,
    workerName,
    cpuQueue,
    folder,
    cacheDir,
    device,
    kernels,
    smallOnCpu,
    cudaLibrary,
    gpuRetryMs: settings.gpuRetryMs,
    memoryFraction: settings.memoryFraction,
    maxDeviceBytes: settings.maxDeviceBytes,
    threads: settings.threads || Math.min(1_024, availableParallelism()),
    maxRows: settings.maxRows,
    budgetBytes,
    logLevel: settings.logLevel,
    logFormat: settings.logFormat,
  });
  return startClaiming(options, {
    queue,
    cpuQueue,
    executor,
    cacheDir,
    workerName,
    limits: (ready) => ({ ...settings, poolTokens: RUNS_IN_POOL * sizesOf(settings, ready.device).maxRows }),
    resultDims: () => WIDEST_RESULT,
    said: (facts) => ({ device: facts.device, budgetBytes }),
    readJob: readSimilarityJob,
    jobVersion: Math.max(...SIMILARITY_JOB_VERSIONS),
    besides: new CollectionsTold(folder, log),
  });
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
