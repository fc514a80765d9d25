// One worker put together: the claimer's parts in this process, the executor beside it. Constructs and connects; the
// story itself is core's Pipeline. A worker serves one model on one device; one for similarity jobs is
// similarity-worker.ts.

import { randomUUID } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { cpuQueue, mainQueue } from '@shoal/contract';
import {
  LoadMeter,
  Pipeline,
  cacheFolder,
  faultPointsFrom,
  noMetrics,
  sizesOf,
  systemClock,
  type FromExecutor,
  type Logger,
  type Metrics,
  type Settings,
} from '@shoal/core';
import { openModel } from '@shoal/models';
import { Janitor, RedisAnnouncer, defaultWorkerName, serverClock } from '@shoal/queue';
import { ExecutorNotes } from './executor-notes.ts';
import { ForkedExecutor } from './forked-executor.ts';
import { openLanes } from './worker-lanes.ts';

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

/**
 * Starts claiming. Throws what keeps it from that: CONFIG_INVALID, MODEL_*, QUEUE_UNREACHABLE, QUEUE_UNSAFE,
 * INFERENCE_FAILED.
 */
export async function startWorker({ settings, log, faultPoint }: WorkerOptions): Promise<RunningWorker> {
  const { redisUrl, prefix, leaseMs, stalledCheckMs } = settings;
  const cacheDir = cacheFolder(settings.cacheDir);
  const model = await openModel(settings.model, { cacheDir });
  const threads = settings.threads || availableParallelism();
  const served = settings.device.startsWith('sim:') ? `${model.name}-sim` : model.name; // nobody who asks for the model gets simulated vectors
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
  const workerName = settings.workerName ?? defaultWorkerName(settings.device);
  const notes = new ExecutorNotes({ cacheDir, name: workerName, log });
  const opened = [executor, notes] as { stop(): Promise<void> }[];
  const keep = async <Part extends { stop(): Promise<void> }>(part: Promise<Part>): Promise<Part> => {
    opened.push(await part);
    return part;
  };
  const close = async (): Promise<void> => void (await Promise.all(opened.map((part) => part.stop())));
  try {
    await notes.untilPredecessorsLeft();
    const early = executor.startEarly(); // the slowest part, beside everything else
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
          quarantineOf: server.queue,
          isUnsafeAllowed: settings.unsafeServer === 'warn',
          brake: settings,
          onBrake: (reason) => recorder.claimingBraked(reason),
        },
        settings,
        meter,
        faults,
        log,
        cpuQueue: cpuLane,
        workerId: `${workerName}-${randomUUID().slice(0, 8)}`,
        ready,
        metrics: recorder,
      }),
    );
    const { source } = lanes;
    opened.push(source);
    const pipeline = new Pipeline({
      source,
      announcer,
      executor,
      log,
      faults,
      serverNowMs,
      clock: systemClock,
      limits: { ...settings, ...sizesOf(settings, ready.device) },
      metrics: meter.tap(noting(recorder, notes, log)),
    });
    opened.push(pipeline);
    const facts = await pipeline.start();
    await announcer.tellDims(facts.dims);
    await lanes.show();
    const janitor = new Janitor({
      ...server,
      cpuQueue: cpuLane,
      everyMs: settings.janitorEveryMs,
      clock: systemClock,
      serverNowMs,
      onSwept: (findings) => recorder.janitorSwept(findings),
    });
    opened.push(janitor);
    janitor.start();
    log.info(
      { queue: server.queue, device: facts.device, precision: facts.precision, model: facts.model, threads },
      'worker ready',
    );
    const stop = async (): Promise<void> => {
      await pipeline.stop();
      await close();
    };
    return { facts, failed: pipeline.failed, stop };
  } catch (error) {
    executor.kill('the worker did not start');
    await Promise.allSettled(opened.map((part) => part.stop()));
    throw error;
  }
}

/** The pid of each executor is known where it is counted. */
export function noting(metrics: Metrics, notes: ExecutorNotes, log: Logger): Metrics {
  return {
    ...metrics,
    executorReady: (pid) => {
      metrics.executorReady(pid);
      notes.note(pid).catch((error: unknown) => log.warn({ err: error }, 'which executor is ours could not be noted'));
    },
  };
}

/** Loaded only when they are served: what it takes would delay the start. */
export async function serveMetrics({
  metricsHost: host,
  metricsPort: port,
}: Settings): Promise<{ readonly recorder: Metrics; stop(): Promise<void> }> {
  if (port === 0) return { recorder: noMetrics, stop: async () => undefined };
  const { serveWorkerMetrics } = await import('@shoal/ops');
  return serveWorkerMetrics({ host, port });
}

/**
 * One for every four cores: a core tokenizes for about as many texts as a device of the size that comes with four cores
 * runs.
 */
function defaultTokenizerThreads(): number {
  return Math.min(8, Math.max(1, Math.floor(availableParallelism() / 4)));
}
