// By night: the images are built and run as compose runs them. hadolint reads the Dockerfile; buildah builds the targets
// http and cpu, and every line of cuda that its base has no part in; podman-compose brings compose.yaml up: a queue server
// with the users of infra/valkey, a worker, HTTP and the dashboard on read-only roots. Vectors come over HTTP with a
// key, the health checks pass, and SIGTERM drains with exit code 0.
//
// What is not tried here: NVIDIA's base image and Valkey's (others stand in), and a network of containers (they share this
// machine's, so ports are what they are elsewhere and names are 127.0.0.1).

import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse, stringify } from 'yaml';
import { cacheFolder } from '@shoal/core';
import { findServerProgram } from '@shoal/private-server';
import { ContainerRig, must, type Ran } from './container-rig.ts';
import { aptTools, pythonTools, type Had } from './tools-of-others.ts';

const ROOT = join(import.meta.dirname, '../..');
const CACHE = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const MODEL = 'tiny-random'; // made on the spot, without a network
const PORT = 16_379;

const SERVICES = ['valkey', 'worker', 'http', 'dashboard', 'exporter'];

interface Compose {
  readonly services: Readonly<Record<string, Record<string, unknown>>>;
  readonly secrets: Readonly<Record<string, { file: string }>>;
}

const place = mkdtempSync(join(tmpdir(), 'shoal-images-'));
const secrets = join(place, 'secrets');
let python: Had<string> = { why: 'by day' };
let engine: Had<undefined> = { why: 'by day' };
let rig: ContainerRig;
/** Something of compose may be there. */
let isUp = false;

beforeAll(async () => {
  if (!isNight) return;
  python = await pythonTools();
  engine = await aptTools(
    ['buildah', 'podman', 'runc', 'debootstrap'],
    ['buildah', 'podman', 'runc', 'debootstrap', 'ca-certificates'],
  );
  if ('had' in engine && process.getuid?.() !== 0) engine = { why: 'containers of this test want root' };
  for (const [what, had] of Object.entries({ hadolint: python, images: engine }))
    if ('why' in had) console.log(`${what}: not tried, because ${had.why}`);
  if ('why' in engine) return;
  rig = new ContainerRig({ root: ROOT, folder: join(CACHE, 'test-infra/containers') });
  execFileSync(process.execPath, ['tools/pack.ts', 'shoal', 'onnxruntime', 'native'], { cwd: ROOT, stdio: 'ignore' });
  rig.makeBase(join(import.meta.dirname, 'stand-in.dockerfile'));
  const { path } = await findServerProgram({ cacheDir: CACHE, onProgress: () => undefined });
  rig.makeValkey(join(import.meta.dirname, 'valkey-stand-in.dockerfile'), path);
});

afterAll(() => {
  if (isUp && 'had' in python) runCompose(python.had, 'down', '--volumes');
  rmSync(place, { recursive: true, force: true });
});

/**
 * compose.yaml as this machine can run it: on its own network, so that nothing is published and names are 127.0.0.1;
 * without waiting for health, which wants systemd; images that were built here. All else stays.
 */
function composeFile(): string {
  execFileSync('sh', ['infra/valkey/make-secrets.sh', secrets], { cwd: ROOT, stdio: 'ignore' });
  const compose = parse(readFileSync(join(ROOT, 'infra/compose/compose.yaml'), 'utf8'), { merge: true }) as Compose;
  for (const [name, service] of Object.entries(compose.services)) {
    for (const key of ['ports', 'depends_on', 'build', 'logging', 'restart']) delete service[key];
    service['container_name'] = `shoal-test-${name}`;
    service['network_mode'] = 'host';
    service['security_opt'] = ['seccomp=unconfined'];
    const { volumes } = service as { volumes: string[] };
    service['volumes'] = volumes.map((each) =>
      each.replace('../valkey', join(ROOT, 'infra/valkey')).replace('./secrets', secrets),
    );
  }
  const { valkey } = compose.services;
  valkey!['command'] = [...(valkey!['command'] as string[]), '--port', String(PORT), '--bind', '127.0.0.1'];
  const { test: check } = valkey!['healthcheck'] as { readonly test: string[] };
  check[1] = check[1]!.replace('valkey-cli', `valkey-cli -p ${PORT}`);
  for (const secret of Object.values(compose.secrets)) secret.file = secret.file.replace('./secrets', secrets);
  const path = join(place, 'compose.yaml');
  writeFileSync(path, stringify(compose));
  return path;
}

/** What compose reads of its environment; the model is made on the spot. */
const COMPOSE_ENVIRONMENT = {
  VALKEY_IMAGE: 'localhost/valkey:stand-in',
  VALKEY_MAXMEMORY: '256mb',
  CPU_IMAGE: 'localhost/shoal:cpu',
  HTTP_IMAGE: 'localhost/shoal:http',
  WORKER_URL: `redis://worker@127.0.0.1:${PORT}`,
  PRODUCER_URL: `redis://producer@127.0.0.1:${PORT}`,
  DASHBOARD_URL: `redis://dashboard@127.0.0.1:${PORT}`,
  EXPORTER_URL: `redis://exporter@127.0.0.1:${PORT}`,
  SHOAL_MODEL: MODEL,
};

function runCompose(programs: string, ...args: readonly string[]): Ran {
  const how = ['--podman-run-args=--cgroups=enabled', '-p', 'shoal-test', '-f', join(place, 'compose.yaml')];
  return rig.run(join(programs, 'podman-compose'), [...how, ...args], 600_000, COMPOSE_ENVIRONMENT);
}

async function ask(bearer: string): Promise<Response> {
  return fetch('http://127.0.0.1:8787/v1/embeddings', {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${bearer}` },
    body: JSON.stringify({ model: MODEL, input: ['one', 'two', 'three'] }),
  });
}

/** How a worker ends that cannot begin, and what it says. */
function worker(...args: readonly string[]): string {
  const shared = ['run', '--rm', '--network', 'host', '--read-only', '--security-opt', 'seccomp=unconfined'];
  const { status, stderr } = rig.podman(...shared, ...args, 'localhost/shoal:cpu', 'worker');
  return `${status} ${stderr}`;
}

/** Health checks want systemd to come by themselves; here one asks until the first is well. */
async function healthy(service: string): Promise<void> {
  await expect
    .poll(() => rig.podman('healthcheck', 'run', `shoal-test-${service}`).status, { timeout: 300_000, interval: 1_000 })
    .toBe(0);
}

describe.skipIf(!isNight)('(nightly)', () => {
  test('hadolint finds nothing in the Dockerfile, and finds what is broken', (context) => {
    if ('why' in python) return context.skip();
    const hadolint = join(python.had, 'hadolint');
    expect(rigless(hadolint, 'infra/docker/Dockerfile')).toEqual([0, '']);
    const broken = join(place, 'Dockerfile');
    writeFileSync(broken, 'FROM debian\nRUN sudo apt-get install curl\n');
    expect(rigless(hadolint, broken)).toEqual([1, expect.stringMatching(/DL3004/)]);
  });

  test.for(['cpu', 'http'] as const)('the target %s is built, with a model baked into it', (target, context) => {
    if ('why' in engine) return context.skip();
    must(rig.buildTarget(target, `localhost/shoal:${target}`, { MODEL }));
    const inside = must(
      rig.podman(
        'run',
        '--rm',
        '--network',
        'host',
        '--entrypoint',
        'sh',
        `localhost/shoal:${target}`,
        '-c',
        'id -u; ls /opt/shoal/node_modules/@shoal /models; shoal --version',
      ),
    ).stdout;
    expect(inside).toMatch(/^10001\n/);
    expect(inside).toContain(MODEL);
    expect(inside.includes('onnxruntime-linux')).toBe(target === 'cpu');
  });

  test('run as compose runs them they embed over HTTP with a key, and drain with exit code 0', async (context) => {
    if ('why' in engine) return context.skip();
    if ('why' in python) return context.skip();
    composeFile();
    isUp = true;
    must(runCompose(python.had, 'up', '--detach'));
    for (const service of SERVICES) await healthy(service);
    const key = must(rig.podman('exec', 'shoal-test-http', 'shoal', 'key', 'create', 'me')).stdout.trim();
    await expect.poll(async () => (await ask(key)).status, { timeout: 60_000 }).toBe(200);
    expect(((await (await ask(key)).json()) as { readonly data: readonly unknown[] }).data).toHaveLength(3);
    expect((await ask('shoal_nobody')).status).toBe(401);
    expect((await fetch('http://127.0.0.1:8788/')).status).toBe(200);
    expect(await (await fetch('http://127.0.0.1:9460/metrics')).text()).toMatch(/shoal_queue_workers\{.*\} 1/);
    for (const service of SERVICES.toReversed()) {
      must(rig.podman('stop', '--time', '60', `shoal-test-${service}`));
      const { stdout } = must(rig.podman('inspect', '--format', '{{.State.ExitCode}}', `shoal-test-${service}`));
      expect([service, stdout.trim()]).toEqual([service, '0']);
    }
  });

  test('a worker that may not write its cache folder, and one without a model, end with 1 and a sentence', (context) => {
    if ('why' in engine) return context.skip();
    const url = ['--env', `SHOAL_REDIS_URL=redis://127.0.0.1:${PORT}`];
    expect(worker(...url, '--env', 'SHOAL_MODEL=minilm')).toMatch(/^1 .*minilm/s);
    expect(worker(...url, '--env', 'SHOAL_MAX_ROWS=none')).toMatch(
      /^2 .*SHOAL_MAX_ROWS = "none": must be a whole number/s,
    );
  });

  test('the lines of cuda run on another base: provider, native packages, node', (context) => {
    if ('why' in engine) return context.skip();
    // a package of this name without its libraries: these are made by nvcc, and tried on a GPU
    const tree = join(place, 'context');
    for (const path of ['infra/docker', 'dist/packages', '.dockerignore'])
      cpSync(join(ROOT, path), join(tree, path), {
        recursive: true,
        filter: (each) => !/packages\/(?:build|folders)/.test(each),
      });
    const folder = join(place, 'cuda');
    mkdirSync(folder, { recursive: true }); // there since a first attempt
    writeFileSync(join(folder, 'package.json'), '{ "name": "@shoal/cuda-linux-x64", "version": "0.1.0" }\n');
    execFileSync('npm', ['pack', '--pack-destination', join(tree, 'dist/packages')], { cwd: folder, stdio: 'ignore' });
    const there = new ContainerRig({ root: tree, folder: join(CACHE, 'test-infra/containers') });
    must(there.buildTarget('cuda', 'localhost/shoal:cuda', { MODEL: '' }));
    // as the user of the image, who has to come through every folder above the provider
    const library = 'onnxruntime-linux-x64/bin/napi-v6/linux/x64/libonnxruntime_providers_cuda.so';
    const command = `test -r /opt/shoal/node_modules/@shoal/${library} && echo readable && shoal --version`;
    const { stdout } = must(
      rig.podman('run', '--rm', '--network', 'host', '--entrypoint', 'sh', 'localhost/shoal:cuda', '-c', command),
    );
    expect(stdout).toMatch(/^readable\n/);
  });
});

function rigless(program: string, path: string): [number, string] {
  try {
    return [0, execFileSync(program, [path], { cwd: ROOT, encoding: 'utf8' })];
  } catch (error) {
    const { status, stdout } = error as { readonly status: number; readonly stdout: string };
    return [status, stdout];
  }
}
