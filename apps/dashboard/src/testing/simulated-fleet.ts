// A fleet without devices for the dashboard's tests: workers that tell what workers tell and claim nothing, ten minutes of
// history behind them, and jobs in every state. The queue server is a real one.

import { Queue, Worker } from 'bullmq';
import { keySpace } from '@shoal/contract';
import { noLog, type HistoryStep, type WorkerFacts } from '@shoal/core';
import { WorkerPresence } from '@shoal/queue';
import type { TestServer } from '@shoal/queue/testing';

export const PREFIX = '{shoal}';
export const QUEUE = 'embed-minilm';
const GIGABYTE = 1e9;

export interface SimulatedWorker {
  readonly workerId: string;
  readonly queue?: string;
  readonly facts?: Partial<WorkerFacts>;
  /** Texts a second, by the step of ten seconds: 0 is the oldest of 60. */
  readonly rate?: (step: number) => number;
  /** What went wrong in the last step. */
  readonly events?: Readonly<Record<string, number>>;
  /** Seconds before now at which its history ends; it tells no more then. Left out: it lives. */
  readonly diedSecondsAgo?: number;
  /** Its last step says that it left in order. */
  readonly hasLeft?: boolean;
}

export class SimulatedFleet {
  private readonly server: TestServer;
  private readonly presences: WorkerPresence[] = [];
  private readonly queues: Queue[] = [];

  constructor(server: TestServer) {
    this.server = server;
  }

  async add(worker: SimulatedWorker): Promise<void> {
    const { workerId, queue = QUEUE, diedSecondsAgo } = worker;
    await this.tellHistory(worker);
    if (diedSecondsAgo !== undefined) return;
    const presence = await WorkerPresence.connect({
      redisUrl: this.server.url,
      prefix: PREFIX,
      queue,
      workerId,
      facts: () => factsOf(worker),
      log: noLog,
    });
    this.presences.push(presence);
    await presence.start();
  }

  queue(name = QUEUE): Queue {
    const queue = new Queue(name, { prefix: PREFIX, connection: { url: this.server.url } });
    this.queues.push(queue);
    return queue;
  }

  /** Fails the jobs that wait, with this reason. */
  async fail(name: string, jobs: number, reason: string): Promise<void> {
    let failed = 0;
    const all = Promise.withResolvers<void>();
    const worker = new Worker(
      name,
      async () => {
        throw new Error(reason);
      },
      { prefix: PREFIX, connection: { url: this.server.url } },
    );
    worker.on('failed', () => (++failed === jobs ? all.resolve() : undefined));
    await all.promise;
    await worker.close();
  }

  /** Everybody leaves in order. */
  async stop(): Promise<void> {
    await Promise.all([
      ...this.presences.splice(0).map((presence) => presence.stop()),
      ...this.queues.splice(0).map((queue) => queue.close()),
    ]);
  }

  private async tellHistory({
    workerId,
    queue = QUEUE,
    facts,
    rate,
    events = {},
    diedSecondsAgo = 0,
    hasLeft = false,
  }: SimulatedWorker): Promise<void> {
    if (rate === undefined) return;
    const [seconds] = (await this.server.command('TIME')) as [string];
    const endMs = 1_000 * (Number(seconds) - diedSecondsAgo);
    const { device, host } = factsOf({ workerId, facts: facts ?? {} });
    for (let at = 0; at < 60; at++) {
      const step = {
        queue,
        device,
        host,
        ...stepOf(rate(at)),
        ...(at === 59 ? { events, ...(hasLeft ? { isLast: true } : {}) } : {}),
      };
      const id = `${endMs - (59 - at) * 10_000}-0`;
      await this.server.command('XADD', keySpace(PREFIX).history(workerId), id, 'step', JSON.stringify(step));
    }
    await this.server.command('PEXPIRE', keySpace(PREFIX).history(workerId), 3_600_000);
  }
}

function factsOf({ facts }: Pick<SimulatedWorker, 'workerId' | 'facts'>): WorkerFacts {
  return {
    device: 'cuda:0',
    precision: 'fp16',
    model: 'minilm@c9745ed1d9f2',
    host: 'gpu-07',
    pid: 4242,
    version: '0.1.0',
    lanes: ['main'],
    isDrained: false,
    rates: { short: 900_000 },
    mix: { short: 1 },
    claims: 12,
    poolTokens: 48_000,
    tokensPerJob: 8_200,
    metricsUrl: 'http://127.0.0.1:9464',
    memoryBytes: 9 * GIGABYTE,
    budget: {
      maxPaddedTokens: 1_048_576,
      limitedBy: 'memory',
      source: 'corrected',
      device: { totalBytes: 141 * GIGABYTE, othersBytes: 20 * GIGABYTE, loadedBytes: 2 * GIGABYTE },
    },
    ...facts,
  };
}

function stepOf(rate: number): HistoryStep {
  const texts = Math.round(rate * 10);
  const runs = Math.ceil(texts / 4_096);
  return {
    v: 1,
    ms: 10_000,
    jobs: Math.round(texts / 256),
    texts,
    tokens: texts * 82,
    padded: Math.round(texts * 88),
    runs,
    busyMs: Math.min(10_000, Math.round(texts / 18)),
    batches: Array.from(
      { length: Math.min(8, runs) },
      (_, at) => [4_096, 96 + 8 * at, 300_000 + 9_000 * at, 21.4 + at] as const,
    ),
    ...(runs > 0
      ? {
          slowest: {
            batch: [4_096, 152, 363_000, 28.4] as const,
            jobs: 16,
            jobIds: ['docs~0001', 'docs~0002', 'docs~0003'],
          },
        }
      : {}),
    events: {},
  };
}
