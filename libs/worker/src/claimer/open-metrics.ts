// What a worker tells of itself over HTTP: opened first, so that probes are answered while its executor starts. Loaded
// only where it is served.

import {
  noMetrics,
  systemClock,
  type FromExecutor,
  type LoadMeter,
  type Logger,
  type Metrics,
  type Settings,
} from '@shoal/core';
import { ServerWatch } from '@shoal/queue';
import { visibleDevice } from '../device/cuda-visibility.ts';
import { SHOAL_VERSION } from './shoal-version.ts';
import { WorkerStatus } from './worker-status.ts';

export interface OpenMetrics {
  readonly status: WorkerStatus;
  /** For the pipeline, behind `status.tap`. */
  readonly recorder: Metrics;
  /** http://127.0.0.1:9464; undefined: nowhere. */
  readonly url: string | undefined;
  /** Its executor is ready: who it is. */
  introduce(who: Introduced): void;
  stop(): Promise<void>;
}

interface Introduced {
  readonly workerName: string;
  readonly queue: string;
  readonly ready: Pick<Extract<FromExecutor, { kind: 'ready' }>, 'model' | 'device' | 'precision' | 'encoder'>;
}

/** Throws CONFIG_INVALID for a `metricsHost` that this machine has not. With `metricsPort` 0 nothing is served. */
export async function openMetrics(
  {
    redisUrl,
    prefix,
    metricsHost: host,
    metricsPort: port,
    httpHosts: hosts,
  }: Settings & { readonly redisUrl: string },
  meter: LoadMeter,
  log: Logger,
): Promise<OpenMetrics> {
  if (port === 0) {
    const status = new WorkerStatus({ clock: systemClock, meter, isServerUp: () => true });
    return { status, recorder: noMetrics, url: undefined, introduce: () => undefined, stop: async () => undefined };
  }
  const { serveWorkerMetrics } = await import('@shoal/ops');
  const server = ServerWatch.open({ redisUrl, prefix });
  try {
    const status = new WorkerStatus({ clock: systemClock, meter, isServerUp: () => server.isUp });
    const served = await serveWorkerMetrics({ host, hosts, port, server, status, version: SHOAL_VERSION, log });
    server.onRoundTrip((ms) => served.roundTrip(ms));
    return {
      status,
      recorder: served.recorder,
      url: served.url,
      introduce: (who) => served.introduce(identityOf(who)),
      stop: async () => void (await Promise.all([served.stop(), server.stop()])),
    };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

function identityOf({
  workerName,
  queue,
  ready,
}: Introduced): Parameters<Awaited<ReturnType<(typeof import('@shoal/ops'))['serveWorkerMetrics']>>['introduce']>[0] {
  const [model = '', revision = ''] = ready.model.split('@');
  const { device, precision, encoder } = ready;
  return { worker: workerName, queue, model, revision, device, precision, encoder, card: cardOf(device) };
}

/** As nvidia-smi knows it; undefined for what is no card of its. */
export function cardOf(device: string): string | undefined {
  const index = /^cuda:(\d+)/.exec(device)?.[1];
  if (index === undefined) return undefined;
  const visibility = visibleDevice(Number(index), process.env['CUDA_VISIBLE_DEVICES']);
  return 'devices' in visibility ? visibility.devices : undefined;
}
