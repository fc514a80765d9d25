import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { Command } from 'ioredis';
import { decodePointer, decodeResultHeader, encodeResult, encodeTexts, keySpace, pointedResult } from '@shoal/contract';
import type { CommitRequest } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { acknowledge } from './acknowledge.ts';
import { PayloadServers, inputPlace } from './payload-servers.ts';
import { RedisPayloadStore } from './payload-store.ts';

const QUEUE = 'embed-x';
const FINGERPRINT = '00112233445566ff';
let server: TestServer;
let payloadServer: TestServer;
let payloads: PayloadServers | undefined;
let folder: string;
let connection: Redis;
let store: RedisPayloadStore;
let log: RecordingLogger;
let prefixes = 0;
let keys = keySpace('{t}');

beforeAll(async () => {
  [server, payloadServer] = await Promise.all([
    startTestServer({ appendFsync: 'always' }),
    startTestServer({ appendFsync: 'no', topology: 'single' }),
  ]);
  folder = await mkdtemp(join(tmpdir(), 'shoal-payloads-'));
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(async () => {
  keys = keySpace(`{t-payload-${++prefixes}}`);
  dims = 4;
  log = new RecordingLogger();
  payloads = undefined;
  store = await connect();
});

function connect(): Promise<RedisPayloadStore> {
  const prefix = `{t-payload-${prefixes}}`;
  return RedisPayloadStore.connect({
    redisUrl: server.url,
    prefix,
    queue: QUEUE,
    cpuQueue: `${QUEUE}-cpu`,
    payloads,
    log,
  });
}

/** With a payload server from here on. */
async function connectBeside(payloadServers = payloadServer.url): Promise<PayloadServers> {
  await store.stop();
  payloads = await PayloadServers.connect({ payloadServers, clientName: 'test', log });
  store = await connect();
  return payloads;
}

afterEach(async () => {
  await store.stop();
  await store.stop();
});

afterAll(async () => {
  await closeConnection(connection);
  await Promise.all([server.stop(), payloadServer.stop(), rm(folder, { recursive: true })]);
});

let dims = 4;
function request(jobId: string, token: string, fill: number, fingerprint = FINGERPRINT): CommitRequest {
  return {
    jobId,
    token,
    fingerprint,
    ttlMs: 60_000,
    payloads: payloads?.id,
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

/** What a reader gets. */
async function stored(jobId: string): Promise<Buffer | null> {
  const bytes = await connection.getBuffer(keys.output(QUEUE, jobId));
  if (bytes === null || decodeResultHeader(bytes)?.isPointer !== true) return bytes;
  const pointer = decodePointer(bytes);
  return pointedResult(bytes, pointer, await payloads!.get(pointer));
}

describe.each([
  ['small results, which travel in the script', 4, undefined],
  ['large results, which are staged', 8_192, undefined],
  ['large results, which lie on a payload server', 8_192, () => payloadServer.url],
  ['large results, which lie in a shared folder', 8_192, () => pathToFileURL(folder).href],
])('commit of %s', (_form, wide, beside) => {
  beforeEach(async () => {
    dims = wide;
    if (beside !== undefined) await connectBeside(beside());
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

/** Bytes at the result key itself. */
function kept(jobId: string): Promise<number> {
  return connection.strlen(keys.output(QUEUE, jobId));
}

describe('with a payload server', () => {
  beforeEach(async () => {
    dims = 8_192;
    await connectBeside();
  });

  test('a pointer is committed, and its body outlives it', async () => {
    await lock('a', 'mine');
    expect(await store.commit([request('a', 'mine', 7)])).toEqual(['committed']);
    const pointer = decodePointer((await connection.getBuffer(keys.output(QUEUE, 'a')))!);
    expect(pointer).toMatchObject({ store: payloads!.names[0], bytes: 32 + 4 * dims });
    const [bodyMs, pointerMs] = [
      await payloadServer.command('PTTL', pointer.key),
      await connection.pttl(keys.output(QUEUE, 'a')),
    ];
    expect(Number(bodyMs)).toBeGreaterThan(pointerMs + 50_000);
    expect(Number(bodyMs)).toBeLessThanOrEqual(120_000);
  });

  test('a result goes by the queue server whose reader has other payload servers, or none, or which is small', async () => {
    for (const jobId of ['none', 'others', 'small']) await lock(jobId, 'mine');
    const large = request('none', 'mine', 1);
    await store.commit([
      { ...large, payloads: undefined },
      { ...request('others', 'mine', 1), payloads: 'ffffffffffffffff' },
    ]);
    dims = 4;
    await store.commit([request('small', 'mine', 1)]);
    expect(await Promise.all(['none', 'others', 'small'].map(kept))).toEqual([32 + 32_768, 32 + 32_768, 32 + 16]);
  });

  test.each<[string, () => Promise<unknown>, () => Promise<unknown>]>([
    [
      'is full',
      () => payloadServer.command('CONFIG', 'SET', 'maxmemory', '1'),
      () => payloadServer.command('CONFIG', 'SET', 'maxmemory', '0'),
    ],
    [
      'takes no writes',
      () => payloadServer.command('REPLICAOF', '127.0.0.1', '1'),
      () => payloadServer.command('REPLICAOF', 'NO', 'ONE'),
    ],
    ['is dead', () => payloadServer.kill9(), () => payloadServer.restart()],
  ])('results go by the queue server while the only payload server %s', async (_, breakIt, mendIt) => {
    await lock('a', 'mine');
    await breakIt();
    const answers = await store.commit([request('a', 'mine', 5)]);
    const bytes = await kept('a');
    await mendIt();
    expect(answers).toEqual(['committed']);
    expect(bytes).toBe(32 + 4 * dims);
  });

  test('of two claims that both put a body, the one with the lock decides which it is', async () => {
    await lock('a', 'second claim');
    const [late, held] = [request('a', 'first claim', 1), request('a', 'second claim', 2)];
    const answers = await Promise.all([store.commit([late]), store.commit([held])]);
    expect(answers).toEqual([['lease-lost'], ['committed']]);
    expect(await stored('a')).toEqual(held.result);
  });

  test('an input is read from the server that the job names; one that is lost there is told', async () => {
    const input = encodeTexts(['x'.repeat(20_000)]);
    const [place] = payloads!.names;
    const prefix = `{t-payload-${prefixes}}`;
    await payloads!.put('a', inputPlace(prefix, QUEUE, 'a', FINGERPRINT), input, 60_000);
    const beside = { store: place!, fingerprint: FINGERPRINT };
    await connection.set(keys.input(QUEUE, 'here'), 'as ever');
    expect(
      await store.read([
        { jobId: 'a', hasInput: true, beside },
        { jobId: 'here', hasInput: true },
        { jobId: 'gone', hasInput: true, beside },
        { jobId: 'a', hasInput: true, beside: { ...beside, store: '10.9.8.7:1' } },
      ]),
    ).toEqual([
      { input, resultHead: undefined },
      { input: Buffer.from('as ever'), resultHead: undefined },
      { input: undefined, resultHead: undefined, lost: expect.stringContaining('has nothing there') },
      { input: undefined, resultHead: undefined, lost: expect.stringContaining('10.9.8.7:1') },
    ]);
  });
});

test('an input on a payload server is told as lost by a worker that has none', async () => {
  const beside = { store: '10.9.8.7:1', fingerprint: FINGERPRINT };
  expect(await store.read([{ jobId: 'a', hasInput: true, beside }])).toEqual([
    { input: undefined, resultHead: undefined, lost: expect.stringMatching(/10\.9\.8\.7:1.*has none/) },
  ]);
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
