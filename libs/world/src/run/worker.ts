// A worker's claimer as a process of a world: the product's parts put together as libs/worker's startClaiming does, with
// a simulated executor. When it cannot start or cannot go on its process ends, and whoever keeps it starts another.

import { setTimeout as sleep } from 'node:timers/promises';
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
  process.onDeath.push(() => {
    site.endings.delete(process);
    site.leaving.delete(process);
  });
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

/** A worker that was told to end and is not ready leaves at once what it began; libs/ops' service-main.ts. */
const GIVE_UP_MS = 5_000;
const DRAIN_MS = 5_000;
/**
 * Twice the drain timeout, announcements, and what the source writes down in the end; it may stand still meanwhile as
 * well.
 */
const MOST_END_MS = 60_000;

/** Resolves when the worker is told to end; it is not to take for ever then. */
function toldToEnd(site: Site, process: Process): Promise<void> {
  const { world, leaving, endings, problems } = site;
  return new Promise((resolve) =>
    endings.set(process, () => {
      if (leaving.has(process)) return;
      leaving.add(process);
      world.after(process, MOST_END_MS, 'should have ended', () => {
        problems.push(`endless-end: ${process.name} was told to end and has not, for ${MOST_END_MS / 1_000} s`);
        world.kill(process);
      });
      resolve();
    }),
  );
}

/** Ends when the worker cannot go on, or was told to end. */
async function claim(site: Site, process: Process, index: number): Promise<void> {
  const { log, plan, faults, world } = site;
  const server = { redisUrl: REDIS_URL, prefix: PREFIX, queue: QUEUE, log };
  const told = toldToEnd(site, process);
  let isReady = false;
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
    limits: { poolTokens: 256, executorTimeoutMs: 10_000, drainTimeoutMs: DRAIN_MS, claimTimeoutMs: 60_000 },
  });
  void told.then(() => sleep(GIVE_UP_MS)).then(() => (isReady ? undefined : world.kill(process)));
  await pipeline.start();
  isReady = true;
  const sweeps = { everyMs: 30_000, keepMs: 0, clock: systemClock, serverNowMs };
  const janitor = new Janitor({ ...server, cpuQueue: CPU_QUEUE, ...sweeps });
  janitor.start();
  await Promise.race([pipeline.failed, told]);
  await pipeline.stop();
  await Promise.all([janitor.stop(), announcer.stop()]);
}
