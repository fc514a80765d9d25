import { afterAll, beforeAll, expect, test } from 'vitest';
import { decodeResultHeader, encodeResult, openResult } from '@shoal/core';
import { closeConnection, openConnection, type Redis } from '../connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { acknowledge } from './acknowledge.ts';

let server: TestServer;
let connection: Redis;
const result = encodeResult({ dtype: 'f32', rows: 2, dims: 3, fingerprint: '00112233445566ff', isTruncated: true }, Buffer.alloc(24, 0xfe));

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

test('the body comes back once; the header stays, marked TAKEN, with its time to live', async () => {
  await connection.set('{t}:out:a', result, 'PX', 60_000);
  const [first] = await acknowledge(connection, ['{t}:out:a']);
  expect(first).toEqual({ kind: 'body', bytes: result });
  expect(first?.kind === 'body' && openResult(first.bytes).body.equals(result.subarray(32))).toBe(true);
  const left = await connection.getBuffer('{t}:out:a');
  expect(left?.length).toBe(32);
  expect(decodeResultHeader(left ?? Buffer.alloc(0))).toMatchObject({ isTaken: true, isTruncated: true, fingerprint: '00112233445566ff', rows: 2, dims: 3 });
  const remainingMs = await connection.pttl('{t}:out:a');
  expect(remainingMs).toBeGreaterThan(55_000);
  expect(remainingMs).toBeLessThanOrEqual(60_000);
  expect(await acknowledge(connection, ['{t}:out:a'])).toEqual([{ kind: 'taken' }]);
});

test('many keys are answered in order, whatever is in them', async () => {
  await connection.set('{t}:out:b', result);
  await connection.set('{t}:out:noise', 'not a result, but longer than thirty-two bytes');
  await connection.lpush('{t}:out:list', 'x');
  const answers = await acknowledge(connection, ['{t}:out:missing', '{t}:out:b', '{t}:out:noise', '{t}:out:list', '{t}:out:b']);
  expect(answers.map((answer) => answer.kind)).toEqual(['absent', 'body', 'body', 'body', 'taken']);
  expect(await connection.get('{t}:out:noise')).toBe('not a result, but longer than thirty-two bytes');
  expect(await connection.lrange('{t}:out:list', 0, -1)).toEqual(['x']);
});

test('works when the memory of the server is full, and after its scripts were forgotten', async () => {
  await connection.set('{t}:out:c', result);
  await connection.call('SCRIPT', 'FLUSH');
  await connection.config('SET', 'maxmemory', '1');
  await expect(connection.set('{t}:other', 'x')).rejects.toThrow(/OOM/);
  expect((await acknowledge(connection, ['{t}:out:c']))[0]?.kind).toBe('body');
  await connection.config('SET', 'maxmemory', '0');
});

test('waits for a server that is down', async () => {
  await connection.set('{t}:out:d', result);
  await server.durable();
  await server.kill9();
  const answer = acknowledge(connection, ['{t}:out:d']);
  await server.restart();
  expect(await answer).toEqual([{ kind: 'body', bytes: result }]);
});
