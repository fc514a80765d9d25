import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keySpace, type EmbedReturn, type KeySpace } from '@shoal/contract';
import type { Announcement, RawClaim } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { parseReply, type ReplyMessage } from '../payload/reply-message.ts';
import { RedisAnnouncer } from './announcer.ts';
import { claimAll } from '../testing/claims.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const QUEUE = 'embed-x';
const VALUE = { v: 1, key: 'k', model: 'x@1', rows: 1, dims: 4 } as unknown as EmbedReturn;
let server: TestServer;
let connection: Redis;
let subscriber: Redis;
let prefix: string;
let scenes = 0;
let heard: ReplyMessage[];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
  subscriber = openConnection({ url: server.url, name: 'test' });
  subscriber.on('message', (_channel: string, text: string) => heard.push(parseReply(text)!));
});

beforeEach(async () => {
  prefix = `{t-announcer-${++scenes}}`;
  heard = [];
  await subscriber.subscribe(keySpace(prefix).reply('me'));
});

afterAll(async () => {
  await Promise.all([closeConnection(subscriber), closeConnection(connection)]);
  await server.stop();
});

function announcement(jobId: string, more: Partial<Announcement> = {}): Announcement {
  return {
    jobId,
    outcome: 'completed',
    reply: keySpace(prefix).reply('me'),
    resultTtlMs: 50_000,
    isUrgent: false,
    wasRepeated: false,
    ...more,
  };
}

async function leave(jobId: string, fields: Record<string, string>): Promise<void> {
  const keys = keySpace(prefix);
  await connection.set(keys.input(QUEUE, jobId), 'input');
  await connection.set(keys.output(QUEUE, jobId), 'result', 'PX', 1_000_000);
  await connection.hset(keys.job(QUEUE, jobId), { data: '{}', ...fields });
}

function onSameConnection(): RedisAnnouncer {
  return new RedisAnnouncer({
    connection,
    prefix,
    queue: QUEUE,
    signal: new AbortController().signal,
    log: new RecordingLogger(),
  });
}

/** Messages come in the order in which they were sent: after this one, all were heard. */
async function allHeard(): Promise<ReplyMessage[]> {
  const last = { queue: 'last', completed: [], failed: [] };
  await connection.publish(keySpace(prefix).reply('me'), '{"v":1,"queue":"last"}');
  await expect.poll(() => heard.at(-1)).toEqual(last);
  return heard.slice(0, -1);
}

test(
  'bulk jobs that were here for long are completed and told of together; an interactive one at once, and takes ' +
    'them along',
  async () => {
    const source = new BullJobSource({
      redisUrl: server.url,
      prefix,
      queue: QUEUE,
      leaseMs: 60_000,
      stalledCheckMs: 60_000,
      log: new RecordingLogger(),
    });
    const queue = new Queue(QUEUE, { prefix, connection });
    await queue.addBulk(['a', 'b', 'c', 'd', 'e'].map((jobId) => ({ name: 'embed', data: {}, opts: { jobId } })));
    await source.start();
    const claims = new Map((await claimAll(source, 5)).map((claim) => [claim.jobId, claim]));
    const complete = (jobId: string, isUrgent: boolean): Promise<unknown> =>
      source.settle(
        claims.get(jobId)!,
        { kind: 'complete', value: { ...VALUE, jobId } as EmbedReturn },
        announcement(jobId, { isUrgent }),
      );
    // a thirty-second of it, and 16 ms at most, is how long one waits
    await new Promise((resolve) => setTimeout(resolve, 600));
    const bulk = ['a', 'b', 'c'].map((jobId, at) =>
      new Promise((resolve) => setTimeout(resolve, 2 * at)).then(() => complete(jobId, false)),
    );
    expect(await Promise.all(bulk)).toEqual(['announced', 'announced', 'announced']);
    expect(await allHeard()).toEqual([{ queue: QUEUE, completed: ['a', 'b', 'c'], failed: [] }]);
    await Promise.all([complete('d', false), complete('e', true)]);
    expect(await allHeard()).toEqual([
      { queue: QUEUE, completed: ['a', 'b', 'c'], failed: [] },
      { queue: 'last', completed: [], failed: [] },
      { queue: QUEUE, completed: ['d', 'e'], failed: [] },
    ]);
    await source.stop();
    await queue.close();
  },
);

test(
  'of those asked about together, who ended that way is announced in one message and cleaned up after; nobody ' +
    'else',
  async () => {
    const keys = keySpace(prefix);
    await leave('done', { finishedOn: '1', returnvalue: '{}' });
    await leave('again', { finishedOn: '1', returnvalue: '{}' });
    await leave('failed', { finishedOn: '1', failedReason: 'x' });
    await leave('otherwise', { finishedOn: '1', failedReason: 'x' });
    await leave('running', {});
    const prompt = onSameConnection();
    const asked = [
      announcement('done'),
      announcement('again', { wasRepeated: true }),
      announcement('failed', { outcome: 'failed' }),
      announcement('otherwise'),
      announcement('running'),
      announcement('gone'),
    ];
    expect(await Promise.all(asked.map((one) => prompt.announceBehind(one)))).toEqual([
      true,
      true,
      true,
      false,
      false,
      false,
    ]);
    expect(await allHeard()).toEqual([{ queue: QUEUE, completed: ['done', 'again'], failed: ['failed'] }]);
    expect(
      await Promise.all(
        ['done', 'again', 'failed', 'otherwise', 'running'].map((jobId) => connection.exists(keys.input(QUEUE, jobId))),
      ),
    ).toEqual([0, 0, 0, 1, 1]);
    const [done = 0, again = 0, running = 0] = await Promise.all(
      ['done', 'again', 'running'].map((jobId) => connection.pttl(keys.output(QUEUE, jobId))),
    );
    expect(done).toBeLessThanOrEqual(50_000);
    expect(Math.min(again, running)).toBeGreaterThan(900_000);
  },
);

test('each channel hears of its own, and a job without one is only cleaned up after', async () => {
  const other = keySpace(prefix).reply('other');
  await subscriber.subscribe(other);
  const ids = Array.from({ length: 150 }, (_, i) => `j-${i}`);
  for (const jobId of ids) await leave(jobId, { finishedOn: '1', returnvalue: '{}' });
  const prompt = onSameConnection();
  const replies = [keySpace(prefix).reply('me'), other, undefined];
  expect(
    new Set(
      await Promise.all(ids.map((jobId, i) => prompt.announceBehind(announcement(jobId, { reply: replies[i % 3] })))),
    ),
  ).toEqual(new Set([true]));
  const told = (await allHeard()).flatMap(({ completed }) => completed);
  expect(told.toSorted()).toEqual(ids.filter((_, i) => i % 3 < 2).toSorted());
});

test('a source announces with the ending, in its round trip; a claim that was lost is not announced', async () => {
  const queue = new Queue(QUEUE, { prefix, connection });
  const source = new BullJobSource({
    redisUrl: server.url,
    prefix,
    queue: QUEUE,
    leaseMs: 5_000,
    stalledCheckMs: 5_000,
    log: new RecordingLogger(),
  });
  await source.start();
  for (const jobId of ['good', 'bad', 'stolen', 'deleted', 'back']) await queue.add('embed', {}, { jobId });
  const claims = await claimAll(source, 5);
  const claimOf = (id: string): RawClaim => claims.find(({ jobId }) => jobId === id)!;
  await connection.set(keySpace(prefix).lock(QUEUE, 'stolen'), 'a stranger');
  await connection.del(keySpace(prefix).job(QUEUE, 'deleted'));
  expect(
    await Promise.all([
      source.settle(claimOf('good'), { kind: 'complete', value: VALUE }, announcement('good')),
      source.settle(
        claimOf('bad'),
        { kind: 'fail', failure: { code: 'JOB_INVALID', message: 'x' } },
        announcement('bad', { outcome: 'failed' }),
      ),
      source.settle(claimOf('stolen'), { kind: 'complete', value: VALUE }, announcement('stolen')),
      source.settle(claimOf('deleted'), { kind: 'complete', value: VALUE }, announcement('deleted')),
      source.settle(claimOf('back'), { kind: 'return', delayMs: 0, reason: 'x' }, announcement('back')),
    ]),
  ).toEqual(['announced', 'announced', 'lease-lost', 'lease-lost', 'settled']);
  expect(await allHeard()).toEqual([{ queue: QUEUE, completed: ['good'], failed: ['bad'] }]);
  await source.stop();
  await queue.close();
});

describe('of jobs whose ending the server has taken', () => {
  const ENDED = { finishedOn: '1' };
  let keys: KeySpace;
  let announcer: RedisAnnouncer;

  beforeEach(async () => {
    keys = keySpace(prefix);
    announcer = await RedisAnnouncer.connect({
      redisUrl: server.url,
      prefix,
      queue: QUEUE,
      log: new RecordingLogger(),
    });
  });

  afterEach(() => announcer.stop());

  test('one message per channel names all its ids, after inputs are gone and results begin to age', async () => {
    for (const jobId of ['a', 'b', 'c', 'd']) await leave(jobId, ENDED);
    await announcer.announce([
      announcement('a'),
      announcement('b', { wasRepeated: true }),
      announcement('c', { outcome: 'failed' }),
      announcement('d', { reply: undefined }),
    ]);
    expect(await allHeard()).toEqual([{ queue: QUEUE, completed: ['a', 'b'], failed: ['c'] }]);
    expect(await connection.exists(...['a', 'b', 'c', 'd'].map((jobId) => keys.input(QUEUE, jobId)))).toBe(0);
    const [a = 0, b = 0] = await Promise.all(['a', 'b'].map((jobId) => connection.pttl(keys.output(QUEUE, jobId))));
    expect(a).toBeLessThanOrEqual(50_000);
    expect(b).toBeGreaterThan(900_000);
  });

  test('dimensions are told where the memory of the server is full: a worker starts there as well', async () => {
    await connection.config('SET', 'maxmemory', '1');
    await announcer.tellDims(384);
    await connection.config('SET', 'maxmemory', '0');
    expect(await connection.hget(keys.load(), `dims ${QUEUE}`)).toBe('384');
  });

  test('the input and result of a job that was added again meanwhile are left alone', async () => {
    await leave('a', ENDED);
    await connection.hdel(keys.job(QUEUE, 'a'), 'finishedOn');
    await connection.hset(keys.job(QUEUE, 'a'), 'data', '{}');
    await announcer.announce([announcement('a')]);
    expect(await connection.get(keys.input(QUEUE, 'a'))).toBe('input');
    expect(await connection.pttl(keys.output(QUEUE, 'a'))).toBeGreaterThan(900_000);
  });

  test('the input of a job whose record was removed is deleted all the same', async () => {
    await leave('a', ENDED);
    await connection.del(keys.job(QUEUE, 'a'));
    await announcer.announce([announcement('a')]);
    expect(await connection.exists(keys.input(QUEUE, 'a'))).toBe(0);
  });

  test('waits for a server that is away, and gives up without a word of complaint when stopped', async () => {
    await leave('a', ENDED);
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

  test('what is no record is left alone, and its producer told', async () => {
    await leave('a', ENDED);
    await connection.del(keys.job(QUEUE, 'b'));
    await connection.set(keys.job(QUEUE, 'b'), 'no hash');
    await connection.set(keys.input(QUEUE, 'b'), 'input');
    await announcer.announce([announcement('b'), announcement('a')]);
    expect(await connection.exists(keys.input(QUEUE, 'b'))).toBe(1);
    expect(await connection.exists(keys.input(QUEUE, 'a'))).toBe(0);
    expect(await allHeard()).toEqual([{ queue: QUEUE, completed: ['b', 'a'], failed: [] }]);
  });
});
