import { randomBytes } from 'node:crypto';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { once } from 'node:events';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { redactUrl } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, isPassingFault, isServerFull, openConnection, untilReady } from './connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ unixSocket: true });
});

afterAll(() => server.stop());

test('a unix socket that is gone for a while is reached again: one line when it is lost, one after it', async () => {
  const log = new RecordingLogger();
  const connection = openConnection({ url: server.url, name: 'test', log });
  await untilReady(connection, server.url);
  await connection.set('a', '1');
  await server.durable();
  await server.kill9();
  await vi.waitUntil(() => log.messages('warn').length > 0, { timeout: 10_000 });
  const answer = connection.get('a');
  await server.restart();
  expect(await answer).toBe('1');
  expect(log.messages('warn')).toEqual(['queue server lost, reconnecting']);
  expect(log.messages('info')).toEqual(['queue server is back']);
  await closeConnection(connection);
  await closeConnection(connection);
});

test('closing in the middle of an outage rejects what waits and leaves nothing, and prints nothing', async () => {
  const printed = vi.spyOn(console, 'error');
  const away = openConnection({ url: 'redis://127.0.0.1:1', name: 'test' });
  await vi.waitUntil(() => away.status === 'reconnecting', { timeout: 10_000 });
  const waiting = away.get('a').catch((error: unknown) => error);
  await closeConnection(away);
  expect(await waiting).toSatisfy(isPassingFault);
  expect(away.status).toBe('end');
  expect(printed).not.toHaveBeenCalled();
  printed.mockRestore();
});

test('what was sent over a connection that broke is rejected when the next one is closed before it is ready', async () => {
  let isSilent = false;
  const proxy = createServer((near) => {
    near.on('error', () => undefined);
    if (isSilent) return void near.resume();
    const far = connect({ path: new URL(server.url).pathname });
    near.on('close', () => far.destroy());
    far.on('error', () => near.destroy()).pipe(near);
    near.on('data', (bytes) => {
      if (!/hold/.test(bytes.toString('latin1'))) return void far.write(bytes);
      isSilent = true;
      near.resetAndDestroy();
    });
  }).listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  const { port } = proxy.address() as AddressInfo;
  const connection = openConnection({ url: `redis://127.0.0.1:${port}`, name: 'test' });
  await untilReady(connection, '');
  const asked = connection.get('hold').catch((error: unknown) => error);
  await vi.waitUntil(() => isSilent && connection.status === 'connect', { timeout: 10_000 });
  const waiting = connection.get('b').catch((error: unknown) => error);
  await closeConnection(connection);
  expect(await Promise.all([asked, waiting])).toEqual([
    expect.toSatisfy(isPassingFault),
    expect.toSatisfy(isPassingFault),
  ]);
  proxy.close();
});

test('a call that was made between handshake and readiness is answered, although the connection breaks then', async () => {
  let asked: Promise<string> | undefined;
  const proxy = createServer((near) => {
    const far = connect({ path: new URL(server.url).pathname });
    near.on('error', () => far.destroy()).on('close', () => far.destroy());
    far.on('error', () => near.destroy()).pipe(near);
    near.on('data', (bytes) => {
      if (asked !== undefined || !/info/i.test(bytes.toString('latin1'))) return void far.write(bytes);
      asked = away.info('memory'); // ioredis has just asked whether the server is ready
      setImmediate(() => near.resetAndDestroy());
    });
  }).listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  const { port } = proxy.address() as AddressInfo;
  const away = openConnection({ url: `redis://127.0.0.1:${port}`, name: 'test' });
  await untilReady(away, server.url);
  expect(await asked).toContain('used_memory');
  await closeConnection(away);
  proxy.close();
});

test('what is sent in one turn leaves together, but nobody waits for a quarter of a megabyte to be made', async () => {
  const connection = openConnection({ url: server.url, name: 'test' });
  await untilReady(connection, server.url);
  const sent = (): number => Reflect.get(Reflect.get(connection, 'stream') as object, '_bytesDispatched') as number;
  const before = sent();
  const value = Buffer.alloc(50_000);
  const answers = Array.from({ length: 5 }, (_, at) => connection.set(`part-${at}`, value));
  expect(sent()).toBe(before);
  answers.push(connection.set('part-5', value));
  expect(sent()).toBeGreaterThan(before + 300_000);
  answers.push(connection.set('part-6', value));
  expect(sent()).toBeLessThan(before + 350_000);
  expect(await Promise.all(answers)).toEqual(Array(7).fill('OK'));
  await closeConnection(connection);
});

test('an unreachable server is named without its password, with what was found and what to do', async () => {
  const url = 'redis://user:secret@127.0.0.1:1';
  const connection = openConnection({ url, name: 'test' });
  const error: unknown = await untilReady(connection, url, { waitMs: 200 }).catch((caught: unknown) => caught);
  expect(error).toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringMatching(/\*\*\*@127\.0\.0\.1:1 .*ECONNREFUSED.*REDIS_URL/),
  });
  expect(String(error)).not.toContain('secret');
  await closeConnection(connection);
});

test('a server that refuses to talk to us is not waited for', async () => {
  await server.command('CONFIG', 'SET', 'requirepass', 'right');
  const url = server.url.replace('unix://', 'unix://:wrong@');
  const connection = openConnection({ url, name: 'test' });
  await expect(untilReady(connection, url, { waitMs: 60_000 })).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringContaining('WRONGPASS'),
  });
  await closeConnection(connection);
  await server.command('CONFIG', 'SET', 'requirepass', '');
});

test.each([
  ['a wrong password', 'unix://:wrong@', '', /WRONGPASS/],
  ['no password', 'unix://', '', /NOAUTH/],
  ['a database that it does not have', 'unix://:right@', '?db=99', /out of range/],
])('a server that answers and refuses us for %s is said to do so', async (_, scheme, query, said) => {
  await server.command('CONFIG', 'SET', 'requirepass', 'right');
  const url = `${server.url.replace('unix://', scheme)}${query}`;
  const connection = openConnection({ url, name: 'test' });
  const error: unknown = await untilReady(connection, url, { waitMs: 3_000 }).catch((caught: unknown) => caught);
  await closeConnection(connection);
  await server.command('CONFIG', 'SET', 'requirepass', '');
  expect(error).toMatchObject({ code: 'QUEUE_UNREACHABLE', message: expect.stringMatching(said) });
  expect(String(error)).toMatch(/answers and refuses us: .*[^.]\. Check user, password and database in redisUrl/);
  expect(String(error)).not.toMatch(/right|does not answer|Start it/);
});

test('a server on a socket that was stopped is said to take connections, with the cure', async () => {
  process.kill(server.pid, 'SIGSTOP');
  try {
    const connection = openConnection({ url: server.url, name: 'test' });
    await expect(untilReady(connection, server.url, { waitMs: 200 })).rejects.toMatchObject({
      code: 'QUEUE_UNREACHABLE',
      message: expect.stringMatching(/takes connections and says nothing .*fuser \/.* kill -CONT/),
    });
    await closeConnection(connection);
  } finally {
    process.kill(server.pid, 'SIGCONT');
  }
});

test('a server that is slow is waited for, and that is said once', async () => {
  process.kill(server.pid, 'SIGSTOP');
  const connection = openConnection({ url: server.url, name: 'test' });
  const said: string[] = [];
  await untilReady(connection, server.url, {
    onSlow(line) {
      said.push(line);
      process.kill(server.pid, 'SIGCONT');
    },
  });
  await closeConnection(connection);
  expect(said).toEqual([
    expect.stringMatching(/^waiting for the queue server at unix:\/\/\/\S+, which takes connections and has not/),
  ]);
});

test('one that was slow and hangs up then is not waited for any longer', async () => {
  const sockets: Socket[] = [];
  const slow = createServer((socket) => sockets.push(socket.resume())).listen(0, '127.0.0.1');
  await once(slow, 'listening');
  const url = `redis://127.0.0.1:${(slow.address() as AddressInfo).port}`;
  const connection = openConnection({ url, name: 'test' });
  await expect(untilReady(connection, url, { onSlow: () => sockets[0]!.destroy() })).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringMatching(/takes connections and closes them: if it speaks TLS/),
  });
  await closeConnection(connection);
  slow.close();
});

test('a server that accepts and says nothing is given up on in time', async () => {
  const mute = createServer((socket) => socket.resume()).listen(0, '127.0.0.1');
  await once(mute, 'listening');
  const address = mute.address();
  const url = `redis://127.0.0.1:${typeof address === 'object' && address !== null ? address.port : 0}`;
  const connection = openConnection({ url, name: 'test' });
  await expect(untilReady(connection, url, { waitMs: 200 })).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringContaining('no answer within 200 ms'),
  });
  await closeConnection(connection);
  mute.close();
});

test('a server that still reads its data, or is in a long script, is said to answer, not to be away', async () => {
  const args = ['--key-load-delay', '100000', '--loading-process-events-interval-bytes', '1024'];
  const slow = await startTestServer({ unixSocket: true, appendFsync: 'no', args });
  const toSay = (expected: RegExp): Promise<void> =>
    vi.waitFor(
      async () => {
        const connection = openConnection({ url: slow.url, name: 'test' });
        const error: unknown = await untilReady(connection, slow.url, { waitMs: 1_000 }).catch(
          (caught: unknown) => caught,
        );
        await closeConnection(connection);
        expect(error).toMatchObject({ code: 'QUEUE_UNREACHABLE', message: expect.stringMatching(expected) });
      },
      { timeout: 20_000 },
    );
  const busy = openConnection({ url: slow.url, name: 'test' });
  await busy.config('SET', 'busy-reply-threshold', 1);
  const script = busy.eval('while true do end', 0).catch((error: unknown) => error);
  await toSay(/answers and cannot serve yet: BUSY .*[^.]\. Try again/);
  await slow.kill9();
  await closeConnection(busy);
  expect(await script).toSatisfy(isPassingFault);

  await slow.restart();
  for (let key = 0; key < 200; key++) await slow.command('SET', `key-${key}`, randomBytes(2_048));
  await slow.command('SAVE');
  const reading = slow.restart().catch(() => undefined);
  await toSay(/answers and cannot serve yet: it still reads its data\. Try again/);
  await slow.kill9();
  await reading;
  await slow.stop();
});

test('urls: what cannot be one is refused, what is logged has no password', () => {
  for (const url of ['localhost:6379', 'http://x', '', 'redis//x'])
    expect(() => openConnection({ url, name: 'test' })).toThrow(/not the URL of a queue server/);
  expect(redactUrl('rediss://a:b@h:1/2')).toBe('rediss://***@h:1/2');
  expect(redactUrl('unix:///tmp/a.sock')).toBe('unix:///tmp/a.sock');
});

test('what passes and what does not', () => {
  const passing = [
    'LOADING Redis is loading',
    "READONLY You can't write",
    "OOM command not allowed when used memory > 'maxmemory'.",
    'Connection is closed.',
    'Command aborted due to connection close',
    'MISCONF Errors writing to the AOF file',
  ];
  const lasting = ['WRONGTYPE Operation', 'NOPERM no', 'ERR unknown command', 'NOSCRIPT No matching script'];
  expect([...passing, ...lasting].filter((message) => isPassingFault(new Error(message)))).toEqual(passing);
  expect(isServerFull(new Error('EXECABORT Transaction discarded because of: OOM command not allowed'))).toBe(true);
});
