// Contracts with BullMQ that its documentation does not make. A failure here names what an upgrade broke.

import { createRequire } from 'node:module';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Queue } from 'bullmq';
import { BULLMQ_VERSION, openTransaction, queueAdd } from './bullmq-internals.ts';
import { closeConnection, openConnection, type Redis } from './connection.ts';
import { startTestServer, type TestServer } from './testing.ts';

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
  const { version } = createRequire(import.meta.url)('bullmq/package.json') as { version: string };
  expect(version).toBe(BULLMQ_VERSION);
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
    expect(replies).toEqual([[null, 'OK'], [null, 'j-1'], [null, ['embed', '{"v":1,"texts":["é"]}']], [null, input]]);
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
    for (const jobId of ['a:b', 'a:b:c', '17', '']) {
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
});
