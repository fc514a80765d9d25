// Who waits how long when others want much: the real worker on a device that takes 15 ms a run, a real queue server,
// jobs of 64 rows unless it says so. Each situation is held against the same tenant alone on the same worker, in the
// same run.
//
//   node --conditions=@shoal/source bench/queue/fairness.ts [--only tenants,plain,classes,poison] [--backlog 10000]
//       [--plain 2000] [--seconds 10] [--rounds 3] [--report]
//   … --soak --jobs 3000000 [--run-rows 36] [--run-ms 32]      jobs of one row, the queue never empty; a second tenant
//                                                              adds 40 now and then. 1,125 rows a second leave room on
//                                                              two cores; 15 ms a run on sixteen. What there is to
//                                                              expect without processes and a server:
//                                                              bench/queue/tenant-wait.ts
//
// tenants: A has a backlog, B adds 40 jobs; plain: the backlog is of plain BullMQ jobs. Bar: B within twice its time
// alone, median of the rounds. classes: bulk saturates the device, small interactive jobs of another process arrive at
// random. Bars, median of the rounds: p99 of these ≤ 3 batch times + 10 ms, and bulk keeps 70 % of its throughput.
// poison: every job of one tenant has a row for which the device has no memory, or that comes back as NaN; bar: the
// other tenant's p99 ≤ twice its own before, on a device that takes 4,400 tokens a millisecond. One JSON line, exit 1
// when a bar is missed. The full form takes about two minutes, the soak about fifteen. Wants a quiet machine.

import { availableParallelism, cpus } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { Queue } from 'bullmq';
import { keySpace } from '@shoal/contract';
import { median } from '@shoal/core/base';
import { openConnection, closeConnection } from '@shoal/queue';
import { readArguments } from '../rig/arguments.ts';
import { startClient } from '../rig/client-process.ts';
import { FIXED_DEVICE, Load, QUEUE, openRig, percentile, type Rig } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  backlog: { type: 'string', default: '10000' },
  plain: { type: 'string', default: '2000' },
  seconds: { type: 'string', default: '10' },
  rounds: { type: 'string', default: '3' },
  only: { type: 'string', default: 'tenants,plain,classes,poison' },
  soak: { type: 'boolean', default: false },
  jobs: { type: 'string', default: '3000000' },
  'run-rows': { type: 'string', default: '36' },
  'run-ms': { type: 'string', default: '32' },
  report: { type: 'boolean', default: false },
});
const B_JOBS = 40;
const POISON = 25_000;
const BATCH_MS = 15;
const rounds = Number(args.rounds);
/** One batch in the pool beside the two that are queued at the device: a deeper pool only makes newcomers wait. */
const DEVICE = { ...FIXED_DEVICE, SHOAL_POOL_TOKENS: '30000', SHOAL_MAX_QUEUED_BYTES: String(64e9) };
/**
 * What two cores can feed with room to spare, so that it is the device that bulk work saturates: 8,500 texts a second.
 */
const SMALL_DEVICE = { ...DEVICE, SHOAL_MAX_ROWS: '128', SHOAL_MAX_PADDED_TOKENS: '6144', SHOAL_POOL_TOKENS: '8000' };
/**
 * For the soak, whose jobs have one row each: the device has to be what is scarce, or it is the server's command queue
 * that B waits in, which no order can help.
 */
const SOAK_ROWS = Number(args['run-rows']);
const SOAK_DEVICE = {
  ...DEVICE,
  SHOAL_DEVICE: `sim:1000000+${args['run-ms']}`,
  SHOAL_MAX_ROWS: String(SOAK_ROWS),
  SHOAL_MAX_PADDED_TOKENS: String(48 * SOAK_ROWS),
  SHOAL_POOL_TOKENS: String(62 * SOAK_ROWS),
};
const NO_LIMITS = { maxQueuedRows: 1e9, maxQueuedBytes: 1e12, maxTenantShare: 1 };
const missed: string[] = [];

/** How long 40 jobs of this client take from now. */
async function timeOf(load: Load): Promise<number> {
  const startedMs = performance.now();
  await load.add(B_JOBS);
  await load.allEnded();
  return performance.now() - startedMs;
}

function expectAtMost(what: string, value: number, bar: number): number {
  const rounded = Math.round(value * 100) / 100;
  if (!(value <= bar)) missed.push(`${what} is ${rounded}, above ${Math.round(bar * 100) / 100}`);
  return rounded;
}

async function tenants(rig: Rig): Promise<object> {
  const b = await Load.connect({ url: rig.url, name: 'B', rows: 64, class: 'bulk', limits: NO_LIMITS });
  const a = await Load.connect({ url: rig.url, name: 'A', rows: 64, class: 'bulk', limits: NO_LIMITS });
  await timeOf(b); // warms, and checks the answers
  const alone: number[] = [];
  for (let round = 0; round < rounds; round++) alone.push(await timeOf(b));
  const backlog = Number(args.backlog);
  const beside: number[] = [];
  const adding = addAll(a, backlog);
  await adding;
  for (let round = 0; round < rounds; round++) {
    const served = a.ended.length;
    beside.push(await timeOf(b));
    while (a.waiting > 0 && a.ended.length < served + 150) await sleep(5); // what B may have before others again
  }
  const stillWaiting = a.waiting;
  await a.allEnded();
  await Promise.all([a.close(), b.close()]);
  if (stillWaiting === 0) missed.push('the backlog was gone before B was measured; make it larger');
  return {
    aloneMs: alone.map(Math.round),
    besideMs: beside.map(Math.round),
    ratio: expectAtMost('tenant B, times its time alone', median(beside) / median(alone), 2),
  };
}

async function addAll(load: Load, jobs: number): Promise<void> {
  for (let added = 0; added < jobs; added += 250) await load.add(Math.min(250, jobs - added));
}

async function plain(rig: Rig): Promise<object> {
  const b = await Load.connect({ url: rig.url, name: 'C', rows: 64, class: 'bulk', limits: NO_LIMITS });
  const connection = openConnection({ url: rig.url, name: 'bench-plain' });
  const queue = new Queue(QUEUE, { prefix: '{shoal}', connection });
  const alone: number[] = [];
  for (let round = 0; round < rounds; round++) alone.push(await timeOf(b));
  const texts = Array.from(
    { length: 64 },
    (_, i) => `plain text number ${i} of somebody who has never heard of fairness`,
  );
  const count = Number(args.plain);
  const beside: number[] = [];
  const left: number[] = [];
  for (let round = 0; round < rounds; round++) {
    for (let at = 0; at < count; at += 500)
      await queue.addBulk(
        Array.from({ length: Math.min(500, count - at) }, (_, i) => ({
          name: 'embed',
          data: { v: 1, texts },
          opts: { jobId: `plain-${round}-${at + i}`, ...(i % 2 === 0 ? { priority: 1 } : {}) },
        })),
      );
    beside.push(await timeOf(b));
    left.push(await queue.getJobCountByTypes('wait', 'prioritized'));
    while ((await queue.getJobCountByTypes('wait', 'prioritized', 'active')) > 0) await sleep(50);
  }
  if (left.includes(0)) missed.push('the plain jobs were gone before B was measured; make them more');
  const { failed = 0, completed = 0 } = await queue.getJobCounts('failed', 'completed');
  await Promise.all([b.close(), queue.close()]);
  await closeConnection(connection);
  if (failed > 0 || completed === 0) throw new Error(`${failed} plain jobs failed`);
  return {
    aloneMs: alone.map(Math.round),
    besideMs: beside.map(Math.round),
    plainJobsLeftThen: left,
    ratio: expectAtMost('B beside plain jobs, times its time alone', median(beside) / median(alone), 2),
  };
}

async function classes(rig: Rig): Promise<object> {
  const seconds = Number(args.seconds);
  const bulk = await Load.connect({ url: rig.url, name: 'bulk', rows: 64, class: 'bulk', limits: NO_LIMITS });
  const hurried = await startClient({ url: rig.url, name: 'hurried', rows: 4, limits: NO_LIMITS });
  const keep = keepWaiting(bulk, 400);
  const rate = async (work: Promise<unknown>): Promise<number> => {
    const [from, startedMs] = [bulk.ended.length, performance.now()];
    await work;
    return ((bulk.ended.length - from) * 64_000) / (performance.now() - startedMs);
  };
  await hurried.offer(30, 2);
  const alone = [await rate(sleep(seconds * 500))];
  const beside: number[] = [];
  const latencies: number[][] = [];
  for (let round = 0; round < rounds; round++) {
    beside.push(await rate(hurried.offer(30, seconds).then((ms) => latencies.push(ms))));
    alone.push(await rate(sleep(seconds * 500)));
  }
  await keep.stop();
  await Promise.all([bulk.close(), hurried.close()]);
  const share = median(beside) / Math.max(...alone);
  if (!(share >= 0.7)) missed.push(`bulk keeps ${Math.round(100 * share)} % of its throughput, less than 70`);
  const of = (part: number): number[] => latencies.map((round) => Math.round(percentile(round, part) * 10) / 10);
  return {
    bulkTextsPerSecond: { alone: alone.map(Math.round), beside: beside.map(Math.round) },
    bulkShare: Math.round(100 * share) / 100,
    interactive: latencies.flat().length,
    p50: of(0.5),
    p99: of(0.99),
    medianP99: expectAtMost('p99 of interactive jobs, ms', median(of(0.99)), 3 * BATCH_MS + 10),
  };
}

/** Keeps so many jobs open until it is stopped; they all end. */
function keepWaiting(load: Load, open: number): { stop(): Promise<void> } {
  const adding = { isOn: true };
  const loop = (async () => {
    while (adding.isOn) {
      if (load.waiting < open) await load.add(Math.max(1, open - load.waiting));
      else await sleep(2);
    }
    await load.allEnded();
  })();
  return {
    stop: () => {
      adding.isOn = false;
      return loop;
    },
  };
}

async function soak(rig: Rig): Promise<object> {
  const wanted = Number(args.jobs);
  const a = await Load.connect({ url: rig.url, name: 'A', rows: 1, class: 'bulk', limits: NO_LIMITS });
  const b = await Load.connect({ url: rig.url, name: 'B', rows: 1, class: 'bulk', limits: NO_LIMITS });
  await timeOf(b);
  const timesOfB = async (): Promise<number> => {
    const times: number[] = [];
    for (let round = 0; round < 9; round++) times.push(await timeOf(b));
    return median(times);
  };
  const aloneBefore = await timesOfB();
  const connection = openConnection({ url: rig.url, name: 'bench-soak' });
  const order = keySpace('{shoal}').order(QUEUE);
  const keep = keepWaiting(a, 6_000);
  await sleep(1_000);
  const first = Number(await connection.zscore(order, ''));
  const beside: number[] = [];
  let leastWaiting = Infinity;
  let nextAt = 0;
  while (a.ended.length < wanted) {
    leastWaiting = Math.min(
      leastWaiting,
      (await connection.zcard('{shoal}:' + QUEUE + ':prioritized')) +
        (await connection.llen('{shoal}:' + QUEUE + ':wait')),
    );
    if (a.ended.length >= nextAt) {
      beside.push(await timeOf(b));
      nextAt = a.ended.length + Math.max(2_000, wanted / 200);
      process.stderr.write(
        `${a.ended.length} jobs, B ${Math.round(beside.at(-1)!)} ms (alone ${Math.round(aloneBefore)})\n`,
      );
    }
    await sleep(100);
  }
  const last = Number(await connection.zscore(order, ''));
  await keep.stop();
  const aloneAfter = await timesOfB();
  const alone = Math.min(aloneBefore, aloneAfter); // whatever else the machine did, it is not to B's advantage
  await Promise.all([a.close(), b.close()]);
  await closeConnection(connection);
  if (leastWaiting === 0) missed.push('the queue was empty in between, so the order began anew');
  return {
    jobs: a.ended.length,
    leastWaiting,
    aloneMs: [aloneBefore, aloneAfter].map(Math.round),
    besideMs: { median: Math.round(median(beside)), worst: Math.round(Math.max(...beside)) },
    rounds: beside.length,
    // Scores of Shoal's own have 53 bits, so nothing is rebased; this is how much of them was used.
    rebased: 0,
    virtualTimeUsed: `${(((last - first) / 2 ** 53) * 100).toExponential(2)} %`,
    ratio: expectAtMost('B in the soak, times its time alone', median(beside) / alone, 2),
  };
}

/** What a tenant whose jobs cannot be run does to another's latency. */
async function poison(fate: 'refuse' | 'nan'): Promise<object> {
  const rig = await openRig({
    ...DEVICE,
    SHOAL_DEVICE: 'sim:4400',
    SHOAL_FAULT_TOKEN: `${POISON}:${fate}`,
    SHOAL_LOG_LEVEL: 'error',
  });
  try {
    const seconds = Number(args.seconds);
    const good = await Load.connect({ url: rig.url, name: 'good', rows: 16, class: 'bulk', limits: NO_LIMITS });
    const bad = await Load.connect({
      url: rig.url,
      name: 'bad',
      rows: 16,
      class: 'bulk',
      limits: NO_LIMITS,
      poison: POISON,
    });
    const p99 = async (): Promise<number> => {
      const from = good.ended.length;
      await good.offer(150, seconds);
      return percentile(
        good.ended.slice(from).map(({ ms }) => ms),
        0.99,
      );
    };
    await good.offer(50, 1);
    const before = await p99();
    const state = { isOn: true };
    const adding = (async () => {
      for (; state.isOn; await sleep(200)) await bad.add(1);
    })();
    const beside = await p99();
    state.isOn = false;
    await adding;
    await sleep(500);
    if (bad.ended.length > 0) throw new Error('a job that cannot be run came back');
    const failed = bad.failed;
    if (fate === 'nan' && failed === 0) throw new Error('jobs with NaN were not failed');
    await Promise.all([good.close(), bad.close()]);
    return {
      p99Before: Math.round(before),
      p99Beside: Math.round(beside),
      poisoned: bad.waiting + failed,
      failed,
      ratio: expectAtMost(`p99 beside jobs that meet ${fate}, times before`, beside / before, 2),
    };
  } finally {
    await rig.stop();
  }
}

async function withRig(
  measure: (rig: Rig) => Promise<object>,
  device: Readonly<Record<string, string>> = DEVICE,
): Promise<object> {
  const rig = await openRig(device);
  try {
    return await measure(rig);
  } finally {
    await rig.stop();
  }
}

const PARTS: Readonly<Record<string, () => Promise<object>>> = {
  tenants: () => withRig(tenants),
  plain: () => withRig(plain),
  classes: () => withRig(classes, SMALL_DEVICE),
  poison: async () => ({ outOfMemory: await poison('refuse'), nan: await poison('nan') }),
  soak: () => withRig(soak, SOAK_DEVICE),
};
const report: Record<string, object> = {};
for (const name of args.soak ? ['soak'] : args.only.split(',')) {
  const measure = PARTS[name];
  if (measure === undefined) throw new Error(`there is no part "${name}"; there are ${Object.keys(PARTS).join(', ')}`);
  report[name] = await measure();
  process.stderr.write(`${name}: ${JSON.stringify(report[name])}\n`);
}
process.stdout.write(
  `${JSON.stringify({ bench: 'fairness', cpu: cpus()[0]?.model, cores: availableParallelism(), ...report, missed })}\n`,
);
if (missed.length > 0 && !args.report) process.exitCode = 1;
