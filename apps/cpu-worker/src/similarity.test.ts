// Similarity jobs end to end: the real worker process, a real queue server, collections on disk, asked through the SDK
// and as plain jobs. Answers are compared with a direct computation in f64; whatever is wrong fails by its code, alone.

import { fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { ShoalClient } from '@shoal/client';
import { DEFAULT_PREFIX, SIMILARITY_QUEUE, isShoalError } from '@shoal/contract';
import { Fleet, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { collectionInfo, createCollection, graphFromEdges, removeCollection, saveGraph } from '@shoal/similarity';
import { exactRanking, expectSame, randomVectors, scoreOf } from './testing/exact.ts';

const DIMS = 48;
const ROWS = 3_000;
const folder = mkdtempSync(join(tmpdir(), 'shoal-similarity-'));
const collections = join(folder, 'collections');
const rows = randomVectors(ROWS, DIMS, 1);
/** A ring of 50 nodes with shortcuts: full of cycles. */
const EDGES = Array.from({ length: 50 }, (_, node): [number, number, number][] => [
  [node, (node + 1) % 50, 0.5],
  [node, (node * 7) % 50, 0.25],
]).flat();

let server: TestServer;
let worker: ChildProcess;
let client: ShoalClient;
let redis: Redis;
let queue: Queue;

beforeAll(async () => {
  server = await startTestServer();
  await createCollection(collections, 'docs', [{ dims: DIMS, vectors: rows }]);
  await saveGraph(
    collections,
    'links',
    graphFromEdges({
      from: Uint32Array.from(EDGES, ([from]) => from),
      to: Uint32Array.from(EDGES, ([, to]) => to),
      weight: Float32Array.from(EDGES, ([, , weight]) => weight),
    }),
  );
  redis = openConnection({ url: server.url, name: 'test' });
  queue = new Queue(SIMILARITY_QUEUE, { connection: redis, prefix: DEFAULT_PREFIX });
  [worker, client] = await Promise.all([
    startWorker(),
    ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } }),
  ]);
});

afterAll(async () => {
  await Promise.all([client.close(), stopWorker()]);
  await queue.close();
  redis.disconnect();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
});

function startWorker(): Promise<ChildProcess> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_KIND: 'similarity',
      SHOAL_CACHE_DIR: folder,
      SHOAL_LOG_LEVEL: 'error',
      SHOAL_LEASE_MS: '1500',
      SHOAL_STALLED_CHECK_MS: '300',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  return new Promise((resolve, reject) => {
    child.once('message', (message: { kind: string; failure?: { message: string } }) =>
      message.kind === 'ready' ? resolve(child) : reject(new Error(message.failure?.message)),
    );
    child.once('exit', (code, signal) => reject(new Error(`the worker ended before it was ready: ${code ?? signal}`)));
  });
}

async function stopWorker(): Promise<void> {
  const exited = new Promise((resolve) => worker.once('exit', resolve));
  worker.kill('SIGTERM');
  await exited;
}

function expectedSpread(
  seeds: readonly number[],
  steps: number,
  decay: number,
  threshold: number,
): Map<number, number> {
  const total = new Map(seeds.map((node) => [node, 1]));
  let last = new Map(total);
  for (let step = 0; step < steps; step++) {
    const next = new Map<number, number>();
    for (const [from, to, weight] of EDGES)
      if ((last.get(from) ?? 0) >= threshold)
        next.set(to, (next.get(to) ?? 0) + decay * weight * (last.get(from) ?? 0));
    for (const [node, value] of next) total.set(node, (total.get(node) ?? 0) + value);
    last = next;
  }
  return total;
}

async function codeOf(work: Promise<unknown>): Promise<string> {
  return work.then(
    () => 'answered',
    (error: unknown) => (isShoalError(error) ? error.code : String(error)),
  );
}

/** The failure of a plain job, as anybody sees it. */
async function plainFailure(name: string, data: object): Promise<string> {
  const { id } = await queue.add(name, { v: 1, ...data }, { jobId: `plain-${++plainJobs}` });
  let reason: string | undefined;
  await expect
    .poll(async () => (reason = (await queue.getJob(id!))?.failedReason), { timeout: 10_000, interval: 20 })
    .toBeTruthy();
  return reason!;
}

let plainJobs = 0;

const base64 = (values: Float32Array): string =>
  Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
const queries = { values: randomVectors(5, DIMS, 2), dims: DIMS };
const query = (index: number): Float32Array => queries.values.subarray(index * DIMS, (index + 1) * DIMS);

test('a drained worker claims nothing, says so, and answers when it is resumed', async () => {
  const fleet = await Fleet.connect({ redisUrl: server.url, queue: SIMILARITY_QUEUE });
  const isDrained = async (): Promise<boolean | undefined> => (await fleet.read()).workers[0]?.facts?.isDrained;
  expect(await fleet.drain('all')).toHaveLength(1);
  await expect.poll(isDrained, { timeout: 10_000 }).toBe(true);
  let isAnswered = false;
  const asked = client.topK('docs@1', queries, { k: 1 }).finally(() => (isAnswered = true));
  await expect.poll(async () => (await fleet.read()).lanes.main.waiting).toBe(1);
  expect(isAnswered).toBe(false);
  await fleet.resume('all');
  expect(await asked).toHaveLength(5);
  await fleet.close();
});

describe('answers', () => {
  test.each(['cosine', 'dot', 'l2'] as const)('topk by %s is the exact one', async (metric) => {
    const found = await client.topK('docs@1', queries, { k: 10, metric });
    found.forEach((ranking, i) => expectSame(ranking, exactRanking(rows, query(i), metric, 10)));
  });

  test('k of one and of more than there are rows', async () => {
    const [first] = await client.topK('docs@1', { values: query(0), dims: DIMS }, { k: 1 });
    expectSame(first, exactRanking(rows, query(0), 'cosine', 1));
    const [all] = await client.topK('docs@1', { values: query(1), dims: DIMS }, { k: ROWS + 10 });
    expectSame(all, exactRanking(rows, query(1), 'cosine', ROWS));
  });

  test('many queries are several jobs, and their rankings come in order', async () => {
    const many = { values: randomVectors(150, DIMS, 3), dims: DIMS };
    const found = await client.topK('docs@1', many, { k: 3, metric: 'dot' });
    expect(found).toHaveLength(150);
    for (const i of [0, 63, 64, 127, 128, 149])
      expectSame(found[i], exactRanking(rows, many.values.subarray(i * DIMS, (i + 1) * DIMS), 'dot', 3));
  });

  test('cosine against a collection, and against vectors that came with the job', async () => {
    const { rows: count, columns, scores } = await client.cosine(queries, { collection: 'docs@1' });
    expect([count, columns]).toEqual([5, ROWS]);
    for (let at = 0; at < scores.length; at += 97)
      expect(scores[at]).toBeCloseTo(
        scoreOf(query(Math.floor(at / ROWS)), rows.subarray((at % ROWS) * DIMS, ((at % ROWS) + 1) * DIMS), 'cosine'),
        5,
      );
    const own = await client.cosine(
      { values: query(0), dims: DIMS },
      { values: rows.subarray(0, 3 * DIMS), dims: DIMS },
    );
    expect(own.columns).toBe(3);
    own.scores.forEach((found, i) =>
      expect(found).toBeCloseTo(scoreOf(query(0), rows.subarray(i * DIMS, (i + 1) * DIMS), 'cosine'), 5),
    );
  });

  test('a matrix of many queries comes in several jobs, whose rows are in order', async () => {
    const many = { values: randomVectors(150, DIMS, 3), dims: DIMS };
    const { columns, scores } = await client.cosine(many, { values: rows.subarray(0, 3 * DIMS), dims: DIMS });
    expect([columns, scores.length]).toEqual([3, 450]);
    scores.forEach((found, i) =>
      expect(found).toBeCloseTo(
        scoreOf(
          many.values.subarray(Math.floor(i / 3) * DIMS, (Math.floor(i / 3) + 1) * DIMS),
          rows.subarray((i % 3) * DIMS, ((i % 3) + 1) * DIMS),
          'cosine',
        ),
        5,
      ),
    );
  });

  test('rescore ranks the candidates of each query alone', async () => {
    const candidates = [[5, 2_999, 17, 17, 400], [1]].map((ids) => BigUint64Array.from(ids, BigInt));
    const found = await client.rescore(
      'docs@1',
      { values: queries.values.subarray(0, 2 * DIMS), dims: DIMS },
      candidates,
      { k: 3 },
    );
    expectSame(found[0], exactRanking(rows, query(0), 'cosine', 3, [5, 2_999, 17, 400]));
    expectSame(found[1], exactRanking(rows, query(1), 'cosine', 3, [1]));
  });

  test('spread goes round cycles as the direct computation does', async () => {
    const found = await client.spread('links', [[0], [3, [40, 1]]], { k: 50, steps: 4, decay: 0.8, threshold: 0.05 });
    for (const [i, seeds] of [[0], [3, 40]].entries()) {
      const expected = expectedSpread(seeds, 4, 0.8, 0.05);
      expect(found[i]!.ids.length).toBe([...expected.values()].filter((value) => value > 0).length);
      found[i]!.ids.forEach((id, at) => expect(found[i]!.scores[at]).toBeCloseTo(expected.get(Number(id))!, 5));
      expect([...found[i]!.scores]).toEqual([...found[i]!.scores].sort((a, b) => b - a));
    }
  });

  test('the same id and question is answered again, with another question it is a conflict', async () => {
    const [first] = await client.topK('docs@1', { values: query(0), dims: DIMS }, { k: 2, jobId: 'stable' });
    const [again] = await client.topK('docs@1', { values: query(0), dims: DIMS }, { k: 2, jobId: 'stable' });
    expect(again).toEqual(first);
    const conflicting = client.topK('docs@1', { values: query(1), dims: DIMS }, { k: 2, jobId: 'open' });
    expect(await codeOf(client.topK('docs@1', { values: query(0), dims: DIMS }, { k: 2, jobId: 'open' }))).toBe(
      'JOB_ID_CONFLICT',
    );
    await conflicting;
  });
});

const one = { values: query(0), dims: DIMS };
const ask = (name: string): Promise<string> => codeOf(client.topK(`${name}@1`, one, { k: 1 }));

test('a name alone is its newest version, and the answer tells which that was and what made its rows', async () => {
  await createCollection(collections, 'known', [{ dims: DIMS, vectors: rows }], { about: { model: 'none@0' } });
  const many = { values: randomVectors(70, DIMS, 3), dims: DIMS };
  const first = await client.topK('known', many, { k: 1 });
  expect(first).toMatchObject({ length: 70, collection: 'known@1', collectionModel: 'none@0' });
  await createCollection(collections, 'known', [{ dims: DIMS, vectors: rows.subarray(0, 9 * DIMS) }]);
  const second = await client.topK('known', many, { k: 99 });
  expect(second).toMatchObject({ length: 70, collection: 'known@2', collectionModel: undefined });
  expect(second.map(({ ids }) => ids.length)).toEqual(second.map(() => 9));
  expect(await client.rescore('known', one, [[8]], { k: 1 })).toMatchObject({ length: 1, collection: 'known@2' });
  expect(await client.cosine(many, { collection: 'known' })).toMatchObject({ columns: 9, collection: 'known@2' });
  expect(await client.cosine(one, one)).not.toHaveProperty('collection');
  expect(await codeOf(client.topK('unheard', one, { k: 1 }))).toBe('COLLECTION_UNKNOWN');
  const job = await queue.add(
    'topk',
    { v: 1, collection: 'known@1', queries: { vectors: base64(query(0)), dims: DIMS }, k: 1 },
    { jobId: 'plain-known' },
  );
  await expect
    .poll(async () => (await queue.getJob(job.id!))?.returnvalue as unknown, { timeout: 10_000, interval: 20 })
    .toMatchObject({ collection: 'known@1', model: 'none@0' });
});

describe('bad input fails by its code, and the worker goes on', () => {
  const vectors = { vectors: base64(query(0)), dims: DIMS };

  test('what can be seen in the job itself is refused before it is sent', async () => {
    expect(await codeOf(client.topK('docs@1', one, { k: 0 }))).toBe('JOB_INVALID');
    expect(await codeOf(client.topK('docs@1', { values: Float32Array.of(1, Number.NaN), dims: 2 }, { k: 1 }))).toBe(
      'VECTOR_INVALID',
    );
    expect(await codeOf(client.topK('docs@0', one, { k: 1 }))).toBe('JOB_INVALID');
    expect(await codeOf(client.cosine(one, { values: rows.subarray(0, DIMS + 1), dims: DIMS + 1 }))).toBe(
      'DIMENSIONS_MISMATCH',
    );
  });

  test('and by the worker when it comes as a plain job', async () => {
    const neighbour = client.topK('docs@1', one, { k: 1 });
    const reasons = await Promise.all([
      plainFailure('topk', { collection: 'docs@1', queries: vectors, k: -1 }),
      plainFailure('topk', {
        collection: 'docs@1',
        queries: { vectors: base64(Float32Array.from({ length: DIMS }, () => Number.NaN)), dims: DIMS },
        k: 1,
      }),
      plainFailure('topk', { collection: 'docs@1', queries: { vectors: base64(query(0)), dims: DIMS + 1 }, k: 1 }),
      plainFailure('topk', { collection: 'docs@1', queries: { texts: ['hello'] }, k: 1 }),
      plainFailure('topk', { collection: 'docs@1', queries: vectors, k: 1, metrik: 'dot' }),
      plainFailure('search', { collection: 'docs@1', queries: vectors, k: 1 }),
      plainFailure('topk', { collection: 'docs@1', queries: { key: { rows: 1, dims: DIMS } }, k: 1 }),
    ]);
    expect(reasons.map((reason) => reason.split(':')[0])).toEqual([
      'JOB_INVALID',
      'VECTOR_INVALID',
      'DIMENSIONS_MISMATCH',
      'TEXTS_NOT_EMBEDDED',
      'JOB_INVALID',
      'JOB_INVALID',
      'INPUT_LOST',
    ]);
    expect(reasons[4]).toContain('metrik');
    expectSame((await neighbour)[0], exactRanking(rows, query(0), 'cosine', 1));
  });

  test('collections and graphs: unknown, gone, of other dimensions, empty, and indices beyond them', async () => {
    await createCollection(collections, 'empty', [], { dims: DIMS });
    await createCollection(collections, 'narrow', [{ dims: 2, vectors: Float32Array.of(1, 0) }]);
    const neighbour = client.topK('docs@1', one, { k: 1 });
    const codes = await Promise.all(
      [
        client.topK('nobody@1', one, { k: 1 }),
        client.topK('docs@9', one, { k: 1 }),
        client.topK('narrow@1', one, { k: 1 }),
        client.topK('empty@1', one, { k: 1 }),
        client.rescore('docs@1', one, [BigUint64Array.of(BigInt(ROWS))], { k: 1 }),
        client.spread('links', [[50]], { k: 1 }),
        client.spread('nothing', [[0]], { k: 1 }),
      ].map(codeOf),
    );
    expect(codes).toEqual([
      'COLLECTION_UNKNOWN',
      'COLLECTION_GONE',
      'DIMENSIONS_MISMATCH',
      'COLLECTION_EMPTY',
      'SEARCH_INVALID',
      'GRAPH_INVALID',
      'COLLECTION_UNKNOWN',
    ]);
    expectSame((await neighbour)[0], exactRanking(rows, query(0), 'cosine', 1));
  });

  test('a wrong checksum, a file cut while it is open, and a version that vanishes while it is open', async () => {
    const make = async (name: string): Promise<string> => {
      await createCollection(collections, name, [{ dims: DIMS, vectors: rows.subarray(0, 100 * DIMS) }]);
      return (await collectionInfo(collections, `${name}@1`)).path;
    };
    const flipped = await make('flipped');
    const bytes = readFileSync(flipped);
    bytes[5_000]! ^= 1;
    writeFileSync(flipped, bytes);
    const cut = await make('cut');
    await make('vanishing');
    expect(await Promise.all([ask('cut'), ask('vanishing')])).toEqual(['answered', 'answered']);
    truncateSync(cut, 6_000);
    await removeCollection(collections, 'vanishing@1');
    expect(await Promise.all([ask('flipped'), ask('cut'), ask('vanishing'), ask('docs')])).toEqual([
      'COLLECTION_CORRUPT',
      'COLLECTION_CORRUPT',
      'COLLECTION_GONE',
      'answered',
    ]);
    expect(worker.exitCode).toBeNull();
  });
});

function executorPid(): number {
  return Number(readFileSync(`/proc/${worker.pid}/task/${worker.pid}/children`, 'utf8').trim());
}

/** Of 10 ms each, in user mode. */
function cpuTicks(pid: number): number {
  return Number(readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')[11]);
}

test('an executor that is killed in mid-run costs no answer', async () => {
  const large = randomVectors(80_000, 128, 5);
  await createCollection(collections, 'large', [{ dims: 128, vectors: large }]);
  const many = { values: randomVectors(512, 128, 6), dims: 128 };
  // it is held from now on: what follows runs at once
  await client.topK('large@1', { values: many.values.subarray(0, 128), dims: 128 }, { k: 1 });
  const answered = client.topK('large@1', many, { k: 5 });
  const executor = executorPid();
  const before = cpuTicks(executor);
  // it computes
  await expect.poll(() => cpuTicks(executor), { timeout: 10_000, interval: 1 }).toBeGreaterThan(before + 3);
  process.kill(executor, 'SIGKILL');
  const found = await answered;
  for (const i of [0, 255, 511])
    expectSame(found[i], exactRanking(large, many.values.subarray(i * 128, (i + 1) * 128), 'cosine', 5));
  expect(executorPid()).not.toBe(executor);
});
