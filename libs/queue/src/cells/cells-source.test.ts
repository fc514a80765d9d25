// A worker at home in one cell that helps another: two real servers.

import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { keySpace, mainQueue, type EmbedJobData } from '@shoal/contract';
import { noLog, type RawClaim, type WorkerFacts } from '@shoal/core';
import { JobProducer } from '../producer/job-producer.ts';
import { WorkerPresence } from '../lanes/worker-presence.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { Canceller } from '../producer/cancel.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { CellsSource } from './cells-source.ts';
import { Helping, type HelpingOptions } from './helping.ts';

const LEASE_MS = 1_000;
const OWN: HelpingOptions['own'] = { model: 'x@1', jobVersion: 2, payloads: undefined, device: 'sim:1' };
const QUEUE = mainQueue('x');
let [a, b]: TestServer[] = [];
let tests = 0;

beforeAll(async () => {
  [a, b] = await Promise.all([startTestServer({ topology: 'single' }), startTestServer({ topology: 'single' })]);
});

afterAll(() => Promise.all([a!.stop(), b!.stop()]));

interface Scene {
  readonly prefix: string;
  readonly source: CellsSource;
  readonly helping: Helping;
  readonly lost: string[];
  readonly cancelled: string[];
  /** Of the other cell. */
  readonly connection: Redis;
  /** Ids that are there. */
  left(): Promise<Readonly<Record<'waiting' | 'active' | 'completed', readonly string[]>>>;
  add(server: TestServer, jobs: Readonly<Record<string, 'bulk' | 'interactive'>>): Promise<void>;
}

async function setUp({ own = OWN, prefix = `{c${++tests}}` } = {}): Promise<Scene> {
  const open = (redisUrl: string, isBulkAlone: boolean): BullJobSource =>
    new BullJobSource({
      redisUrl,
      prefix,
      queue: QUEUE,
      leaseMs: LEASE_MS,
      stalledCheckMs: 300,
      isBulkAlone,
      log: noLog,
    });
  const cells = [
    { name: 'a', address: a!.url },
    { name: 'b', address: b!.url },
  ];
  const helping = new Helping({
    cells: JSON.stringify(cells),
    home: 'a',
    prefix,
    queue: QUEUE,
    own,
    open: ({ address }) => open(address, true),
    log: noLog,
  });
  const source = new CellsSource({ home: open(a!.url, false), helping, idleMs: 50 });
  const [lost, cancelled]: string[][] = [[], []];
  source.onLeaseLost((jobId) => lost!.push(jobId));
  source.onCancelled((jobIds) => cancelled!.push(...jobIds));
  await source.start();
  const connection = await connected({ url: b!.url, prefix, name: 'test' });
  onTestFinished(async () => {
    await source.stop();
    await closeConnection(connection);
  });
  const add: Scene['add'] = async ({ url: redisUrl }, jobs) => {
    const producer = await JobProducer.connect({ redisUrl, prefix, queue: QUEUE });
    await producer.add(Object.entries(jobs).map(([jobId, kind]) => ({ jobId, data: dataOf(kind) })));
    await producer.close();
  };
  const left: Scene['left'] = async () => {
    const place = `${prefix}:${QUEUE}`;
    const [wait, line, active, completed] = await Promise.all([
      connection.lrange(`${place}:wait`, 0, -1),
      connection.zrange(`${place}:prioritized`, '0', '-1'),
      connection.lrange(`${place}:active`, 0, -1),
      connection.zrange(`${place}:completed`, '0', '-1'),
    ]);
    return { waiting: [...wait, ...line].toSorted(), active, completed: completed.toSorted() };
  };
  return { prefix, source, helping, lost: lost!, cancelled: cancelled!, connection, left, add };
}

function dataOf(kind: 'bulk' | 'interactive'): EmbedJobData {
  return { v: 1, fingerprint: '00112233445566ff', texts: ['t'], class: kind };
}

async function complete(source: CellsSource, claims: readonly RawClaim[]): Promise<void> {
  const value = {
    v: 1,
    result: 'k',
    rows: 1,
    dims: 1,
    dtype: 'f32',
    model: 'x@1',
    fingerprint: '00112233445566ff',
  } as never;
  for (const claim of claims)
    expect(await source.settle(claim, { kind: 'complete', value })).toMatch(/settled|announced/);
}

async function claimAll(source: CellsSource, count: number): Promise<RawClaim[]> {
  const claims: RawClaim[] = [];
  while (claims.length < count) claims.push(...(await source.claim(8)));
  return claims;
}

function namesOf(claims: readonly RawClaim[]): string[] {
  return claims.map(({ cell, jobId }) => `${cell?.name ?? 'home'} ${jobId}`).toSorted();
}

test('a worker without work of its own claims bulk of another cell, never interactive jobs, and ends it there', async () => {
  const { source, helping, add, left } = await setUp();
  await add(b!, { quick: 'interactive', slow: 'bulk', slower: 'bulk' });
  const claims = await claimAll(source, 2);
  expect(namesOf(claims)).toEqual(['b slow', 'b slower']);
  expect(helping.helped).toEqual([{ cell: 'b', jobs: 2, held: 2 }]);
  await complete(source, claims);
  expect(helping.helped).toEqual([{ cell: 'b', jobs: 2, held: 0 }]);
  expect(await left()).toEqual({ waiting: ['quick'], active: [], completed: ['slow', 'slower'] });
});

test('work at home goes first, also while it helps, and the question that waits there brings interactive jobs', async () => {
  const { source, add } = await setUp();
  await add(b!, Object.fromEntries(Array.from({ length: 20 }, (_, at) => [`far-${at}`, 'bulk' as const])));
  const first = await source.claim(2);
  expect(first.every(({ cell }) => cell?.name === 'b')).toBe(true);
  await add(a!, { near: 'interactive' });
  await expect.poll(async () => namesOf(await source.claimUrgent(4))).toEqual(['home near']);
});

test.each<[string, Partial<WorkerFacts>]>([
  ['another revision of the model', { model: 'x@2' }],
  ['jobs that this worker does not know', { jobVersion: 3 }],
  ['other payload servers', { payloads: 'set' }],
])(
  'nobody is helped whose workers have %s',
  async (_, facts) => {
    const { source, add, prefix, helping } = await setUp();
    const presence = await WorkerPresence.connect({
      redisUrl: b!.url,
      prefix,
      queue: QUEUE,
      log: noLog,
      facts: () => ({ ...OWN, ...facts, rates: {}, mix: {}, lanes: ['main'] }) as unknown as WorkerFacts,
    });
    await presence.start();
    await add(b!, { slow: 'bulk' });
    await add(a!, { near: 'bulk' });
    expect(namesOf(await source.claim(4))).toEqual(['home near']);
    const claiming = source.claim(4);
    await sleep(2_500);
    expect(helping.helped).toEqual([]);
    await presence.stop(); // now nobody else is there
    expect(namesOf(await claiming)).toEqual(['b slow']);
  },
  20_000,
);

test('a drained worker helps nobody, and a cell whose workers were all drained is not helped', async () => {
  const { source, helping, connection, add, prefix } = await setUp();
  helping.drain(true);
  await add(b!, { slow: 'bulk' });
  const claiming = source.claim(4);
  await sleep(1_500);
  await connection.sadd(keySpace(prefix).drained(QUEUE), '*');
  helping.drain(false);
  await sleep(1_500);
  expect(helping.helped).toEqual([]);
  await connection.del(keySpace(prefix).drained(QUEUE));
  expect(namesOf(await claiming)).toEqual(['b slow']);
}, 20_000);

test('home goes on while a cell is gone of which a job is held, and that gives the job out again when it is back', async () => {
  const { source, lost, add } = await setUp();
  await add(b!, { slow: 'bulk' });
  const [held] = await source.claim(4);
  expect(held?.cell?.name).toBe('b');
  await b!.durable();
  await b!.kill9();
  await add(a!, { near: 'bulk' });
  const near = await claimAll(source, 1);
  expect(namesOf(near)).toEqual(['home near']);
  await complete(source, near);
  await sleep(LEASE_MS + 500);
  await b!.restart();
  await expect.poll(() => lost, { timeout: 10_000 }).toEqual(['slow']);
  expect(await source.settle(held!, { kind: 'abandon' })).toBe('settled');
  const again = await claimAll(source, 1);
  expect(namesOf(again)).toEqual(['b slow']);
  await complete(source, again);
}, 60_000);

test('what it holds goes back where it came from when it is stopped, and what was cancelled there is heard of here', async () => {
  const { source, cancelled, add, prefix, left } = await setUp();
  await add(b!, { one: 'bulk', two: 'bulk' });
  const claims = await claimAll(source, 2);
  const canceller = await Canceller.connect({ redisUrl: b!.url, prefix, queue: QUEUE, log: noLog });
  await canceller.cancel(['one']);
  await canceller.close();
  await expect.poll(() => cancelled).toEqual(['one']);
  await source.stopClaiming();
  for (const claim of claims) await source.settle(claim, { kind: 'return', delayMs: 0, reason: 'test' });
  expect(await left()).toEqual({ waiting: ['one', 'two'], active: [], completed: [] });
});

test('the jobs of workers that are all gone are found once their leases are over', async () => {
  const { source, prefix, add } = await setUp();
  const dead = new BullJobSource({
    redisUrl: b!.url,
    prefix,
    queue: QUEUE,
    leaseMs: LEASE_MS,
    stalledCheckMs: 60_000,
    log: noLog,
  });
  await dead.start();
  await add(b!, { slow: 'bulk' });
  expect(await dead.claim(1)).toHaveLength(1);
  await dead.stop();
  expect(namesOf(await source.claim(4))).toEqual(['b slow']);
}, 20_000);
