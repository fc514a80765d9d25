// One worker put together: the claimer's parts in this process, the executor beside it. A worker serves one model on
// one device; one for similarity jobs is similarity-worker.ts.

import { realpath } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { EMBED_JOB_VERSIONS, MAX_ROWS_PER_JOB, ShoalError, cpuLaneOf, partsQueue, queueOf } from '@shoal/contract';
import { READ_JOBS, sizesOf, storeFolders, type Settings } from '@shoal/core';
import { checkModelName, isHubName, openModel, type Canary, type StoredModel } from '@shoal/models';
import { defaultWorkerName, isSimulated, payloadSetOf, type QueueService } from '@shoal/queue';
import { proveModel } from '../device/prove-model.ts';
import type { ExecutorSettings } from '../executor/executor-settings.ts';
import { ForkedExecutor } from './forked-executor.ts';
import { startClaiming, type RunningWorker, type WorkerOptions } from './start-claiming.ts';

/**
 * Starts claiming. Throws what keeps it from that: CONFIG_INVALID, MODEL_*, QUEUE_UNREACHABLE, QUEUE_UNSAFE,
 * INFERENCE_FAILED.
 */
export async function startWorker(options: WorkerOptions): Promise<RunningWorker> {
  const { settings, log } = options;
  const { redisUrl, prefix } = settings;
  const folders = storeFolders(settings);
  const { cacheDir } = folders;
  const prove = (brought: StoredModel): Promise<Canary> => proveModel(brought, { cacheDir });
  // a cache may hold models whose names are another model's queue
  if (!isHubName(settings.model)) checkModelName(settings.model);
  const model = await openModel(settings.model, { ...folders, prove });
  const threads = settings.threads || availableParallelism();
  const { served, service } = serviceOf(settings, model.name);
  const server = { redisUrl, prefix, queue: queueOf({ name: served, kind: model.kind }), log };
  const cpuLane = cpuLaneOf(server.queue);
  const parts = partsOf(settings, model, served);
  const workerName = settings.workerName ?? defaultWorkerName(settings.device);
  options.sayWho?.({ worker: workerName, queue: server.queue });
  const executor = new ForkedExecutor({
    ...server,
    workerName,
    device: settings.device,
    precision: settings.precision,
    encoder: settings.encoder,
    deviceSessions: settings.deviceSessions,
    ...folders,
    threads,
    tokenizerThreads: settings.tokenizerThreads ?? defaultTokenizerThreads(),
    cpuQueue: cpuLane,
    parts,
    payloadServers: model.kind === 'embedder' ? settings.payloadServers : undefined,
    model: model.name,
    served,
    maxTokens: settings.maxTokens,
    limits: settings,
    logLevel: settings.logLevel,
    logFormat: settings.logFormat,
  });
  const running = await startClaiming(options, {
    queue: server.queue,
    service,
    cpuQueue: cpuLane,
    partsQueue: parts?.queue,
    partFolders: parts && (await toldFolders(parts.folders)),
    executor,
    cacheDir,
    workerName,
    limits: ({ device }) => ({ ...settings, ...sizesOf(settings, device) }),
    resultDims: ({ dims }) => dims,
    readJob: READ_JOBS[model.kind],
    jobVersion: Math.max(...EMBED_JOB_VERSIONS),
    maxJobRows: MAX_ROWS_PER_JOB,
    helps: true,
    payloads:
      settings.payloadServers === undefined || model.kind !== 'embedder'
        ? undefined
        : payloadSetOf(settings.payloadServers),
    said: (facts) => ({ device: facts.device, precision: facts.precision, model: facts.model, threads }),
  });
  if (service === 'simulation')
    log.warn(
      { queue: server.queue, device: settings.device },
      'A TRIAL: this worker serves the queue of a model, and its vectors are not those of the model (simServes)',
    );
  return running;
}

/**
 * Under which name the results of a worker go, and as what it serves the queue. Nobody who asks for a model gets
 * simulated vectors, but where a trial wants it.
 */
function serviceOf(
  { device, simServes }: Pick<Settings, 'device' | 'simServes'>,
  model: string,
): { readonly served: string; readonly service: QueueService | undefined } {
  if (!isSimulated(device)) {
    if (simServes === 'itself') return { served: model, service: 'model' };
    throw new ShoalError(
      'CONFIG_INVALID',
      `simServes = "model" is for simulated devices, and the device is ${device}: a worker would compute vectors ` +
        'where a trial was asked for. Give --device sim:8000, or take simServes (SHOAL_SIM_SERVES) away',
    );
  }
  return simServes === 'model'
    ? { served: model, service: 'simulation' }
    : { served: `${model}-sim`, service: undefined };
}

/** The lane of parts and the folders of this worker, where it takes them. */
function partsOf(
  { partFolders }: Pick<Settings, 'partFolders'>,
  { kind }: StoredModel,
  served: string,
): ExecutorSettings['parts'] {
  if (partFolders === undefined || kind !== 'embedder') return undefined;
  return { queue: partsQueue(served), folders: partFolders.split(',').map((folder) => folder.trim()) };
}

/** What is told every two seconds stays small. */
const MOST_TOLD_FOLDERS = 16;
const MOST_TOLD_CHARACTERS = 2_048;

/** Each as it was given and as links lead, so that whoever asks need not know which is which; undefined: too many. */
async function toldFolders(folders: readonly string[]): Promise<readonly string[] | undefined> {
  const real = await Promise.all(folders.map((folder) => realpath(folder).catch(() => folder)));
  const told = [...new Set([...folders, ...real])];
  const isSmall = told.length <= MOST_TOLD_FOLDERS && told.join().length <= MOST_TOLD_CHARACTERS;
  return isSmall ? told : undefined;
}

/**
 * One for every four cores: a core tokenizes for about as many texts as a device of the size that comes with four cores
 * runs.
 */
function defaultTokenizerThreads(): number {
  return Math.min(8, Math.max(1, Math.floor(availableParallelism() / 4)));
}
