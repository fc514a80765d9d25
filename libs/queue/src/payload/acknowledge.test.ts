import { afterAll, beforeAll, expect, test } from 'vitest';
import { decodeResultHeader, encodeResult, keySpace, openResult } from '@shoal/contract';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { acknowledge } from './acknowledge.ts';

const QUEUE = 'embed-x';
const keys = keySpace('{t}');
const output = (jobId: string): string => keys.output(QUEUE, jobId);
/** Where bodies are put while they are handed out. */
const staged = (): Promise<string[]> => connection.keys(keys.staged(QUEUE, '*', '*'));
let server: TestServer;
let connection: Redis;
const result = encodeResult(
  { dtype: 'f32', rows: 2, dims: 3, fingerprint: '00112233445566ff', isTruncated: true },
  Buffer.alloc(24, 0xfe),
);

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

test('the body comes back once; the header stays, marked TAKEN, with its time to live', async () => {
  await connection.set(output('a'), result, 'PX', 60_000);
  const [first] = await acknowledge(connection, keys, QUEUE, ['a']);
  expect(first).toEqual({ kind: 'body', bytes: result });
  expect(first?.kind === 'body' && openResult(first.bytes).body.equals(result.subarray(32))).toBe(true);
  const left = await connection.getBuffer(output('a'));
  expect(left?.length).toBe(32);
  expect(decodeResultHeader(left ?? Buffer.alloc(0))).toMatchObject({
    isTaken: true,
    isTruncated: true,
    fingerprint: '00112233445566ff',
    rows: 2,
    dims: 3,
  });
  const remainingMs = await connection.pttl(output('a'));
  expect(remainingMs).toBeGreaterThan(55_000);
  expect(remainingMs).toBeLessThanOrEqual(60_000);
  expect(await acknowledge(connection, keys, QUEUE, ['a'])).toEqual([{ kind: 'taken' }]);
  await expect.poll(staged).toEqual([]);
});

test('a result without a time to live leaves a header without one', async () => {
  await connection.set(output('for-ever'), result);
  expect((await acknowledge(connection, keys, QUEUE, ['for-ever']))[0]?.kind).toBe('body');
  expect(await connection.pttl(output('for-ever'))).toBe(-1);
});

test('of many readers at once one gets the body', async () => {
  await connection.set(output('wanted'), result);
  const others = Array.from({ length: 8 }, () => openConnection({ url: server.url, name: 'test' }));
  const answers = await Promise.all(others.map((other) => acknowledge(other, keys, QUEUE, ['wanted'])));
  expect(answers.flat().filter(({ kind }) => kind === 'body')).toEqual([{ kind: 'body', bytes: result }]);
  expect(answers.flat().filter(({ kind }) => kind === 'taken')).toHaveLength(7);
  for (const other of others) await closeConnection(other);
});

test('a body whose reply was lost with the connection comes all the same', async () => {
  const jobIds = Array.from({ length: 300 }, (_, at) => `cut-${at}`);
  for (let round = 0; round < 5; round++) {
    await Promise.all(jobIds.map((jobId) => connection.set(output(jobId), result)));
    const answers = acknowledge(connection, keys, QUEUE, jobIds);
    await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    expect((await answers).filter((answer) => answer.kind === 'body' && answer.bytes.equals(result))).toHaveLength(
      jobIds.length,
    );
  }
});

test('many keys are answered in order, whatever is in them', async () => {
  await connection.set(output('b'), result);
  await connection.set(output('noise'), 'not a result, but longer than thirty-two bytes');
  await connection.lpush(output('list'), 'x');
  const answers = await acknowledge(connection, keys, QUEUE, ['missing', 'b', 'noise', 'list', 'b']);
  expect(answers.map((answer) => answer.kind)).toEqual(['absent', 'body', 'body', 'body', 'taken']);
  expect(await connection.get(output('noise'))).toBe('not a result, but longer than thirty-two bytes');
  expect(await connection.lrange(output('list'), 0, -1)).toEqual(['x']);
});

test('works when the memory of the server is full, and after its scripts were forgotten', async () => {
  await connection.set(output('c'), result);
  await connection.call('SCRIPT', 'FLUSH');
  await connection.config('SET', 'maxmemory', '1');
  await expect(connection.set('{t}:other', 'x')).rejects.toThrow(/OOM/);
  expect((await acknowledge(connection, keys, QUEUE, ['c']))[0]?.kind).toBe('body');
  await connection.config('SET', 'maxmemory', '0');
});

test('waits for a server that is down', async () => {
  await connection.set(output('d'), result);
  await server.durable();
  await server.kill9();
  const answer = acknowledge(connection, keys, QUEUE, ['d']);
  await server.restart();
  expect(await answer).toEqual([{ kind: 'body', bytes: result }]);
});
