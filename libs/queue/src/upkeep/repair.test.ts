import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { FlowProducer, Queue } from 'bullmq';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { repairQueue, type RepairReport } from './repair.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const PREFIX = '{t-repair}';
const QUEUE = 'embed-x';
const keys = keySpace(PREFIX);
const key = (name: string): string => keys.job(QUEUE, name);
const NOTHING: Omit<RepairReport, 'jobs'> = {
  moved: 0,
  shortened: 0,
  setAside: 0,
  mended: 0,
  failed: 0,
  requeued: 0,
  released: 0,
  removed: 0,
};

let server: TestServer;
let connection: Redis;
let queue: Queue;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(async () => {
  await connection.flushall();
  queue = new Queue(QUEUE, { prefix: PREFIX, connection });
  await queue.waitUntilReady();
});
afterEach(() => queue.close());
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

/** Healthy jobs in every state that a job may rest in. */
async function addNeighbours(count: number): Promise<void> {
  await queue.addBulk(
    Array.from({ length: count }, (_, i) => ({
      name: 'embed',
      data: { v: 1, texts: ['x'] },
      opts: { jobId: `plain-${i}` },
    })),
  );
  await queue.addBulk(
    Array.from({ length: count }, (_, i) => ({
      name: 'embed',
      data: { v: 1, texts: ['x'] },
      opts: { jobId: `first-${i}`, priority: 1 },
    })),
  );
  await queue.add('embed', { v: 1 }, { jobId: 'later', delay: 60_000 });
  await queue.add('embed', { v: 1 }, { jobId: 'scheduled-child' });
}

async function snapshot(): Promise<Record<string, unknown>> {
  const all: Record<string, unknown> = {};
  const names = (await connection.keys(`${PREFIX}:*`)).filter((name) => name !== keys.clock(QUEUE));
  for (const name of names) all[name] = (await connection.dump(name))?.toString();
  return all;
}

function repair(options: { isThorough?: boolean; onStep?: () => void } = {}): Promise<RepairReport> {
  return repairQueue({ connection, prefix: PREFIX, queue: QUEUE, ...options });
}

test('a healthy queue is not touched, thoroughly or not, in bounded steps', async () => {
  await addNeighbours(700);
  const before = await snapshot();
  let steps = 0;
  expect(await repair({ onStep: () => void steps++ })).toEqual({ ...NOTHING, jobs: 1_402 });
  expect(steps).toBeGreaterThanOrEqual(6);
  expect(await repair({ isThorough: true })).toEqual({ ...NOTHING, jobs: 1_402 });
  expect(await snapshot()).toEqual(before);
});

test('waiting jobs with damaged records fail with what was found; their neighbours wait on', async () => {
  await addNeighbours(300);
  await connection.hset(key('plain-7'), 'opts', 'nonsense');
  await connection.hset(key('first-250'), 'data', '{"v":1');
  await connection.hset(key('later'), 'data', 'x');
  await connection.del(key('plain-299'), key('first-3'));
  expect(await repair()).toEqual({ ...NOTHING, jobs: 607, mended: 3, failed: 5 });
  const failed = await queue.getJobs(['failed']);
  expect(
    failed
      .map(({ id, failedReason }) => [
        id,
        /^JOB_INVALID: its record (cannot be read: "(opts|data)" is not JSON|is gone)/.test(failedReason),
      ])
      .sort(),
  ).toEqual(['first-250', 'first-3', 'later', 'plain-299', 'plain-7'].map((id) => [id, true]));
  expect(await queue.getJobCounts('wait', 'prioritized', 'delayed')).toEqual({
    wait: 300 - 1,
    prioritized: 298,
    delayed: 0,
  });
  expect(await connection.hget(key('plain-7'), 'damaged:opts')).toBe('nonsense');
  expect(await repair()).toMatchObject(NOTHING);
});

test('whoever waits for a job that fails so hears of it at once', async () => {
  const channel = `${PREFIX}:reply:somebody`;
  const listener = connection.duplicate();
  await listener.subscribe(channel);
  const heard = new Promise<string>((resolve) => listener.on('message', (_, text) => resolve(text)));
  await queue.add('embed', { v: 1, texts: ['x'], reply: channel }, { jobId: 't~a' });
  await connection.hset(key('t~a'), 'opts', 'nonsense');
  await repair();
  expect(JSON.parse(await heard)).toEqual({ v: 1, queue: QUEUE, failed: ['t~a'] });
  await closeConnection(listener);
});

test('what only parsing finds is found thoroughly', async () => {
  await queue.add('embed', { v: 1 }, { jobId: 'a' });
  await connection.hset(key('a'), 'data', '{"v":1,}');
  expect(await repair()).toMatchObject(NOTHING);
  expect(await repair({ isThorough: true })).toMatchObject({ mended: 1, failed: 1 });
});

test('a finished job with a damaged record can be listed again; one without a record is listed no more', async () => {
  for (const jobId of ['a', 'b', 'c']) await queue.add('embed', { v: 1 }, { jobId });
  await connection.del(key('wait'));
  for (const jobId of ['a', 'b', 'c']) {
    await connection.zadd(key('completed'), Date.now(), jobId);
    await connection.hset(key(jobId), 'finishedOn', String(Date.now()));
  }
  await connection.hset(key('a'), 'opts', '[');
  await connection.del(key('b'));
  await expect(queue.getJobs(['completed'])).rejects.toThrow(/JSON/);
  expect(await repair()).toMatchObject({ ...NOTHING, mended: 1, removed: 1 });
  expect((await queue.getJobs(['completed'])).map(({ id }) => id).sort()).toEqual(['a', 'c']);
});

test('whole jobs that are in no list wait again, with a marker; what is left of finished ones goes', async () => {
  for (const jobId of ['a', 'b', 'old']) await queue.add('embed', { v: 1 }, { jobId });
  await connection.hset(key('old'), 'finishedOn', '1');
  await connection.hset(key('scrap'), 'stc', '1');
  await connection.del(key('wait'), key('marker'));
  expect(await repair()).toMatchObject({ ...NOTHING, requeued: 2, removed: 2 });
  expect((await connection.lrange(key('wait'), 0, -1)).sort()).toEqual(['a', 'b']);
  expect(await connection.zcard(key('marker'))).toBe(1);
  expect(await connection.exists(key('old'), key('scrap'))).toBe(0);
  expect(await connection.exists(key('meta'))).toBe(1);
});

test('a job that a worker holds is left alone, in whatever list it is or is not', async () => {
  await queue.add('embed', { v: 1 }, { jobId: 'a' });
  await connection.del(key('wait'));
  await connection.set(`${key('a')}:lock`, 'token', 'PX', 60_000);
  expect(await repair()).toMatchObject(NOTHING);
  await connection.lpush(key('active'), 'a');
  await connection.del(`${key('a')}:lock`);
  expect(await repair()).toMatchObject(NOTHING);
});

test('an id whose key is no record leaves the list; what the key holds is moved aside', async () => {
  await connection.set(key('odd'), 'a string');
  await connection.lpush(key('wait'), 'odd');
  expect(await repair()).toMatchObject({ ...NOTHING, setAside: 1 });
  const [name] = await connection.zrange(keys.setAside(QUEUE), '0', '-1');
  expect(name).toMatch(/^odd:/);
  expect(await connection.get(`${keys.setAside(QUEUE)}:${name}`)).toBe('a string');
  expect(await connection.exists(key('odd'))).toBe(0);
});

test('a parent whose child is gone runs again; one whose child waits goes on waiting', async () => {
  const flow = new FlowProducer({ prefix: PREFIX, connection });
  const add = (parent: string): Promise<unknown> =>
    flow.add({
      name: 'embed',
      queueName: QUEUE,
      data: {},
      opts: { jobId: parent },
      children: [{ name: 'embed', queueName: 'embed-x-cpu', data: {}, opts: { jobId: `${parent}-child` } }],
    });
  await add('bereft');
  await add('patient');
  await connection.del(keys.job('embed-x-cpu', 'bereft-child'));
  expect(await repair()).toMatchObject({ ...NOTHING, released: 1 });
  expect(await connection.lrange(key('wait'), 0, -1)).toEqual(['bereft']);
  expect(await connection.zrange(key('waiting-children'), '0', '-1')).toEqual(['patient']);
  await flow.close();
});
