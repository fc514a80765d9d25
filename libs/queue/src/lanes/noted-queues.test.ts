import { Queue } from 'bullmq';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { JobProducer } from '../producer/job-producer.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { BoardQueues } from '../upkeep/board-queues.ts';
import { isQueueSeen, noteQueues, notedQueues, tidyNotedQueues } from './noted-queues.ts';
import { servedQueues } from './served-queues.ts';
import { WorkerPresence } from './worker-presence.ts';

let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(() => (prefix = `{t-noted-${++prefixes}}`));
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const set = async (): Promise<string[]> => (await connection.smembers(keySpace(prefix).queues())).toSorted();
const scans = async (): Promise<number> =>
  Number(/cmdstat_scan:calls=(\d+)/.exec(String(await server.command('INFO', 'commandstats')))?.[1] ?? 0);

async function addPlainly(name: string): Promise<void> {
  const queue = new Queue(name, { prefix, connection });
  await queue.add('embed', {}, { jobId: 'a' });
  await queue.close();
}

test('workers and producers enter their queues, and lists need no scan then', async () => {
  const log = new RecordingLogger();
  const producer = await JobProducer.connect({ redisUrl: server.url, prefix, queue: 'embed-x' });
  const lanes = ['rerank-y', 'rerank-y-cpu'];
  const presence = await WorkerPresence.connect({ redisUrl: server.url, prefix, queue: 'rerank-y', lanes, log });
  await presence.start();
  await expect.poll(set).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  const board = await BoardQueues.connect({ redisUrl: server.url, prefix });
  const before = await scans();
  expect(await notedQueues(connection, prefix)).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  expect((await board.find()).map(({ name }) => name)).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  expect(await servedQueues(connection, prefix)).toEqual(['rerank-y', 'rerank-y-cpu']);
  expect(await scans()).toBe(before);
  await Promise.all([board.close(), presence.stop(), producer.close()]);
});

test('one that was obliterated is listed no longer and leaves the set at the next sweep', async () => {
  await addPlainly('embed-a');
  await addPlainly('embed-b');
  await noteQueues(connection, prefix, ['embed-a', 'embed-b']);
  const queue = new Queue('embed-a', { prefix, connection });
  await queue.obliterate({ force: true });
  await queue.close();
  expect(await notedQueues(connection, prefix)).toEqual(['embed-b']);
  expect(await isQueueSeen(connection, prefix, 'embed-a')).toBe(false);
  await tidyNotedQueues(connection, prefix);
  expect(await set()).toEqual(['embed-b']);
});

test('one to which plain BullMQ added is seen at once, and entered by the next sweep', async () => {
  await noteQueues(connection, prefix, ['embed-a']);
  await addPlainly('embed-a');
  await addPlainly('embed-plain');
  expect(await notedQueues(connection, prefix)).toEqual(['embed-a']);
  expect(await isQueueSeen(connection, prefix, 'embed-plain')).toBe(true);
  await tidyNotedQueues(connection, prefix);
  expect(await set()).toEqual(['embed-a', 'embed-plain']);
});

test('where nobody has kept the set, lists scan and write nothing', async () => {
  await addPlainly('embed-a');
  expect(await notedQueues(connection, prefix)).toEqual(['embed-a']);
  expect(await set()).toEqual([]);
});
