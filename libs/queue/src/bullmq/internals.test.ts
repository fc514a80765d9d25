// Contracts with BullMQ that its documentation does not make. A failure here names what an upgrade broke.

import { createRequire } from 'node:module';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Queue, Worker, type Job } from 'bullmq';
import { keySpace } from '@shoal/contract';
import { KEEP_FAILED } from './batch-worker.ts';
import {
  BULLMQ_VERSION,
  childEndKeys,
  countStall,
  failWaiting,
  isLockLost,
  isScriptMissing,
  limitEvents,
  lockLost,
  openTransaction,
  queueAdd,
  queueProgress,
  queueRemove,
  queueWaitForChild,
  runTransaction,
  wakeIdleWorker,
  type QueuedJob,
  type Transaction,
} from './internals.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let queue: Queue;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
  queue = new Queue('embed-x', { prefix: '{t-internals}', connection });
});

afterAll(async () => {
  await queue.close();
  await closeConnection(connection);
  await server.stop();
});

test('the installed bullmq is the version these contracts were written against', () => {
  const manifest: unknown = createRequire(import.meta.url)('bullmq/package.json');
  expect(manifest).toMatchObject({ version: BULLMQ_VERSION });
});

describe('failWaiting', () => {
  test.each([{}, { priority: 3 }, { delay: 60_000 }])(
    'fails a job added with %j as a worker would, and is seen by the public listings',
    async (opts) => {
      const jobId = `j-fail-${JSON.stringify(opts).length}`;
      await queue.add('embed', { reply: '{t-internals}:reply:me' }, { jobId, ...opts });
      const call = { prefix: '{t-internals}', queue: 'embed-x', jobId, reason: 'CANCELLED: x' };
      expect(await failWaiting(connection, call)).toEqual({ state: 'failed', reply: '{t-internals}:reply:me' });
      expect(await failWaiting(connection, call)).toEqual({ state: 'finished', reply: undefined });
      expect((await queue.getFailed()).find((job) => job.id === jobId)).toMatchObject({
        failedReason: 'CANCELLED: x',
        attemptsMade: 0,
      });
      expect((await queue.getJobs(['wait', 'prioritized', 'delayed'])).map((job) => job.id)).not.toContain(jobId);
      await queue.remove(jobId);
    },
  );

  test(
    'takes the oldest failures away that are more than workers keep, a bounded number a call, but none that a ' +
      'parent waits for and nothing that is no record',
    async () => {
      const call = { prefix: '{t-internals}', queue: 'embed-full', reason: 'CANCELLED: x' };
      const full = new Queue(call.queue, { prefix: call.prefix, connection });
      const old = Array.from({ length: KEEP_FAILED + 150 }, (_, index) => `old-${index}`);
      await connection.zadd(full.toKey('failed'), ...old.flatMap((id, index) => [index + 1, id]));
      await connection.hset(full.toKey('old-0'), 'parentKey', full.toKey('parent'));
      await connection.set(full.toKey('old-1'), 'no record');
      for (const id of old.slice(2, 200)) await connection.hset(full.toKey(id), 'name', 'embed');
      await connection.rpush(full.toKey('old-2:logs'), 'a line');
      const left: number[] = [];
      for (const jobId of ['new-1', 'new-2', 'new-3']) {
        await full.add('embed', {}, { jobId });
        expect((await failWaiting(connection, { ...call, jobId })).state).toBe('failed');
        left.push(await full.getFailedCount());
      }
      expect(left).toEqual([KEEP_FAILED + 53, KEEP_FAILED + 2, KEEP_FAILED + 2]);
      expect(await full.getRanges(['failed'], 0, 2, true)).toEqual(['old-0', 'old-1', 'old-153']);
      const keys = ['old-0', 'old-2', 'old-2:logs', 'old-152', 'old-153', 'new-3'];
      expect(await Promise.all(keys.map((key) => connection.exists(full.toKey(key))))).toEqual([1, 0, 0, 0, 1, 1]);
      await full.close();
    },
  );
});

test('countStall: the count that a claimed job comes with', async () => {
  const job = await queue.add('embed', {}, { jobId: 'j-stall', delay: 60_000 });
  await countStall(connection, '{t-internals}:embed-x:j-stall');
  expect((await queue.getJob(job.id!))?.stalledCounter).toBe(1);
  await job.remove();
});

describe('queueAdd', () => {
  test('adds a job and a binary key in one transaction, one reply per command, in order', async () => {
    const transaction = await openTransaction(queue);
    const input = Buffer.from([0, 255, 128, 10]);
    transaction.set('{t-internals}:in:embed-x:j-1', input, 'NX');
    queueAdd(queue, transaction, { name: 'embed', data: { v: 1, texts: ['é'] }, opts: { jobId: 'j-1' } });
    transaction.hmget('{t-internals}:embed-x:j-1', 'name', 'data');
    transaction.getBuffer('{t-internals}:in:embed-x:j-1');
    const replies = await transaction.exec();
    expect(replies).toEqual([
      [null, 'OK'],
      [null, 'j-1'],
      [null, ['embed', '{"v":1,"texts":["é"]}']],
      [null, input],
    ]);
    expect(await queue.getJobState('j-1')).toBe('waiting');
  });

  test('leaves a job that exists as it is and still replies its id', async () => {
    for (const text of ['first', 'second']) {
      const transaction = await openTransaction(queue);
      queueAdd(queue, transaction, { name: 'embed', data: { text }, opts: { jobId: 'j-twice' } });
      expect(await transaction.exec()).toEqual([[null, 'j-twice']]);
    }
    expect((await queue.getJob('j-twice'))?.data).toEqual({ text: 'first' });
  });

  test('adds prioritized and delayed jobs by the script that each of them needs', async () => {
    const transaction = await openTransaction(queue);
    queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId: 'j-priority', priority: 7 } });
    queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId: 'j-delay', delay: 60_000 } });
    await transaction.exec();
    expect(await queue.getJobState('j-priority')).toBe('prioritized');
    expect(await queue.getJobState('j-delay')).toBe('delayed');
  });

  test('refuses an id that BullMQ would refuse or misread, before anything is appended', async () => {
    const transaction = await openTransaction(queue);
    for (const jobId of ['a:b', 'a:b:c', '-17', 'wait', '']) {
      expect(() => queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId } })).toThrow(/jobId/);
    }
    expect(transaction.length).toBe(1); // MULTI alone
  });

  test('a transaction works again on a new socket after the server was restarted without its scripts', async () => {
    await server.restart();
    const transaction = await openTransaction(queue);
    queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId: 'j-restarted' } });
    expect(await transaction.exec()).toEqual([[null, 'j-restarted']]);
  });

  test('scripts that the server forgot are loaded again on the same socket, and what may be repeated is', async () => {
    await server.command('SCRIPT', 'FLUSH');
    const transaction = await openTransaction(queue);
    queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId: 'j-forgotten' } });
    transaction.exists('j-forgotten');
    const replies = await transaction.exec();
    expect([isScriptMissing(replies), replies]).toMatchObject([
      true,
      [[{ message: expect.stringMatching(/^NOSCRIPT/) }], [null, 0]],
    ]);
    const add = (jobId: string) =>
      runTransaction(queue, (again) => queueAdd(queue, again, { name: 'embed', data: {}, opts: { jobId } }));
    expect(await add('j-forgotten')).toEqual([[null, 'j-forgotten']]);
    await server.command('SCRIPT', 'FLUSH');
    expect(await add('j-forgotten-2')).toEqual([[null, 'j-forgotten-2']]);
  });

  test('a script of a transaction refused as a whole, which the socket takes for loaded, is loaded too', async () => {
    await server.restart(); // another socket, and no scripts
    await server.command('CONFIG', 'SET', 'maxmemory', '1');
    const append = (transaction: Transaction): void => {
      transaction.set('{t-internals}:in:embed-x:j-refused', 'input');
      queueAdd(queue, transaction, { name: 'embed', data: {}, opts: { jobId: 'j-refused' } });
    };
    await expect(
      runTransaction(queue, append).finally(() => server.command('CONFIG', 'SET', 'maxmemory', '0')),
    ).rejects.toThrow('EXECABORT');
    expect(await runTransaction(queue, append)).toEqual([
      [null, 'OK'],
      [null, 'j-refused'],
    ]);
  });
});

function childOf(jobId: string): QueuedJob {
  return {
    name: 'embed',
    data: {},
    opts: { jobId, ignoreDependencyOnFailure: true, parent: { id: jobId, queue: queue.qualifiedName } },
  };
}

async function endChild(jobId: string, end: 'completed' | 'failed'): Promise<void> {
  const other = new Worker('embed-x-cpu', null, { prefix: '{t-internals}', connection, autorun: false });
  await other.waitUntilReady();
  for (
    let job: Job | undefined = await other.getNextJob('child');
    job !== undefined;
    job = await other.getNextJob('child', { block: false })
  ) {
    if (job.id !== jobId) await job.moveToFailed(new Error('left over'), 'child', false);
    else if (end === 'completed') await job.moveToCompleted({ v: 1 }, 'child', false);
    else await job.moveToFailed(new Error('CODE: x'), 'child', false);
  }
  await other.close(true);
}

describe('children', () => {
  let child: Queue;
  let worker: Worker;

  beforeAll(async () => {
    child = new Queue('embed-x-cpu', { prefix: '{t-internals}', connection });
    worker = new Worker('embed-x', null, { prefix: '{t-internals}', connection, autorun: false });
    worker.on('error', () => undefined);
    await worker.waitUntilReady();
    await queue.drain(true);
  });

  afterAll(() => Promise.all([worker.close(true), child.close()]));

  const claimed = async (jobId: string): Promise<void> => {
    await queue.add('embed', { n: jobId }, { jobId });
    await worker.getNextJob('token', { block: false });
  };
  const handOver = async (jobId: string, token = 'token'): Promise<unknown> => {
    const transaction = await openTransaction(child);
    queueAdd(child, transaction, childOf(jobId));
    queueProgress(queue, transaction, jobId, { note: 1 });
    queueWaitForChild(queue, transaction, jobId, token, { queue: child, jobId });
    return transaction.exec();
  };

  test(
    'queueAdd with a parent and queueWaitForChild, one reply each: the job waits for its child, and its progress ' +
      'is to be seen',
    async () => {
      await claimed('p-1');
      expect(await handOver('p-1')).toEqual([
        [null, 'p-1'],
        [null, 0],
        [null, 0],
      ]);
      expect(await queue.getJobState('p-1')).toBe('waiting-children');
      expect((await queue.getJob('p-1'))?.progress).toEqual({ note: 1 });
      expect(await connection.smembers('{t-internals}:embed-x:p-1:dependencies')).toEqual([child.toKey('p-1')]);
    },
  );

  test(
    'queueWaitForChild replies with a code of isLockLost for another token, and with 1 when the child is not ' +
      'pending',
    async () => {
      await claimed('p-2');
      expect(await handOver('p-2', 'a stranger')).toEqual([
        [null, 'p-2'],
        [null, 0],
        [null, -6],
      ]);
      expect(lockLost('p-2', -6)).toSatisfy(isLockLost);
      await child.remove('p-2');
      const transaction = await openTransaction(child);
      queueWaitForChild(queue, transaction, 'p-2', 'token', { queue: child, jobId: 'p-2' });
      expect(await transaction.exec()).toEqual([[null, 1]]);
    },
  );

  test('the end of a child puts its parent back at once and is found beside it, well and badly', async () => {
    for (const [jobId, end] of [
      ['p-3', 'completed'],
      ['p-4', 'failed'],
    ] as const) {
      await claimed(jobId);
      await handOver(jobId);
      await endChild(jobId, end);
      expect(await queue.getJobState(jobId)).toBe('waiting');
      const [processed, failed] = childEndKeys(queue, jobId);
      expect(await connection.hgetall(processed)).toEqual(
        end === 'completed' ? { [child.toKey(jobId)]: '{"v":1}' } : {},
      );
      expect(await connection.hgetall(failed)).toEqual(end === 'failed' ? { [child.toKey(jobId)]: 'CODE: x' } : {});
      await queue.remove(jobId);
      expect(await connection.exists(processed, failed)).toBe(0);
    }
  });

  test(
    'queueRemove takes away a finished child, so that the same id is a new job; over a finished one queueAdd ' +
      'would bring its old ending',
    async () => {
      await claimed('p-5');
      await handOver('p-5');
      await endChild('p-5', 'completed');
      await worker.getNextJob('token', { block: false });
      expect(await handOver('p-5')).toEqual([
        [null, 'p-5'],
        [null, 0],
        [null, 1],
      ]); // nothing pending: the old ending counted
      const transaction = await openTransaction(child);
      queueRemove(child, transaction, 'p-5');
      queueAdd(child, transaction, childOf('p-5'));
      queueWaitForChild(queue, transaction, 'p-5', 'token', { queue: child, jobId: 'p-5' });
      expect(await transaction.exec()).toEqual([
        [null, 1],
        [null, 'p-5'],
        [null, 0],
      ]);
    },
  );
});

describe('keys and codes', () => {
  let worker: Worker;

  beforeAll(async () => {
    worker = new Worker('embed-x', null, { prefix: '{t-internals}', connection, autorun: false, drainDelay: 1 });
    worker.on('error', () => undefined);
    await worker.waitUntilReady();
  });

  afterAll(() => worker.close(true));

  const take = async (token: string, block = false): Promise<Job | undefined> => worker.getNextJob(token, { block });

  test('a claimed job is locked at <job>:lock by its token, and its hash is <prefix>:<queue>:<id>', async () => {
    await queue.drain();
    await queue.add('embed', { n: 1 }, { jobId: 'k-1' });
    const job = await take('token-1');
    const keys = keySpace('{t-internals}');
    expect(await connection.get(keys.lock('embed-x', 'k-1'))).toBe('token-1');
    await job?.moveToCompleted({ done: true }, 'token-1', false);
    expect(await connection.hmget(keys.job('embed-x', 'k-1'), 'data', 'returnvalue', 'failedReason')).toEqual([
      '{"n":1}',
      '{"done":true}',
      null,
    ]);
    expect(Number(await connection.hget(keys.job('embed-x', 'k-1'), 'finishedOn'))).toBeGreaterThan(0);
  });

  const settleAfter = async (jobId: string, spoil: (key: string) => Promise<unknown>): Promise<unknown> => {
    await queue.add('embed', {}, { jobId });
    const job = await take(`token-${jobId}`);
    await spoil(keySpace('{t-internals}').job('embed-x', jobId));
    return job?.moveToCompleted(1, `token-${jobId}`, false).catch((error: unknown) => error);
  };

  test("settling without the lock, with another's, or a job that is gone throws what isLockLost knows", async () => {
    expect(await settleAfter('k-none', (key) => connection.del(`${key}:lock`))).toSatisfy(isLockLost);
    expect(await settleAfter('k-other', (key) => connection.set(`${key}:lock`, 'stranger'))).toSatisfy(isLockLost);
    expect(await settleAfter('k-gone', (key) => connection.del(key, `${key}:lock`))).toSatisfy(isLockLost);
    expect(
      await settleAfter('k-inactive', () => connection.lrem('{t-internals}:embed-x:active', 0, 'k-inactive')),
    ).toSatisfy(isLockLost);
    expect([new Error('x'), 'x', undefined].some(isLockLost)).toBe(false);
  });

  test('wakeIdleWorker ends a blocking look', async () => {
    await connection.del('{t-internals}:embed-x:marker');
    while ((await take('drain')) !== undefined); // until the worker knows that nothing waits
    await connection.del('{t-internals}:embed-x:marker');
    const startedMs = performance.now();
    const look = take('woken', true);
    setTimeout(() => void wakeIdleWorker(connection, '{t-internals}', 'embed-x'), 100);
    await look;
    expect(performance.now() - startedMs).toBeLessThan(900);
    expect(performance.now() - startedMs).toBeGreaterThan(90);
  });

  test('a wait for a job ends in moveToActive, and where that takes nothing neither does the wait', async () => {
    class Waiting extends Worker {
      readonly asked: string[] = [];

      protected override async moveToActive(token: string, name?: string): Promise<Job> {
        this.asked.push(token);
        return token === 'waits' ? (undefined as unknown as Job) : super.moveToActive(token, name);
      }
    }
    const waiting = new Waiting('embed-x', null, {
      prefix: '{t-internals}',
      connection,
      autorun: false,
      drainDelay: 1,
    });
    await queue.drain();
    await waiting.getNextJob('drained', { block: false });
    const wait = waiting.getNextJob('waits', { block: true });
    await queue.add('embed', {}, { jobId: 'w-1' });
    expect(await wait).toBeUndefined();
    expect(waiting.asked).toEqual(['drained', 'waits']);
    expect((await waiting.getNextJob('takes', { block: false }))?.id).toBe('w-1');
    await waiting.close(true);
  });

  test('limitEvents bounds the stream of events', async () => {
    await limitEvents(connection, '{t-internals}', 'embed-x', 10);
    await queue.addBulk(
      Array.from({ length: 500 }, (_, index) => ({ name: 'embed', data: {}, opts: { jobId: `e-${index}` } })),
    );
    expect(await connection.xlen('{t-internals}:embed-x:events')).toBeLessThan(250); // trimmed by whole nodes of 100
  });
});
