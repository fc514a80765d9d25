import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { cpuQueue, mainQueue } from '@shoal/contract';
import { HistoryMeter, LoadMeter, noMetrics, type JobSource, type RawClaim } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { RecordingLogger } from '@shoal/core/testing';
import { Fleet, closeConnection, openConnection, type Redis } from '@shoal/queue';
import { claimSome, startTestServer, type TestServer } from '@shoal/queue/testing';
import { SHOAL_VERSION } from './shoal-version.ts';
import { openLanes, type WorkerLanes, type WorkerLanesOptions } from './worker-lanes.ts';

const MODEL = 'x';
let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
let queue: Queue;
let lane: Queue;
const opened: WorkerLanes[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(() => {
  prefix = `{t-worker-lanes-${++prefixes}}`;
  queue = new Queue(mainQueue(MODEL), { prefix, connection });
  lane = new Queue(cpuQueue(MODEL), { prefix, connection });
});

afterEach(async () => {
  await Promise.all(opened.splice(0).flatMap((lanes) => [lanes.source.stop(), lanes.stop()]));
  await Promise.all([queue.close(), lane.close()]);
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

/** A worker without an executor that has measured this rate. */
async function open(
  device: string,
  tokensPerSecond: number,
  more: Partial<WorkerLanesOptions> = {},
): Promise<WorkerLanes> {
  const log = new RecordingLogger();
  const meter = new LoadMeter();
  const metrics = meter.tap(noMetrics);
  metrics.microBatchRan({ rows: 10, width: 64, tokens: tokensPerSecond / 100, runMs: 10, duplicates: 0, poolAgeMs: 0 });
  for (let job = 0; job < tokensPerSecond / 100_000; job++)
    metrics.jobSettled({ outcome: 'complete', code: undefined, rows: 10 }); // jobs of 1,000 tokens
  const lanes = await openLanes({
    source: { redisUrl: server.url, prefix, queue: mainQueue(MODEL), leaseMs: 5_000, stalledCheckMs: 1_000, log },
    cpuQueue: cpuQueue(MODEL),
    workerId: `${device}-1`,
    workerName: device,
    serverNowMs: () => Date.now(),
    ready: { device, precision: 'fp32', model: 'x@1', prompts: ['query', 'none'], isNormalized: true },
    metricsUrl: undefined,
    jobVersion: 2,
    maxJobRows: 1_024,
    settings: { hybrid: 'auto', hybridAgeMs: 60_000, helpCells: 'yes' },
    meter,
    history: new HistoryMeter(() => performance.now()),
    metrics: noMetrics,
    faults: noFaults,
    log,
    ...more,
  });
  opened.push(lanes);
  await lanes.source.start();
  await lanes.show();
  return lanes;
}

async function addJobs(count: number): Promise<void> {
  const timestamp = Date.now() - 5_000;
  await queue.addBulk(
    Array.from({ length: count }, (_, index) => ({
      name: 'embed',
      data: { v: 1, texts: [`${index}`] },
      opts: { jobId: `m-${index}`, timestamp },
    })),
  );
}

const lanesOf = (claims: readonly RawClaim[]): Record<string, number> =>
  Object.fromEntries(
    ['cpu', 'main'].map((name) => [name, claims.filter((claim) => (claim.lane ?? 'main') === name).length]),
  );

/**
 * These claims, and what further ones bring until there are so many of a kind: a claim hands over what it has at once.
 */
async function claimed(
  source: Pick<JobSource, 'claim'>,
  first: readonly RawClaim[],
  isCounted: (claim: RawClaim) => boolean,
  count: number,
): Promise<readonly RawClaim[]> {
  const claims = [...first];
  while (claims.filter(isCounted).length < count) claims.push(...(await claimSome(source, 200)));
  return claims;
}

test('a worker tells its version, the jobs that it reads, and what its model offers', async () => {
  await open('cuda:0', 50_000);
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix, queue: mainQueue(MODEL) });
  const { workers } = await fleet.look();
  await fleet.close();
  const told = {
    version: SHOAL_VERSION,
    jobVersion: 2,
    maxJobRows: 1_024,
    prompts: ['query', 'none'],
    isNormalized: true,
  };
  expect(workers.map(({ facts }) => facts)).toMatchObject([told]);
  expect(SHOAL_VERSION).toMatch(/^\d+\.\d+\.\d+/);
});

test('a worker that serves two lanes says once what is doubtful about the queue server', async () => {
  const log = new RecordingLogger();
  const source = { redisUrl: server.url, prefix, queue: mainQueue(MODEL), leaseMs: 5_000, stalledCheckMs: 1_000, log };
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
  await open('cpu', 50_000, { source: { ...source, isUnsafeAllowed: true } });
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
  expect(log.messages('warn').filter((message) => message.includes('evicts keys'))).toHaveLength(1);
});

test(
  'beside a GPU worker a CPU worker takes its own lane and, of the main lane, what shortens the total time; the ' +
    'GPU takes the rest',
  async () => {
    await open('cuda:0', 1_000_000);
    await addJobs(500); // half a second of the GPU; in 4/5 of it this CPU worker does 40,000 tokens, 40 jobs
    await lane.addBulk(
      Array.from({ length: 3 }, (_, index) => ({ name: 'embed', data: {}, opts: { jobId: `c-${index}` } })),
    );
    const cpu = await open('cpu', 100_000);
    const claims = await cpu.source.claim(200);
    // 50 when it has looked at the fleet a second time: once it takes, it takes without the margin
    expect([40, 50]).toContain(lanesOf(claims)['main']);
    expect(lanesOf(await claimed(cpu.source, claims, ({ lane: name }) => name === 'cpu', 3))['cpu']).toBe(3);
  },
);

test('a backlog that the GPU is done with sooner is left to it', async () => {
  await open('cuda:0', 1_000_000);
  await addJobs(5);
  const cpu = await open('cpu', 100_000);
  const claim = cpu.source.claim(200);
  await lane.add('embed', {}, { jobId: 'c' });
  expect(lanesOf(await claim)).toEqual({ cpu: 1, main: 0 });
});

test('on a fleet of CPU workers nothing is held back', async () => {
  await addJobs(500);
  await open('cpu', 100_000, { workerId: 'cpu-0' });
  const cpu = await open('cpu', 100_000);
  expect(lanesOf(await cpu.source.claim(400))).toEqual({ cpu: 0, main: 400 });
});

test('with hybrid never a CPU worker is not there for the main lane, and is not seen in it', async () => {
  await addJobs(10);
  const cpu = await open('cpu', 100_000, { settings: { hybrid: 'never', hybridAgeMs: 0, helpCells: 'yes' } });
  await lane.add('embed', {}, { jobId: 'c' });
  expect(lanesOf(await cpu.source.claim(8))).toEqual({ cpu: 1, main: 0 });
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix, queue: mainQueue(MODEL) });
  expect((await fleet.read()).workers).toMatchObject([
    { workerId: 'cpu-1', lanes: ['cpu'], facts: { lanes: ['cpu'] } },
  ]);
  await fleet.close();
});

test(
  'a drained worker claims nothing until it is resumed, and shows that; one that starts into a drained fleet ' +
    'claims nothing at all',
  async () => {
    const fleet = await Fleet.connect({ redisUrl: server.url, prefix, queue: mainQueue(MODEL) });
    await fleet.drain('all');
    const gpu = await open('cuda:0', 1_000_000);
    const claim = gpu.source.claim(8);
    await addJobs(3);
    expect(gpu.standing.isDrained).toBe(true);
    expect(await queue.getJobCountByTypes('wait', 'prioritized')).toBe(3);
    await fleet.resume('all');
    expect(await claimed(gpu.source, await claim, () => true, 3)).toHaveLength(3);
    await fleet.drain('cuda');
    await vi.waitFor(() => expect(gpu.standing.isDrained).toBe(true), { timeout: 20_000 });
    await vi.waitFor(
      async () =>
        expect((await fleet.read()).workers).toMatchObject([
          { isDrained: true, facts: { isDrained: true, device: 'cuda:0' } },
        ]),
      { timeout: 20_000 },
    );
    await fleet.close();
  },
);

test('that jobs wait in the CPU lane which nobody serves, and that somebody does again, is logged', async () => {
  const log = new RecordingLogger();
  await lane.add('embed', {}, { jobId: 'c' });
  await open('cuda:0', 1_000_000, { log });
  expect(log.lines).toMatchObject([{ level: 'warn', fields: { queue: 'embed-x-cpu', waiting: 1 } }]);
  await open('cpu', 100_000);
  await vi.waitFor(() => expect(log.messages('info')).toContain('the CPU lane is served again'), { timeout: 20_000 });
});
