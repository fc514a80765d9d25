// @shoal/queue/testing: a real queue server for tests, on a free port or a unix socket, with its data in a folder of its
// own. It can be killed and started again in place. For tests only; the private server of a user lives in server.ts.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cacheFolder } from '@shoal/core';
import { closeConnection, openConnection, untilReady, type Redis } from './connection.ts';
import { findServerProgram } from './server.ts';

export interface TestServerOptions {
  /** Executable; default SHOAL_TEST_SERVER, else the one that a private server would use. */
  readonly program?: string;
  /** More arguments, e.g. ["--maxmemory", "8mb"]. They win over the defaults. */
  readonly args?: readonly string[];
  /** "everysec" or "always" keep data over `kill9`. Default "everysec"; "no" is without AOF. */
  readonly appendFsync?: 'everysec' | 'always' | 'no';
  /** Listens on a unix socket instead of a port of 127.0.0.1. */
  readonly unixSocket?: boolean;
}

export interface TestServer {
  readonly url: string;
  readonly pid: number;
  /** Folder with its data, and its socket when it has one. */
  readonly folder: string;
  /** A command on a connection of the server's own, e.g. command("CONFIG", "SET", "maxmemory", "8mb"). */
  command(name: string, ...values: (string | number | Buffer)[]): Promise<unknown>;
  /** SIGKILL; resolves when the process is gone. */
  kill9(): Promise<void>;
  /** Starts it again on the same address with the same data, after kill9 or instead of it (then SIGKILL first). */
  restart(): Promise<void>;
  /** Stops the process (a paused one too) and removes its folder. Safe to call twice. */
  stop(): Promise<void>;
}

export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-server-'));
  const address = options.unixSocket === true ? unixAddress(folder) : await portAddress();
  const args = [...address.args, '--dir', folder, '--save', '', '--maxmemory-policy', 'noeviction', ...durability(options.appendFsync ?? 'everysec'), ...options.args ?? []];
  const program = await findProgram(options);
  let server = await launch(program, args, address.url);
  const control = await openControl(address.url);
  const kill9 = async (): Promise<void> => {
    if (server.exitCode !== null || server.signalCode !== null) return;
    const gone = once(server, 'exit');
    server.kill('SIGKILL');
    await gone;
  };
  return {
    url: address.url,
    folder,
    get pid() {
      return server.pid ?? 0;
    },
    command: (name, ...values) => control.call(name, ...values),
    kill9,
    async restart() {
      await kill9();
      server = await launch(program, args, address.url);
    },
    async stop() {
      await closeConnection(control);
      await kill9();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

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

/** A port that was free a moment ago. */
async function portAddress(): Promise<Address> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const address = probe.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  probe.close();
  await once(probe, 'close');
  return { url: `redis://127.0.0.1:${port}`, args: ['--bind', '127.0.0.1', '--port', String(port)] };
}

/** Resolves once the server answers; rejects with its output when it exits instead. */
async function launch(program: string, args: readonly string[], url: string): Promise<ChildProcess> {
  const server = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const killWithUs = (): void => void server.kill('SIGKILL');
  process.once('exit', killWithUs);
  server.once('exit', () => process.off('exit', killWithUs));
  const output: string[] = [];
  server.stdout.on('data', (chunk: Buffer) => output.push(chunk.toString()));
  server.stderr.on('data', (chunk: Buffer) => output.push(chunk.toString()));
  const died = new Promise<never>((_, reject) => {
    server.once('error', (error) => reject(new Error(`the test server ${program} could not be started: ${error.message}`)));
    server.once('exit', (code, signal) => reject(new Error(`the test server ${program} ended (${code ?? signal}):\n${output.join('').slice(-2_000)}`)));
  });
  died.catch(() => undefined);
  const control = openConnection({ url, name: 'test-server-start' });
  try {
    await Promise.race([untilReady(control, url, 20_000), died]);
  } finally {
    await closeConnection(control);
  }
  return server;
}

async function openControl(url: string): Promise<Redis> {
  const control = openConnection({ url, name: 'test-server-control' });
  await untilReady(control, url);
  return control;
}
