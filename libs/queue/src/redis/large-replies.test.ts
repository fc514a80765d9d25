// What a server sends comes through byte for byte however it is torn, large strings whole in one piece; and results
// that were read and let go of do not change those that are still looked at.

import { randomBytes } from 'node:crypto';
import * as fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BufferPool } from '@shoal/core/base';
import { closeConnection, openConnection, untilReady } from './connection.ts';
import { LargeReplyReader } from './large-replies.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const string = (length: number, type = '$'): Buffer =>
  Buffer.concat([Buffer.from(`${type}${length}\r\n`), randomBytes(length), Buffer.from('\r\n')]);

/** Cut at these places; each part in memory that is written over as soon as it was taken in, as a socket's is. */
function torn(sent: Buffer, cuts: readonly number[]): Buffer[] {
  const pieces: Buffer[] = [];
  const reader = new LargeReplyReader(new BufferPool(), (piece) => pieces.push(piece));
  const places = [...new Set([0, ...cuts.map((cut) => cut % sent.length), sent.length])].sort((a, b) => a - b);
  for (const [i, from] of places.slice(0, -1).entries()) {
    const part = Buffer.from(sent.subarray(from, places[i + 1]));
    reader.add(part);
    part.fill(0xff);
  }
  return pieces;
}

const replies = fc.array(
  fc.oneof(
    fc
      .constantFrom(
        '+OK\r\n',
        ':1\r\n',
        '$-1\r\n',
        '*-1\r\n',
        '_\r\n',
        '#t\r\n',
        ',1.5\r\n',
        '(12345678901234567890\r\n',
        '-ERR $20000\r\n',
        '*3\r\n',
        '%2\r\n',
        '~1\r\n',
        '>3\r\n',
        '$0\r\n\r\n',
      )
      .map((text) => Buffer.from(text)),
    fc.integer({ min: 0, max: 300 }).map((length) => string(length)),
    fc.constantFrom(8_191, 8_192, 8_193, 40_000).map((length) => string(length)),
    fc.constantFrom(20, 20_000).map((length) => string(length, '=')),
  ),
  { minLength: 1, maxLength: 12 },
);

test('every byte once and in order, wherever the network tears it', () => {
  fc.assert(
    fc.property(replies, fc.array(fc.nat()), (parts, cuts) => {
      const sent = Buffer.concat(parts);
      expect(Buffer.concat(torn(sent, cuts)).equals(sent)).toBe(true);
    }),
    { numRuns: 300 },
  );
});

test('a large string is a piece of its own, with the end of its line, wherever it is torn', () => {
  const sent = Buffer.concat([Buffer.from('*2\r\n'), string(5), string(8_192), Buffer.from(':7\r\n')]);
  for (let cut = 1; cut < sent.length; cut += cut < 60 || cut > sent.length - 60 ? 1 : 997) {
    const large = torn(sent, [cut]).filter(({ length }) => length > 8_000);
    expect(large.map(({ length, byteOffset }) => ({ length, byteOffset }))).toEqual([{ length: 8_194, byteOffset: 0 }]);
  }
});

test('through ioredis: values of many sizes, in lists too, and other replies among them', async () => {
  const connection = openConnection({ url: server.url, name: 'test', pool: new BufferPool() });
  await untilReady(connection, server.url);
  const values = [0, 1, 8_191, 8_192, 98_336, 262_144, 3_000_000].map((size) => randomBytes(size));
  await Promise.all(values.map((value, at) => connection.set(`v-${at}`, value)));
  const names = values.map((_, at) => `v-${at}`);
  for (let round = 0; round < 5; round++) {
    const [single, list, missing, count] = await Promise.all([
      Promise.all(names.map((name) => connection.getBuffer(name))),
      connection.mgetBuffer(...names),
      connection.getBuffer('not-there'),
      connection.dbsize(),
    ]);
    expect(single.map((value, at) => value?.equals(values[at]!))).toEqual(values.map(() => true));
    expect(list.map((value, at) => value?.equals(values[at]!))).toEqual(values.map(() => true));
    expect([missing, count]).toEqual([null, values.length]);
  }
  await closeConnection(connection);
});

test('a connection that breaks in the middle of a large reply asks again and gets it whole', async () => {
  const pool = new BufferPool();
  const connection = openConnection({ url: server.url, name: 'test', pool });
  await untilReady(connection, server.url);
  const value = randomBytes(8_000_000);
  await connection.set('broken', value);
  const asked = connection.getBuffer('broken');
  const socket = Reflect.get(connection, 'stream');
  socket.once('data', () => socket.destroy()); // the head of the reply: its body is still on its way
  expect((await asked)?.equals(value)).toBe(true);
  await closeConnection(connection);
});

test('what was given back is used again, and nothing else', async () => {
  const pool = new BufferPool();
  const connection = openConnection({ url: server.url, name: 'test', pool });
  await untilReady(connection, server.url);
  const values = Array.from({ length: 3 }, () => randomBytes(98_336));
  await Promise.all(values.map((value, at) => connection.set(`r-${at}`, value)));
  const first = (await connection.getBuffer('r-0'))!;
  const kept = (await connection.getBuffer('r-1'))!;
  pool.giveBack(first.buffer);
  const third = (await connection.getBuffer('r-2'))!;
  expect(third.buffer).toBe(first.buffer);
  expect(kept.equals(values[1]!)).toBe(true);
  expect(third.equals(values[2]!)).toBe(true);
  await closeConnection(connection);
});
