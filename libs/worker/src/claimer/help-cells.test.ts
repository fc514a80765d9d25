// A worker of one cell that helps another: real processes and two real servers, each of which is killed in the middle.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { PART_JOB, keySpace, mainQueue, openResult, partId, partJobData, partsQueue, type Part } from '@shoal/contract';
import { programOf } from '@shoal/core/testing';
import { parseMetrics } from '@shoal/ops/testing';
import { Fleet, openConnection, type Redis } from '@shoal/queue';
import { freePort, startTestServer, type TestServer } from '@shoal/queue/testing';
import { noLog } from '@shoal/core';

vi.setConfig({ testTimeout: 90_000 });

const PREFIX = '{shoal}';
const QUEUE = mainQueue('tiny-random');
const keys = keySpace(PREFIX);
const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-help-test-'));
const children = new Set<ChildProcess>();

interface Place {
  readonly server: TestServer;
  readonly redis: Redis;
  readonly queue: Queue;
}

let [a, b]: Place[] = [];

beforeAll(async () => {
  [a, b] = await Promise.all([openPlace(), openPlace()]);
});

afterEach(async () => {
  await Promise.all([...children].map(stopped));
  await Promise.all([a!, b!].map(({ redis }) => redis.flushall()));
});

afterAll(async () => {
  for (const { queue, redis, server } of [a!, b!]) {
    await queue.close();
    redis.disconnect();
    await server.stop();
  }
  rmSync(cacheDir, { recursive: true, force: true });
});

async function openPlace(): Promise<Place> {
  const server = await startTestServer({ topology: 'single' });
  const redis = openConnection({ url: server.url, name: 'test' });
  const queue = new Queue(QUEUE, { connection: redis, prefix: PREFIX });
  queue.on('error', () => undefined); // its server is killed
  return { server, redis, queue };
}

/** At home in this cell. */
async function startWorker(home: Place, environment: Readonly<Record<string, string>> = {}): Promise<ChildProcess> {
  const { main, execArgv } = programOf(environment['SHOAL_DEVICE'] === undefined ? 'cpu-worker' : 'gpu-worker');
  const cells = [
    { name: 'a', address: a!.server.url },
    { name: 'b', address: b!.server.url },
  ];
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: home.server.url,
      SHOAL_CELLS: JSON.stringify(cells),
      SHOAL_MODEL: 'tiny-random',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'error',
      SHOAL_LEASE_MS: '5000',
      SHOAL_STALLED_CHECK_MS: '300',
      ...environment,
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  children.add(child);
  child.once('exit', () => children.delete(child));
  const [message] = (await once(child, 'message')) as [{ kind: string; failure?: { message: string } }];
  if (message.kind !== 'ready') throw new Error(message.failure?.message);
  return child;
}

async function stopped(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  await gone;
}

/** Bulk jobs of two texts each. */
async function add({ queue }: Place, jobIds: readonly string[]): Promise<void> {
  const opts = { attempts: 3 };
  await queue.addBulk(
    jobIds.map((jobId) => ({
      name: 'embed',
      data: { v: 1, texts: [`one of ${jobId}`, 'another'], class: 'bulk' },
      opts: { ...opts, jobId },
    })),
  );
}

async function completedAt({ redis }: Place): Promise<number> {
  return redis.zcard(`${PREFIX}:${QUEUE}:completed`);
}

/** The same job has the same vectors in both cells, but for what the company in its micro-batch changes. */
async function expectSame(jobId: string): Promise<void> {
  const [there, here] = await Promise.all([vectorsAt(b!, jobId), vectorsAt(a!, jobId)]);
  expect(there).toHaveLength(here.length);
  for (const [at, value] of there.entries()) expect(value).toBeCloseTo(here[at]!, 4);
}

async function vectorsAt({ redis }: Place, jobId: string): Promise<Float32Array> {
  const { body } = openResult((await redis.getBuffer(keys.output(QUEUE, jobId)))!);
  return new Float32Array(Uint8Array.from(body).buffer);
}

const ids = (count: number): string[] => Array.from({ length: count }, (_, at) => `job-${at}`);

test('a worker without work runs the bulk jobs of another cell: the same vectors, told there, counted here', async () => {
  const port = await freePort();
  await startWorker(a!, { SHOAL_METRICS_PORT: String(port) });
  await add(a!, ['job-0']);
  await expect.poll(() => completedAt(a!), { timeout: 20_000 }).toBe(1);
  await add(b!, ids(8));
  await expect.poll(() => completedAt(b!), { timeout: 30_000 }).toBe(8);
  await expectSame('job-0');
  // announced: its result has its time to live
  await expect.poll(() => b!.redis.pttl(keys.output(QUEUE, 'job-0'))).toBeGreaterThan(0);
  const metrics = parseMetrics(await (await fetch(`http://127.0.0.1:${port}/metrics`)).text());
  const helped = metrics.samples.find(
    ({ name, labels }) => name === 'shoal_helped_jobs_total' && labels['cell'] === 'b',
  );
  expect(helped?.value).toBe(8);
  const fleet = await Fleet.connect({ redisUrl: a!.server.url, prefix: PREFIX, queue: QUEUE, log: noLog });
  const told = async (): Promise<unknown> => (await fleet.look()).workers[0]?.facts?.helped;
  await expect.poll(told, { timeout: 30_000 }).toEqual([{ cell: 'b', jobs: 8, held: 0 }]);
  await fleet.close();
});

test('a cell at the same server under another prefix is helped there, and nothing of it lands under its own', async () => {
  const [own, other] = ['{shoal.1}', '{shoal.0}'];
  const { redis, server } = a!;
  const cells = [own, other].map((prefix, at) => ({ name: `c${at}`, address: server.url, prefix }));
  await startWorker(a!, { SHOAL_CELLS: JSON.stringify(cells), SHOAL_PREFIX: own });
  const queue = new Queue(QUEUE, { connection: redis, prefix: other });
  await add({ server, redis, queue }, ids(6));
  const completed = (): Promise<number> => redis.zcard(`${other}:${QUEUE}:completed`);
  await expect.poll(completed, { timeout: 30_000 }).toBe(6);
  const { body } = openResult((await redis.getBuffer(keySpace(other).output(QUEUE, 'job-0')))!);
  expect(body.length).toBeGreaterThan(0);
  expect(await redis.keys(`${own}:*job-0*`)).toEqual([]);
  const told = async (): Promise<string> => (await redis.hvals(keySpace(own).facts(QUEUE))).join();
  await expect.poll(told, { timeout: 30_000 }).toContain('"cell":"c1"');
  expect(await redis.exists(keySpace(other).facts(QUEUE))).toBe(0);
  await queue.close();
});

test('with helpCells=no it runs none of them', async () => {
  await startWorker(a!, { SHOAL_HELP_CELLS: 'no' });
  await add(b!, ['job-0']);
  await new Promise((resolve) => setTimeout(resolve, 4_000));
  expect(await completedAt(b!)).toBe(0);
});

test('a helper that is killed with a job of another cell leaves it to the workers there', async () => {
  const helper = await startWorker(a!, { SHOAL_FAULT_POINT: 'before-complete' });
  await add(b!, ids(4));
  await once(helper, 'exit');
  expect(await completedAt(b!)).toBeLessThan(4);
  await startWorker(b!);
  await expect.poll(() => completedAt(b!), { timeout: 30_000 }).toBe(4);
  expect(await b!.redis.zcard(`${PREFIX}:${QUEUE}:failed`)).toBe(0);
});

test('a cell that is killed while its jobs are run elsewhere harms nobody there, and gets them all done', async () => {
  // the device takes four seconds for them, however quick the machine is
  await startWorker(a!, { SHOAL_DEVICE: 'sim:1', SHOAL_SIM_SERVES: 'model', SHOAL_MAX_ROWS: '16' });
  await add(b!, ids(400));
  await expect.poll(() => completedAt(b!), { timeout: 30_000, interval: 10 }).toBeGreaterThan(0);
  await b!.server.durable();
  expect(await completedAt(b!)).toBeLessThan(400);
  await b!.server.kill9();
  await add(a!, ids(3));
  await expect.poll(() => completedAt(a!), { timeout: 30_000 }).toBe(3);
  await new Promise((resolve) => setTimeout(resolve, 6_000)); // leases are over
  await b!.server.restart();
  await expect.poll(() => completedAt(b!), { timeout: 45_000 }).toBe(400);
  await expectSame('job-2');
  expect(await b!.redis.zcard(`${PREFIX}:${QUEUE}:failed`)).toBe(0);
});

// ---- parts of files -----------------------------------------------------------------------------------------------

/** What a worker that takes parts says it serves; undefined: there is none. */
async function served(): Promise<unknown> {
  const [facts] = await a!.redis.hvals(keys.facts(partsQueue('tiny-random')));
  return facts === undefined ? undefined : JSON.parse(facts).model;
}

/** Both cells see the folder; each part is half of a run of two, of the same file. */
async function partsOfRun(folder: string, run: string): Promise<Part[]> {
  const path = join(folder, 'docs.txt');
  writeFileSync(path, 'one line\nand another\n');
  const { size, mtimeMs } = statSync(path);
  await expect.poll(served, { timeout: 60_000 }).toBeTypeOf('string');
  const name = String(await served());
  return [0, 1].map((number) => ({
    run,
    number,
    of: 2,
    source: { kind: 'file', path, bytes: size, modifiedMs: mtimeMs },
    format: 'text',
    range: { kind: 'bytes', from: 9 * number, to: number === 0 ? 9 : size, firstLine: 1 + number, lines: 1 },
    onError: 'fail',
    output: { kind: 'folder', folder, stem: 'out', format: 'parquet', dtype: 'f32', hasIds: false },
    model: { name, truncate: 'end' },
  }));
}

async function openParts({ redis }: Place): Promise<Queue> {
  const queue = new Queue(partsQueue('tiny-random'), { connection: redis, prefix: PREFIX });
  queue.on('error', () => undefined);
  return queue;
}

test('a worker without parts of its own runs those of another cell in folders that it has, and the run is whole there', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-help-parts-'));
  await startWorker(a!, { SHOAL_PART_FOLDERS: folder });
  const parts = await partsOfRun(folder, '0'.repeat(16));
  const queue = await openParts(b!);
  const elsewhere = {
    ...parts[0]!,
    run: 'f'.repeat(16),
    source: { ...parts[0]!.source, path: '/elsewhere/docs.txt' },
  } as Part;
  for (const part of [elsewhere, ...parts])
    await queue.add(PART_JOB, partJobData(part), { jobId: partId(part), attempts: 3 });
  for (const part of parts) {
    const ended = async (): Promise<string> => {
      const state = await queue.getJobState(partId(part));
      return state === 'failed' ? String((await queue.getJob(partId(part)))?.failedReason) : state;
    };
    await expect.poll(ended, { timeout: 60_000 }).toBe('completed');
  }
  expect(JSON.parse(await readFile(join(folder, 'out.manifest.json'), 'utf8'))).toMatchObject({ run: parts[0]!.run });
  expect(await b!.redis.hlen(keys.run(parts[0]!.run))).toBe(2);
  expect(await a!.redis.exists(keys.run(parts[0]!.run))).toBe(0);
  // what it cannot reach is left to the workers of that cell, unspent
  const left = await queue.getJob(partId(elsewhere));
  expect({ failed: left?.failedReason, attempts: left?.attemptsMade }).toEqual({ failed: undefined, attempts: 0 });
  await queue.close();
  rmSync(folder, { recursive: true });
});
