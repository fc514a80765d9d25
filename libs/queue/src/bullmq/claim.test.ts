// Claims that travel together against BullMQ's own, on two queues with the same history: what is claimed, what a worker
// remembers, and what is on the server afterwards are the same.

import { afterAll, beforeAll, expect, test } from 'vitest';
import { Queue, Worker, type JobsOptions } from 'bullmq';
import { joinClaims } from './claim.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { queueState, type QueueState } from '../testing/queue-state.ts';
import { startTestServer, type TestServer } from '../testing.ts';

/** No clock comes near it. */
const FAR = Date.UTC(2150);
const PAST = Date.UTC(2021);
let server: TestServer;
let connection: Redis;
let scenes = 0;

interface Scene {
  readonly queue: Queue;
  key(name: string): string;
  /** What each of so many calls in one turn brings: an id with its token and state, nothing, or why it failed. */
  take(count: number): Promise<unknown[]>;
}

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function play(
  isJoined: boolean,
  history: (scene: Scene) => Promise<unknown>,
): Promise<{ taken: unknown; remembered: unknown; state: QueueState }> {
  const prefix = `{t-claim-${++scenes}}`;
  const queue = new Queue('q', { prefix, connection, streams: { events: { maxLen: 100 } } });
  const worker = new Worker('q', null, { prefix, connection, name: 'w', autorun: false, lockDuration: 60_000 });
  await worker.waitUntilReady();
  if (isJoined) await joinClaims(worker, connection);
  let tokens = 0;
  const take = async (count: number): Promise<unknown[]> => {
    const calls = Array.from({ length: count }, () => worker.getNextJob(`token-${tokens++}`, { block: false }));
    return (await Promise.allSettled(calls)).map((call) => {
      if (call.status === 'rejected') return (call.reason as Error).message.replace(/,? ?script: .*/, '');
      return (
        (call.value as typeof call.value | undefined) && {
          id: call.value.id,
          token: call.value.token,
          data: call.value.data as unknown,
          started: call.value.attemptsStarted,
          by: call.value.processedBy,
        }
      );
    });
  };
  const taken = await history({ queue, take, key: (name) => `${prefix}:q:${name}` });
  const remembered = {
    drained: Reflect.get(worker, 'drained') as unknown,
    blockUntil: Reflect.get(worker, 'blockUntil') as unknown,
    isLimited: (Reflect.get(worker, 'limitUntil') as number) > 0,
  };
  const state = await queueState(connection, `${prefix}:`);
  await worker.close(true);
  await queue.close();
  return { taken, remembered, state };
}

/** By both ways. */
async function compare(history: (scene: Scene) => Promise<unknown>): Promise<Awaited<ReturnType<typeof play>>> {
  const theirs = await play(false, history);
  const ours = await play(true, history);
  expect(ours).toEqual(theirs);
  return ours;
}

async function add(queue: Queue, count: number, opts: JobsOptions = {}, name: string = 'j'): Promise<void> {
  await queue.addBulk(
    Array.from({ length: count }, (_, at) => ({
      name: 'embed',
      data: { at },
      opts: { jobId: `${name}-${at}`, ...opts },
    })),
  );
}

const idsOf = (taken: unknown): unknown[] => (taken as ({ id: string } | undefined)[]).map((one) => one?.id);

test('an empty queue, and one that has fewer than are asked for', async () => {
  expect((await compare(({ take }) => take(3))).remembered).toMatchObject({ drained: true, blockUntil: 0 });
  const { taken, state } = await compare(async ({ queue, take }) => {
    await add(queue, 2);
    return take(4);
  });
  expect(idsOf(taken)).toEqual(['j-0', 'j-1', undefined, undefined]);
  expect(state['q:j-1']).toMatchObject({ processedOn: 'time', pb: 'w', ats: '1' });
});

test('jobs without a place before those that have one, those by their place; the rest waits on', async () => {
  const { taken, state } = await compare(async ({ queue, take }) => {
    await add(queue, 3, { priority: 2 }, 'second');
    await add(queue, 2, { priority: 1 }, 'first');
    await add(queue, 2);
    return take(6);
  });
  expect(idsOf(taken)).toEqual(['j-0', 'j-1', 'first-0', 'first-1', 'second-0', 'second-1']);
  expect(state['q:prioritized']).toHaveLength(2);
  expect(state['q:marker']).toEqual(['0', '0']);
});

test('more than travel in one call', async () => {
  const { taken } = await compare(async ({ queue, take, key }) => {
    await add(queue, 100);
    await connection.zadd(
      key('prioritized'),
      ...Array.from({ length: 50 }, (_, at) => [at - 1_000, `j-${2 * at}`]).flat(),
    );
    for (let at = 0; at < 50; at++) await connection.lrem(key('wait'), 1, `j-${2 * at}`);
    return take(70);
  });
  expect(new Set(idsOf(taken)).size).toBe(70);
});

test('a queue that is paused, and one that is at its own limits of jobs at once and of jobs in a time', async () => {
  const taken: unknown[] = [];
  for (const limit of [
    (queue: Queue) => queue.pause(),
    (queue: Queue) => queue.setGlobalConcurrency(2),
    (queue: Queue) => queue.setGlobalRateLimit(2, 60_000),
  ]) {
    const { taken: some } = await compare(async ({ queue, take }) => {
      await add(queue, 4);
      await limit(queue);
      return take(3);
    });
    taken.push(idsOf(some));
  }
  expect(taken).toEqual([
    [undefined, undefined, undefined],
    ['j-0', 'j-1', undefined],
    ['j-0', 'j-1', undefined],
  ]);
});

test('delayed jobs: one that is not due is waited for, those that are due go first of all', async () => {
  const later = await compare(async ({ queue, take }) => {
    await add(queue, 1);
    await queue.add('embed', {}, { jobId: 'later', timestamp: FAR, delay: 1 });
    return take(2);
  });
  expect(idsOf(later.taken)).toEqual(['j-0', undefined]);
  expect(later.remembered).toMatchObject({ blockUntil: FAR + 1 });
  const due = await compare(async ({ queue, take }) => {
    await queue.add('embed', {}, { jobId: 'due', timestamp: PAST, delay: 1 });
    return take(2);
  });
  expect(idsOf(due.taken)).toEqual(['due', undefined]);
});

test('records that cannot be read fail alone, and are claimed', async () => {
  const { taken } = await compare(async ({ queue, take, key }) => {
    await add(queue, 3);
    await connection.hset(key('j-0'), 'ats', 'many');
    await connection.del(key('j-1'));
    return take(3);
  });
  expect(taken).toEqual([
    expect.stringMatching(/not an integer/),
    expect.anything(),
    expect.objectContaining({ id: 'j-2' }),
  ]);
});

test('what is no record at all is set aside, lock and place with it, and its neighbours are claimed', async () => {
  const { taken, state } = await play(true, async ({ queue, take, key }) => {
    await add(queue, 3);
    await connection.del(key('j-1'));
    await connection.rpush(key('j-1'), 'a list');
    return take(3);
  });
  expect(idsOf(taken)).toEqual(['j-0', undefined, 'j-2']);
  expect(Object.keys(state).filter((name) => name.includes('j-1'))).toEqual([
    expect.stringMatching(/^set-aside:q:j-1:\d+$/),
  ]);
  expect(state['q:active']).toHaveLength(2);
});

test.each(['wait', 'active', 'delayed', 'completed', 'marker', 'prioritized', 'stalled', 'pc', 'a:b:lock'])(
  'an id that is the name of something else is set aside before a key is touched: %s',
  async (jobId) => {
    const { taken, state } = await play(true, async ({ queue, take, key }) => {
      await add(queue, 1, {}, 'before');
      await queue.add('embed', {}, { jobId }).catch(() => undefined);
      await connection.lrem(key('wait'), 0, jobId).catch(() => undefined);
      await connection.rpush(key('wait'), jobId).catch(() => undefined);
      await connection.zadd(key('prioritized'), -5, jobId).catch(() => undefined);
      await add(queue, 1, {}, 'after').catch(() => undefined);
      return take(5);
    });
    expect(idsOf(taken)).toEqual(expect.arrayContaining(['before-0', 'after-0']));
    expect(idsOf(taken)).not.toContain(jobId);
    expect(state['set-aside:q']).toEqual(expect.arrayContaining([expect.stringMatching(`^${jobId}:`)]));
  },
);

test(
  'a server that is full hands nothing out, and all of it once there is room; one that has forgotten the script ' +
    'learns it again',
  async () => {
    const { taken } = await compare(async ({ queue, take }) => {
      await add(queue, 2);
      await server.command('CONFIG', 'SET', 'maxmemory', '100kb');
      const refused = await take(2);
      await server.command('CONFIG', 'SET', 'maxmemory', '0');
      await connection.script('FLUSH');
      return [...refused, ...(await take(2))];
    });
    expect(taken).toEqual([
      expect.stringMatching(/^OOM/),
      expect.stringMatching(/^OOM/),
      expect.objectContaining({ id: 'j-0' }),
      expect.objectContaining({ id: 'j-1' }),
    ]);
  },
);
