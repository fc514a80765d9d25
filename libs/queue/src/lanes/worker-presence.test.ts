import { afterAll, beforeAll, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { WorkerPresence, liveWorkers, serverClock } from './worker-presence.ts';

let server: TestServer;
let connection: Redis;
const key = keySpace('{t}').workers('embed-x');

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function connect(workerId: string): Promise<WorkerPresence> {
  return WorkerPresence.connect({
    redisUrl: server.url,
    prefix: '{t}',
    queue: 'embed-x',
    workerId,
    log: new RecordingLogger(),
  });
}

test('a worker is seen from start to stop, and both may be called twice or early', async () => {
  const [one, two] = await Promise.all([connect('one'), connect('two')]);
  expect(await liveWorkers(connection, 'embed-x', '{t}')).toEqual([]);
  await Promise.all([one.start(), two.start(), two.start()]);
  expect((await liveWorkers(connection, 'embed-x', '{t}')).sort()).toEqual(['one', 'two']);
  await Promise.all([one.stop(), one.stop()]);
  expect(await liveWorkers(connection, 'embed-x', '{t}')).toEqual(['two']);
  await two.stop();
  await two.start();
  expect(await liveWorkers(connection, 'embed-x', '{t}')).toEqual([]);
});

test('one that died is not seen after its time, and is swept by the next that shows itself', async () => {
  await connection.zadd(key, String(Date.now() - 1), 'dead');
  expect(await liveWorkers(connection, 'embed-x', '{t}')).toEqual([]);
  const living = await connect('living');
  await living.start();
  expect(await connection.zrange(key, '0', '-1')).toEqual(['living']);
  const untilMs = Number(await connection.zscore(key, 'living'));
  expect(untilMs - Date.now()).toBeGreaterThan(5_000);
  expect(untilMs - Date.now()).toBeLessThanOrEqual(6_050);
  await living.stop();
});

test('stopping does not wait for a server that is away', async () => {
  const presence = await connect('cut off');
  await presence.start();
  await server.kill9();
  await expect(presence.stop()).resolves.toBeUndefined(); // or the test ends at its limit
  await server.restart();
});

test('the clock of the server is told to half a round trip', async () => {
  const askedMs = performance.now();
  const now = await serverClock(server.url); // on the same machine
  expect(Math.abs(now() - Date.now())).toBeLessThanOrEqual(performance.now() - askedMs + 2);
});
