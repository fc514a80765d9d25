// A similarity worker in the process of a test: the real queue, pipeline and files, and an executor on whatever device
// the test gives it.

import { DEFAULT_PREFIX, SIMILARITY_CPU_QUEUE, SIMILARITY_QUEUE } from '@shoal/contract';
import {
  Pipeline,
  noLog,
  readSimilarityJob,
  systemClock,
  type ExecutorLink,
  type FromExecutor,
  type JobSource,
  type SimilarityOrder,
  type ToExecutor,
} from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { Residents, SimilarityExecutor, type SimilarityDevice } from '@shoal/core/similarity';
import { BullJobSource, LanesSource, RedisAnnouncer } from '@shoal/queue';
import { RedisPayloadStore } from '@shoal/queue/payload';

export interface LocalWorkerOptions {
  readonly redisUrl: string;
  readonly device: SimilarityDevice;
  /** For what is held in memory of the process. */
  readonly budgetBytes: number;
  /**
   * main: what does not fit goes to the CPU lane. cpu: serves that lane and no other. Left out: what does not fit
   * fails.
   */
  readonly lane?: 'main' | 'cpu';
}

export interface LocalWorker {
  readonly executor: LocalExecutor;
  stop(): Promise<void>;
}

/** `renew` puts another executor in its place, which has learned nothing. */
export class LocalExecutor implements ExecutorLink {
  residents: Residents;
  private readonly options: LocalWorkerOptions;
  private readonly store: RedisPayloadStore;
  private readonly listeners: ((message: FromExecutor) => void)[] = [];
  private executor: SimilarityExecutor;

  constructor(options: LocalWorkerOptions, store: RedisPayloadStore) {
    this.options = options;
    this.store = store;
    this.residents = new Residents(options.budgetBytes);
    this.executor = this.newExecutor();
  }

  async renew(): Promise<void> {
    await this.executor.stop();
    this.residents = new Residents(this.options.budgetBytes);
    this.executor = this.newExecutor();
  }

  async start(): Promise<Extract<FromExecutor, { kind: 'ready' }>> {
    return {
      kind: 'ready',
      model: 'similarity',
      dims: 0,
      maxTokens: 0,
      device: this.options.device.device,
      precision: 'fp32',
      pid: process.pid,
    };
  }

  send(message: ToExecutor<SimilarityOrder>): void {
    if (message.kind !== 'stop') this.executor.handle(message);
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.listeners.push(listener);
  }

  onLost(): void {}

  kill(): void {}

  stop(): Promise<void> {
    return this.executor.stop();
  }

  private newExecutor(): SimilarityExecutor {
    return new SimilarityExecutor({
      store: this.store,
      device: this.options.device,
      residents: this.residents,
      isLastLane: this.options.lane !== 'main',
      clock: systemClock,
      log: noLog,
      maxRows: 64,
      resultKey: (jobId) => jobId,
      faults: noFaults,
      send: (message) => queueMicrotask(() => this.listeners.forEach((listener) => listener(message))),
    });
  }
}

export async function startLocalWorker(options: LocalWorkerOptions): Promise<LocalWorker> {
  const common = { redisUrl: options.redisUrl, prefix: DEFAULT_PREFIX, queue: SIMILARITY_QUEUE, log: noLog };
  const [store, announcer] = await Promise.all([
    RedisPayloadStore.connect({ ...common, cpuQueue: SIMILARITY_CPU_QUEUE }),
    RedisAnnouncer.connect(common),
  ]);
  const executor = new LocalExecutor(options, store);
  const pipeline = new Pipeline({
    announcer,
    executor,
    source: sourceOf(options),
    clock: systemClock,
    serverNowMs: Date.now,
    log: noLog,
    faults: noFaults,
    readJob: readSimilarityJob,
    limits: { poolTokens: 256, executorTimeoutMs: 60_000, drainTimeoutMs: 5_000, claimTimeoutMs: 60_000 },
  });
  await pipeline.start();
  return {
    executor,
    stop: async () => {
      await pipeline.stop();
      await Promise.all([store.stop(), announcer.stop()]);
    },
  };
}

function sourceOf({ redisUrl, lane }: LocalWorkerOptions): JobSource {
  const common = {
    redisUrl,
    prefix: DEFAULT_PREFIX,
    queue: SIMILARITY_QUEUE,
    leaseMs: 5_000,
    stalledCheckMs: 1_000,
    log: noLog,
  };
  if (lane === 'main') return new BullJobSource({ ...common, handOverTo: SIMILARITY_CPU_QUEUE });
  if (lane === undefined) return new BullJobSource(common);
  const gate = { allows: () => 0, took: () => undefined, onChange: () => undefined };
  return new LanesSource({
    cpu: new BullJobSource({ ...common, queue: SIMILARITY_CPU_QUEUE }),
    main: new BullJobSource(common),
    gate,
  });
}
