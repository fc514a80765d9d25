// Which marks a server that came back is told again: those that it may have lost, whatever the outage lasted, and no
// older ones.

import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { decodeResultHeader, encodeResult } from '@shoal/contract';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { TakenMarks } from './taken-marks.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const KEY = '{t-marks}:out:embed-x:a';
const RESULT = encodeResult(
  { dtype: 'f32', rows: 1, dims: 1, fingerprint: '0123456789abcdef', isTruncated: false },
  new Uint8Array(4),
);
let server: TestServer;
let connection: Redis;
let nowMs: number;
let marks: TakenMarks;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

/** A result was taken, and there is one of the same request again: the old one, back from the dead, or a new one. */
beforeEach(async () => {
  nowMs = 1_000_000;
  marks = new TakenMarks(() => nowMs);
  marks.saw([KEY], [RESULT]);
  await marks.mark(connection, [KEY]);
  await connection.set(KEY, RESULT, 'PX', 60_000);
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function isTaken(): Promise<boolean | undefined> {
  return decodeResultHeader((await connection.getBuffer(KEY)) ?? Buffer.alloc(0))?.isTaken;
}

test(
  'what was taken just before the connection broke is marked again, after an outage of any length in which more ' +
    'was taken',
  async () => {
    nowMs += 4_000;
    marks.lost();
    nowMs += 3_600_000;
    marks.add([], []);
    marks.lost(); // the second outage of one: nothing was told between them
    await marks.repeat(connection);
    expect(await isTaken()).toBe(true);
  },
);

test('what was taken long before is left alone, though nothing was taken since', async () => {
  nowMs += 6_000;
  marks.lost();
  await marks.repeat(connection);
  expect(await isTaken()).toBe(false);
});

test('an outage does not make marks of an earlier one younger', async () => {
  marks.lost();
  await marks.repeat(connection);
  await connection.set(KEY, RESULT, 'PX', 60_000);
  nowMs += 6_000;
  marks.lost();
  await marks.repeat(connection);
  expect(await isTaken()).toBe(false);
});

test('what is asked for once more is not marked: the result that comes is another one', async () => {
  marks.forget([KEY]);
  marks.lost();
  await marks.repeat(connection);
  expect(await isTaken()).toBe(false);
});
