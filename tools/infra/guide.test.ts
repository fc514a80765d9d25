// docs/deployment.md: what can be tried cheaply always, and by night its blocks that a machine without systemd, registry
// and cluster can run, as they stand there. What is put in place of a word of the page is said beside it.

import { execFileSync, spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, describe, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { findServerProgram } from '@shoal/private-server';
import { ContainerRig } from './container-rig.ts';
import { block, PAGE } from './guide-page.ts';
import { aptTools } from './tools-of-others.ts';

const ROOT = join(import.meta.dirname, '../..');
const CACHE = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const place = realpathSync(mkdtempSync(join(tmpdir(), 'shoal-guide-')));
const running: ChildProcess[] = [];

afterAll(() => {
  for (const child of running) child.kill('SIGTERM');
  rmSync(place, { recursive: true, force: true });
});

/** Empty, and no other try's of the same test. */
const freshFolder = (): string => mkdtempSync(join(place, 'try-'));

/** `shoal` on PATH, a home of its own, the models of this machine. */
async function laptop(home: string): Promise<NodeJS.ProcessEnv> {
  const { main, execArgv } = programOf('cli');
  mkdirSync(join(home, 'bin'));
  mkdirSync(join(home, 'cache'));
  symlinkSync(join(CACHE, 'models'), join(home, 'cache/models'));
  const { path } = await findServerProgram({ cacheDir: CACHE, onProgress: () => undefined });
  symlinkSync(path, join(home, 'bin/valkey-server'));
  const command = ['exec', process.execPath, ...execArgv, main, '"$@"'].join(' ');
  writeFileSync(join(home, 'bin/shoal'), `#!/bin/sh\n${command}\n`, { mode: 0o755 });
  return {
    PATH: `${join(home, 'bin')}:${process.env['PATH']}`,
    HOME: home,
    SHOAL_CACHE_DIR: join(home, 'cache'),
    SHOAL_THREADS: '1',
  };
}

test('passwords that the page makes below the clone are none of its files to git', () => {
  const folders = [...PAGE.matchAll(/make-secrets\.sh ([^/\s]\S*)/g)].map(([, folder]) => folder!);
  expect(folders).toContain('secrets');
  for (const folder of folders) {
    const { status } = spawnSync('git', ['check-ignore', '--quiet', `${folder}/worker.password`], { cwd: ROOT });
    expect([folder, status]).toEqual([folder, 0]);
  }
});

/** What the server answers to these commands, at a socket in a folder of its own. */
async function answers(socket: string, commands: readonly string[]): Promise<string> {
  const connection = connect(socket);
  connection.end([...commands, 'QUIT', ''].join('\r\n'));
  return text(connection);
}

test('the queue server starts by the line of its unit, in a folder that is there, and lets our users in', async () => {
  const folder = freshFolder();
  const secrets = join(folder, 'secrets');
  const data = join(folder, 'data');
  const socket = join(folder, 'valkey.sock');
  mkdirSync(data);
  execFileSync('sh', ['infra/valkey/make-secrets.sh', secrets], { cwd: ROOT, stdio: 'ignore' });
  const unit = readFileSync(join(ROOT, 'infra/systemd/shoal-valkey.service'), 'utf8');
  const [, line] = /^ExecStart=\S+ ((?:.*\\\n)*.*)$/m.exec(unit)!;
  const args = line!
    .replace('\\\n', ' ')
    .replace('/etc/shoal/valkey.conf', join(ROOT, 'infra/valkey/valkey.conf'))
    .replace('/var/lib/shoal-valkey', data)
    .replace('${CREDENTIALS_DIRECTORY}', secrets);
  // no port of this machine, and nothing of the file but what it says itself
  const { path } = await findServerProgram({ cacheDir: CACHE, onProgress: () => undefined });
  const server = spawn(path, [...args.trim().split(/\s+/), '--port', '0', '--unixsocket', socket], {
    cwd: folder,
    stdio: 'ignore',
  });
  running.push(server);
  await expect.poll(() => existsSync(socket) || server.exitCode, { timeout: 60_000 }).toBe(true);
  const password = readFileSync(join(secrets, 'exporter.password'), 'utf8');
  const asked = await answers(socket, [`AUTH exporter ${password}`, 'CONFIG GET dir', 'PING']);
  expect(asked.replaceAll('\r\n', ' ')).toMatch(new RegExp(`^\\+OK .*${data} \\+PONG`));
  expect(await answers(socket, ['PING'])).toMatch(/^-NOAUTH/);
});

describe.skipIf(!isNight)('(nightly) docs/deployment.md', () => {
  test('a laptop: everything starts, a vector comes, the fleet is seen', async () => {
    const home = freshFolder();
    const env = await laptop(home);
    const up = spawn('sh', ['-eu', '-c', `exec ${block('laptop-up').trim()}`], { cwd: home, env, stdio: 'ignore' });
    running.push(up);
    const ended = once(up, 'exit');
    try {
      const asked = (): { readonly status: number | null; readonly stdout: string } =>
        spawnSync('sh', ['-eu', '-c', block('laptop')], { cwd: home, env, encoding: 'utf8' });
      await expect.poll(() => asked().status, { timeout: 300_000, interval: 2_000 }).toBe(0);
      expect(asked().stdout).toMatch(/"embedding":.*\n?.*minilm/s);
    } finally {
      up.kill('SIGTERM');
      await ended; // its ports are free for another try
    }
  });

  test('systemd: files, users, folders, passwords and a model are put where the units look for them', async (context) => {
    const programs = ['buildah', 'podman', 'runc', 'debootstrap'];
    const has = await aptTools(programs, [...programs, 'ca-certificates']);
    if ('why' in has || process.getuid?.() !== 0) {
      console.log(`the part of systemd is not tried: ${'why' in has ? has.why : 'containers of this test want root'}`);
      return context.skip();
    }
    const rig = new ContainerRig({ root: ROOT, folder: join(CACHE, 'test-infra/containers') });
    execFileSync(process.execPath, ['tools/pack.ts', 'shoal', 'onnxruntime', 'native'], { cwd: ROOT, stdio: 'ignore' });
    const base = rig.makeBase(join(import.meta.dirname, 'stand-in.dockerfile'));
    const commands = block('systemd').replace('pull minilm', 'pull tiny-random'); // needs no hub
    const looks = [
      'test "$(stat -c %U /var/lib/shoal-models)" = root',
      'test "$(stat -c %a /etc/shoal/secrets)" = 700',
      'id shoal && id shoal-valkey',
      'ls /etc/systemd/system /etc/shoal /var/lib/shoal-models',
      'systemd-analyze verify shoal.target shoal-http.service shoal-dashboard.service shoal-worker@0.service',
      '/opt/shoal/node_modules/.bin/shoal --version',
      // as the units run it: root has put the model there, and another user reads it
      'export SHOAL_MODELS_DIR=/var/lib/shoal-models SHOAL_MODELS_READ_ONLY=yes SHOAL_CACHE_DIR=/tmp/shoal',
      'export HOME=/var/lib/shoal', // as systemd sets it; the home of root is closed to others
      'setpriv --reuid=shoal --regid=shoal --clear-groups /opt/shoal/node_modules/.bin/shoal model verify tiny-random',
    ];
    const { status, stdout, stderr } = rig.inBase(base, `cd /checkout\n${commands}\n${looks.join('\n')}`);
    expect([status, stderr.split('\n').slice(-20)]).toEqual([0, expect.anything()]);
    for (const name of ['shoal.target', 'shoal.env', 'valkey.conf', 'tiny-random']) expect(stdout).toContain(name);
  });
});
