// Jobs are found by the beginning of their ids in every state, and a search says when it did not see all.

import { Queue } from 'bullmq';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { findJobs } from './find-jobs.ts';

let server: TestServer;
let connection: Redis;
let queue: Queue;
const PLACE = { prefix: '{t}', queue: 'embed-x' };

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, prefix: '{t}', name: 'test' });
  queue = new Queue('embed-x', { prefix: '{t}', connection: { url: server.url } });
  const names = ['a~1', 'a~2', 'b~1', '*~1'];
  await queue.addBulk(names.map((jobId) => ({ name: 'embed', data: {}, opts: { jobId } })));
  await queue.addBulk(names.map((id) => ({ name: 'embed', data: {}, opts: { jobId: `${id}-first`, priority: 5 } })));
  await queue.add('embed', {}, { jobId: 'a~late', delay: 100_000 });
  await connection.zadd('{t}:embed-x:failed', 1, 'a~bad');
});

afterAll(async () => {
  await queue.close();
  await closeConnection(connection);
  await server.stop();
});

test('in every state, and nothing that only looks like a pattern', async () => {
  const { jobs, isAll } = await findJobs(connection, PLACE, 'a~');
  expect(isAll).toBe(true);
  expect(jobs.map(({ jobId, state }) => `${jobId} ${state}`).toSorted()).toEqual([
    'a~1 waiting',
    'a~1-first waiting',
    'a~2 waiting',
    'a~2-first waiting',
    'a~bad failed',
    'a~late delayed',
  ]);
  expect((await findJobs(connection, PLACE, '*')).jobs.map(({ jobId }) => jobId)).toEqual(['*~1', '*~1-first']);
});

test('of more than it shows or looks at it says so', async () => {
  expect(await findJobs(connection, PLACE, 'a~', { mostFound: 2 })).toMatchObject({ isAll: false, jobs: [{}, {}] });
  expect(await findJobs(connection, PLACE, 'a~', { mostSeen: 1 })).toMatchObject({ isAll: false });
});
