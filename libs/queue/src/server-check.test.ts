import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { closeConnection, openConnection, untilReady, type Redis } from './connection.ts';
import { checkServer } from './server-check.ts';
import { startTestServer, type TestServer } from './testing.ts';

let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterEach(async () => {
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction', 'appendonly', 'yes');
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

test('a sound server has no warnings, and its facts are told', async () => {
  const { facts, warnings } = await checkServer(connection);
  expect(warnings).toEqual([]);
  expect(facts).toMatchObject({ evictionPolicy: 'noeviction', isAppendOnly: true, maxMemoryBytes: 0 });
  expect(facts.version).toMatch(/^\d+\.\d+/);
  expect(Math.abs(facts.clockOffsetMs)).toBeLessThan(50);
});

test('a server that evicts is refused with the policy found and the command that cures it', async () => {
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
  await expect(checkServer(connection)).rejects.toMatchObject({ code: 'QUEUE_UNSAFE', message: expect.stringMatching(/allkeys-lru.*CONFIG SET maxmemory-policy noeviction/) });
});

test('a server without an append-only file is warned of', async () => {
  await server.command('CONFIG', 'SET', 'appendonly', 'no');
  expect((await checkServer(connection)).warnings).toEqual([expect.stringMatching(/append-only.*CONFIG SET appendonly yes/)]);
});

test('a managed server that forbids CONFIG is warned of, not refused; eviction is still seen', async () => {
  await server.command('ACL', 'SETUSER', 'managed', 'on', '>secret', '~*', '&*', '+@all', '-config');
  const url = server.url.replace('redis://', 'redis://managed:secret@');
  const managed = openConnection({ url, name: 'test' });
  await untilReady(managed, url);
  const { facts, warnings } = await checkServer(managed);
  expect(warnings).toEqual([expect.stringMatching(/CONFIG GET/)]);
  expect(facts).toMatchObject({ evictionPolicy: 'noeviction', isAppendOnly: true });
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'volatile-ttl');
  await expect(checkServer(managed)).rejects.toMatchObject({ code: 'QUEUE_UNSAFE' });
  await closeConnection(managed);
});
