import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { Command } from 'ioredis';
import { encodeResult, encodeTexts, keySpace } from '@shoal/contract';
import type { CommitRequest } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { acknowledge } from './acknowledge.ts';
import { RedisPayloadStore } from './payload-store.ts';

const QUEUE = 'embed-x';
const FINGERPRINT = '00112233445566ff';
let server: TestServer;
let connection: Redis;
let store: RedisPayloadStore;
let log: RecordingLogger;
let prefixes = 0;
let keys = keySpace('{t}');

beforeAll(async () => {
  server = await startTestServer({ appendFsync: 'always' });
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(async () => {
  const prefix = `{t-payload-${++prefixes}}`;
  keys = keySpace(prefix);
  dims = 4;
  log = new RecordingLogger();
  store = await RedisPayloadStore.connect({
    redisUrl: server.url,
    prefix,
    queue: QUEUE,
    cpuQueue: `${QUEUE}-cpu`,
    log,
  });
});

afterEach(async () => {
  await store.stop();
  await store.stop();
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

let dims = 4;
function request(jobId: string, token: string, fill: number, fingerprint = FINGERPRINT): CommitRequest {
  return {
    jobId,
    token,
    fingerprint,
    ttlMs: 60_000,
    result: encodeResult(
      { dtype: 'f32', rows: 1, dims, fingerprint, isTruncated: false },
      Buffer.alloc(dims * 4, fill),
    ),
  };
}

function lock(jobId: string, token: string): Promise<unknown> {
  return connection.set(keys.lock(QUEUE, jobId), token);
}

/** Names under which large results lie until they are committed. */
function staged(): Promise<string[]> {
  return connection.keys(keys.staged(QUEUE, '*', '*'));
}

function stored(jobId: string): Promise<Buffer | null> {
  return connection.getBuffer(keys.output(QUEUE, jobId));
}

describe.each([
  ['small results, which travel in the script', 4],
  ['large results, which are staged', 8_192],
])('commit of %s', (_form, wide) => {
  beforeEach(() => {
    dims = wide;
  });

  test('writes the result with its time to live while the lock is ours', async () => {
    await lock('a', 'mine');
    const wanted = request('a', 'mine', 7);
    expect(await store.commit([wanted])).toEqual(['committed']);
    expect(await stored('a')).toEqual(wanted.result);
    expect(await connection.pttl(keys.output(QUEUE, 'a'))).toBeGreaterThan(55_000);
  });

  test("writes nothing when the lock is another's or gone", async () => {
    await lock('other', 'theirs');
    expect(await store.commit([request('other', 'mine', 7), request('gone', 'mine', 7)])).toEqual([
      'lease-lost',
      'lease-lost',
    ]);
    expect(await connection.exists(keys.output(QUEUE, 'other'), keys.output(QUEUE, 'gone'))).toBe(0);
    expect(await staged()).toEqual([]);
  });

  test("for a job of the CPU lane its lock there counts, and the result goes where the main lane's goes", async () => {
    await lock('a', 'main claim');
    await connection.set(keys.lock(`${QUEUE}-cpu`, 'a'), 'mine');
    const wanted: CommitRequest = { ...request('a', 'mine', 7), lane: 'cpu' };
    expect(
      await store.commit([
        { ...wanted, token: 'main claim' },
        { ...wanted, lane: 'main' },
      ]),
    ).toEqual(['lease-lost', 'lease-lost']);
    expect(await store.commit([wanted])).toEqual(['committed']);
    expect(await stored('a')).toEqual(wanted.result);
  });

  test('an executor that was stopped past its lease changes nothing after another claim committed', async () => {
    await lock('a', 'second claim');
    const theirs = request('a', 'second claim', 2);
    expect(await store.commit([theirs])).toEqual(['committed']);
    await connection.del(keys.lock(QUEUE, 'a')); // completed
    expect(await store.commit([request('a', 'first claim', 1)])).toEqual(['lease-lost']);
    expect(await stored('a')).toEqual(theirs.result);
  });

  test('a result that is there is never replaced: same fingerprint is already, anything else a conflict', async () => {
    for (const jobId of ['same', 'differs', 'noise', 'list']) await lock(jobId, 'mine');
    const first = request('same', 'mine', 1);
    await store.commit([first]);
    await connection.set(keys.output(QUEUE, 'differs'), request('differs', 'mine', 1, 'ffffffffffffffff').result);
    await connection.set(keys.output(QUEUE, 'noise'), 'noise');
    await connection.lpush(keys.output(QUEUE, 'list'), 'x');
    const answers = await store.commit(['same', 'differs', 'noise', 'list'].map((jobId) => request(jobId, 'mine', 2)));
    expect(answers).toEqual(['already', 'conflict', 'conflict', 'conflict']);
    expect(await stored('same')).toEqual(first.result);
    expect(await stored('noise')).toEqual(Buffer.from('noise'));
    expect(await staged()).toEqual([]);
  });

  test('a result that was taken counts as already there and keeps the time it has left', async () => {
    await lock('a', 'mine');
    await store.commit([request('a', 'mine', 1)]);
    await connection.pexpire(keys.output(QUEUE, 'a'), 30_000);
    await acknowledge(connection, keys, QUEUE, ['a']);
    expect(await store.commit([request('a', 'mine', 1)])).toEqual(['already']);
    expect(await connection.strlen(keys.output(QUEUE, 'a'))).toBe(32);
    const leftMs = await connection.pttl(keys.output(QUEUE, 'a'));
    expect(leftMs).toBeGreaterThan(25_000);
    expect(leftMs).toBeLessThanOrEqual(30_000);
  });

  test('waits while the memory of the server is full, says so, and writes when there is room', async () => {
    await lock('a', 'mine');
    await lock('lost', 'theirs');
    await connection.config('SET', 'maxmemory', '1');
    const committed = store.commit([request('a', 'mine', 1), request('lost', 'mine', 1)]);
    await vi.waitUntil(
      () =>
        log
          .messages('warn')
          .includes('the memory of the queue server is full, holding results back until there is room'),
      { timeout: 10_000 },
    );
    expect(await stored('a')).toBeNull();
    await connection.config('SET', 'maxmemory', '0');
    expect(await committed).toEqual(['committed', 'lease-lost']);
    expect(await stored('a')).toEqual(request('a', 'mine', 1).result);
  });

  test('is sent again after its connection was cut and after the server was killed', async () => {
    for (let round = 0; round < 3; round++) {
      const jobs = Array.from({ length: 200 }, (_, index) => `r${round}-${index}`);
      await Promise.all(jobs.map((jobId) => lock(jobId, 'mine')));
      const committed = store.commit(jobs.map((jobId) => request(jobId, 'mine', round)));
      if (round === 2) await server.restart();
      else await connection.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      const answers = await committed;
      expect(answers.every((answer) => answer === 'committed' || answer === 'already')).toBe(true);
      for (const jobId of jobs) expect((await stored(jobId))?.[40]).toBe(round);
    }
  });

  test('ends with QUEUE_UNREACHABLE when the store is stopped while the server is away', async () => {
    await server.kill9();
    const committed = store.commit([request('a', 'mine', 1)]);
    const stopped = store.stop();
    await expect(committed).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
    await stopped;
    await server.restart();
  });
});

test('small results share a call', async () => {
  const jobIds = Array.from({ length: 70 }, (_, at) => `j${at}`);
  await Promise.all(jobIds.map((jobId) => lock(jobId, 'mine')));
  await lock('j33', 'another');
  await store.commit([request('gone', 'mine', 0)]); // the server knows the script from here on
  await connection.config('RESETSTAT');
  const answers = await store.commit(jobIds.map((jobId, at) => request(jobId, 'mine', at)));
  expect(answers).toEqual(jobIds.map((jobId) => (jobId === 'j33' ? 'lease-lost' : 'committed')));
  expect(/cmdstat_evalsha:calls=(\d+)/.exec(await connection.info('commandstats'))?.[1]).toBe('3');
  for (const at of [0, 31, 32, 69]) expect((await stored(`j${at}`))?.at(-1)).toBe(at);
});

test('a large result that the server forgot before it was committed is staged again', async () => {
  dims = 8_192;
  await lock('a', 'mine');
  const writer = store['writers'][0]!;
  const send = writer.sendCommand.bind(writer);
  const forgetful = vi
    .spyOn(writer, 'sendCommand')
    .mockImplementationOnce(({ name }) => send(new Command('ECHO', [name])));
  expect(await store.commit([request('a', 'mine', 5)])).toEqual(['committed']);
  expect(forgetful.mock.calls.filter(([{ name }]) => name.toLowerCase() === 'set')).toHaveLength(2);
  expect(await stored('a')).toEqual(request('a', 'mine', 5).result);
  expect(await connection.pttl(keys.output(QUEUE, 'a'))).toBeGreaterThan(55_000);
  expect(await staged()).toEqual([]);
});

describe('read', () => {
  test('gives inputs, and heads of results where there are; a wrong kind of key concerns its job alone', async () => {
    const input = encodeTexts(['grün', '']);
    await connection.set(keys.input(QUEUE, 'a'), input);
    await connection.set(keys.output(QUEUE, 'b'), request('b', 'x', 1).result);
    await connection.lpush(keys.input(QUEUE, 'c'), 'x');
    await connection.hset(keys.output(QUEUE, 'c'), 'x', 'y');
    await connection.set(keys.input(QUEUE, 'd'), '');
    const reads = await store.read([
      { jobId: 'a', hasInput: true },
      { jobId: 'b', hasInput: false },
      { jobId: 'c', hasInput: true },
      { jobId: 'd', hasInput: true },
      { jobId: 'e', hasInput: true },
    ]);
    expect(reads).toEqual([
      { input, resultHead: undefined },
      { input: undefined, resultHead: request('b', 'x', 1).result.subarray(0, 32) },
      { input: undefined, resultHead: undefined },
      { input: Buffer.alloc(0), resultHead: undefined },
      { input: undefined, resultHead: undefined },
    ]);
  });

  test('does not take the input of an inline job, whatever lies there', async () => {
    await connection.set(keys.input(QUEUE, 'a'), 'stale');
    expect(await store.read([{ jobId: 'a', hasInput: false }])).toEqual([{ input: undefined, resultHead: undefined }]);
  });
});
