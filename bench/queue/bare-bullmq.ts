// What BullMQ alone carries here, as a measure for queue-rates.ts: the same arrivals, a worker that takes jobs in
// bursts, sleeps 15 ms for a batch, writes the results as binary keys and completes the jobs. No admission, no order,
// no checks, no lease at the commit, no second process, and nobody reads a result: what is left is the server, the
// client that adds, and BullMQ's scripts.
//
//   node --conditions=@shoal/source bench/queue/bare-bullmq.ts [--rates 160x64,800x64,1250x8,5000x1] [--seconds 15]
//   [--warm 5]
//
// Latency is from when a job was due to when BullMQ has completed it. Prints a table and one JSON line; no bars.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { availableParallelism, cpus } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Queue, Worker, type Job } from 'bullmq';
import { openConnection } from '@shoal/queue';
import { tuning } from '@shoal/private-server';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { processCpuMs } from '../rig/processes.ts';
import { percentile } from '../rig/rig.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  role: { type: 'string', default: 'client' },
  url: { type: 'string', default: '' },
  rates: { type: 'string', default: '160x64,800x64,1250x8,5000x1' },
  seconds: { type: 'string', default: '15' },
  warm: { type: 'string', default: '5' },
});
const QUEUE = 'bare';
const BATCH_MS = 15;
const BATCHES_IN_FLIGHT = 3;
const MOST_JOBS = 512;
const VECTOR_BYTES = 384 * 4;
/** About what the token ids of a short text take. */
const TEXT_BYTES = 56;

interface BareData {
  readonly dueMs: number;
  readonly rows: number;
  readonly ids: string;
}

// ---- the worker's process ---------------------------------------------------------------------------------------

async function work(): Promise<never> {
  const connection = openConnection({ url: args.url, name: 'bare-worker' });
  const worker = new Worker<BareData>(QUEUE, null, {
    connection,
    autorun: false,
    lockDuration: 60_000,
    removeOnComplete: { count: 1_000 },
  });
  worker.on('error', () => undefined);
  await worker.waitUntilReady();
  let tokens = 0;
  let ended: number[] = [];
  process.on('message', () => {
    process.send?.(ended);
    ended = [];
  });
  const take = async (block: boolean): Promise<{ job: Job<BareData>; token: string } | undefined> => {
    const token = `t${tokens++}`;
    const job: Job<BareData> | undefined = await worker.getNextJob(token, { block });
    return job === undefined ? undefined : { job, token };
  };
  const run = async (batch: readonly { job: Job<BareData>; token: string }[]): Promise<void> => {
    await sleep(BATCH_MS);
    const pipeline = connection.pipeline();
    for (const { job } of batch)
      pipeline.set(`{bare}:out:${job.id}`, Buffer.alloc(job.data.rows * VECTOR_BYTES, 7), 'EX', 30);
    await pipeline.exec();
    await Promise.all(batch.map(({ job, token }) => job.moveToCompleted({ key: job.id }, token, false)));
    for (const { job } of batch) ended.push(Date.now() - job.data.dueMs);
  };
  const running = new Set<Promise<void>>();
  process.send?.('ready');
  for (;;) {
    if (running.size >= BATCHES_IN_FLIGHT) await Promise.race(running);
    const first = await take(true);
    const batch = first === undefined ? [] : [first];
    for (let size = 8; batch.length > 0 && batch.length < MOST_JOBS; size *= 4) {
      const got = (await Promise.all(Array.from({ length: size }, () => take(false)))).filter(
        (one) => one !== undefined,
      );
      batch.push(...got);
      if (got.length < size) break;
    }
    if (batch.length === 0) continue;
    const ran = run(batch).finally(() => running.delete(ran));
    running.add(ran);
  }
}

// ---- the client's process ---------------------------------------------------------------------------------------

async function offer(queue: Queue, jobsPerSecond: number, rows: number, seconds: number): Promise<number> {
  const random = randomFrom(7);
  const ids = 'x'.repeat(rows * TEXT_BYTES);
  const adding = new Set<Promise<unknown>>();
  const startMs = Date.now();
  let added = 0;
  for (let dueMs = startMs; dueMs < startMs + seconds * 1_000; await sleep(4)) {
    const jobs: { name: string; data: BareData }[] = [];
    for (const nowMs = Date.now(); dueMs <= nowMs; dueMs -= (Math.log(1 - random()) * 1_000) / jobsPerSecond)
      jobs.push({ name: 'bare', data: { dueMs, rows, ids } });
    if (jobs.length === 0) continue;
    added += jobs.length;
    const call = queue.addBulk(jobs).finally(() => adding.delete(call));
    adding.add(call);
  }
  await Promise.all(adding);
  return added;
}

async function endedOf(worker: ChildProcess, count: number): Promise<number[]> {
  const ended: number[] = [];
  for (; ended.length < count; await sleep(5)) {
    worker.send('report');
    const [fresh] = (await once(worker, 'message')) as [number[]];
    ended.push(...fresh);
  }
  return ended;
}

async function measure(rate: string): Promise<object> {
  const [jobs = 0, rows = 0] = rate.split('x').map(Number);
  const server = await startTestServer({ appendFsync: 'everysec', args: tuning() });
  const worker = fork(fileURLToPath(import.meta.url), ['--role', 'worker', '--url', server.url], {
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  try {
    await once(worker, 'message');
    const queue = new Queue(QUEUE, {
      connection: openConnection({ url: server.url, name: 'bare-client' }),
      streams: { events: { maxLen: 100 } },
    });
    await endedOf(worker, await offer(queue, jobs, rows, Number(args.warm)));
    const before = { server: processCpuMs(server.pid), worker: processCpuMs(worker.pid!) };
    const startedMs = performance.now();
    const ended = await endedOf(worker, await offer(queue, jobs, rows, Number(args.seconds)));
    const ms = performance.now() - startedMs;
    const percent = (part: keyof typeof before, pid: number): number =>
      Math.round((100 * (processCpuMs(pid) - before[part])) / ms);
    const row = {
      rate,
      textsPerSecond: Math.round((ended.length * rows * 1_000) / ms),
      p50: percentile(ended, 0.5),
      p99: percentile(ended, 0.99),
      cpu: { server: percent('server', server.pid), worker: percent('worker', worker.pid!) },
      serverMicrosPerJob: Math.round((1_000 * (processCpuMs(server.pid) - before.server)) / ended.length),
    };
    process.stderr.write(
      `${rate.padEnd(12)} ${row.textsPerSecond} texts/s · ${row.p50}/${row.p99} ms · server ${row.cpu.server} ` +
        `% · worker ${row.cpu.worker} %\n`,
    );
    return row;
  } finally {
    worker.kill('SIGKILL');
    await server.stop();
  }
}

if (args.role === 'worker') await work();
const rows: object[] = [];
for (const rate of args.rates.split(',')) rows.push(await measure(rate));
process.stdout.write(
  `${JSON.stringify({ bench: 'bare-bullmq', cpu: cpus()[0]?.model, cores: availableParallelism(), rows })}\n`,
);
process.exit(0);
