// Two versions on one queue server: Shoal 0.1.0 as it is in git, with its own packages, beside this tree. Old workers with
// new producers, new workers with old producers, both under load while one is replaced by the other: nothing is lost,
// nothing fails, vectors are equal. And what workers of 0.1.0 do with newer jobs, as docs/upgrade.md says it.
//
// For the night: 0.1.0 is taken out of git and its packages out of npm (a minute, 600 MB), kept below the cache folder.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { keySpace } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { makeOnce } from '@shoal/fetch/testing';
import { QueueAdmin, closeConnection, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 1_200_000, hookTimeout: 1_200_000 });

const THIS_TREE = fileURLToPath(new URL('../../../../', import.meta.url));
/** The commit of 0.1.0. */
const OLD = '1aaa68f';
const QUEUE = 'embed-tiny-random';
const TEXTS = Array.from(
  { length: 2_000 },
  (_, at) => `text ${at} about ${['shoals', 'fish', 'a queue'][at % 3]} ${at % 7}`,
);
/** Rows of this tree and of 0.1.0 come from two graphs of the same weights. */
const LEAST_COSINE = 0.999_999;

type Version = 'old' | 'new';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const isInGit = git('cat-file', '-e', `${OLD}^{commit}`) !== undefined;
const missing = !isNightly
  ? '0.1.0 beside this tree is for SHOAL_TEST_NIGHTLY=1; parking.test.ts has the made-up version in short'
  : isInGit
    ? undefined
    : `the commit of 0.1.0, ${OLD}, is not in this clone (a shallow one?): git fetch --unshallow`;
if (missing !== undefined) process.stderr.write(`mixed-versions.test.ts is skipped: ${missing}\n`);

const boxes: Record<Version, Sandbox> = { old: new Sandbox(), new: new Sandbox() };
const trees: Record<Version, string> = { old: '', new: THIS_TREE };
const running = new Set<ChildProcess>();
let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
let reference: readonly Float32Array[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
  if (missing === undefined) trees.old = await oldTree();
});
afterAll(async () => {
  for (const child of running) child.kill('SIGKILL');
  await closeConnection(connection);
  await server.stop();
  boxes.old.remove();
  boxes.new.remove();
});

function git(...args: string[]): Buffer | undefined {
  try {
    return execFileSync('git', args, { cwd: THIS_TREE, stdio: ['ignore', 'pipe', 'ignore'], maxBuffer: 1 << 28 });
  } catch {
    return undefined;
  }
}

/** Of 0.1.0 with its packages, under the hash of its lock file. */
async function oldTree(): Promise<string> {
  const lock = git('show', `${OLD}:package-lock.json`)!;
  const name = `test-shoal-0.1.0-${createHash('sha256').update(lock).digest('hex').slice(0, 16)}`;
  const folder = join(cacheFolder(process.env['SHOAL_CACHE_DIR']), name);
  await makeOnce(folder, () => {
    execFileSync('tar', ['x', '-C', folder], { input: git('archive', '--format=tar', OLD) });
    const env = { ...process.env, ONNXRUNTIME_NODE_INSTALL: 'skip' };
    execFileSync('npm', ['ci', '--silent', '--no-audit', '--no-fund'], { cwd: folder, env, stdio: 'inherit' });
  });
  return folder;
}

function start(version: Version, args: readonly string[], environment: Record<string, string>): ChildProcess {
  const child = spawn(process.execPath, ['--conditions=@shoal/source', ...args], {
    cwd: trees[version],
    env: {
      ...boxes[version].environment(),
      REDIS_URL: server.url,
      SHOAL_PREFIX: prefix,
      SHOAL_LOG_LEVEL: 'warn',
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  running.add(child);
  child.once('exit', () => running.delete(child));
  return child;
}

/** Claims when it resolves. */
async function startWorker(version: Version, name: string): Promise<ChildProcess> {
  const child = start(version, [join('apps', 'cpu-worker', 'src', 'main.ts')], { SHOAL_WORKER_NAME: name });
  child.stdout!.resume();
  const isSeen = async (): Promise<boolean> =>
    (await connection.hkeys(keySpace(prefix).facts(QUEUE))).some((workerId) => workerId.startsWith(`${name}-`));
  while (!(await isSeen())) {
    if (child.exitCode !== null)
      throw new Error(`a worker (${version}) ended with ${child.exitCode} before it claimed`);
    await sleep(200);
  }
  return child;
}

/** Drains it. */
async function stopWorker(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit') as Promise<[number | null]>;
  child.kill('SIGTERM');
  expect((await ended)[0]).toBe(0);
}

/** Embeds all texts through the SDK of a version, in calls of 50 unless they are to be larger; its rows come back as it had them. */
const PRODUCER = `
  const { ShoalClient } = await import('@shoal/client');
  const { redisUrl, prefix, model, texts: some, times, tenant, jobTexts, callTexts } = JSON.parse(process.env.PRODUCER);
  const texts = Array.from({ length: times }, () => some).flat();
  const client = await ShoalClient.connect({ redisUrl, prefix, model, tenant, jobTexts });
  const calls = Array.from({ length: Math.ceil(texts.length / callTexts) }, (_, at) =>
    texts.slice(callTexts * at, callTexts * (at + 1)),
  );
  for (let at = 0; at < calls.length; at += 4) {
    const results = await Promise.all(calls.slice(at, at + 4).map((call) => client.embed(call)));
    for (const { vectors, rows, dims } of results)
      for (let row = 0; row < rows; row++)
        process.stdout.write(Buffer.from(vectors.slice(row * dims, (row + 1) * dims).buffer).toString('base64') + '\\n');
  }
  await client.close();
`;

async function produce(
  version: Version,
  tenant: string,
  { times = 1, jobTexts = 16, callTexts = 50 } = {},
): Promise<Float32Array[]> {
  const [facts] = await connection.hvals(keySpace(prefix).facts(QUEUE));
  const { model } = JSON.parse(facts ?? '{}') as { readonly model: string };
  const [name, revision] = model.split('@');
  const terms = {
    redisUrl: server.url,
    prefix,
    tenant,
    texts: TEXTS,
    times,
    jobTexts,
    callTexts,
    model: { name, revision },
  };
  const child = start(version, ['--input-type=module', '-e', PRODUCER], { PRODUCER: JSON.stringify(terms) });
  let told = '';
  child.stdout!.setEncoding('utf8').on('data', (part: string) => (told += part));
  const [code] = (await once(child, 'close')) as [number | null];
  expect([version, code]).toEqual([version, 0]);
  return told
    .trim()
    .split('\n')
    .map((line) => {
      const bytes = Buffer.from(line, 'base64');
      return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
    });
}

function leastCosine(rows: readonly Float32Array[], others: readonly Float32Array[]): number {
  return Math.min(
    ...rows.map((row, at) => {
      const other = others[at]!;
      const dot = row.reduce((sum, value, dim) => sum + value * other[dim]!, 0);
      return dot / (Math.hypot(...row) * Math.hypot(...other));
    }),
  );
}

function expectSame(rows: readonly Float32Array[]): void {
  expect(rows).toHaveLength(TEXTS.length);
  expect(leastCosine(rows, reference)).toBeGreaterThanOrEqual(LEAST_COSINE);
}

/** Nothing waits, nothing failed, nothing is parked, in either lane. */
async function expectAllDone(): Promise<void> {
  const admin = await QueueAdmin.connect({ redisUrl: server.url, prefix, queue: QUEUE });
  try {
    const { lanes, quarantined } = await admin.counts();
    const none = { waiting: 0, active: 0, delayed: 0, failed: 0, handedOver: 0, parked: {} };
    expect({ lanes, quarantined }).toMatchObject({ lanes: [none, none], quarantined: 0 });
  } finally {
    await admin.close();
  }
}

function newPrefix(): void {
  prefix = `{mixed-${++prefixes}}`;
}

describe.skipIf(missing !== undefined)('0.1.0 beside this tree', () => {
  test('workers and producers of one version set the rows that all others must have', async () => {
    newPrefix();
    const worker = await startWorker('new', 'alone');
    reference = await produce('new', 'alone');
    await stopWorker(worker);
    expect(reference).toHaveLength(TEXTS.length);
    await expectAllDone();
  });

  test.each([
    ['workers of 0.1.0, a producer of this tree', 'old', 'new'],
    ['workers of this tree, a producer of 0.1.0', 'new', 'old'],
  ] as const)('%s: nothing lost, nothing failed, equal rows', async (_, workers, producer) => {
    newPrefix();
    const [one, two] = await Promise.all([startWorker(workers, 'one'), startWorker(workers, 'two')]);
    expectSame(await produce(producer, 'mixed'));
    await Promise.all([stopWorker(one), stopWorker(two)]);
    await expectAllDone();
  });

  test('both under load, old workers replaced by new ones and back: nothing lost, nothing failed', async () => {
    newPrefix();
    let workers = await Promise.all([startWorker('old', 'a'), startWorker('old', 'b')]);
    const load = Promise.all([
      produce('old', 'old-1'),
      produce('new', 'new-1'),
      produce('old', 'old-2'),
      produce('new', 'new-2'),
    ]);
    let isDone = false;
    void load.finally(() => (isDone = true)).catch(() => undefined);
    let replaced = 0;
    for (const version of ['new', 'new', 'old', 'new'] as const) {
      const [oldest, ...rest] = workers;
      const next = await startWorker(version, `next-${++replaced}`);
      await stopWorker(oldest!);
      workers = [...rest, next];
      if (!isDone) await sleep(500);
    }
    for (const rows of await load) expectSame(rows);
    await Promise.all(workers.map(stopWorker));
    await expectAllDone();
  });

  test('a worker of 0.1.0 that comes while there are jobs of 1,024 rows: nothing lost, nothing failed', async () => {
    newPrefix();
    const worker = await startWorker('new', 'one');
    const keys = keySpace(prefix);
    const names = async (): Promise<string[]> => connection.zrange(keys.job(QUEUE, 'completed'), '0', '-1');
    const load = produce('new', 'large', { times: 8, jobTexts: 1_024, callTexts: 4_000 });
    await expect.poll(names, { timeout: 60_000 }).toContainEqual(expect.stringMatching(/-0x1024$/));
    const old = await startWorker('old', 'joins');
    const rows = await load;
    for (let at = 0; at < 8; at++) expectSame(rows.slice(at * TEXTS.length, (at + 1) * TEXTS.length));
    // beside it they are cut as every worker takes them
    expectSame(await produce('new', 'beside', { jobTexts: 1_024, callTexts: 2_000 }));
    const beside = (await names()).filter((name) => name.startsWith('beside~'));
    expect(beside).toHaveLength(8);
    expect(beside.join()).not.toContain('x');
    await Promise.all([stopWorker(worker), stopWorker(old)]);
    await expectAllDone();
  });

  test('a worker of 0.1.0 hands back a fresh job of version 2, and fails one of eleven minutes for good', async () => {
    newPrefix();
    const worker = await startWorker('old', 'one');
    const keys = keySpace(prefix);
    const add = async (jobId: string, agoMs: number): Promise<void> => {
      const data = JSON.stringify({ v: 2, texts: ['a'], meta: { at: 1 } });
      const record = {
        name: 'embed',
        data,
        opts: '{}',
        timestamp: String(Date.now() - agoMs),
        delay: '0',
        priority: '0',
      };
      await connection
        .multi()
        .hset(keys.job(QUEUE, jobId), record)
        .lpush(keys.job(QUEUE, 'wait'), jobId)
        .zadd(keys.job(QUEUE, 'marker'), 0, '0')
        .exec();
    };
    await add('fresh', 0);
    await add('late', 660_000);
    const reason = (): Promise<string | null> => connection.hget(keys.job(QUEUE, 'late'), 'failedReason');
    await expect.poll(reason, { timeout: 60_000 }).toMatch(/^JOB_VERSION_UNKNOWN/);
    expect(await connection.zscore(keys.job(QUEUE, 'delayed'), 'fresh')).not.toBeNull();
    const next = await startWorker('new', 'two');
    await stopWorker(worker);
    const completed = (): Promise<string | null> => connection.zscore(keys.job(QUEUE, 'completed'), 'fresh');
    await expect.poll(completed, { timeout: 60_000 }).not.toBeNull();
    await stopWorker(next);
  });
});
