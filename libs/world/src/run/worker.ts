// A worker's claimer as a process of a world: the product's parts put together as libs/worker's startClaiming does, with
// a simulated executor. When it cannot start or cannot go on its process ends, and whoever keeps it starts another.

import { Pipeline, noMetrics, systemClock } from '@shoal/core';
import { BullJobSource, Janitor, RedisAnnouncer, serverClock } from '@shoal/queue';
import type { Process } from '../time/world.ts';
import { SimulatedExecutor } from './executor.ts';
import { recordedSource } from './recorded.ts';
import { CPU_QUEUE, PREFIX, QUEUE, REDIS_URL, recorderOf, startAgain, type Site } from './site.ts';

/** From now on there is such a worker, whoever dies, until the run is over. */
export function keepWorker(site: Site, index: number): void {
  const { world, plan, targets } = site;
  const name = `worker ${index}` as const;
  const process = world.newProcess(name, plan.workers[index]!);
  targets.set(name, process);
  process.onDeath.push(() => startAgain(site, name, () => keepWorker(site, index)));
  world.start(process, async () => {
    try {
      await claim(site, process, index);
    } catch (error) {
      site.log.error({ err: error, worker: index }, 'worker ended');
    }
    world.kill(process);
  });
}

/** Ends when the worker cannot go on. */
async function claim(site: Site, process: Process, index: number): Promise<void> {
  const { log, plan, faults, world } = site;
  const server = { redisUrl: REDIS_URL, prefix: PREFIX, queue: QUEUE, log };
  const [announcer, serverNowMs] = await Promise.all([RedisAnnouncer.connect(server), serverClock(REDIS_URL)]);
  const source = new BullJobSource({
    ...server,
    leaseMs: plan.leaseMs,
    stalledCheckMs: 1_000,
    workerName: `worker-${index}`,
    quarantineOf: QUEUE,
    newestVersion: 2,
    onServerTime: (serverMs) => serverNowMs.heard(serverMs),
    serverNowMs,
    faults,
  });
  const pipeline = new Pipeline({
    source: recordedSource(source, recorderOf(site, process), () => world.nowMs),
    announcer,
    executor: new SimulatedExecutor(site, process, `executor ${index}`),
    log,
    faults,
    metrics: noMetrics,
    clock: systemClock,
    serverNowMs,
    limits: { poolTokens: 256, executorTimeoutMs: 10_000, drainTimeoutMs: 5_000, claimTimeoutMs: 60_000 },
  });
  await pipeline.start();
  const sweeps = { everyMs: 30_000, keepMs: 0, clock: systemClock, serverNowMs };
  new Janitor({ ...server, cpuQueue: CPU_QUEUE, ...sweeps }).start();
  await pipeline.failed;
}
