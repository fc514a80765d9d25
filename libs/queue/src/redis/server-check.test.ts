import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { closeConnection, openConnection, untilReady, type Redis } from './connection.ts';
import { checkServer, type CheckOptions } from './server-check.ts';
import { startTestServer, startTestTopology, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  server = await startTestServer({ topology: 'single', args: ['--maxmemory', '256mb'] });
  connection = openConnection({ url: server.url, name: 'test' });
});

afterEach(async () => {
  await server.command(
    'CONFIG',
    'SET',
    'maxmemory-policy',
    'noeviction',
    'appendonly',
    'yes',
    'appendfsync',
    'everysec',
    'maxmemory',
    '256mb',
  );
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

/** Without the word about its age that every server of the oldest supported version gets. */
async function warningsOf(at: Redis, options?: CheckOptions): Promise<string[]> {
  return (await checkServer(at, options)).warnings.filter(
    (warning) => !/ is Redis 7\.0\.\d+; Redis 7\.2 or Valkey 8 and later are advised/.test(warning),
  );
}

test('a sound server has no warnings, and its facts are told', async () => {
  const { facts } = await checkServer(connection);
  expect(await warningsOf(connection)).toEqual([]);
  expect(facts).toMatchObject({
    evictionPolicy: 'noeviction',
    isAppendOnly: true,
    maxMemoryBytes: 256 << 20,
    replicaOf: undefined,
    replicas: 0,
    minReplicas: 0,
    isPrivate: false,
  });
  expect(facts.version).toMatch(/^\d+\.\d+/);
  expect(Math.abs(facts.clockOffsetMs)).toBeLessThan(500);
});

test('a server that evicts is refused with the policy found and the command that cures it', async () => {
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
  await expect(checkServer(connection)).rejects.toMatchObject({
    code: 'QUEUE_UNSAFE',
    message: expect.stringMatching(/allkeys-lru.*CONFIG SET maxmemory-policy noeviction/),
  });
});

test('a server without an append-only file is warned of', async () => {
  await server.command('CONFIG', 'SET', 'appendonly', 'no');
  expect(await warningsOf(connection)).toEqual([expect.stringMatching(/append-only.*CONFIG SET appendonly yes/)]);
});

test('a refusal can be turned into a warning by whoever knows better', async () => {
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'volatile-lru');
  await expect(checkServer(connection)).rejects.toMatchObject({
    message: expect.stringContaining('set unsafeServer to "warn" (SHOAL_UNSAFE_SERVER)'),
  });
  expect(await warningsOf(connection, { isUnsafeAllowed: true })).toEqual([
    expect.stringMatching(/evicts keys.*volatile-lru/),
  ]);
});

test('an append-only file that nobody syncs is warned of', async () => {
  await server.command('CONFIG', 'SET', 'appendfsync', 'no');
  expect(await warningsOf(connection)).toEqual([
    expect.stringMatching(/appendfsync is no.*CONFIG SET appendfsync everysec/),
  ]);
});

async function warningsAt(maxMemory: string): Promise<readonly string[]> {
  await server.command('CONFIG', 'SET', 'maxmemory', maxMemory);
  return warningsOf(connection);
}

test('no memory limit, a small one, and one that is larger than the machine, each with a limit that fits', async () => {
  expect(await warningsAt('0')).toEqual([expect.stringMatching(/no memory limit.*CONFIG SET maxmemory \d+mb/)]);
  expect(await warningsAt('32mb')).toEqual([expect.stringMatching(/may use 32mb only.*CONFIG SET maxmemory \d+mb/)]);
  expect(await warningsAt('9000gb')).toEqual([
    expect.stringMatching(/may use 9216000mb of its machine's \d+mb.*CONFIG SET maxmemory/),
  ]);
});

test('a private server has no memory limit, and nobody is told so', async () => {
  const own = await startTestServer({ unixSocket: true });
  const at = openConnection({ url: own.url, name: 'test' });
  expect(await warningsOf(at)).toEqual([]);
  await closeConnection(at);
  await own.stop();
});

test(
  'a master that takes writes without its replica is warned of; the replica itself is refused, whoever knows ' +
    'better',
  async () => {
    const servers = await startTestTopology('sentinel', { args: ['--maxmemory', '256mb'] });
    const through = openConnection({ url: servers.url, name: 'test' });
    expect(await warningsOf(through)).toEqual([
      expect.stringMatching(/1 replica and takes writes without.*CONFIG SET min-replicas-to-write 1/),
    ]);
    await servers.command('CONFIG', 'SET', 'min-replicas-to-write', '1');
    expect(await warningsOf(through)).toEqual([]);
    const master = Number(/tcp_port:(\d+)/.exec(await through.info('server'))?.[1]);
    const replica = servers.servers.find(({ port }) => port !== master)!;
    const direct = openConnection({ url: replica.url, name: 'test' });
    await expect(checkServer(direct, { isUnsafeAllowed: true })).rejects.toMatchObject({
      code: 'QUEUE_UNSAFE',
      message: expect.stringMatching(
        new RegExp(`replica of 127.0.0.1:${master} and takes no writes.*redis\\+sentinel`),
      ),
    });
    await Promise.all([closeConnection(direct), closeConnection(through)]);
    await servers.stop();
  },
);

test('a managed server that forbids CONFIG is warned of, not refused; eviction is still seen', async () => {
  await server.command('ACL', 'SETUSER', 'managed', 'on', '>secret', '~*', '&*', '+@all', '-config');
  const url = server.url.replace('redis://', 'redis://managed:secret@');
  const managed = openConnection({ url, name: 'test' });
  await untilReady(managed, url);
  const { facts } = await checkServer(managed);
  expect(await warningsOf(managed)).toEqual([expect.stringMatching(/CONFIG GET/)]);
  expect(facts).toMatchObject({ evictionPolicy: 'noeviction', isAppendOnly: true });
  await server.command('CONFIG', 'SET', 'maxmemory-policy', 'volatile-ttl');
  await expect(checkServer(managed)).rejects.toMatchObject({ code: 'QUEUE_UNSAFE' });
  await closeConnection(managed);
});
