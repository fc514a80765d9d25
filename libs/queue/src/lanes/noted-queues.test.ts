import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { JobProducer } from '../producer/job-producer.ts';
import type { Redis } from '../redis/connection.ts';
import { TestPlace, startTestServer } from '../testing.ts';
import { BoardQueues } from '../upkeep/board-queues.ts';
import { isQueueSeen, noteQueues, notedQueues, tidyNotedQueues } from './noted-queues.ts';
import { servedQueues } from './served-queues.ts';

let place: TestPlace;
let connection: Redis;
let prefix: string;

beforeAll(async () => {
  place = new TestPlace(await startTestServer(), 'noted');
  ({ connection } = place);
});
beforeEach(() => ({ prefix } = place));
afterEach(() => place.clear());
afterAll(() => place.stop());

const set = async (): Promise<string[]> => (await connection.smembers(keySpace(prefix).queues())).toSorted();
const scans = async (): Promise<number> =>
  Number(/cmdstat_scan:calls=(\d+)/.exec(String(await place.server.command('INFO', 'commandstats')))?.[1] ?? 0);

async function addPlainly(name: string): Promise<void> {
  await place.queue(name).add('embed', {}, { jobId: 'a' });
}

test('workers and producers enter their queues, and lists need no scan then', async () => {
  place.keep(await JobProducer.connect({ ...place.address, queue: 'embed-x' }));
  await place.show('rerank-y', 'one', { lanes: ['rerank-y', 'rerank-y-cpu'] });
  await expect.poll(set).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  const board = place.keep(await BoardQueues.connect(place.address));
  const before = await scans();
  expect(await notedQueues(connection, prefix)).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  expect((await board.find()).map(({ name }) => name)).toEqual(['embed-x', 'rerank-y', 'rerank-y-cpu']);
  expect(await servedQueues(connection, prefix)).toEqual(['rerank-y', 'rerank-y-cpu']);
  expect(await scans()).toBe(before);
});

test('one that was obliterated is listed no longer and leaves the set at the next sweep', async () => {
  await addPlainly('embed-a');
  await addPlainly('embed-b');
  await noteQueues(connection, prefix, ['embed-a', 'embed-b']);
  await place.queue('embed-a').obliterate({ force: true });
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
