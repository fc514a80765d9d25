// One cluster as several cells: three real nodes, a prefix for each cell, a worker on a simulated device in each. Keys of
// cells lie on different nodes, and a node that dies takes only its own cells away.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { keySpace, mainQueue } from '@shoal/contract';
import { readCells, type Cell } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { QueueAdmin, closeConnection, openConnection, untilReady } from '@shoal/queue';
import { openLaneWorker, startTestTopology } from '@shoal/queue/testing';
import type { ClientOptions } from '../embedding.ts';
import { ShoalClient } from '../shoal-client.ts';

vi.setConfig({ testTimeout: 120_000 }); // a node that is away is waited for

const MODEL = { name: 'fake', revision: '0123456789ab' };
const QUEUE = mainQueue(MODEL.name);
const COUNT = 6;

let cluster: Awaited<ReturnType<typeof startTestTopology>>;
let cells: readonly Cell[];
let folder: string;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  cluster = await startTestTopology('cluster', {
    replicas: 0,
    prefix: '{shoal.0}',
    appendFsync: 'always', // what was added is there after a kill
    args: ['--cluster-require-full-coverage', 'no'],
  });
  folder = mkdtempSync(join(tmpdir(), 'shoal-cluster-cells-'));
  cells = readCells(`${cluster.url}?cells=${COUNT}`);
});

beforeEach(async () => {
  const place = { role: 'gpu', leaseMs: 15_000, queue: QUEUE } as const;
  for (const { address, prefix = '' } of cells) {
    const worker = await openLaneWorker({ ...place, redisUrl: address, prefix });
    closers.push(() => worker.stop());
  }
});

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  await cluster.stop();
  rmSync(folder, { recursive: true });
});

/** Answers are announced: nobody asks for them within the time of a test. */
async function open(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const given = { cells: `${cluster.url}?cells=${COUNT}`, model: MODEL, jobTexts: 4 };
  const timing = { askAfterMs: 100_000, cellAwayAfterMs: 30_000 };
  const client = await ShoalClient.connect({ ...given, ...timing, ...options });
  closers.push(() => client.close());
  return client;
}

/** None like another, and each fits the simulated device. */
function texts(count: number): string[] {
  return Array.from({ length: count }, (_, at) => `text ${at}`);
}

/** As one of its cells gives them. */
async function expected(count: number): Promise<Float32Array> {
  const { address: redisUrl, prefix = '' } = cells[0]!;
  const plain = await ShoalClient.connect({ redisUrl, prefix, model: MODEL, jobTexts: 4 });
  closers.push(() => plain.close());
  return (await plain.embed(texts(count))).vectors;
}

/** Jobs that each cell has completed, and the port of the node that says so. */
async function completed(): Promise<{ readonly jobs: number; readonly port: number }[]> {
  return Promise.all(
    cells.map(async ({ address, prefix = '' }) => {
      const connection = openConnection({ url: address, prefix, name: 'test' });
      try {
        await untilReady(connection, address);
        const jobs = await connection.zcard(keySpace(prefix).job(QUEUE, 'completed'));
        return { jobs, port: Number(/tcp_port:(\d+)/.exec(await connection.info('server'))?.[1]) };
      } finally {
        await closeConnection(connection);
      }
    }),
  );
}

async function admin<Answer>({ address, prefix }: Cell, use: (admin: QueueAdmin) => Promise<Answer>): Promise<Answer> {
  const opened = await QueueAdmin.connect({ redisUrl: address, prefix: prefix!, queue: QUEUE });
  try {
    return await use(opened);
  } finally {
    await opened.close();
  }
}

test('its cells lie on all nodes, have their share of a call, and each is found by what was submitted there', async () => {
  expect(cells.map(({ name, prefix }) => `${name} ${prefix}`)).toEqual(
    Array.from({ length: COUNT }, (_, at) => `shoal-${at} {shoal.${at}}`),
  );
  const client = await open();
  const { vectors } = await client.embed(texts(600));
  expect(vectors).toEqual(await expected(600));
  const told = await completed();
  expect(new Set(told.map(({ port }) => port))).toEqual(new Set(cluster.servers.map(({ port }) => port)));
  for (const { jobs } of told) expect(jobs).toBeGreaterThan(5);
  const handles = await Promise.all(
    cells.map(({ name }, at) => client.submit(texts(9), { jobId: `later-${at}@${name}` })),
  );
  expect(handles.map(({ id }) => id)).toEqual(cells.map(({ name }, at) => `later-${at}@${name}`));
  const listed = [{ name: 'shoal', address: cluster.url, cells: COUNT }];
  const other = await open({ cells: listed, redisUrl: cluster.url, prefix: '{shoal.3}' });
  const nine = vectors.subarray(0, (9 * vectors.length) / 600);
  for (const { id } of handles) expect((await other.job(id).result()).vectors).toEqual(nine);
  expect((await other.job('later-4').result()).rows).toBe(9);
});

test('a node that is killed takes its cells away and no other, and what waits there is delivered when it is back', async () => {
  const owners = (await completed()).map(({ port }) => port);
  const dead = cluster.servers.find(({ port }) => port === owners[1])!;
  const gone = cells.filter((_, at) => owners[at] === dead.port);
  expect(gone.length).toBe(2);
  const client = await open({ askAfterMs: 500, cellAwayAfterMs: 1_000 });
  await Promise.all(gone.map((cell) => admin(cell, (opened) => opened.pause())));
  const held = client.embed(texts(160), { class: 'bulk', jobId: 'waits' });
  held.catch(() => undefined);
  const waiting = (): Promise<number[]> =>
    Promise.all(gone.map((cell) => admin(cell, async (opened) => (await opened.counts()).lanes[0]!.waiting)));
  await expect.poll(async () => Math.min(...(await waiting()))).toBeGreaterThan(0);
  await dead.kill9();
  const during = await client.embed(texts(120));
  expect(during.rows).toBe(120);
  const away = new Set(gone.map(({ name }) => name));
  for (const jobId of ['one', 'two', 'three']) {
    const { id } = await client.submit(texts(9), { jobId });
    expect(away.has(id.replace(/.*@/, ''))).toBe(false);
  }
  await dead.start();
  await Promise.all(gone.map((cell) => admin(cell, (opened) => opened.resume())));
  const { vectors, rows } = await held;
  expect(rows).toBe(160);
  expect(vectors).toEqual(await expected(160));
  expect(vectors.subarray(0, during.vectors.length)).toEqual(during.vectors);
  expect(client.counts().failed).toBe(0);
});

test('cells of it are added, drained and removed while requests are open, and none fails', async () => {
  const path = join(folder, 'cells.json');
  const list = (entries: unknown): void => writeFileSync(path, JSON.stringify(entries));
  const cluster2 = { name: 'shoal', address: cluster.url, cells: 2 };
  list([cluster2]);
  const log = new RecordingLogger();
  const client = await open({ cells: path, maxInFlightJobs: 8, log });
  const before = await completed();
  let rows = 0;
  const at: Record<number, () => Promise<void>> = {
    80: () => change([{ ...cluster2, cells: COUNT }], COUNT),
    240: () => change([cluster2, ...cells.slice(2).map((cell) => ({ ...cell, write: false }))]),
    320: () => change([cluster2]),
  };
  const changes = (): number => log.messages('info').filter((message) => message.endsWith('has changed')).length;
  /** Resolves when the client has read it, and hears of results in so many cells. */
  async function change(entries: unknown, hearing = 1): Promise<void> {
    const known = changes();
    list(entries);
    await expect.poll(changes).toBe(known + 1);
    await expect.poll(subscribers).toBeGreaterThanOrEqual(hearing);
  }
  /** Connections of clients that hear of results, on all nodes. */
  async function subscribers(): Promise<number> {
    const each = cluster.servers.map(async ({ url }) => {
      const node = openConnection({ url, name: 'test' });
      try {
        const channels = (await node.pubsub('CHANNELS', '*:reply:*')) as string[];
        const told = channels.length === 0 ? [] : await node.pubsub('NUMSUB', ...channels);
        return told.reduce<number>((sum, one) => sum + (typeof one === 'number' ? one : 0), 0);
      } finally {
        await closeConnection(node);
      }
    });
    return (await Promise.all(each)).reduce((sum, one) => sum + one, 0);
  }
  for await (const block of client.embedStream(
    texts(400).map((text) => ({ text })),
    { runId: 'live' },
  )) {
    if (block.kind !== 'embedded') throw block.error;
    expect(block.first).toBe(rows);
    await at[rows]?.();
    rows += block.rows;
  }
  expect(rows).toBe(400);
  expect(client.counts()).toMatchObject({ delivered: 100, failed: 0 });
  const after = await completed();
  const each = after.map(({ jobs }, cell) => jobs - before[cell]!.jobs);
  expect(each.reduce((sum, jobs) => sum + jobs, 0)).toBe(100);
  expect(Math.min(...each)).toBeGreaterThan(0);
});
