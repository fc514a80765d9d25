// @shoal/queue/testing: a real queue server for tests, on a free port or a unix socket, with its data in a folder of
//   its own. It can be killed and started again in place. SHOAL_TEST_SERVER names the program, SHOAL_TEST_TOPOLOGY
//   makes every server of a run a Sentinel-managed pair or a cluster. For tests only; the private server of a user
//   lives in server.ts.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_PREFIX } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { closeConnection, connected } from './redis/connection.ts';
import { findServerProgram } from '@shoal/private-server';
import { ServerProcess, freePort } from './testing/server-process.ts';
import { startCluster, startSentinels, type Topology } from './testing/topologies.ts';

export { claimAll, claimSome } from './testing/claims.ts';
export { S3Gate } from './testing/s3-gate.ts';
export { mayHaveS3Server, startS3Server, type S3Credentials, type S3Server } from './testing/s3-server.ts';
export { freePort, type ServerProcess } from './testing/server-process.ts';
export { openLaneWorker, type LaneWorker, type LaneWorkerOptions } from './testing/lane-worker.ts';
export { TestPlace, WORKER_FACTS, emptyLane } from './testing/test-place.ts';

export interface TestServerOptions {
  /** Executable; default SHOAL_TEST_SERVER, else the one that a private server would use. */
  readonly program?: string;
  /** More arguments, e.g. ["--maxmemory", "8mb"]. They win over the defaults. */
  readonly args?: readonly string[];
  /** "everysec" or "always" keep data over `kill9`. Default "everysec"; "no" is without AOF. */
  readonly appendFsync?: 'everysec' | 'always' | 'no';
  /** Listens on a unix socket instead of a port of 127.0.0.1. Always a single server. */
  readonly unixSocket?: boolean;
  /** Default SHOAL_TEST_TOPOLOGY, else a single server. */
  readonly topology?: 'single' | 'sentinel' | 'cluster';
}

export interface TestServer {
  readonly url: string;
  readonly pid: number;
  /** Folder with its data, and its socket when it has one. */
  readonly folder: string;
  /** A command on a connection of the server's own, e.g. command("CONFIG", "SET", "maxmemory", "8mb"). */
  command(name: string, ...values: (string | number | Buffer)[]): Promise<unknown>;
  /** Resolves when all that was acknowledged so far survives a `kill9`. */
  durable(): Promise<void>;
  /** SIGKILL; resolves when the process is gone. */
  kill9(): Promise<void>;
  /** Starts it again on the same address with the same data, after kill9 or instead of it (then SIGKILL first). */
  restart(): Promise<void>;
  /** Stops the process (a paused one too) and removes its folder. Safe to call twice. */
  stop(): Promise<void>;
}

export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-server-'));
  const args = [
    '--save',
    '',
    '--maxmemory-policy',
    'noeviction',
    ...durability(options.appendFsync ?? 'everysec'),
    ...(options.args ?? []),
  ];
  const topology = await startTopology(options, folder, args);
  return {
    folder,
    url: topology.url,
    get pid() {
      return topology.pid;
    },
    command: (name, ...values) => topology.command(name, ...values),
    durable: () => durable(topology),
    kill9: () => topology.kill9(),
    restart: () => topology.restart(),
    async stop() {
      await topology.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/**
 * Several servers that take over from each other, whatever SHOAL_TEST_TOPOLOGY says. The cluster has a replica for each
 * master unless told otherwise.
 */
export async function startTestTopology(
  topology: 'sentinel' | 'cluster',
  {
    prefix,
    replicas = 1,
    ...options
  }: TestServerOptions & { readonly prefix?: string; readonly replicas?: 0 | 1 } = {},
): Promise<Topology & { durable(): Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-servers-'));
  const args = [
    '--save',
    '',
    '--maxmemory-policy',
    'noeviction',
    ...durability(options.appendFsync ?? 'everysec'),
    ...(options.args ?? []),
  ];
  const parts = {
    program: await findProgram(options),
    folder,
    args,
    replicas,
    ...(prefix === undefined ? {} : { prefix }),
  };
  const started = await (topology === 'sentinel' ? startSentinels(parts) : startCluster(parts));
  const stop = async (): Promise<void> => {
    await started.stop();
    await rm(folder, { recursive: true, force: true });
  };
  return Object.defineProperties(
    { ...started, stop, durable: () => durable(started) },
    { pid: { get: () => started.pid } },
  );
}

async function startTopology(
  options: TestServerOptions,
  folder: string,
  args: readonly string[],
): Promise<Pick<Topology, 'url' | 'pid' | 'command' | 'kill9' | 'restart' | 'stop'>> {
  const program = await findProgram(options);
  const topology =
    options.unixSocket === true ? 'single' : (options.topology ?? process.env['SHOAL_TEST_TOPOLOGY'] ?? 'single');
  switch (topology) {
    case 'single':
      return startSingle(program, await (options.unixSocket === true ? unixAddress(folder) : portAddress()), [
        '--dir',
        folder,
        ...args,
      ]);
    case 'sentinel':
      return startSentinels({ program, folder, args, downAfterMs: PATIENT_MS });
    // Tests use many prefixes on connections that know of none, and each would lie on another node.
    case 'cluster':
      return startCluster({ program, folder, args, slots: 'one-node', downAfterMs: PATIENT_MS });
    default:
      throw new Error(`SHOAL_TEST_TOPOLOGY is "${topology}"; it can be single, sentinel or cluster`);
  }
}

async function startSingle(
  program: string,
  address: Address,
  args: readonly string[],
): Promise<Omit<Topology, 'switchOver' | 'succeeded' | 'servers'>> {
  const server = new ServerProcess(program, [...address.args, ...args], 0, undefined, address.url);
  await server.start();
  const control = await connected({ url: address.url, name: 'test-server-control' });
  return {
    url: address.url,
    get pid() {
      return server.pid;
    },
    command: (name, ...values) => control.call(name, ...values),
    kill9: () => server.kill9(),
    async restart() {
      await server.kill9();
      await server.start();
    },
    async stop() {
      await closeConnection(control);
      await server.kill9();
    },
  };
}

/**
 * On disk, and with the replica where there is one. WAITAOF came with Redis 7.2; before it, what is written waits in no
 * buffer.
 */
async function durable({ command }: Pick<Topology, 'command'>): Promise<void> {
  // both waits are about what this connection wrote, and all before it
  await command('SET', `${DEFAULT_PREFIX}:durable`, 1);
  const replicas = Number(/connected_slaves:(\d+)/.exec(String(await command('INFO', 'replication')))?.[1] ?? 0);
  if (replicas > 0) await command('WAIT', 1, 5_000);
  const isAppendOnly = String(await command('INFO', 'persistence')).includes('aof_enabled:1');
  if (!isAppendOnly) return;
  const hasWaitAof = Array.isArray(
    await command('COMMAND', 'INFO', 'WAITAOF').then((reply) => (reply as unknown[])[0]),
  );
  if (hasWaitAof) return void (await command('WAITAOF', 1, 0, 5_000));
  while (!/aof_buffer_length:0\b/.test(String(await command('INFO', 'persistence')))) await command('PING');
}

/** Where a failover is not what is tested, a busy machine must not bring one about. */
const PATIENT_MS = 4_000;

let found: Promise<string> | undefined;

async function findProgram({ program }: TestServerOptions): Promise<string> {
  const given = program ?? process.env['SHOAL_TEST_SERVER'];
  if (given !== undefined) return given;
  found ??= findServerProgram({ cacheDir: cacheFolder(undefined) }).then(({ path }) => path);
  return found;
}

function durability(appendFsync: 'everysec' | 'always' | 'no'): string[] {
  return appendFsync === 'no' ? ['--appendonly', 'no'] : ['--appendonly', 'yes', '--appendfsync', appendFsync];
}

interface Address {
  readonly url: string;
  readonly args: readonly string[];
}

function unixAddress(folder: string): Address {
  const path = join(folder, 's.sock');
  return { url: `unix://${path}`, args: ['--port', '0', '--unixsocket', path, '--unixsocketperm', '700'] };
}

async function portAddress(): Promise<Address> {
  const port = await freePort();
  return { url: `redis://127.0.0.1:${port}`, args: ['--bind', '127.0.0.1', '--port', String(port)] };
}
