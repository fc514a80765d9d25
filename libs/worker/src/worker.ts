// One worker put together: the claimer's parts in this process, the executor beside it. Constructs and connects; the story
// itself is core's Pipeline. A worker serves one model on one device.

import { availableParallelism } from 'node:os';
import {
  Pipeline, ShoalError, cacheFolder, faultPointsFrom, mainQueue, systemClock, type FromExecutor, type Logger, type Settings,
} from '@shoal/core';
import { openModel } from '@shoal/models';
import { BullJobSource, WorkerPresence, serverClock } from '@shoal/queue';
import { RedisAnnouncer } from '@shoal/queue/payload';
import { ForkedExecutor } from './forked-executor.ts';

export interface WorkerOptions {
  /** `redisUrl` is settled by now: a worker does not start servers. */
  readonly settings: Settings & { readonly redisUrl: string };
  readonly log: Logger;
  /** For tests: where this process is to die, see core's FaultPoints. */
  readonly faultPoint?: string | undefined;
}

export interface RunningWorker {
  readonly facts: Extract<FromExecutor, { kind: 'ready' }>;
  /** Rejects when the worker cannot go on; never resolves. */
  readonly failed: Promise<never>;
  /** Drains and leaves nothing running. Safe to call twice. */
  stop(): Promise<void>;
}

/** Starts claiming. Throws what keeps it from that: CONFIG_INVALID, MODEL_*, QUEUE_UNREACHABLE, QUEUE_UNSAFE, INFERENCE_FAILED. */
export async function startWorker({ settings, log, faultPoint }: WorkerOptions): Promise<RunningWorker> {
  const { redisUrl, prefix, leaseMs, stalledCheckMs } = settings;
  chooseDevice(settings, log);
  const cacheDir = cacheFolder(settings.cacheDir);
  const model = await openModel(settings.model, { cacheDir });
  const queue = mainQueue(model.name);
  const source = new BullJobSource({ redisUrl, prefix, queue, leaseMs, stalledCheckMs, log });
  const announcer = await RedisAnnouncer.connect({ redisUrl, prefix, queue, log });
  const clock = await serverClock(redisUrl);
  const executor = new ForkedExecutor({
    redisUrl, prefix, queue, cacheDir,
    lane: queue,
    model: settings.model,
    maxTokens: settings.maxTokens,
    threads: settings.threads || availableParallelism(),
    limits: settings,
    logLevel: settings.logLevel,
  });
  const faults = faultPointsFrom(faultPoint, (signal) => process.kill(process.pid, signal));
  const pipeline = new Pipeline({ source, announcer, executor, log, faults, clock: systemClock, serverNowMs: clock, limits: settings });
  const presence = await WorkerPresence.connect({ redisUrl, prefix, queue, log });
  const stop = async (): Promise<void> => {
    await pipeline.stop();
    await Promise.all([presence.stop(), announcer.stop(), source.stop(), executor.stop()]);
  };
  try {
    const facts = await pipeline.start();
    await presence.start();
    log.info({ queue, device: facts.device, precision: facts.precision, model: facts.model, threads: settings.threads || availableParallelism() }, 'worker ready');
    return { facts, failed: pipeline.failed, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** The CPU is all this version can run on; a GPU label is refused rather than served by something else. */
function chooseDevice({ device }: Settings, log: Logger): void {
  if (device.startsWith('gpu')) {
    throw new ShoalError('CONFIG_INVALID', `device ${device} was asked for, but this version of Shoal has no GPU execution provider; start the worker with --device cpu`, { device });
  }
  if (device === 'auto') log.info({ device: 'cpu' }, 'no GPU execution provider in this version, using the CPU');
}
