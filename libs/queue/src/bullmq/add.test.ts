// Adding by our one script against BullMQ's own addStandardJob, on two prefixes with the same history: what either
// leaves on the server is the same, and BullMQ's workers take both alike.

import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { Queue, Worker } from 'bullmq';
import { keySpace } from '@shoal/contract';
import { addAndLook, type AddedJob } from './add.ts';
import { openTransaction, queueAdd } from './internals.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import type { Found } from '../producer/job-verdict.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { queueState } from '../testing/queue-state.ts';

const EVENTS_KEPT = 100;
const LARGE = Buffer.alloc(20_000, 0xfe);
const NOTHING: Found = { data: undefined, isFinished: false, failedReason: undefined, result: undefined };
let server: TestServer;
let connection: Redis;
let scenes = 0;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

interface Place {
  readonly prefix: string;
  readonly queue: Queue;
}

async function place(): Promise<Place> {
  const prefix = `{t-add-${++scenes}}`;
  const queue = new Queue('q', { prefix, connection, streams: { events: { maxLen: EVENTS_KEPT } } });
  await queue.getVersion(); // until it has written what it tells of itself
  closers.push(() => queue.close());
  return { prefix, queue };
}

function add({ prefix, queue }: Place, jobs: readonly AddedJob[], through = connection): Promise<Found[]> {
  return addAndLook(through, queue, keySpace(prefix), jobs);
}

/** As a producer did before there was a script: each input and BullMQ's own script, in one transaction. */
async function addTheirs({ prefix, queue }: Place, jobs: readonly AddedJob[]): Promise<void> {
  const transaction = await openTransaction(queue);
  for (const { jobId, name, data, input } of jobs) {
    if (input !== undefined) transaction.set(keySpace(prefix).input('q', jobId), input, 'NX');
    queueAdd(queue, transaction, { name, data, opts: { jobId } });
  }
  for (const [error] of (await transaction.exec())!) expect(error).toBeNull();
}

function job(jobId: string, input?: Buffer): AddedJob {
  return { jobId, name: 'embed', data: { v: 1, fingerprint: '00', texts: [`a "quoted" é/${jobId}`] }, input };
}

/** The connection, but each command of this name is preceded, or followed, by another one. */
function around(
  name: string,
  {
    before,
    after,
  }: { readonly before?: readonly string[]; readonly after?: (key: string) => readonly string[] | undefined },
): Redis {
  return new Proxy(connection, {
    get(target, property) {
      if (property !== 'sendCommand') return Reflect.get(target, property, target) as unknown;
      return (command: Parameters<Redis['sendCommand']>[0]) => {
        const isIt = command.name.toLowerCase() === name;
        if (isIt && before !== undefined) void target.call(...(before as [string]));
        const sent = target.sendCommand(command);
        const next = isIt ? after?.(String(command.args[0])) : undefined;
        if (next !== undefined) void target.call(...(next as [string]));
        return sent;
      };
    },
  });
}

const MANY = Array.from({ length: 50 }, (_, at) => job(`many-${at}`));
const SOME = [job('a'), job('b-é'), job('c', Buffer.from([0, 255, 10])), job('d', LARGE)];

test.for<[string, (queue: Queue) => Promise<unknown>, readonly (readonly AddedJob[])[]]>([
  ['an empty queue', async () => undefined, [SOME]],
  ['a queue that has other jobs', (queue) => queue.add('embed', {}, { jobId: 'first' }), [SOME, MANY]],
  ['a paused queue', (queue) => queue.pause(), [SOME]],
  [
    'a queue whose concurrency is reached',
    async (queue) => [await queue.setGlobalConcurrency(1), await connection.rpush(queue.toKey('active'), 'x')],
    [SOME],
  ],
  [
    'a queue whose concurrency is not reached',
    async (queue) => [await queue.setGlobalConcurrency(2), await connection.rpush(queue.toKey('active'), 'x')],
    [SOME],
  ],
  [
    'a queue that says nothing of its events',
    (queue) => connection.hdel(queue.toKey('meta'), 'opts.maxLenEvents'),
    [SOME],
  ],
  [
    'more jobs than events are kept',
    async () => undefined,
    [MANY, MANY.map(({ jobId }) => job(`${jobId}-2`)), MANY.map(({ jobId }) => job(`${jobId}-3`))],
  ],
  ['an id that waits already', (queue) => queue.add('embed', { n: 1 }, { jobId: 'b-é' }), [SOME]],
  ['the same jobs again', async () => undefined, [SOME, SOME]],
  ['an id that comes twice in a call', async () => undefined, [[job('a'), job('b'), job('a')]]],
])('%s holds the same, key by key, as after BullMQ added the same jobs', async ([, prepare, calls]) => {
  const [ours, theirs] = [await place(), await place()];
  for (const { queue } of [ours, theirs]) await prepare(queue);
  for (const jobs of calls) {
    await add(ours, jobs);
    await addTheirs(theirs, jobs);
  }
  const state = await queueState(connection, ours.prefix);
  expect(state).toEqual(await queueState(connection, theirs.prefix));
  expect(state[':q:events']).toHaveProperty('length');
});

test('a job is what Queue.add makes of it, each field, and one job alone leaves the same as well', async () => {
  const [ours, theirs] = [await place(), await place()];
  await add(ours, [job('a')]);
  await theirs.queue.add('embed', job('a').data, { jobId: 'a' });
  expect(await queueState(connection, ours.prefix)).toEqual(await queueState(connection, theirs.prefix));
  expect(await ours.queue.getJob('a')).toMatchObject({
    id: 'a',
    name: 'embed',
    data: job('a').data,
    opts: { attempts: 0, jobId: 'a' },
    timestamp: expect.closeTo(Date.now(), -5),
  });
});

test('a worker of BullMQ that sleeps is woken, and takes all jobs in order', async () => {
  const { prefix, queue } = await place();
  const own = openConnection({ url: server.url, name: 'sleeper' });
  const taken: unknown[] = [];
  const worker = new Worker('q', async ({ id }) => taken.push(id), { prefix, connection: own, drainDelay: 30 });
  closers.push(
    () => closeConnection(own),
    () => worker.close(true),
  );
  await expect.poll(async () => String(await server.command('CLIENT', 'LIST'))).toContain('cmd=bzpopmin');
  const startedMs = performance.now();
  await add({ prefix, queue }, SOME);
  await expect.poll(() => taken, { timeout: 10_000 }).toEqual(SOME.map(({ jobId }) => jobId));
  expect(performance.now() - startedMs).toBeLessThan(5_000);
});

test('says what was there before anything changed, and finds the second time an id that comes twice', async () => {
  const one = await place();
  expect(await add(one, [job('a'), job('b'), job('a')])).toEqual([
    NOTHING,
    NOTHING,
    { ...NOTHING, data: JSON.stringify(job('a').data) },
  ]);
  await connection.hset(one.queue.toKey('a'), 'finishedOn', 1, 'failedReason', 'CODE: é');
  expect(await add(one, [job('a'), job('c')])).toEqual([
    { data: JSON.stringify(job('a').data), isFinished: true, failedReason: 'CODE: é', result: undefined },
    NOTHING,
  ]);
});

test(
  'a large input is the job’s without an end to its life, byte by byte, and nothing stays staged where the job ' +
    'was there',
  async () => {
    const one = await place();
    for (const input of [LARGE, Buffer.alloc(20_000, 1)]) await add(one, [job('d', input), job('e', input)]);
    expect(await connection.getBuffer(keySpace(one.prefix).input('q', 'd'))).toEqual(LARGE);
    expect(await connection.ttl(keySpace(one.prefix).input('q', 'd'))).toBe(-1);
    expect(await connection.keys(keySpace(one.prefix).staged('*', '*', '*'))).toEqual([]);
  },
);

test('no two inputs are staged under one name, of one call or of two for the same id', async () => {
  const one = await place();
  const names: string[] = [];
  const listening = around('set', { after: (key) => void names.push(key) });
  await Promise.all([add(one, [job('d', LARGE), job('d', LARGE)], listening), add(one, [job('d', LARGE)], listening)]);
  expect(new Set(names).size).toBe(3);
});

test(
  'a job whose staged input is gone is not added without it, but with it when it was staged again; the others ' +
    'are not held up',
  async () => {
    const one = await place();
    let lost = 0;
    const forgetful = around('set', { after: (key) => (lost++ < 2 ? ['DEL', key] : undefined) });
    expect(await add(one, [job('d', LARGE), job('b'), job('e', LARGE)], forgetful)).toEqual([
      NOTHING,
      NOTHING,
      NOTHING,
    ]);
    expect(lost).toBe(4);
    expect(await connection.lrange(one.queue.toKey('wait'), 0, -1)).toEqual(['e', 'd', 'b']);
    expect(await connection.getBuffer(keySpace(one.prefix).input('q', 'e'))).toEqual(LARGE);
    const useless = around('set', { after: (key) => ['DEL', key] });
    await expect(add(one, [job('f', LARGE)], useless)).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
    expect(await connection.exists(one.queue.toKey('f'))).toBe(0);
  },
);

test('a server that forgot its scripts adds all the same', async () => {
  const one = await place();
  for (const jobs of [SOME, MANY]) {
    await server.command('SCRIPT', 'FLUSH');
    expect(await add(one, jobs)).toEqual(jobs.map(() => NOTHING));
  }
  expect(await one.queue.getWaitingCount()).toBe(SOME.length + MANY.length);
});

test('a server that is full by the time the script comes has done nothing of it, and keeps no input', async () => {
  const one = await place();
  await add(one, [job('known')]);
  const before = await queueState(connection, one.prefix);
  const full = around('evalsha', { before: ['CONFIG', 'SET', 'maxmemory', '1'] });
  await expect(
    add(one, [job('known', LARGE), ...SOME], full).finally(() => server.command('CONFIG', 'SET', 'maxmemory', '0')),
  ).rejects.toThrow(/^OOM /);
  expect(await queueState(connection, one.prefix)).toEqual(before);
});

test('where an id or its result is of another type that is said, nothing of it changes, others are added', async () => {
  const one = await place();
  const keys = keySpace(one.prefix);
  const [id, output] = [one.queue.toKey('odd'), keys.output('q', 'odd-result')];
  await connection.set(id, 'no job');
  await connection.rpush(output, 'no result');
  await expect(add(one, [job('a'), job('odd', LARGE), job('b')])).rejects.toThrow(/^WRONGTYPE/);
  await expect(add(one, [job('c'), job('odd-result', LARGE)])).rejects.toThrow(/^WRONGTYPE/);
  expect(await connection.lrange(one.queue.toKey('wait'), 0, -1)).toEqual(['c', 'b', 'a']);
  expect([await connection.get(id), await connection.lrange(output, 0, -1)]).toEqual(['no job', ['no result']]);
  expect(
    await connection.exists(one.queue.toKey('odd-result'), keys.input('q', 'odd'), keys.input('q', 'odd-result')),
  ).toBe(0);
  expect(await connection.keys(keys.staged('*', '*', '*'))).toEqual([]);
});
