// Completions against BullMQ's own moveToCompleted, on two queues with the same history: what either leaves on the
// server is the same.

import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { FlowProducer, Queue, QueueEvents, type Job, type JobsOptions } from 'bullmq';
import { BatchWorker, type TakenJob } from './batch-worker.ts';
import { Completions } from './finish.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { queueState, type QueueState } from '../testing/queue-state.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const KEPT = 3;
const VALUE = { v: 1, words: 'a "quoted" sprat' };
let server: TestServer;
let connection: Redis;
let scenes = 0;
let place: { readonly connection: Redis; readonly prefix: string; readonly queue: string };
let queue: Queue;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(() => begin());

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function begin(): void {
  place = { connection, prefix: `{t-finish-${++scenes}}`, queue: 'q' };
  queue = new Queue(place.queue, { prefix: place.prefix, connection, streams: { events: { maxLen: 100 } } });
}

function completions(kept: number = KEPT): Completions {
  return new Completions({ ...place, kept, signal: new AbortController().signal });
}

async function claimed(count: number): Promise<TakenJob[]> {
  const worker = new BatchWorker({
    ...place,
    workerId: 'w',
    tokenPrefix: 'token',
    leaseMs: 60_000,
    stalledCheckMs: 60_000,
  });
  Object.assign(worker, { id: 'one' });
  Object.assign(worker.opts, { removeOnComplete: { count: KEPT } });
  await worker.untilReady();
  const taken = (await Promise.all(worker.takeNow(count))).flatMap((one) => one ?? []);
  stops.push(() => worker.shutDown());
  return taken;
}

const stops: (() => Promise<void>)[] = [];

async function add(count: number, opts: JobsOptions = {}): Promise<void> {
  await queue.addBulk(
    Array.from({ length: count }, (_, at) => ({ name: 'embed', data: { at }, opts: { jobId: `j-${at}`, ...opts } })),
  );
}

/**
 * The state that a history leaves, and what the endings of its last call said, in its order: a code of BullMQ's, or
 * "completed".
 */
interface Outcome {
  readonly state: QueueState;
  readonly said: readonly unknown[];
}

type Complete = (jobs: readonly TakenJob[]) => Promise<unknown>[];

async function outcome(history: (complete: Complete) => Promise<unknown>, complete: Complete): Promise<Outcome> {
  begin();
  const said: unknown[] = [];
  await history((jobs) =>
    complete(jobs).map(async (ending, at) => {
      said[at] = await ending.then(
        () => 'completed',
        (error: Error & { code?: number }) => error.code ?? error.message,
      );
    }),
  );
  const state = await queueState(connection, `${place.prefix}:`);
  for (const stop of stops.splice(0)) await stop();
  await queue.close();
  return { state, said };
}

/** By both ways. */
async function compare(history: (complete: Complete) => Promise<unknown>): Promise<Outcome> {
  const theirs = await outcome(history, (jobs) =>
    jobs.map(({ job, token }) => job.moveToCompleted(VALUE, token, false)),
  );
  const ours = await outcome(history, (jobs) => {
    const together = completions();
    return jobs.map(({ job, token }) => together.complete(job, token, VALUE));
  });
  expect(ours).toEqual(theirs);
  return ours;
}

test('one job, and the last one of a queue', async () => {
  const { state, said } = await compare(async (complete) => {
    await add(1);
    await Promise.all(complete(await claimed(1)));
  });
  expect(said).toEqual(['completed']);
  expect(state['q:j-0']).toMatchObject({ returnvalue: JSON.stringify(VALUE), finishedOn: 'time', atm: '1' });
  expect(state['q:events']).toContainEqual(['event', 'drained']);
});

test('some of a queue, whose oldest finished jobs go with all they left', async () => {
  const { state } = await compare(async (complete) => {
    await add(9);
    await connection.rpush(`${place.prefix}:q:j-1:logs`, 'a line');
    for (let round = 0; round < 2; round++) await Promise.all(complete(await claimed(4)));
  });
  expect(Object.keys(state).filter((key) => key.startsWith('q:j-'))).toEqual(['q:j-5', 'q:j-6', 'q:j-7', 'q:j-8']);
  expect(state['q:completed']).toHaveLength(2 * KEPT);
});

test("lost claims: no lock, another's lock, no job, one that is not active; neighbours complete", async () => {
  const { said } = await compare(async (complete) => {
    await add(6);
    const taken = await claimed(6);
    await connection.del(`${place.prefix}:q:j-0:lock`);
    await connection.set(`${place.prefix}:q:j-1:lock`, 'a stranger');
    await connection.del(`${place.prefix}:q:j-2`);
    await connection.lrem(`${place.prefix}:q:active`, 1, 'j-3');
    await Promise.all(complete(taken));
  });
  expect(said).toEqual([-2, -6, -1, -3, 'completed', 'completed']);
});

test('children that wait, a parent, a deduplication id, a number to keep of its own: as BullMQ does it', async () => {
  const { said } = await compare(async (complete) => {
    await add(1);
    await queue.add('embed', {}, { jobId: 'j-alone', deduplication: { id: 'same' } });
    await queue.add('embed', {}, { jobId: 'j-gone', removeOnComplete: true });
    // Ids in the order of the endings: those of one millisecond are sorted by name.
    await new FlowProducer({ prefix: place.prefix, connection }).add({
      name: 'parent',
      queueName: 'p',
      opts: { jobId: 'parent' },
      children: [{ name: 'child', queueName: 'q', opts: { jobId: 'k-child' } }],
    });
    const taken = await claimed(4);
    await connection.sadd(`${place.prefix}:q:j-0:dependencies`, 'somebody');
    await Promise.all(complete(taken));
  });
  expect(said).toEqual([-4, 'completed', 'completed', 'completed']);
});

test('a record that is none, and one whose count of attempts is no number', async () => {
  const { said } = await compare(async (complete) => {
    await add(3);
    const taken = await claimed(3);
    await connection.hset(`${place.prefix}:q:j-0`, 'atm', 'many');
    await connection.del(`${place.prefix}:q:j-1`);
    await connection.set(`${place.prefix}:q:j-1`, 'no record');
    await Promise.all(complete(taken));
  });
  expect(said).toEqual([expect.stringMatching(/not an integer/), expect.stringMatching(/WRONGTYPE/), 'completed']);
});

test('a queue whose events have no bound yet, and one that has jobs waiting', async () => {
  const { state } = await compare(async (complete) => {
    await add(4);
    await connection.hdel(`${place.prefix}:q:meta`, 'opts.maxLenEvents');
    await Promise.all(complete(await claimed(2)));
  });
  expect(state['q:meta']).toMatchObject({ 'opts.maxLenEvents': '10000' });
  expect(state['q:events']).not.toContainEqual(['event', 'drained']);
});

test('the same claim twice: the second one lost it', async () => {
  await add(1);
  const [taken] = await claimed(1);
  const together = completions();
  const twice = await Promise.allSettled([
    together.complete(taken!.job, taken!.token, VALUE),
    together.complete(taken!.job, taken!.token, VALUE),
  ]);
  expect(twice.map(({ status }) => status)).toEqual(['fulfilled', 'rejected']);
  for (const stop of stops.splice(0)) await stop();
});

test('many at once, also when the server has forgotten the script, and where it is full', async () => {
  await add(150);
  const events = new QueueEvents('q', { prefix: place.prefix, connection: connection.duplicate() });
  await events.waitUntilReady();
  const heard: string[] = [];
  events.on('completed', ({ jobId }) => heard.push(jobId));
  const taken = await claimed(150);
  const together = completions(1_000);
  await together.prepare();
  await connection.script('FLUSH');
  await server.command('CONFIG', 'SET', 'maxmemory', '100kb');
  await Promise.all(taken.map(({ job, token }) => together.complete(job, token, VALUE)));
  await server.command('CONFIG', 'SET', 'maxmemory', '0');
  expect(await queue.getJobCounts('active', 'completed')).toEqual({ active: 0, completed: 150 });
  expect(
    (await queue.getCompleted()).every((job: Job) => job.returnvalue.words === VALUE.words && job.attemptsMade === 1),
  ).toBe(true);
  await expect.poll(() => heard.length).toBe(150);
  await events.close();
  for (const stop of stops.splice(0)) await stop();
});

test("a set of finished jobs that is none: each job meets what BullMQ's script meets", async () => {
  const { said } = await compare(async (complete) => {
    await add(2);
    const taken = await claimed(2);
    await connection.set(`${place.prefix}:q:completed`, 'no set');
    await Promise.all(complete(taken));
  });
  expect(said).toEqual([expect.stringMatching(/WRONGTYPE/), expect.stringMatching(/WRONGTYPE/)]);
});
