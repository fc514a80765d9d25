// What is published, taken as a user takes it: the packages are made, installed in an empty folder, and embed a text
// over a real queue server and a worker, from ES modules and CommonJS, with strict types. By night from Bun and Deno as
// well, and the command itself without a checkout. Needs a build, npm and its registry; where that cannot be had, says
// so and looks at the contents alone.

import { execFileSync, fork, spawnSync, type ChildProcess } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { filesBelow } from './pack/packed-tree.ts';
import { packClient, packNative, packRuntimes, packShoal, type PackedPackage } from './pack/packages.ts';

const PROJECT = join(import.meta.dirname, '..');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const node = process.execPath;
const place = realpathSync(mkdtempSync(join(tmpdir(), 'shoal-pack-')));
const options = { project: PROJECT, out: join(place, 'packages') };

let client: PackedPackage;
let shoal: PackedPackage;
let server: TestServer;
let worker: ChildProcess;
/** Where the client is installed. */
const app = join(place, 'app');
/** What npm said where it could not install. */
let problem: string | undefined;

beforeAll(async () => {
  [client, shoal] = [packClient(options), packShoal(options)];
  problem = install(app, [client]);
  if (problem !== undefined) return;
  writePrograms();
  server = await startTestServer();
  worker = await startWorker(server.url);
});

afterAll(async () => {
  worker?.kill('SIGKILL');
  await server?.stop();
  rmSync(place, { recursive: true, force: true });
});

function tarball({ folder }: PackedPackage): string {
  const [{ filename }] = JSON.parse(
    execFileSync('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', place, folder], {
      cwd: place,
      encoding: 'utf8',
      maxBuffer: 64e6,
    }),
  ) as [{ readonly filename: string }];
  return join(place, filename);
}

/** Undefined, or what npm said. */
function install(
  folder: string,
  packages: readonly PackedPackage[],
  others: readonly string[] = [],
): string | undefined {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n');
  const quiet = ['--no-audit', '--no-fund', '--loglevel=error', '--prefer-offline'];
  const { status, stderr } = spawnSync('npm', ['install', ...quiet, ...packages.map(tarball), ...others], {
    cwd: folder,
    encoding: 'utf8',
    env: { ...process.env, PATH: `${join(node, '..')}:${process.env['PATH']}` },
  });
  return status === 0 ? undefined : stderr.trim();
}

async function startWorker(redisUrl: string): Promise<ChildProcess> {
  const { main, execArgv } = programOf('gpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      REDIS_URL: redisUrl,
      SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']),
      SHOAL_DEVICE: 'sim:8000',
      SHOAL_SIM_SERVES: 'model',
      LOG_LEVEL: 'error',
    },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  await new Promise<void>((resolve, reject) => {
    child.on('message', (message: { readonly kind?: string }) => message.kind === 'ready' && resolve());
    child.once('exit', (code) => reject(new Error(`the worker ended with ${code}`)));
  });
  return child;
}

const EMBED = `const redisUrl = process.env.REDIS_URL;
const { openModel, openTokenizer } = await import('@shoal/client/models');
const model = await openModel('minilm', { cacheDir: process.env.SHOAL_CACHE_DIR, allowFetch: false });
for (const more of [{ model: 'minilm' }, { model, tokenizer: await openTokenizer(model) }]) {
  const client = await ShoalClient.connect({ redisUrl, ...more });
  const { vectors, dims } = await client.embed(['a text', 'another']);
  await client.close();
  console.log(vectors.length, dims);
}
`;

const BUCKET = `import { ShoalClient } from '@shoal/client';
const options = { redisUrl: process.env.REDIS_URL, model: 'minilm', payloadServers: 's3://bucket/prefix' };
await ShoalClient.connect(options).catch(({ code, message }) => console.log(code, message));
`;

function writePrograms(): void {
  writeFileSync(join(app, 'bucket.mjs'), BUCKET);
  writeFileSync(join(app, 'embed.mjs'), `import { ShoalClient } from '@shoal/client';\n${EMBED}`);
  const required = "const { ShoalClient } = require('@shoal/client');";
  writeFileSync(join(app, 'embed.cjs'), `${required}\n(async () => {\n${EMBED}})();\n`);
  const typed = `import { ShoalClient, isShoalError, type EmbedResult } from '@shoal/client';
import { openModel, openTokenizer } from '@shoal/client/models';
export async function embed(text: string): Promise<EmbedResult | string> {
  const model = await openModel('minilm', { cacheDir: '/nowhere' });
  const tokenizer = await openTokenizer(model);
  const client = await ShoalClient.connect({ redisUrl: 'redis://127.0.0.1:6379', model, tokenizer });
  try {
    const found = await client.embed([text]);
    const dims: number = found.dims;
    return dims > 0 ? found : 'nothing';
  } catch (error) {
    if (!isShoalError(error)) throw error;
    return error.code;
  }
}
`;
  for (const name of ['typed.ts', 'typed.mts', 'typed.cts']) writeFileSync(join(app, name), typed);
}

function runs(program: string, ...args: readonly string[]): string {
  const { stdout, stderr, status } = spawnSync(program, args, {
    cwd: app,
    encoding: 'utf8',
    env: {
      ...process.env,
      NODE_OPTIONS: '',
      REDIS_URL: server.url,
      SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']),
    },
  });
  return status === 0 ? stdout : `${status}: ${stdout}${stderr}`;
}

describe('what is in the packages', () => {
  test('is no test, fixture, map, source or example', () => {
    for (const { folder } of [client, shoal]) expect(filesBelow(folder).filter((path) => isForeign(path))).toEqual([]);
  });

  test('names no folder of the machine that packed it', () => {
    for (const { folder } of [client, shoal])
      for (const path of filesBelow(folder)) {
        const text = readFileSync(join(folder, path), 'utf8');
        expect([path, [PROJECT, place, tmpdir() + '/shoal-'].filter((name) => text.includes(name))]).toEqual([
          path,
          [],
        ]);
        expect([path, /^\/\/# sourceMappingURL/m.test(text)]).toEqual([path, false]);
      }
  });

  test('says licence, Node and exact versions, and nothing private', () => {
    for (const { folder } of [client, shoal]) {
      const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Record<string, unknown>;
      expect(manifest).toMatchObject({ license: 'Apache-2.0', engines: { node: '>=22.12' }, version: client.version });
      expect(manifest).not.toHaveProperty('private');
      for (const versions of [manifest['dependencies'], manifest['optionalDependencies'] ?? {}])
        for (const version of Object.values(versions as object)) expect(version).toMatch(/^\d+\.\d+\.\d+$/);
      for (const file of ['README.md', 'LICENSE']) expect(statSync(join(folder, file)).size).toBeGreaterThan(500);
    }
  });

  test('of the client is the side of producers alone: no claimer, executor, engine or device', () => {
    const files = filesBelow(client.folder).filter((path) => path.endsWith('.js'));
    expect(
      files.filter((path) => /core\/dist\/(?:claimer|budget|similarity|sim)\/|libs\/(?:worker|inference)/.test(path)),
    ).toEqual([]);
    const { dependencies, peerDependencies, peerDependenciesMeta } = JSON.parse(
      readFileSync(join(client.folder, 'package.json'), 'utf8'),
    ) as Readonly<Record<string, object>>;
    expect(Object.keys(dependencies!)).toEqual(['bullmq', 'ioredis', 'zod']);
    expect(Object.keys(peerDependencies!)).toEqual(['@aws-sdk/client-s3']);
    expect(peerDependenciesMeta).toEqual({ '@aws-sdk/client-s3': { optional: true } });
    expect(files.length).toBeLessThan(300);
  });

  test('of shoal starts every program that the command forks', () => {
    const files = new Set(filesBelow(shoal.folder));
    // libs/world is for development and in no package
    const mains = filesBelow(join(PROJECT, 'libs')).filter((path) =>
      /^(?!world\/)[\w-]+\/src\/(?!testing).*(?:-main|-thread)\.ts$/.test(path),
    );
    const built = mains.map((path) => `libs/${path.replace('/src/', '/dist/').replace(/ts$/, 'js')}`);
    expect(built.filter((path) => !files.has(path) && !path.includes('/testing/'))).toEqual([]);
  });
});

describe('the client, installed in an empty folder', () => {
  beforeEach(({ skip }) => {
    if (problem !== undefined) skip(`npm could not install: ${problem.slice(0, 500)}`);
  });

  test.each(['embed.mjs', 'embed.cjs'])('embeds through a worker: %s', (program) => {
    expect(runs(node, program)).toBe('768 384\n768 384\n');
  });

  test('brings no S3 client, and says what to install where a bucket is named', () => {
    expect(existsSync(join(app, 'node_modules/@aws-sdk'))).toBe(false);
    expect(runs(node, 'bucket.mjs')).toMatch(/^CONFIG_INVALID .*npm install @aws-sdk\/client-s3@3\n$/);
  });

  test.each([
    ['nodenext', ['typed.mts', 'typed.cts']],
    ['bundler', ['typed.ts']],
  ] as const)('has types for strict TypeScript, moduleResolution %s', (resolution, files) => {
    const module = resolution === 'bundler' ? 'esnext' : resolution;
    // With what bullmq, ioredis and zod declare it takes twice as long.
    const lax = `--skipLibCheck ${!isNight}`;
    const strict = `--noEmit --strict --exactOptionalPropertyTypes ${lax} --target es2024 --types node`;
    const flags = [...strict.split(' '), '--typeRoots', join(PROJECT, 'node_modules/@types')];
    flags.push('--module', module, '--moduleResolution', resolution);
    expect(runs(node, join(PROJECT, 'node_modules/typescript/bin/tsc'), ...flags, ...files)).toBe('');
  });
});

describe.runIf(isNight)('by night', () => {
  test.each([
    ['bun', ['bun', 'run']],
    ['deno', ['deno', 'run', '--allow-all']],
  ] as const)('the client embeds in %s', (name, [program, ...flags]) => {
    const tools = join(place, name);
    expect(install(tools, [], [name])).toBeUndefined();
    const scripts = join(tools, 'node_modules', name);
    spawnSync(node, [join(scripts, name === 'bun' ? 'install.js' : 'install.cjs')], { cwd: scripts });
    expect(runs(join(tools, 'node_modules/.bin', program), ...flags, 'embed.mjs')).toBe('768 384\n768 384\n');
  });

  test('shoal embeds from a folder without a checkout, with its own server and worker', async () => {
    const runtime = packRuntimes(options).find(({ name }) => name.endsWith(`${process.platform}-${process.arch}`));
    if (runtime === undefined) throw new Error('there is no ONNX Runtime for this platform');
    const folder = join(place, 'command');
    const addon = join(PROJECT, 'dist/native/similarity/similarity.node');
    const native = existsSync(addon) ? [packNative(options, { 'similarity/similarity.node': addon })] : [];
    expect(install(folder, [shoal, runtime, ...native])).toBeUndefined();
    const places = join(folder, 'node_modules/shoal/libs/core/dist/base/native-files.js');
    const { nativeFile } = (await import(places)) as { nativeFile: (...names: readonly string[]) => string };
    expect(nativeFile('addons', 'similarity', 'similarity.node')).toContain(
      native.length > 0 ? 'node_modules/@shoal/native-linux-x64-gnu/' : 'node_modules/shoal/',
    );
    const found = spawnSync(node, [join(folder, 'node_modules/shoal/bin/shoal.mjs'), 'embed', '-'], {
      cwd: place,
      input: 'hello\n',
      encoding: 'utf8',
      env: { ...process.env, REDIS_URL: '', SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']) },
    });
    expect(found.stderr).toContain('1 row');
    expect((JSON.parse(found.stdout) as { embedding: readonly number[] }).embedding).toHaveLength(384);
  });
});

function isForeign(path: string): boolean {
  if (path.startsWith('docs/')) return false;
  return (
    /\.test\.|\.map$|\.tsbuildinfo$|(?:^|\/)(?:src|testing|fixtures|examples|bench)\//.test(path) ||
    (path.endsWith('.ts') && !path.endsWith('.d.ts'))
  );
}
