import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { enterService, queueService, type QueueService } from './queue-service.ts';
import { WorkerPresence } from './worker-presence.ts';

let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(() => void (prefix = `{t-service-${++prefixes}}`));
afterAll(async () => {
  connection.disconnect();
  await server.stop();
});

const queue = 'embed-x';
const enter = (service: QueueService): Promise<void> =>
  enterService(service, { redisUrl: server.url, prefix, queue, log: noLog });
const found = (): Promise<QueueService | undefined> => queueService(connection, { prefix, queue });

/** A worker that lives until the test ends it. */
async function live(device: string): Promise<WorkerPresence> {
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix,
    queue,
    log: noLog,
    facts: () => ({
      device,
      precision: 'fp32',
      model: 'x@r1',
      host: 'h',
      pid: 1,
      lanes: ['main'],
      isDrained: false,
      rates: {},
      mix: {},
      claims: 0,
      poolTokens: 0,
      tokensPerJob: undefined,
    }),
  });
  await presence.start();
  return presence;
}

test.each([
  ['model', 'simulation', 'SHOAL_PREFIX={trial}'],
  ['simulation', 'model', 'docs/operations.md says how a trial ends'],
] as const)('where there was a %s, a %s is refused, and the first is let in again', async (first, second, cure) => {
  expect(await found()).toBeUndefined();
  await enter(first);
  await expect(enter(second)).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringContaining(cure),
    fields: { queue, prefix, service: second },
  });
  await enter(first);
  expect(await found()).toBe(first);
});

test('of many that come at once only those of one kind are let in', async () => {
  const kinds = Array.from({ length: 12 }, (_, at): QueueService => (at % 2 === 0 ? 'model' : 'simulation'));
  const settled = await Promise.allSettled(kinds.map(enter));
  const winner = await found();
  expect(settled.map(({ status }) => status === 'fulfilled')).toEqual(kinds.map((kind) => kind === winner));
});

test('other queues and prefixes are none of its business', async () => {
  await enter('simulation');
  await enterService('model', { redisUrl: server.url, prefix, queue: 'embed-y', log: noLog });
  await enterService('model', { redisUrl: server.url, prefix: `${prefix.slice(0, -1)}-2}`, queue, log: noLog });
  expect(await found()).toBe('simulation');
});

test('a queue that an older version served, which set no mark, is the model’s', async () => {
  await connection.hset(keySpace(prefix).load(), `dims ${queue}`, 384);
  await expect(enter('simulation')).rejects.toMatchObject({ code: 'CONFIG_INVALID' });
  await enter('model');
  expect(await found()).toBe('model');
});

test.each([
  ['cuda:0', 'simulation', 'model'],
  ['sim:8000', 'model', 'simulation'],
] as const)('a live worker on %s keeps a %s out though the mark is lost', async (device, refused, welcome) => {
  const presence = await live(device);
  await expect(enter(refused)).rejects.toMatchObject({ code: 'CONFIG_INVALID', fields: { alive: [device] } });
  const mark = await connection.hget(keySpace(prefix).load(), `service ${queue}`);
  expect(mark).toBeNull(); // who was refused leaves none
  expect(await found()).toBe(refused === 'model' ? 'simulation' : undefined); // live simulations say what they are
  await enter(welcome);
  await presence.stop();
});
