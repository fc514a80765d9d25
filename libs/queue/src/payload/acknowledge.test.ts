import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
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

/** A connection of a reader; `forget` happens once, behind the script that takes and before the GET of the body. */
function readerOf(forget: () => Promise<unknown>): Redis {
  const reader = openConnection({ url: server.url, name: 'test' });
  const send = reader.sendCommand.bind(reader);
  let forgotten: Promise<unknown> | undefined;
  reader.sendCommand = ((command: Parameters<typeof send>[0]) => {
    if (command.name.toLowerCase() !== 'get') return send(command);
    forgotten ??= forget();
    return forgotten.then(() => send(command));
  }) as typeof send;
  return reader;
}
const forgetBodies = async (): Promise<void> => {
  const names = await staged();
  if (names.length > 0) await connection.del(...names);
};

describe('a server that forgets in a restart what it answered', () => {
  test('that a result was taken: it is taken again', async () => {
    await connection.set(output('again'), result, 'PX', 60_000);
    await acknowledge(connection, keys, QUEUE, ['again-not']); // the script is loaded
    const forget = vi.fn<() => Promise<void>>(async () => {
      await expect.poll(staged).toHaveLength(1);
      await connection.set(output('again'), result, 'PX', 60_000);
      await forgetBodies();
    });
    const reader = readerOf(forget);
    expect(await acknowledge(reader, keys, QUEUE, ['again', 'none'])).toEqual([
      { kind: 'body', bytes: result },
      { kind: 'absent' },
    ]);
    expect(forget).toHaveBeenCalledTimes(1);
    await closeConnection(reader);
  });

  test('the result as well: it is not there, and nobody is told that it was taken', async () => {
    await connection.set(output('gone'), result, 'PX', 60_000);
    const reader = readerOf(async () => {
      await expect.poll(staged).toHaveLength(1);
      await connection.del(output('gone'));
      await forgetBodies();
    });
    expect(await acknowledge(reader, keys, QUEUE, ['gone'])).toEqual([{ kind: 'absent' }]);
    await closeConnection(reader);
  });

  test('the body alone, which is kept for a minute: it was taken', async () => {
    await connection.set(output('late'), result, 'PX', 60_000);
    const reader = readerOf(async () => {
      await expect.poll(staged).toHaveLength(1);
      await forgetBodies();
    });
    expect(await acknowledge(reader, keys, QUEUE, ['late'])).toEqual([{ kind: 'taken' }]);
    await closeConnection(reader);
  });
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
