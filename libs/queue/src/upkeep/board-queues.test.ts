// What a dashboard sees, on a real server: every queue of the prefix and no other, without touching them; damaged jobs
// are shown as damaged and hide nobody.

import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { BoardQueues, UNREADABLE_JOB } from './board-queues.ts';
import { closeConnection, openConnection } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
const open: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  server = await startTestServer();
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((part) => part.close()));
  await server.command('FLUSHALL');
});
afterAll(() => server.stop());

function plainQueue(name: string, prefix = '{shoal}'): Queue {
  const connection = openConnection({ url: server.url, prefix, name: 'test' });
  const queue = new Queue(name, { prefix, connection });
  open.push(queue, { close: () => closeConnection(connection) });
  return queue;
}

async function board(prefix?: string): Promise<BoardQueues> {
  const queues = await BoardQueues.connect({ redisUrl: server.url, prefix });
  open.push(queues);
  return queues;
}

/** What BullMQ writes when a queue is opened to add. */
async function opened(name: string, prefix = '{shoal}'): Promise<void> {
  await server.command('HSET', `${prefix}:${name}:meta`, 'opts.maxLenEvents', '100');
}

test('finds the queues of its prefix, also those that come later, and keeps the objects', async () => {
  await opened('embed-minilm');
  await opened('embed-other', '{else}');
  await server.command('HSET', '{shoal}:in:embed-minilm:meta', 'a', 'b'); // an id may be called anything
  await server.command('SET', '{shoal}:embed-text:meta', 'x');
  const queues = await board();
  const first = await queues.find();
  expect(first.map(({ name }) => name)).toEqual(['embed-minilm']);
  await opened('embed-minilm-cpu');
  const second = await queues.find();
  expect(second.map(({ name }) => name)).toEqual(['embed-minilm', 'embed-minilm-cpu']);
  expect(second[0]).toBe(first[0]);
});

test('looking changes nothing on the server', async () => {
  const plain = plainQueue('embed-minilm');
  await plain.add('embed', { v: 1, texts: ['a'] }, { jobId: 'one' });
  await server.command('HSET', '{shoal}:embed-minilm:meta', 'opts.maxLenEvents', '77');
  const dump = async (): Promise<unknown[]> =>
    Promise.all(
      ((await server.command('KEYS', '*')) as string[])
        .toSorted()
        .map(async (key) => [key, String(await server.command('DUMP', key))]),
    );
  const before = await dump();
  const [queue] = await (await board()).find();
  expect(await queue?.getJobs(['waiting'])).toHaveLength(1);
  await queue?.getJobCounts();
  await queue?.getWorkers();
  expect(await dump()).toEqual(before);
});

test('a prefix with characters that mean something to SCAN is taken literally', async () => {
  await opened('embed-a', '{s*[x]}');
  await opened('embed-b', '{sax}');
  expect((await (await board('{s*[x]}')).find()).map(({ name }) => name)).toEqual(['embed-a']);
});

test.each([
  ['data that is no JSON', ['HSET', '{shoal}:embed-minilm:broken', 'data', '{"v":1,']],
  ['options that are no JSON', ['HSET', '{shoal}:embed-minilm:broken', 'opts', 'x']],
  ['an empty hash of another shape', ['HDEL', '{shoal}:embed-minilm:broken', 'data', 'opts', 'name', 'timestamp']],
])('a job with %s does not hide the others', async (_, [command, ...values]) => {
  const plain = plainQueue('embed-minilm');
  for (const jobId of ['before', 'broken', 'after']) await plain.add('embed', { v: 1, texts: ['a'] }, { jobId });
  await server.command(command!, ...values);
  const [queue] = await (await board()).find();
  expect((await queue!.getJobs(['waiting'], 0, 9, true)).map(({ id }) => id)).toEqual(['before', 'broken', 'after']);
});

test('a job whose key is not a hash at all is shown as unreadable, in its place', async () => {
  const plain = plainQueue('embed-minilm');
  for (const jobId of ['before', 'broken', 'after']) await plain.add('embed', { v: 1, texts: ['a'] }, { jobId });
  await server.command('SET', '{shoal}:embed-minilm:broken', 'x');
  const [queue] = await (await board()).find();
  const jobs = await queue!.getJobs(['waiting'], 0, 9, true);
  expect(jobs.map(({ id, name }) => [id, name])).toEqual([
    ['before', 'embed'],
    ['broken', UNREADABLE_JOB],
    ['after', 'embed'],
  ]);
  expect(jobs[1]!.data).toEqual({ problem: expect.stringContaining('WRONGTYPE') });
});
