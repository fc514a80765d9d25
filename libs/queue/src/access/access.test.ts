// Keys of HTTP callers where they are kept, and what is left of their limits, on a real server.

import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeApiKey } from '@shoal/core';
import { FileApiKeys, ServerApiKeys, type ApiKeyStore } from './api-key-store.ts';
import { useAllowance } from './key-allowance.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let folder: string;
let count = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
  folder = await mkdtemp(join(tmpdir(), 'shoal-keys-'));
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
  await rm(folder, { recursive: true, force: true });
});

describe.each<[string, () => ApiKeyStore]>([
  ['the queue server', () => new ServerApiKeys(connection, `{t-keys-${++count}}`)],
  ['a file', () => new FileApiKeys(join(folder, `keys-${++count}.json`))],
])('keys in %s', (_, open) => {
  test('are listed as they were added, and keep what was revoked', async () => {
    const store = open();
    expect(await store.list()).toEqual([]);
    const [one, two] = [makeApiKey({ name: 'one' }, 1).kept, makeApiKey({ name: 'two', tenant: 'acme' }, 2).kept];
    await store.add(one);
    await store.add(two);
    expect(await store.list()).toEqual([one, two]);
    expect(await store.revoke(one.id, 7)).toEqual({ ...one, revokedMs: 7 });
    expect(await store.revoke(one.id, 8)).toEqual({ ...one, revokedMs: 7 });
    expect(await store.revoke('aaaaaaaaaa', 8)).toBeUndefined();
    expect(await store.list()).toEqual([{ ...one, revokedMs: 7 }, two]);
  });

  test('have another version after each change', async () => {
    const store = open();
    const { kept } = makeApiKey({ name: 'one' }, 1);
    const versions = [await store.version()];
    await store.add(kept);
    versions.push(await store.version());
    await store.revoke(kept.id, 7);
    versions.push(await store.version());
    expect(new Set(versions).size).toBe(3);
    expect(await store.version()).toBe(versions[2]);
  });
});

test('two commands that add to a file at once lose no key, and nobody else may read it', async () => {
  const path = join(folder, 'shared.json');
  const keys = Array.from({ length: 6 }, (_, at) => makeApiKey({ name: `key ${at}` }, at).kept);
  await Promise.all(keys.map((key) => new FileApiKeys(path).add(key)));
  expect((await new FileApiKeys(path).list()).map(({ name }) => name).sort()).toEqual(keys.map(({ name }) => name));
  expect((await stat(path)).mode & 0o077).toBe(0);
});

test.each([
  ['{', /is not JSON/],
  ['[]', /has no list "keys"/],
  ['{"keys": [{"id": "x"}]}', /key 1 of .*: id: must be 10 of/],
])('a file that is no list of keys is refused: %s', async (text, words) => {
  const path = join(folder, `bad-${++count}.json`);
  await writeFile(path, text);
  await expect(new FileApiKeys(path).list()).rejects.toThrow(words);
  expect(await readFile(path, 'utf8')).toBe(text);
});

const use = (requests: number, texts: number, tokens: number) => ({ requests, texts, tokens });
const limited = (limits: object) => ({ keyId: `key${++count}`, limits });
const take = (key: ReturnType<typeof limited>, used: ReturnType<typeof use>, isAsked = true) =>
  useAllowance(connection, '{t-allowance}', key, used, isAsked);

describe('an allowance', () => {
  test('lets a minute’s worth through at once, then says how long until the next', async () => {
    const key = limited({ requests: 2 });
    for (const left of [1, 0])
      expect(await take(key, use(1, 5, 0))).toMatchObject({ waitMs: 0, left: use(left, 0, 0) });
    const refused = await take(key, use(1, 5, 0));
    expect(refused.waitMs).toBeGreaterThan(20_000);
    expect(refused.waitMs).toBeLessThanOrEqual(30_000);
  });

  test('of texts is left below nothing by a request larger than a minute’s worth, which is answered once', async () => {
    const key = limited({ texts: 100 });
    expect((await take(key, use(1, 250, 0))).waitMs).toBe(0);
    const { waitMs, left } = await take(key, use(1, 1, 0));
    expect(left.texts).toBeLessThan(-140);
    expect(waitMs).toBeGreaterThan(80_000);
  });

  test('of tokens is taken when they are known, however many they were', async () => {
    const key = limited({ tokens: 1_000 });
    expect((await take(key, use(1, 1, 0))).waitMs).toBe(0);
    expect((await take(key, use(0, 0, 1_500), false)).left.tokens).toBeLessThan(-490);
    expect((await take(key, use(1, 1, 0))).waitMs).toBeGreaterThan(25_000);
  });

  test('is forgotten by the server once it is full again', async () => {
    const key = limited({ requests: 10 });
    await take(key, use(1, 1, 0));
    expect(Number(await server.command('PTTL', `{t-allowance}:allowance:${key.keyId}`))).toBeGreaterThan(0);
  });
});
