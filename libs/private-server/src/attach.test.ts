// The private server with a real Valkey and real processes. Each test has a cache of its own, and fails when a process
// that names that cache in its arguments is still there at its end.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer } from 'node:net';
import { hostname, tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { descriptorFailure } from '@shoal/core/base';
import { withoutDescriptors } from '@shoal/core/testing';
import { withLock } from '@shoal/fetch';
import { isAlive, placeOfPids } from '@shoal/fetch/process-identity';
import { attachRunningServer, attachServer, type AttachedServer } from './attach.ts';
import { readDataWriter, writeDataWriter } from './data-writer.ts';
import { findServerProgram } from './program.ts';
import { readRunFile, writeRunFile } from './run-file.ts';
import { ask, probe } from './socket-probe.ts';

let cacheDir: string;
let children: ChildProcess[];

beforeAll(async () => {
  const program = await findServerProgram({ cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']) });
  process.env['PATH'] = `${dirname(program.path)}${delimiter}${process.env['PATH'] ?? ''}`;
});

beforeEach(() => {
  cacheDir = mkdtempSync(join(tmpdir(), 'shoal-srv-'));
  children = [];
});

afterEach(async () => {
  vi.unstubAllEnvs();
  for (const child of children) child.kill('SIGKILL');
  await vi.waitUntil(() => processesLeft().length === 0, { timeout: 20_000 });
  rmSync(cacheDir, { recursive: true, force: true });
});

/** "<pid> <command line>" of every process that names this test's cache. */
function processesLeft(): string[] {
  const lines = existsSync('/proc/self/cmdline')
    ? readdirSync('/proc')
        .filter((name) => /^\d+$/.test(name))
        .map((pid) => `${pid} ${readQuietly(`/proc/${pid}/cmdline`).replaceAll('\0', ' ')}`)
    : spawnSync('ps', ['-ww', '-ax', '-o', 'pid=', '-o', 'args='], { encoding: 'utf8' })
        .stdout.split('\n')
        .map((line) => line.trim());
  return lines.filter((line) => line.includes(cacheDir));
}

function readQuietly(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

const attach = (options: Partial<Parameters<typeof attachServer>[0]> = {}): Promise<AttachedServer> =>
  attachServer({ cacheDir, lingerMs: 200, ...options });
const running = () => readRunFile(join(cacheDir, 'server', 'run.json'));
const socketOf = (server: AttachedServer): string => server.url.replace('unix://', '');
const say = (server: AttachedServer, command: string): Promise<string | undefined> =>
  ask(socketOf(server), command, 1_000);

/** Another command that attaches, prints the supervisor's pid and holds on until it is killed or told to leave. */
async function otherCommand(lingerMs = 200): Promise<{ child: ChildProcess; supervisor: number }> {
  const script = `import { attachServer } from ${JSON.stringify(new URL('attach.ts', import.meta.url).href)};
    import { readRunFile } from ${JSON.stringify(new URL('run-file.ts', import.meta.url).href)};
    const server = await attachServer({ cacheDir: process.env.CACHE, lingerMs: ${lingerMs} });
    console.log(readRunFile(process.env.CACHE + '/server/run.json').supervisor.pid);
    process.stdin.on('end', () => server.release()).resume();`;
  const child = spawn(process.execPath, ['--conditions=@shoal/source', '--input-type=module', '-e', script], {
    env: { ...process.env, CACHE: cacheDir },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  children.push(child);
  const [printed] = (await once(child.stdout!, 'data')) as [Buffer];
  return { child, supervisor: Number(String(printed)) };
}

test('who only looks attaches to a server that runs, and starts and creates nothing when there is none', async () => {
  expect(await attachRunningServer({ cacheDir })).toBeUndefined();
  expect(readdirSync(cacheDir)).toEqual([]);
  const first = await attach();
  const looking = await attachRunningServer({ cacheDir });
  expect(looking?.url).toBe(first.url);
  await looking?.release();
  expect(await say(first, 'PING')).toBe('+PONG');
  await first.release();
  expect(await attachRunningServer({ cacheDir })).toBeUndefined();
  expect((await attachRunningServer({ cacheDir, redisUrl: 'redis://elsewhere' }))?.url).toBe('redis://elsewhere');
});

test('whoever meets a supervisor that was stopped says which process it waits for', async () => {
  const first = await attach();
  const { pid } = running()!.supervisor;
  const said: string[] = [];
  process.kill(pid, 'SIGSTOP');
  const looking = await attachRunningServer({
    cacheDir,
    onProgress: (step) => {
      said.push(step);
      process.kill(pid, 'SIGCONT');
    },
  });
  expect(said).toEqual([expect.stringContaining(`does not answer; where it was stopped, kill -CONT ${pid} lets it`)]);
  await looking?.release();
  await first.release();
});

test('the first command starts a server, the last one out stops it, and the data are there the next time', async () => {
  const first = await attach();
  expect(first.isPrivate).toBe(true);
  expect(await say(first, 'SET kept yes')).toBe('+OK');
  await first.release();
  await first.release();
  expect(processesLeft()).toEqual([]);
  expect(readdirSync(join(cacheDir, 'server')).sort()).toEqual(['data', 'supervisor.log']);
  const second = await attach();
  expect(second.url).toBe(first.url);
  expect(await say(second, 'EXISTS kept')).toBe(':1');
  await second.release();
});

test('commands share one server, and it stays while one of them is attached', async () => {
  const [one, other] = [await attach(), await otherCommand()];
  expect(running()?.supervisor.pid).toBe(other.supervisor);
  await one.release();
  expect(await say(one, 'PING')).toBe('+PONG');
  other.child.stdin?.end();
  await once(other.child, 'exit');
  expect(processesLeft()).toEqual([]);
});

test('commands that start at the same instant end up on one server', async () => {
  const [mine, ...others] = await Promise.all([attach(), otherCommand(), otherCommand(), otherCommand()]);
  expect(new Set([running()?.supervisor.pid, ...others.map((other) => other.supervisor)]).size).toBe(1);
  for (const other of others) other.child.stdin?.end();
  await Promise.all(others.map((other) => once(other.child, 'exit')));
  await mine.release();
});

test('a command that comes while the server stops gets a new one', async () => {
  for (let i = 0; i < 5; i++) {
    const leaving = (await attach()).release();
    const coming = await attach();
    expect(await say(coming, 'PING')).toBe('+PONG');
    await leaving;
    await coming.release();
  }
});

test('the server is set up to lose nothing and to be reached by this user only', async () => {
  const server = await attach();
  expect(statSync(join(cacheDir, 'server')).mode & 0o777).toBe(0o700);
  expect(statSync(socketOf(server)).mode & 0o077).toBe(0);
  for (const [setting, value] of [
    ['maxmemory-policy', 'noeviction'],
    ['appendonly', 'yes'],
    ['appendfsync', 'everysec'],
    ['port', '0'],
    ['save', ''],
    ['latency-tracking', 'no'],
  ]) {
    expect(await configOf(server, setting!)).toBe(value);
  }
  await server.release();
});

/** The value in the reply *2 $n name $m value. */
function configOf(server: AttachedServer, setting: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(socketOf(server));
    socket.setEncoding('utf8').on('data', (reply: string) => {
      resolve(reply.split('\r\n')[4] ?? '');
      socket.destroy();
    });
    socket.write(`CONFIG GET ${setting}\r\n`);
  });
}

test('a server that is killed comes back at the same address with its data', async () => {
  const warnings: string[] = [];
  const log = {
    debug() {},
    info() {},
    warn: (_: object, message: string) => {
      warnings.push(message);
    },
    error() {},
  };
  const server = await attach({ log });
  await say(server, 'SET kept yes');
  const killed = running()!.server!.pid;
  process.kill(killed, 'SIGKILL');
  await expect
    .poll(async () => (running()?.server?.pid !== killed ? probe(socketOf(server)) : 'old'), { interval: 5 })
    .toBe('ready');
  expect(await say(server, 'EXISTS kept')).toBe(':1');
  const { warning } = await findServerProgram({ cacheDir }); // of an older program, once when it is first started
  expect(warnings).toEqual([...(warning === undefined ? [] : [warning]), 'private queue server died, starting again']);
  await server.release();
});

test('a command that is killed detaches, and after the linger time the server stops', async () => {
  const { child, supervisor } = await otherCommand();
  child.kill('SIGKILL');
  await once(child, 'exit');
  expect(running()?.supervisor.pid).toBe(supervisor);
  await expect.poll(processesLeft, { timeout: 15_000 }).toEqual([]);
});

test('a command that comes within the linger time keeps the server', async () => {
  const { child, supervisor } = await otherCommand();
  child.kill('SIGKILL');
  const server = await attach();
  await expect.poll(() => readFileSync(join(cacheDir, 'server', 'supervisor.log'), 'utf8')).toContain('is ready');
  expect(running()?.supervisor.pid).toBe(supervisor);
  await server.release();
});

test('when the supervisor is killed, attached commands bring up another with the same data and address', async () => {
  const server = await attach();
  const other = await otherCommand();
  await say(server, 'SET kept yes');
  process.kill(other.supervisor, 'SIGKILL');
  await expect
    .poll(async () => (running()?.supervisor.pid !== other.supervisor ? probe(socketOf(server)) : 'old'), {
      interval: 5,
    })
    .toBe('ready');
  expect(await say(server, 'EXISTS kept')).toBe(':1');
  other.child.stdin?.end();
  await once(other.child, 'exit');
  await server.release();
});

test.runIf(process.platform === 'linux')(
  'a supervisor that can open nothing more takes its run file for no deleted one: server and commands go on',
  async () => {
    const server = await attach();
    const { supervisor, server: served } = running()!;
    const limit = (files: string): unknown =>
      spawnSync('prlimit', ['--pid', String(supervisor.pid), `--nofile=${files}:`]).status;
    expect(limit('3')).toBe(0);
    await sleep(2_500); // it looks every two seconds
    expect(limit('1024')).toBe(0);
    expect(await say(server, 'PING')).toBe('+PONG');
    expect(running()).toMatchObject({ supervisor, server: served });
    const other = await attachRunningServer({ cacheDir });
    expect(other?.url).toBe(server.url);
    await other?.release();
    await server.release();
  },
);

test('while this process can open nothing, it takes no other for gone and no run file for missing', async () => {
  const server = await attach();
  const runFile = join(cacheDir, 'server', 'run.json');
  const { supervisor } = running()!;
  const found = await withoutDescriptors(async () =>
    [() => readRunFile(runFile), () => isAlive(supervisor)].map((look) => {
      try {
        return look();
      } catch (error) {
        return descriptorFailure(error)?.message;
      }
    }),
  );
  await server.release();
  if (typeof found === 'string') return console.log(`descriptors are not tried: ${found}`);
  expect(found.came).toEqual([
    expect.stringContaining(`cannot open ${runFile}: this process has as many files`),
    expect.stringContaining(`cannot open /proc/${supervisor.pid}/stat: this process has as many files`),
  ]);
});

test(
  'a signal ends the attaching, while a program is looked for or fetched and while another command attaches, and ' +
    'nothing of it stays',
  async () => {
    const looking = new AbortController();
    setImmediate(() => looking.abort('enough'));
    await expect(attach({ signal: looking.signal })).rejects.toBe('enough');
    const waiting = new AbortController();
    await withLock(join(cacheDir, 'server', 'run.lock'), async () => {
      await expect(attach({ signal: waiting.signal, onProgress: () => waiting.abort('enough') })).rejects.toBe(
        'enough',
      );
    });
    const bin = mkdtempSync(join(cacheDir, 'bin-'));
    writeFileSync(join(bin, 'python3'), '#!/bin/sh\nexec /bin/sleep 60\n', { mode: 0o755 });
    vi.stubEnv('PATH', bin);
    const fetching = new AbortController();
    await expect(
      attach({ signal: fetching.signal, onProgress: () => setImmediate(() => fetching.abort('enough')) }),
    ).rejects.toBe('enough');
    expect(readdirSync(join(cacheDir, 'server'))).toEqual(['data']);
  },
);

test('a signal to an attached command does not keep it from bringing up another supervisor', async () => {
  const stopping = new AbortController();
  const server = await attach({ signal: stopping.signal });
  const killed = running()!.supervisor.pid;
  stopping.abort('enough');
  process.kill(killed, 'SIGKILL');
  await expect
    .poll(async () => (running()?.supervisor.pid !== killed ? probe(socketOf(server)) : 'old'), { interval: 5 })
    .toBe('ready');
  await server.release();
});

test('no server outlives a supervisor that is killed while nobody is attached', async () => {
  const { child, supervisor } = await otherCommand();
  child.kill('SIGKILL');
  process.kill(supervisor, 'SIGKILL');
  await expect.poll(processesLeft, { timeout: 15_000 }).toEqual([]);
  const server = await attach();
  expect(await say(server, 'PING')).toBe('+PONG');
  await server.release();
});

test('a server left behind by a killed supervisor and a killed guard is stopped before another starts', async () => {
  const { child, supervisor } = await otherCommand();
  const left = running()!.server!.pid;
  child.kill('SIGKILL');
  process.kill(-supervisor, 'SIGSTOP'); // the whole process group, so that the guard cannot act
  const guard = Number.parseInt(
    processesLeft().find((line) => line.includes('shoal-guard'))!,
    10,
  );
  for (const pid of [guard, supervisor]) process.kill(pid, 'SIGKILL');
  process.kill(left, 'SIGCONT');
  const server = await attach();
  expect(running()?.server?.pid).not.toBe(left);
  expect(processesLeft().filter((line) => line.includes('unixsocket'))).toHaveLength(1);
  await server.release();
});

test('a socket that another program listens on is refused and left alone', async () => {
  for (const name of ['queue.sock', 'control.sock']) {
    mkdirSync(join(cacheDir, 'server'), { recursive: true, mode: 0o700 });
    const path = join(cacheDir, 'server', name);
    const stranger = createServer((socket) => socket.destroy());
    stranger.listen(path);
    await once(stranger, 'listening');
    await expect(attach()).rejects.toThrow(`${path} is in use by another program`);
    expect(existsSync(path)).toBe(true);
    await new Promise((resolve) => stranger.close(resolve));
  }
});

test('a dead socket file is cleared away, a file of another kind is not', async () => {
  mkdirSync(join(cacheDir, 'server'), { mode: 0o700 });
  const path = join(cacheDir, 'server', 'queue.sock');
  const listener = createServer().listen(`${path}.old`);
  await once(listener, 'listening');
  renameSync(`${path}.old`, path); // closing removes the old name only
  await new Promise((resolve) => listener.close(resolve));
  await (await attach()).release();
  writeFileSync(path, 'a letter');
  await expect(attach()).rejects.toThrow('is not a socket: move it away');
  expect(readFileSync(path, 'utf8')).toBe('a letter');
});

test('a folder that others may enter is refused with the command that closes it', async () => {
  mkdirSync(join(cacheDir, 'server'));
  chmodSync(join(cacheDir, 'server'), 0o755);
  await expect(attach()).rejects.toThrow(`chmod 700 '${join(cacheDir, 'server')}'`);
});

test('a path that is too long or unfit for a URL puts the sockets into a private folder elsewhere', async () => {
  const long = join(cacheDir, 'with a space', 'x'.repeat(100));
  const server = await attach({ cacheDir: long });
  expect(socketOf(server)).toMatch(/^[\w/.+@-]+$/);
  expect(statSync(dirname(socketOf(server))).mode & 0o777).toBe(0o700);
  expect(await say(server, 'PING')).toBe('+PONG');
  await server.release();
  expect(existsSync(dirname(socketOf(server)))).toBe(false);
});

test.each([
  ['damaged data', '.incr.aof', 'not an append-only file\r\n', /are damaged: .*move that folder away/],
  [
    'data in the format of a later program',
    '.base.rdb',
    'VALKEY999',
    /are of another or a newer server program, or damaged: .*on PATH, or move that folder away/,
  ],
])('%s are reported with the cure, and nothing is left running', async (_, file, content, message) => {
  const server = await attach();
  await say(server, 'SET kept yes');
  await server.release();
  const folder = join(cacheDir, 'server', 'data', 'appendonlydir');
  for (const name of readdirSync(folder)) if (name.endsWith(file)) writeFileSync(join(folder, name), content);
  const failure = await attach().catch((error: Error) => error.message);
  expect(failure).toMatch(/cannot run: .*could not be started 5 times in a row/);
  expect(failure).toMatch(message);
});

test('a program that cannot read the data of the one before is passed over', async () => {
  const { name, version } = await findServerProgram({ cacheDir });
  await (await attach()).release();
  expect(readDataWriter(join(cacheDir, 'server', 'data'))).toEqual({ name, version });
  writeDataWriter(join(cacheDir, 'server', 'data'), { name, version: '99.1.0' });
  const failure = await attach().catch((error: Error) => error.message);
  expect(failure).toContain(`${name} ${version} cannot read the queue's data, which ${name} 99.1.0 wrote`);
  expect(failure).toMatch(new RegExp(`${name} 99\\.1 or later`));
});

test.each([
  ['another host', { host: 'far-away' }, /runs on host far-away: .*SHOAL_CACHE_DIR/],
  [
    "another container under this host's name",
    { host: hostname(), place: `${placeOfPids().split('.')[0]}.1` },
    /in another container: .*SHOAL_CACHE_DIR/,
  ],
])(
  'a server that %s runs on the same files is not run twice, until its run file grows old',
  async (_, where, refusal) => {
    await (await attach()).release();
    const elsewhere = { pid: 999_999_999, startTime: 'there' };
    const path = join(cacheDir, 'server', 'run.json');
    writeRunFile(path, { version: 1, ...where, supervisor: elsewhere, socket: 's', control: 'c' });
    await expect(attach()).rejects.toThrow(refusal);
    const old = new Date(Date.now() - 120_000);
    utimesSync(path, old, old);
    await (await attach()).release();
  },
);

test('a server whose cache folder is deleted ends, however long it would have lingered', async () => {
  const { child } = await otherCommand(60_000);
  child.kill('SIGKILL');
  rmSync(cacheDir, { recursive: true });
  await expect.poll(processesLeft, { timeout: 20_000 }).toEqual([]);
});

test('a command whose cache folder is deleted gets a new server at the same address', async () => {
  const server = await attach();
  await say(server, 'SET kept yes');
  rmSync(cacheDir, { recursive: true });
  await expect.poll(() => running()?.server, { timeout: 20_000 }).toBeDefined();
  await expect.poll(() => say(server, 'EXISTS kept'), { interval: 5 }).toBe(':0');
  await server.release();
});

test.each([
  ['by itself', async () => undefined],
  ['when its last command leaves', (server: AttachedServer) => server.release()],
])(
  'a server whose cache folder is deleted and made again by another command ends %s and leaves the new one its sockets',
  async (_, leave) => {
    const server = await attach();
    const old = running()!.supervisor;
    rmSync(cacheDir, { recursive: true });
    const other = await otherCommand();
    await leave(server);
    await expect.poll(() => isAlive(old), { timeout: 20_000 }).toBe(false);
    const sockets = [running()!.control, running()!.socket];
    expect(sockets.map((path) => existsSync(path))).toEqual([true, true]);
    const next = await attach();
    expect(running()?.supervisor.pid).toBe(other.supervisor);
    expect(await say(next, 'PING')).toBe('+PONG');
    other.child.stdin?.end();
    await Promise.all([once(other.child, 'exit'), next.release(), server.release()]);
  },
);

test('a server that somebody else runs is handed back as it is', async () => {
  const server = await attach({ redisUrl: 'redis://example.test:6379' });
  expect(server).toMatchObject({ url: 'redis://example.test:6379', isPrivate: false });
  await server.release();
  expect(readdirSync(cacheDir)).toEqual([]);
});
