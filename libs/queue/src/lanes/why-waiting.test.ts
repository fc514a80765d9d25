import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { mainQueue } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { Fleet } from './fleet.ts';
import { whyWaiting } from './why-waiting.ts';
import { WorkerPresence } from './worker-presence.ts';

let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
const opened: { stop(): Promise<void> }[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(() => (prefix = `{t-why-${++prefixes}}`));
afterEach(async () => {
  await Promise.all(opened.splice(0).map((one) => one.stop()));
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function queueOf(model: string): Queue {
  return new Queue(mainQueue(model), { prefix, connection });
}

async function serve(model: string, workerId: string): Promise<void> {
  const [queue, log] = [mainQueue(model), new RecordingLogger()];
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix,
    queue,
    lanes: [queue],
    workerId,
    facts: undefined,
    log,
  });
  opened.push(presence);
  await presence.start();
}

test('workers that are there, and what waits and runs, each counted', async () => {
  const queue = queueOf('x');
  await serve('x', 'a');
  await queue.add('embed', {}, { jobId: 'one' });
  expect(await whyWaiting(connection, queue, prefix)).toEqual({
    reason: 'busy',
    message: '1 worker serves embed-x, 1 job waits and 0 run',
    waiting: 1,
    active: 0,
    workers: 1,
    drained: 0,
    isPaused: false,
  });
  await serve('x', 'b');
  await queue.add('embed', {}, { jobId: 'two' });
  expect((await whyWaiting(connection, queue, prefix)).message).toBe('2 workers serve embed-x, 2 jobs wait and 0 run');
});

test('a paused queue and drained workers are told with the command that lets them go on', async () => {
  const queue = queueOf('x');
  await serve('x', 'a');
  await queue.add('embed', {}, { jobId: 'one' });
  await queue.pause();
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({
    reason: 'paused',
    message: 'the queue embed-x is paused, 1 job waits and 0 run; shoal queue resume --queue embed-x lets it go on',
    waiting: 1,
    isPaused: true,
  });
  await queue.resume();
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix, queue: queue.name });
  await fleet.drain('a');
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({
    reason: 'drained',
    message: expect.stringMatching(/^the only worker of embed-x is drained.*shoal fleet resume all --queue embed-x/),
    workers: 0,
    drained: 1,
  });
  await fleet.resume('all');
  await fleet.drain('all');
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({ reason: 'drained' });
  await fleet.close();
});

test('no worker at all is one thing, a name that nobody serves or served beside others another', async () => {
  const queue = queueOf('nosuch');
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({
    reason: 'no-worker',
    message: 'no worker serves embed-nosuch, 0 jobs wait and 0 run; start one with shoal worker or shoal up',
  });
  await serve('x', 'a');
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({
    reason: 'not-served',
    message:
      'no worker serves embed-nosuch, and none ever did; served now: embed-x. Is the name of the model right? ' +
      'If it is, start a worker for it',
  });
});

test('a server that is away is not waited for', async () => {
  const lost = openConnection({ url: server.url, name: 'lost' });
  await closeConnection(lost);
  expect(await whyWaiting(lost, queueOf('x'), prefix)).toMatchObject({ reason: 'server-away' });
});

test('a server that was stopped is said to take connections and say nothing', async () => {
  const queue = queueOf('x');
  await queue.waitUntilReady();
  process.kill(server.pid, 'SIGSTOP');
  try {
    expect(await whyWaiting(connection, queue, prefix, 20)).toMatchObject({
      reason: 'server-away',
      message: expect.stringContaining('says nothing: it is stopped (kill -CONT'),
    });
  } finally {
    process.kill(server.pid, 'SIGCONT');
  }
  expect(await whyWaiting(connection, queue, prefix)).toMatchObject({ reason: 'no-worker' });
});
