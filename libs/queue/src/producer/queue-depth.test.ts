// The depth of a queue, on a real server that also goes away.

import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { closeConnection, openConnection } from '../redis/connection.ts';
import { QueueGauge } from './queue-depth.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
const open: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  server = await startTestServer();
});
afterEach(async () => void (await Promise.all(open.splice(0).map((part) => part.close()))));
afterAll(() => server.stop());

async function setup(): Promise<{ plain: Queue; gauge: QueueGauge }> {
  await server.command('FLUSHALL');
  const connection = openConnection({ url: server.url, name: 'test' });
  const plain = new Queue('embed-minilm', { prefix: '{shoal}', connection });
  plain.on('error', () => undefined);
  const gauge = await QueueGauge.connect({ redisUrl: server.url, queue: 'embed-minilm' });
  open.push(plain, gauge, { close: () => closeConnection(connection) });
  return { plain, gauge };
}

test('an empty queue, and one that does not exist, are zeros', async () => {
  const { gauge } = await setup();
  const none = { waiting: 0, active: 0, delayed: 0, parked: 0, completed: 0, failed: 0, cancelled: 0 };
  expect(await gauge.read()).toEqual({
    queue: 'embed-minilm',
    jobs: none,
    parkedByVersion: {},
    oldestWaitingMs: { interactive: 0, bulk: 0 },
    workers: 0,
  });
});

test('counts by state, age of the longest wait whether prioritized or not, live workers only', async () => {
  const { plain, gauge } = await setup();
  const nowMs = Date.now();
  await plain.add('embed', {}, { jobId: 'young', timestamp: nowMs - 1_000 });
  await plain.add('embed', {}, { jobId: 'next', timestamp: nowMs - 9_000, priority: 5 });
  await plain.add('embed', {}, { jobId: 'later', delay: 60_000 });
  await server.command('ZADD', '{shoal}:workers:embed-minilm', nowMs + 60_000, 'alive', nowMs - 1, 'gone');
  const depth = await gauge.read();
  expect(depth.jobs).toMatchObject({ waiting: 2, delayed: 1 });
  expect(depth.workers).toBe(1);
  expect(depth.oldestWaitingMs.interactive).toBeGreaterThanOrEqual(9_000);
  expect(depth.oldestWaitingMs.interactive).toBeLessThan(60_000);
});

test('while the server is away nothing is put in line; when it is back there are answers again', async () => {
  const { gauge } = await setup();
  await server.kill9();
  await expect
    .poll(() =>
      gauge.read().then(
        () => 'answered',
        (error: unknown) => (error instanceof Error ? Reflect.get(error, 'code') : error),
      ),
    )
    .toBe('QUEUE_UNREACHABLE');
  await server.restart();
  await expect
    .poll(
      () =>
        gauge.read().then(
          ({ workers }) => workers,
          () => -1,
        ),
      { timeout: 10_000 },
    )
    .toBe(0);
});

test('who asks while a question is open gets its answer', async () => {
  const { gauge } = await setup();
  expect(gauge.read()).toBe(gauge.read());
});

test('can be closed twice, and while it is asked', async () => {
  const { gauge } = await setup();
  const asked = gauge.read().then(
    () => 'answered',
    () => 'refused',
  );
  await Promise.all([gauge.close(), gauge.close()]);
  expect(await asked).toMatch(/answered|refused/);
});
