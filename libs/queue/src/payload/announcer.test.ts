import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import type { Announcement } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { RedisAnnouncer } from './announcer.ts';
import { encodeReply, parseReply } from './reply-message.ts';

const QUEUE = 'embed-x';
const keys = keySpace('{t}');
let server: TestServer;
let connection: Redis;
let subscriber: Redis;
let announcer: RedisAnnouncer;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
  subscriber = openConnection({ url: server.url, name: 'test' });
});

beforeEach(async () => {
  await connection.flushall();
  announcer = await RedisAnnouncer.connect({
    redisUrl: server.url,
    prefix: '{t}',
    queue: QUEUE,
    log: new RecordingLogger(),
  });
});

afterEach(() => announcer.stop());

afterAll(async () => {
  await closeConnection(subscriber);
  await closeConnection(connection);
  await server.stop();
});

function announcement(jobId: string, more: Partial<Announcement> = {}): Announcement {
  return {
    jobId,
    outcome: 'completed',
    reply: keys.reply('me'),
    resultTtlMs: 50_000,
    isUrgent: false,
    wasRepeated: false,
    ...more,
  };
}

async function leave(jobId: string): Promise<void> {
  await connection.set(keys.input(QUEUE, jobId), 'input');
  await connection.set(keys.output(QUEUE, jobId), 'result', 'PX', 1_000_000);
  await connection.hset(keys.job(QUEUE, jobId), 'finishedOn', '1');
}

test('one message per channel names all ids that concern it, after inputs are gone and results begin to age', async () => {
  for (const jobId of ['a', 'b', 'c', 'd']) await leave(jobId);
  await subscriber.subscribe(keys.reply('me'));
  const heard = once(subscriber, 'message');
  await announcer.announce([
    announcement('a'),
    announcement('b', { wasRepeated: true }),
    announcement('c', { outcome: 'failed' }),
    announcement('d', { reply: undefined }),
  ]);
  expect(await heard).toEqual([keys.reply('me'), '{"v":1,"queue":"embed-x","completed":["a","b"],"failed":["c"]}']);
  expect(await connection.exists(...['a', 'b', 'c', 'd'].map((jobId) => keys.input(QUEUE, jobId)))).toBe(0);
  const [a = 0, b = 0] = await Promise.all(['a', 'b'].map((jobId) => connection.pttl(keys.output(QUEUE, jobId))));
  expect(a).toBeLessThanOrEqual(50_000);
  expect(b).toBeGreaterThan(900_000);
});

test('dimensions are told where the memory of the server is full, because a worker starts there as well', async () => {
  await connection.config('SET', 'maxmemory', '1');
  await announcer.tellDims(384);
  await connection.config('SET', 'maxmemory', '0');
  expect(await connection.hget(keys.load(), `dims ${QUEUE}`)).toBe('384');
});

test('the input and result of a job that was added again meanwhile are left alone', async () => {
  await leave('a');
  await connection.hdel(keys.job(QUEUE, 'a'), 'finishedOn');
  await connection.hset(keys.job(QUEUE, 'a'), 'data', '{}');
  await announcer.announce([announcement('a')]);
  expect(await connection.get(keys.input(QUEUE, 'a'))).toBe('input');
  expect(await connection.pttl(keys.output(QUEUE, 'a'))).toBeGreaterThan(900_000);
});

test('the input of a job whose record was removed is deleted all the same', async () => {
  await leave('a');
  await connection.del(keys.job(QUEUE, 'a'));
  await announcer.announce([announcement('a')]);
  expect(await connection.exists(keys.input(QUEUE, 'a'))).toBe(0);
});

test('waits for a server that is away, and gives up without a word of complaint when stopped', async () => {
  await leave('a');
  await server.kill9();
  const announced = announcer.announce([announcement('a')]);
  await server.restart();
  await announced;
  expect(await connection.exists(keys.input(QUEUE, 'a'))).toBe(0);
  await server.kill9();
  const given = announcer.announce([announcement('b')]);
  await announcer.stop();
  await given;
  await server.restart();
});

test('a message survives its encoding, and strangers are not understood', () => {
  const message = { queue: 'q', completed: ['a'], failed: [] };
  expect(parseReply(encodeReply(message))).toEqual(message);
  for (const text of ['', 'null', '[]', '{"v":2,"queue":"q"}', '{"v":1}', '{"v":1,"queue":3}'])
    expect(parseReply(text)).toBeUndefined();
  expect(parseReply('{"v":1,"queue":"q","completed":["a",3],"failed":"x"}')).toEqual(message);
});
