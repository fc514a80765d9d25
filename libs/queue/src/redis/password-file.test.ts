// A password that lies in a file: it logs in at a real server, and a file that is not what it should be is refused by
// name without a word of what is in it.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { resolveSettings } from '@shoal/core';
import { startTestServer, type TestServer } from '../testing.ts';
import { closeConnection, openConnection, untilReady } from './connection.ts';
import { addressOf } from './server-address.ts';

const SECRET = 'a?b/c@d%20e';
const folder = mkdtempSync(join(tmpdir(), 'shoal-password-'));
const path = join(folder, 'password');
let server: TestServer;

beforeAll(async () => {
  writeFileSync(path, `${SECRET}\n`);
  server = await startTestServer();
  const connection = openConnection({ url: server.url, name: 'test' });
  await connection.call('ACL', 'SETUSER', 'keeper', 'on', `>${SECRET}`, '~*', '&*', '+@all');
  await closeConnection(connection);
});

afterAll(async () => {
  await server?.stop();
  rmSync(folder, { recursive: true });
});

test('the password of the file logs in, by the setting as well as in the URL', async () => {
  const redisUrl = server.url.replace('redis://', 'redis://keeper@');
  const settings = resolveSettings({ environment: { REDIS_URL: redisUrl, SHOAL_REDIS_PASSWORD_FILE: path } });
  expect(JSON.stringify(settings)).not.toContain(SECRET);
  const connection = openConnection({ url: settings.redisUrl!, name: 'test' });
  try {
    await untilReady(connection, settings.redisUrl!);
    expect(await connection.call('ACL', 'WHOAMI')).toBe('keeper');
  } finally {
    await closeConnection(connection);
  }
});

test.each([
  `redis://keeper@host?passwordFile=${path}`,
  `unix://keeper@/run/queue.sock?passwordFile=${path}`,
  `redis+sentinel://keeper@host:1/mymaster?passwordFile=${path}`,
  `rediss+cluster://keeper@host:1?passwordFile=${path}`,
])('%s has its password from the file', (url) => {
  expect(addressOf(url)).toMatchObject({ username: 'keeper', password: SECRET });
});

test.each([
  ['', /empty/],
  ['\nsecret', /empty/],
  ['secret\nsecret\n', /has 2 lines/],
])('a file that holds %j is refused', (content, said) => {
  const other = join(folder, 'other');
  writeFileSync(other, content);
  expect(() => addressOf(`redis://host?passwordFile=${other}`)).toThrow(said);
  expect(() => addressOf(`redis://host?passwordFile=${other}`)).not.toThrow(/secret/);
});

test('a password beside the file, a file that is not there and one for no server are refused', () => {
  expect(() => addressOf(`redis://:hush@host?passwordFile=${path}`)).toThrow(/take one of them out/);
  expect(() => addressOf('redis://host?passwordFile=/nowhere')).toThrow(/redisPasswordFile cannot be read: ENOENT/);
  expect(() => resolveSettings({ flags: { redisPasswordFile: path } })).toThrow(/without redisUrl/);
  expect(() => resolveSettings({ file: { redisPasswordFile: path } })).toThrow(/may not choose what is opened/);
});
