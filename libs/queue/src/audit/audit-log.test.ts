import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { startTestServer, type TestServer } from '../testing.ts';
import { AuditLog, whoIsHere } from './audit-log.ts';

let server: TestServer;
let audit: AuditLog;
let prefix: string;
let log: RecordingLogger;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
});

beforeEach(async () => {
  await audit?.close();
  prefix = `{t-audit-${++prefixes}}`;
  log = new RecordingLogger();
  audit = await AuditLog.connect({ redisUrl: server.url, prefix, log });
});

afterAll(async () => {
  await audit.close();
  await server.stop();
});

const entry = (what: string, more = {}) => ({ who: 'ann@desk', program: 'shoal', what, ...more });

test('what was done is read newest first, by the server’s clock, and is in the log', async () => {
  await audit.write(entry('queue pause', { queue: 'embed-x' }));
  await audit.write(entry('queue retry', { queue: 'embed-x', ids: ['a', 'b'], details: { retried: 1 } }));
  const [seconds] = (await server.command('TIME')) as [string];
  const [newest, oldest, ...more] = await audit.read();
  expect(newest).toMatchObject({
    who: 'ann@desk',
    what: 'queue retry',
    ids: ['a', 'b'],
    count: 2,
    details: { retried: 1 },
  });
  expect(oldest).toMatchObject({ what: 'queue pause', queue: 'embed-x', ids: [], count: 0 });
  expect(more).toEqual([]);
  expect(Math.abs(newest!.atMs / 1_000 - Number(seconds))).toBeLessThan(5);
  expect(log.messages('info')).toEqual(['changed by hand', 'changed by hand']);
  expect(await audit.read({ most: 1 })).toHaveLength(1);
  expect(await audit.read({ lastMs: 60_000 })).toHaveLength(2);
});

test('nothing in it is a secret, and nothing of it is long', async () => {
  const ids = Array.from({ length: 3_000 }, (_, at) => `job-${at}`);
  const details = { from: 'redis://u:hunter2@h:6379', key: 'shoal_abcdefghij_0123456789012345678901234567890' };
  await audit.write(entry('queue cancel', { ids, details, queue: 'x'.repeat(5_000) }));
  const text = JSON.stringify(await audit.read());
  expect(text).not.toMatch(/hunter2|0123456789012345/);
  expect(text.length).toBeLessThan(2_000);
  expect(await audit.read()).toMatchObject([{ count: 3_000 }]);
  expect(JSON.stringify(log.lines)).not.toMatch(/hunter2|0123456789012345/);
});

test('a server whose memory is full takes it too', async () => {
  await server.command('CONFIG', 'SET', 'maxmemory', '1');
  try {
    await audit.write(entry('queue clean'));
  } finally {
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
  }
  expect(await audit.read()).toMatchObject([{ what: 'queue clean' }]);
});

test('what another version wrote and nobody can read is left out', async () => {
  await server.command('XADD', keySpace(prefix).audit(), '*', 'entry', '{"who":3}');
  await server.command('XADD', keySpace(prefix).audit(), '*', 'other', 'x');
  await audit.write(entry('queue resume'));
  expect(await audit.read()).toMatchObject([{ what: 'queue resume' }]);
});

test('whoever became root by sudo is named', () => {
  expect(whoIsHere({ SUDO_USER: 'ann' })).toMatch(/^ann@.+/);
  expect(whoIsHere({})).toMatch(/^.+@.+/);
});
