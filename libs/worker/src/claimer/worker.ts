// One worker put together: the claimer's parts in this process, the executor beside it. A worker serves one model on
// one device; one for similarity jobs is similarity-worker.ts.

import { availableParallelism } from 'node:os';
import { cpuQueue, mainQueue } from '@shoal/contract';
import { cacheFolder, sizesOf } from '@shoal/core';
import { checkModelName, openModel } from '@shoal/models';
import { defaultWorkerName } from '@shoal/queue';
import { ForkedExecutor } from './forked-executor.ts';
import { startClaiming, type RunningWorker, type WorkerOptions } from './start-claiming.ts';

/**
 * Starts claiming. Throws what keeps it from that: CONFIG_INVALID, MODEL_*, QUEUE_UNREACHABLE, QUEUE_UNSAFE,
 * INFERENCE_FAILED.
 */
export async function startWorker(options: WorkerOptions): Promise<RunningWorker> {
  const { settings, log } = options;
  const { redisUrl, prefix } = settings;
  const cacheDir = cacheFolder(settings.cacheDir);
  checkModelName(settings.model); // a cache may hold models whose names are another model's queue
  const model = await openModel(settings.model, { cacheDir });
  const threads = settings.threads || availableParallelism();
  // nobody who asks for the model gets simulated vectors
  const served = settings.device.startsWith('sim:') ? `${model.name}-sim` : model.name;
  const server = { redisUrl, prefix, queue: mainQueue(served), log };
  const cpuLane = cpuQueue(served);
  const executor = new ForkedExecutor({
    ...server,
    device: settings.device,
    precision: settings.precision,
    encoder: settings.encoder,
    deviceSessions: settings.deviceSessions,
    cacheDir,
    threads,
    tokenizerThreads: settings.tokenizerThreads ?? defaultTokenizerThreads(),
    cpuQueue: cpuLane,
    model: model.name,
    served,
    maxTokens: settings.maxTokens,
    limits: settings,
    logLevel: settings.logLevel,
  });
  return startClaiming(options, {
    queue: server.queue,
    cpuQueue: cpuLane,
    executor,
    cacheDir,
    workerName: settings.workerName ?? defaultWorkerName(settings.device),
    limits: ({ device }) => ({ ...settings, ...sizesOf(settings, device) }),
    resultDims: ({ dims }) => dims,
    said: (facts) => ({ device: facts.device, precision: facts.precision, model: facts.model, threads }),
  });
}

/**
 * One for every four cores: a core tokenizes for about as many texts as a device of the size that comes with four cores
 * runs.
 */
function defaultTokenizerThreads(): number {
  return Math.min(8, Math.max(1, Math.floor(availableParallelism() / 4)));
}
