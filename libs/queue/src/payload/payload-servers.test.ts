// Real payload servers, and folders, that are killed, emptied, full, read-only and slow: what one cannot take goes to
// another or nowhere, in seconds; what it cannot give is PAYLOAD_LOST.

import { mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { bodiesConformance } from '../testing/bodies-conformance.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { FolderBodies } from './folder-bodies.ts';
import { PayloadServers, inOrder, serversIn } from './payload-servers.ts';
import { ServerBodies } from './server-bodies.ts';

const started: TestServer[] = [];
const opened: PayloadServers[] = [];
let first: TestServer;
let second: TestServer;

async function start(args: readonly string[] = []): Promise<TestServer> {
  const server = await startTestServer({ topology: 'single', appendFsync: 'no', args });
  started.push(server);
  return server;
}

async function connect(servers: readonly TestServer[], log = new RecordingLogger()): Promise<PayloadServers> {
  const payloads = await PayloadServers.connect({
    payloadServers: servers.map(({ url }) => url).join(', '),
    clientName: 'test',
    log,
  });
  opened.push(payloads);
  return payloads;
}

const nameOf = ({ url }: TestServer): string => url.replace('redis://', '');
/** One that chooses this of these servers first. */
function idFor(wanted: TestServer, servers: readonly TestServer[]): string {
  const names = servers.map(nameOf);
  return Array.from({ length: 1_000 }, (_, at) => `job-${at}`).find((id) => inOrder(names, id)[0] === nameOf(wanted))!;
}

beforeAll(async () => {
  [first, second] = await Promise.all([start(), start()]);
});

afterEach(async () => {
  await Promise.all(opened.splice(0).map((payloads) => payloads.close()));
});

afterAll(async () => {
  await Promise.all(started.map((server) => server.stop()));
});

bodiesConformance('a server', async () => {
  const server = await start();
  return {
    bodies: new ServerBodies({ url: server.url, clientName: 'test' }),
    takeAway: () => server.kill9(),
    giveBack: () => server.restart(),
    stop: async () => undefined,
  };
});

bodiesConformance('a shared folder', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'shoal payloads '));
  return {
    bodies: new FolderBodies(folder),
    takeAway: () => rename(folder, `${folder}-away`),
    giveBack: () => rename(`${folder}-away`, folder),
    stop: () => rm(folder, { recursive: true }),
  };
});

test('what was put is there to be read, for its time to live, until its job is over', async () => {
  const payloads = await connect([first, second]);
  const value = Buffer.alloc(100_000, 7);
  const store = await payloads.put('a', '{t}:out:a', value, 60_000);
  expect(store).toBe(inOrder(payloads.names, 'a')[0]);
  expect(await payloads.get({ store: store!, key: '{t}:out:a' })).toEqual(value);
  const server = [first, second].find((one) => nameOf(one) === store)!;
  expect(Number(await server.command('PTTL', '{t}:out:a'))).toBeGreaterThan(55_000);
  payloads.note('a', { store: store!, key: '{t}:out:a' });
  payloads.forget(['b', 'a', 'a']);
  await expect.poll(() => server.command('EXISTS', '{t}:out:a')).toBe(0);
});

test('a server that is not in the setting is named, with what to set', async () => {
  const payloads = await connect([first]);
  await expect(payloads.get({ store: '10.9.8.7:1', key: 'k' })).rejects.toMatchObject({
    code: 'PAYLOAD_ELSEWHERE',
    message: expect.stringMatching(new RegExp(`10\\.9\\.8\\.7:1.*its payloadServers are ${nameOf(first)}`)),
  });
});

test.each<[string, RegExp, (server: TestServer) => Promise<unknown>, (server: TestServer) => Promise<unknown>]>([
  [
    'is full',
    /OOM/,
    (one) => one.command('CONFIG', 'SET', 'maxmemory', '1'),
    (one) => one.command('CONFIG', 'SET', 'maxmemory', '0'),
  ],
  [
    'takes no writes',
    /READONLY/,
    (one) => one.command('REPLICAOF', '127.0.0.1', '1'),
    (one) => one.command('REPLICAOF', 'NO', 'ONE'),
  ],
  [
    'forbids us to write',
    /NOPERM/,
    (one) => one.command('ACL', 'SETUSER', 'default', '-set'),
    (one) => one.command('ACL', 'SETUSER', 'default', '+set'),
  ],
  ['was killed', /ECONN|closed/i, (one) => one.kill9(), (one) => one.restart()],
])(
  'a server that %s is passed over, named in one line while it is read too, and used again later',
  async (_, reason, breakIt, mendIt) => {
    const servers = [await start(), second];
    const log = new RecordingLogger();
    const payloads = await connect(servers, log);
    const id = idFor(servers[0]!, servers);
    expect(await payloads.put(id, 'k', Buffer.from('x'), 60_000)).toBe(nameOf(servers[0]!));
    await breakIt(servers[0]!);
    for (let round = 0; round < 3; round++) {
      expect(await payloads.put(id, 'k', Buffer.from('x'), 60_000)).toBe(nameOf(second));
      await payloads.get({ store: nameOf(servers[0]!), key: 'k' }).catch(() => undefined);
    }
    const [broken, other] = payloads.facts();
    expect(broken).toMatchObject({ problem: expect.stringMatching(reason), sinceMs: expect.any(Number) });
    expect(other).toEqual({ name: nameOf(second) });
    expect(log.messages('warn')).toHaveLength(1);
    expect(log.lines.find(({ level }) => level === 'warn')?.fields).toMatchObject({
      reason: expect.stringMatching(reason),
    });
    await mendIt(servers[0]!);
    await expect
      .poll(() => payloads.put(id, 'k', Buffer.from('x'), 60_000), { timeout: 20_000 })
      .toBe(nameOf(servers[0]!));
    await payloads.get({ store: nameOf(servers[0]!), key: 'k' });
    expect(payloads.facts()).toEqual([{ name: nameOf(servers[0]!) }, { name: nameOf(second) }]);
    expect(log.messages('warn')).toHaveLength(1);
    expect(log.messages('info')).toEqual(['the payload server answers again']);
  },
);

test('one that nobody has bodies for is looked at, and tried with some bytes once it has failed', async () => {
  const one = await start();
  const log = new RecordingLogger();
  const payloads = await connect([one], log);
  const [before] = await payloads.look();
  expect(before).toMatchObject({ name: nameOf(one), memory: { usedBytes: expect.any(Number), maxBytes: 0 } });
  await one.command('CONFIG', 'SET', 'maxmemory', '1');
  expect(await payloads.put('a', 'k', Buffer.from('x'), 60_000)).toBeUndefined();
  const [full] = await payloads.look();
  expect(full).toMatchObject({ problem: expect.stringMatching(/^takes no body \(OOM/), memory: { maxBytes: 1 } });
  await one.command('CONFIG', 'SET', 'maxmemory', '0');
  await expect.poll(async () => (await payloads.look())[0]?.problem, { timeout: 20_000 }).toBeUndefined();
  expect(log.messages('info')).toEqual(['the payload server answers again']);
  await expect.poll(() => one.command('DBSIZE')).toBe(0);
  await one.kill9();
  await expect
    .poll(async () => (await payloads.look())[0])
    .toMatchObject({ problem: expect.stringMatching(/ECONN|closed/i) });
});

test('where no server takes it, nobody waits and the caller is told', async () => {
  const one = await start();
  const payloads = await connect([one]);
  await one.kill9();
  expect(await payloads.put('a', 'k', Buffer.from('x'), 60_000)).toBeUndefined();
  expect(await (await connect([one])).put('a', 'k', Buffer.from('x'), 60_000)).toBeUndefined();
});

test('a server that does not answer is given up, and its late answers disturb nothing', async () => {
  const servers = [await start(), second];
  const payloads = await connect(servers);
  const id = idFor(servers[0]!, servers);
  const warned = vi.fn<(warning: Error) => void>();
  process.on('warning', warned);
  process.kill(servers[0]!.pid, 'SIGSTOP');
  const put = payloads.put(id, 'k', Buffer.from('x'), 60_000);
  const got = Array.from({ length: 20 }, () => payloads.get({ store: nameOf(servers[0]!), key: 'k' }));
  for (const one of await Promise.allSettled(got))
    expect(one).toMatchObject({ reason: { code: 'PAYLOAD_LOST', message: expect.stringContaining('cannot be read') } });
  expect(await put).toBe(nameOf(second));
  await turn();
  process.off('warning', warned);
  expect(warned.mock.calls).toEqual([]); // each that gave up had listened to the socket that closed
  process.kill(servers[0]!.pid, 'SIGCONT');
  await expect
    .poll(() => payloads.put(id, 'k', Buffer.from('y'), 60_000), { timeout: 20_000 })
    .toBe(nameOf(servers[0]!));
  expect(await payloads.get({ store: nameOf(servers[0]!), key: 'k' })).toEqual(Buffer.from('y'));
});

async function filesIn(folder: string): Promise<string[]> {
  const found = await readdir(folder, { recursive: true, withFileTypes: true });
  return found.filter((one) => one.isFile()).map(({ name }) => name);
}

describe('a shared folder', () => {
  const folders: string[] = [];

  async function openFolder(log = new RecordingLogger()): Promise<{ folder: string; payloads: PayloadServers }> {
    const folder = await mkdtemp(join(tmpdir(), 'shoal payloads '));
    folders.push(folder);
    const payloadServers = pathToFileURL(folder).href;
    const payloads = await PayloadServers.connect({ payloadServers, clientName: 'test', log });
    opened.push(payloads);
    return { folder, payloads };
  }

  afterEach(async () => {
    await Promise.all(folders.splice(0).map((folder) => rm(folder, { recursive: true, force: true })));
  });

  test('gives what was put there, whatever its key has, until its job is over', async () => {
    const { folder, payloads } = await openFolder();
    const key = '{t}:in:../a/\0b';
    const value = Buffer.alloc(100_000, 7);
    const store = `file:${folder}`;
    expect(await payloads.put('a', key, Buffer.from('before'), 60_000)).toBe(store);
    expect(await payloads.put('a', key, value, 60_000)).toBe(store);
    expect(await payloads.get({ store, key })).toEqual(value);
    expect(await filesIn(folder)).toHaveLength(1);
    payloads.note('a', { store, key });
    payloads.forget(['a']);
    await expect.poll(() => filesIn(folder)).toEqual([]);
    await expect(payloads.get({ store, key })).rejects.toMatchObject({ code: 'PAYLOAD_LOST' });
  });

  test('that is gone is passed over and named, never made here, and used again once it is back', async () => {
    const log = new RecordingLogger();
    const { folder, payloads } = await openFolder(log);
    const store = `file:${folder}`;
    await rename(folder, `${folder}-away`);
    expect(await payloads.put('a', 'k', Buffer.from('x'), 60_000)).toBeUndefined();
    expect(log.lines[0]?.fields).toMatchObject({ store, reason: expect.stringContaining('ENOENT') });
    await expect(payloads.get({ store, key: 'k' })).rejects.toMatchObject({
      code: 'PAYLOAD_LOST',
      message: expect.stringContaining('cannot be read (ENOENT'),
    });
    await rename(`${folder}-away`, folder);
    await expect.poll(() => payloads.put('a', 'k', Buffer.from('x'), 60_000), { timeout: 20_000 }).toBe(store);
  });

  test('that is a mount point is remarked upon, because without its share it is a folder as well', async () => {
    const { folder } = await openFolder();
    const [inside, mounted] = [new FolderBodies(folder), new FolderBodies('/proc')];
    expect(await inside.remarks()).toEqual([]);
    expect(await mounted.remarks()).toMatchObject([{ found: expect.stringContaining('/proc is a mount point') }]);
    await Promise.all([inside.close(), mounted.close()]);
  });

  test('loses what nobody deleted some time after its time to live, and nothing else', async () => {
    const { folder } = await openFolder();
    const bodies = new FolderBodies(folder);
    await bodies.put('over', Buffer.from('x'), -3_600_000);
    await bodies.put('just over', Buffer.from('x'), -1_000);
    await bodies.put('wanted', Buffer.from('x'), 60_000);
    for (const part of await readdir(folder)) await bodies.sweep(part);
    const left = await Promise.all(['over', 'just over', 'wanted'].map((key) => bodies.get(key)));
    expect(left.map(String)).toEqual(['undefined', 'x', 'x']);
    await bodies.close();
  });
});

describe('what is PAYLOAD_LOST', () => {
  test('what an emptied or restarted server had', async () => {
    const one = await start();
    const payloads = await connect([one]);
    for (const lose of [() => one.command('FLUSHALL'), () => one.restart()]) {
      await sleep(0);
      await expect.poll(() => payloads.put('a', 'k', Buffer.from('x'), 60_000), { timeout: 20_000 }).toBe(nameOf(one));
      await lose();
      await expect(payloads.get({ store: nameOf(one), key: 'k' })).rejects.toMatchObject({ code: 'PAYLOAD_LOST' });
    }
  });

  test('what is of another type', async () => {
    const payloads = await connect([first]);
    await first.command('LPUSH', 'list', 'x');
    await expect(payloads.get({ store: nameOf(first), key: 'list' })).rejects.toMatchObject({ code: 'PAYLOAD_LOST' });
  });
});

describe('which server has what', () => {
  const ids = Array.from({ length: 9_000 }, (_, at) => `tenant~run-${at}`);

  test.each([2, 3, 5])('%i servers get equal shares', (count) => {
    const names = Array.from({ length: count }, (_, at) => `10.0.0.${at + 1}:6379`);
    const shares = new Map(names.map((name) => [name, 0]));
    for (const id of ids) {
      const [chosen] = inOrder(names, id);
      shares.set(chosen!, shares.get(chosen!)! + 1);
    }
    for (const share of shares.values()) expect(share * count).toBeGreaterThan(0.9 * ids.length);
  });

  test('a server more moves only what it gets, and the order of the setting decides nothing', () => {
    const names = ['a:1', 'b:1', 'c:1'];
    for (const id of ids.slice(0, 500)) {
      const [before] = inOrder(names, id);
      expect(inOrder(names.toReversed(), id)[0]).toBe(before);
      expect([before, 'd:1']).toContain(inOrder([...names, 'd:1'], id)[0]);
    }
  });

  test('sets of the same servers have one id, others another', async () => {
    const [one, other] = [await connect([first, second]), await connect([second, first])];
    expect(one.id).toBe(other.id);
    expect((await connect([first])).id).not.toBe(one.id);
  });
});

describe('the setting', () => {
  test('names each server by host and port, and by its database where it is not the first', () => {
    expect(serversIn('redis://user:secret@a.example, rediss://b:7000/2,redis://[::1]:6379/0')).toEqual([
      { url: 'redis://user:secret@a.example', name: 'a.example:6379' },
      { url: 'rediss://b:7000/2', name: 'b:7000/2' },
      { url: 'redis://[::1]:6379/0', name: '[::1]:6379' },
    ]);
    expect(serversIn('file:///mnt/a%20b/').map(({ name, folder }) => [name, folder])).toEqual([
      ['file:/mnt/a b', '/mnt/a b'],
    ]);
    expect(
      serversIn("s3://my.bucket-1/a/b_c!*'()/,s3://whole, s3://other/").map(({ name, place }) => [name, place]),
    ).toEqual([
      ["s3://my.bucket-1/a/b_c!*'()", { bucket: 'my.bucket-1', prefix: "a/b_c!*'()" }],
      ['s3://whole', { bucket: 'whole', prefix: '' }],
      ['s3://other', { bucket: 'other', prefix: '' }],
    ]);
  });

  test.each([
    '',
    'a:6379',
    'redis+sentinel://a:1/m',
    'redis://a,redis://a:6379',
    'redis://a,,redis://b',
    'unix:///x',
    'file:///',
    'file://host/x',
    'file:///a%2Fb',
    'file:///a?b',
    'file:///a,file:///a/',
    's3://',
    's3:///a',
    's3://B/a',
    's3://ab/a',
    's3://bucket/a//b',
    's3://bucket//',
    's3://bucket/../b',
    's3://bucket/ä',
    's3://bucket/{a}',
    's3://bucket/a?b=c',
    's3://key:secret@bucket/a',
    `s3://bucket/${'a'.repeat(250)}`,
    's3://bucket/a,s3://bucket/a/',
  ])('"%s" is CONFIG_INVALID', (text) => {
    expect(() => serversIn(text)).toThrow(/payloadServers: .*separated by commas/);
  });

  test('a password is not repeated', () => {
    for (const url of ['http://user:secret@a', 's3://user:secret@a/b'])
      expect(() => serversIn(url)).not.toThrow(/secret/);
  });
});
