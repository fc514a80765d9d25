// What workers did lately is on the server for an hour, whatever became of them.

import { afterAll, beforeAll, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { HistoryMeter, type WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { appendStep, readHistory, workersWithHistory } from './worker-history.ts';
import { WorkerPresence } from './worker-presence.ts';

const OWNER = { queue: 'embed-x', device: 'sim:24GB', host: 'here' };
const TEN_MINUTES_MS = 600_000;
let server: TestServer;
let connection: Redis;
let nowMs: number;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, prefix: '{t}', name: 'test' });
  nowMs = Number((await connection.time())[0]) * 1_000 + 60_000;
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const read = (workerId: string): ReturnType<typeof readHistory> =>
  readHistory(connection, { prefix: '{t}', workerId }, { nowMs, lengthMs: TEN_MINUTES_MS });

test('steps are read in their order, with whose they are; nothing of a worker that told nothing', async () => {
  const meter = new HistoryMeter(() => performance.now());
  const place = { prefix: '{t}', workerId: 'one' };
  await appendStep(connection, place, OWNER, { ...meter.take(), texts: 3, events: { 'failed INPUT_LOST': 2 } });
  await appendStep(connection, place, OWNER, { ...meter.take(), texts: 5 }, true);
  const { owner, steps } = await read('one');
  expect(owner).toEqual(OWNER);
  expect(steps).toMatchObject([
    { texts: 3, isLast: false, events: { 'failed INPUT_LOST': 2 } },
    { texts: 5, isLast: true, events: {} },
  ]);
  expect(await read('nobody')).toEqual({ workerId: 'nobody', owner: undefined, steps: [] });
  expect(await workersWithHistory(connection, '{t}')).toEqual({ workerIds: ['one'], isWhole: true });
});

test('a stream keeps an hour of steps and goes an hour after the last', async () => {
  const place = { prefix: '{t}', workerId: 'long' };
  const step = new HistoryMeter(() => 0).take();
  for (let i = 0; i < 1_000; i++) await appendStep(connection, place, OWNER, step);
  const key = keySpace('{t}').history('long');
  expect(await connection.xlen(key)).toBeLessThan(500);
  expect(await connection.pttl(key)).toBeGreaterThan(3_590_000);
  expect(await connection.memory('USAGE', key)).toBeLessThan(120_000);
});

test('what cannot be read is left out, and fields of other versions are 0', async () => {
  const key = keySpace('{t}').history('odd');
  for (const text of ['{', '7', '{"texts":-1,"batches":[[1],[1,2,3,4]],"events":{"exploded x":1,"lost y":"z"}}'])
    await connection.xadd(key, '*', 'step', text);
  await connection.xadd(key, '*', 'other', 'field');
  const { steps } = await read('odd');
  expect(steps).toMatchObject([{ texts: 0, ms: 1, batches: [[1, 2, 3, 4]], events: {} }]);
});

test('a worker says that it is there at once, and with its last step that it leaves in order', async () => {
  const meter = new HistoryMeter(() => performance.now());
  const facts = { device: 'cpu', host: 'here' } as WorkerFacts;
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix: '{t}',
    queue: 'embed-x',
    workerId: 'leaver',
    facts: () => facts,
    history: () => meter.take(),
    log: new RecordingLogger(),
  });
  await presence.start();
  await presence.stop();
  expect(await read('leaver')).toMatchObject({
    owner: { device: 'cpu' },
    steps: [{ isLast: false }, { isLast: true }],
  });
});
