// What order and admission cost the queue server, in microseconds of its CPU a job, beside what adding, claiming and
// completing the same jobs costs it: JobProducer and BullJobSource as they are, without an executor. The steps are
// measured one after the other on the same jobs, so that each is seen alone.
//
//   node --conditions=@shoal/source bench/queue/order-cost.ts [--jobs 20000] [--rounds 3]
//
// Prints one JSON line. Takes about 20 s a round. CPU times differ between machines; the shares hardly do.

import { cpus } from 'node:os';
import { encodeTokens, keySpace, parseJob } from '@shoal/contract';
import { median } from '@shoal/core/base';
import {
  Admission,
  BullJobSource,
  JobProducer,
  RedisAnnouncer,
  closeConnection,
  openConnection,
  orderWaiting,
  releaseAdmission,
  type NewJob,
} from '@shoal/queue';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';

const args = readArguments(import.meta.url, {
  jobs: { type: 'string', default: '20000' },
  rounds: { type: 'string', default: '3' },
});
const count = Number(args.jobs);
const QUEUE = 'embed-cost';
const PREFIX = '{shoal}';
const quiet = { debug() {}, info() {}, warn() {}, error() {} };

const server = await startTestServer();
const connection = openConnection({ url: server.url, name: 'bench' });
const micros = async (): Promise<number> => {
  const text = String(await server.command('INFO', 'cpu'));
  return 1e6 * (Number(/used_cpu_sys:([\d.]+)/.exec(text)?.[1]) + Number(/used_cpu_user:([\d.]+)/.exec(text)?.[1]));
};

async function costOf(work: () => Promise<unknown>): Promise<number> {
  const before = await micros();
  await work();
  return ((await micros()) - before) / count;
}

function inParts<Item>(items: readonly Item[], size: number): Item[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, at) => items.slice(at * size, (at + 1) * size));
}

async function round(): Promise<Record<string, number>> {
  await connection.flushall();
  const input = encodeTokens(Array.from({ length: 64 }, () => Uint16Array.from({ length: 60 }, (_, i) => i)));
  const jobs = Array.from({ length: count }, (_, i): NewJob => ({
    jobId: `job-${i}`,
    input,
    data: {
      v: 1,
      fingerprint: '00000000000000aa',
      tenant: `tenant-${i % 5}`,
      class: 'bulk',
      reply: '{shoal}:reply:bench',
      input: { form: 'tokens', rows: 64, tokens: 3_840, tokenizer: '0123456789abcdef' },
    },
  }));
  const limits = { maxQueuedRows: 1e9, maxQueuedBytes: 1e12, maxTenantShare: 1 };
  const producer = await JobProducer.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE, limits });
  const door = new Admission(connection, { prefix: PREFIX, queue: QUEUE, caller: 'bench', limits });
  const wanted = jobs.map((job) => ({ job: parseJob(job.jobId, 'embed', job.data), inputBytes: input.length }));
  const cost: Record<string, number> = {};
  cost['reserve'] = await costOf(async () => {
    for (const part of inParts(wanted, 50)) await door.admit(part);
  });
  cost['add'] = await costOf(async () => {
    // each job has its reservation; looking for it again is a part of this
    for (const part of inParts(jobs, 50)) await producer.add(part);
  });
  cost['order'] = await costOf(async () => {
    while ((await orderWaiting(connection, { prefix: PREFIX, queue: QUEUE, mostJobs: 32 })).unplaced > 0);
  });
  const source = new BullJobSource({
    redisUrl: server.url,
    prefix: PREFIX,
    queue: QUEUE,
    leaseMs: 600_000,
    stalledCheckMs: 600_000,
    log: quiet,
  });
  await source.start();
  const value = {
    v: 1,
    key: keySpace(PREFIX).output(QUEUE, 'job-0'),
    model: 'cost@1',
    rows: 64,
    dims: 384,
    dtype: 'f32',
    device: 'cpu',
    precision: 'fp32',
    tokens: 3_840,
    truncated: 0,
    splits: 0,
    ms: { queued: 1, run: 1 },
  } as const;
  cost['claim and complete'] = await costOf(async () => {
    for (let done = 0; done < count;) {
      const claims = await source.claim(Math.min(256, count - done));
      await Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value })));
      done += claims.length;
    }
  });
  const announcer = await RedisAnnouncer.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE, log: quiet });
  cost['announce, with giving room back'] = await costOf(async () => {
    for (const part of inParts(jobs, 16))
      await announcer.announce(
        part.map(({ jobId }) => ({
          jobId,
          outcome: 'completed',
          reply: '{shoal}:reply:bench',
          resultTtlMs: 300_000,
          isUrgent: false,
          wasRepeated: false,
        })),
      );
  });
  cost['room given back by the reader'] = await costOf(async () => {
    for (const part of inParts(jobs, 16))
      await releaseAdmission(
        connection,
        { prefix: PREFIX, queue: QUEUE },
        part.map(({ jobId }) => jobId),
        'all',
      );
  });
  await Promise.all([producer.close(), source.stop(), announcer.stop()]);
  if ((await connection.hget(keySpace(PREFIX).load(), `rows ${QUEUE}`)) !== null)
    throw new Error('room was not given back');
  return cost;
}

const costs: Record<string, number>[] = [];
for (let i = 0; i < Number(args.rounds); i++) costs.push(await round());
await closeConnection(connection);
await server.stop();
const microsPerJob = Object.fromEntries(
  Object.keys(costs[0]!).map((step) => [step, Math.round(10 * median(costs.map((cost) => cost[step]!))) / 10]),
);
process.stdout.write(`${JSON.stringify({ bench: 'order-cost', cpu: cpus()[0]?.model, jobs: count, microsPerJob })}\n`);
