// Large values arrive byte for byte, in order with what is sent around them, also when the connection breaks under
// them.

import { randomBytes } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { closeConnection, openConnection, untilReady, type Redis } from './connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { askAll, valueOf } from './command-pipeline.ts';

let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  server = await startTestServer();
});
beforeEach(async () => {
  connection = openConnection({ url: server.url, name: 'test' });
  await untilReady(connection, server.url);
});
afterEach(() => closeConnection(connection));
afterAll(() => server.stop());

const SIZES = [16 * 1024, 16 * 1024 + 1, 100_003, 393_248, 3_000_000];

test('values of many sizes come back as they were, small ones and other commands between them', async () => {
  const values = SIZES.map((size) => randomBytes(size));
  const small = Buffer.from('ü\r\n$3\r\n');
  const sent = [
    askAll(
      connection,
      values.flatMap((value, at) => [
        ['SET', `large-${at}`, value, 'PX', 60_000] as const,
        ['SET', `small-${at}`, small] as const,
      ]),
    ),
    askAll(connection, [
      ['GET', 'large-3'],
      ['STRLEN', 'large-4'],
      ['GET', 'small-4'],
    ]),
  ];
  const [stored, read] = await Promise.all(sent);
  expect(stored!.map((reply) => String(valueOf(reply)))).toEqual(values.flatMap(() => ['OK', 'OK']));
  expect(read!.map(valueOf)).toEqual([values[3], 3_000_000, small]);
  for (const [at, value] of values.entries())
    expect((await connection.getBuffer(`large-${at}`))?.equals(value)).toBe(true);
});

test('an error of one concerns that one alone', async () => {
  await connection.lpush('a-list', 'x');
  const [refused, stored] = await askAll(connection, [
    ['APPEND', 'a-list', randomBytes(20_000)],
    ['SET', 'beside', randomBytes(20_000)],
  ]);
  expect(refused).toMatchObject({
    ok: false,
    error: expect.objectContaining({ message: expect.stringMatching(/^WRONGTYPE/) }),
  });
  expect(stored).toMatchObject({ ok: true });
});

test('is sent again, whole, when the connection breaks under it', async () => {
  const value = randomBytes(2_000_000);
  const broken = askAll(
    connection,
    Array.from({ length: 8 }, (_, at) => ['SET', `again-${at}`, value] as const),
  );
  setImmediate(() => Reflect.get(connection, 'stream').destroy());
  expect((await broken).map((reply) => String(valueOf(reply)))).toEqual(Array.from({ length: 8 }, () => 'OK'));
  for (let at = 0; at < 8; at++) expect((await connection.getBuffer(`again-${at}`))?.equals(value)).toBe(true);
});
