// `shoal up` and the services alone, as processes: everything answers, what is killed comes back, a signal leaves
// nothing.

import { createServer } from 'node:net';
import { once } from 'node:events';
import { OpenAI } from 'openai';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { parseMetrics } from '@shoal/ops/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, type Running } from '../testing/shoal-process.ts';

interface Addresses {
  readonly http: string;
  readonly dashboard: string;
  readonly redisUrl: string;
  readonly pids: Readonly<Record<'http' | 'dashboard', number>> &
    Readonly<Record<'workers' | 'similarity', readonly number[]>>;
}

let sandbox: Sandbox;
let server: TestServer;
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const running: Running[] = [];

beforeAll(async () => {
  sandbox = new Sandbox();
  sandbox.shareModels();
  server = await startTestServer();
});
afterEach(async () => {
  for (const { child } of running) child.kill('SIGKILL');
  await Promise.all(running.splice(0).map(({ ended }) => ended));
  for (const { pid } of sandbox.processes()) process.kill(pid, 'SIGKILL'); // after a test that failed
});
afterAll(async () => {
  await server.stop();
  sandbox.remove();
});

const FREE_PORTS = ['--http-port', '0', '--dashboard-port', '0'];

function start(args: readonly string[], environment: Readonly<Record<string, string>> = {}): Running {
  const one = sandbox.start(args, { environment });
  running.push(one);
  return one;
}

/** The first lines on standard output that match, or what the command said when it ended instead. */
async function firstOutput({ child, ended }: Running, matching: RegExp): Promise<string> {
  let text = '';
  const found = new Promise<string>((resolve) => {
    child.stdout?.on('data', (chunk: Buffer) => {
      text += chunk.toString();
      if (matching.test(text)) resolve(text);
    });
  });
  return Promise.race([found, ended.then(({ stderr }) => Promise.reject(new Error(`the command ended: ${stderr}`)))]);
}

async function startAll(
  environment: Readonly<Record<string, string>> = {},
  args: readonly string[] = [],
): Promise<{ readonly one: Running; readonly at: Addresses }> {
  const one = start(['up', '--json', ...FREE_PORTS, ...args], environment);
  const at: Addresses = JSON.parse(await firstOutput(one, /\n/));
  return { one, at };
}

async function dimensionsOf(url: string): Promise<number> {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 5 });
  const { data } = await client.embeddings.create({ model: 'tiny-random', input: 'hello' });
  return data[0]!.embedding.length;
}

test('up: the openai client gets a vector, the dashboard shows its job, metrics move, Ctrl-C ends all', async () => {
  const { one, at } = await startAll();
  expect(await dimensionsOf(at.http)).toBe(32);
  expect(await (await fetch(`${at.dashboard}/queues/api/queues`)).json()).toMatchObject({
    queues: expect.arrayContaining([
      expect.objectContaining({
        name: 'embed-tiny-random',
        counts: expect.objectContaining({ completed: 1 }),
        hasWorkers: true,
      }),
    ]),
  });
  const { value } = parseMetrics(await (await fetch(`${at.http}/metrics`)).text());
  expect(value('shoal_http_texts_total')).toBe(1);
  expect(at.redisUrl).toMatch(/^unix:/);
  one.child.kill('SIGINT');
  expect(await one.ended).toMatchObject({ code: 0 });
  expect(sandbox.processes()).toEqual([]);
});

test('up: whatever is killed comes back at the same address', async () => {
  const { one, at } = await startAll({ SHOAL_REDIS_URL: server.url });
  for (const pid of [at.pids.http, ...at.pids.workers, at.pids.dashboard, ...at.pids.similarity])
    process.kill(pid, 'SIGKILL');
  await expect.poll(() => one.stderr().match(/is up again/g)?.length, { timeout: 120_000 }).toBe(4);
  expect(at.redisUrl).toBe(server.url);
  expect(await dimensionsOf(at.http)).toBe(32);
  expect((await fetch(`${at.dashboard}/queues/api/queues`)).status).toBe(200);
  one.child.kill('SIGTERM');
  expect(await one.ended).toMatchObject({ code: 0 });
});

test('up: whatever lives and is silent is replaced', async ({ skip }) => {
  if (process.env['SHOAL_TEST_NIGHTLY'] === undefined)
    skip('half a minute of silence is for SHOAL_TEST_NIGHTLY=1; up-process.test.ts has a shorter one');
  const { one, at } = await startAll({ SHOAL_REDIS_URL: server.url });
  const parts = [at.pids.http, ...at.pids.workers, at.pids.dashboard, ...at.pids.similarity];
  for (const pid of parts) process.kill(pid, 'SIGSTOP');
  await expect.poll(() => one.stderr().match(/is up again/g)?.length, { timeout: 120_000 }).toBe(4);
  expect(one.stderr().match(/ended \(silent for 30 s and killed\); starting it again/g)).toHaveLength(4);
  expect(await dimensionsOf(at.http)).toBe(32);
  one.child.kill('SIGTERM');
  expect(await one.ended).toMatchObject({ code: 0 });
});

test('a port that is taken ends the command, told once, with the setting to change; nothing is left', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  const address = taken.address();
  const port = String(typeof address === 'object' && address !== null ? address.port : 0);
  const environment = { SHOAL_REDIS_URL: server.url };
  const up = await start(['up', '--http-port', port, '--dashboard-port', '0'], environment).ended;
  const exporter = await start(['exporter', '--port', port], environment).ended;
  taken.close();
  for (const [{ code, stderr }, setting] of [
    [up, 'httpPort'],
    [exporter, 'exporterPort'],
  ] as const) {
    expect([code, stderr]).toEqual([2, expect.stringMatching(/cannot listen on 127\.0\.0\.1:\d+/)]);
    expect(stderr.match(/cannot listen on/g)).toHaveLength(1);
    expect(stderr).toContain(setting);
  }
  expect(sandbox.processes()).toEqual([]);
});

test('up: a device that is refused leaves the CPU at work, and is said once', async () => {
  const { one, at } = await startAll({ SHOAL_REDIS_URL: server.url }, ['--device', 'gpu:7']);
  expect(at.pids.workers).toHaveLength(1);
  expect(await dimensionsOf(at.http)).toBe(32);
  expect(one.stderr().match(/the worker on gpu:7 ended \(device gpu:7 was asked for and cannot be used/g)).toHaveLength(
    1,
  );
  one.child.kill('SIGTERM');
  expect(await one.ended).toMatchObject({ code: 0 });
});

test('up: killed, it takes everything with it', async () => {
  const { one } = await startAll({ SHOAL_REDIS_URL: server.url });
  one.child.kill('SIGKILL');
  await one.ended;
  await expect.poll(() => sandbox.processes(), { timeout: 60_000 }).toEqual([]);
});

test('up: stopped while it starts, it leaves nothing', async () => {
  const one = start(['up', ...FREE_PORTS], { SHOAL_REDIS_URL: server.url });
  await expect.poll(() => sandbox.processes().length, { timeout: 120_000 }).toBeGreaterThan(2);
  one.child.kill('SIGINT');
  expect((await one.ended).code).not.toBe(1);
});

test('up: people get the addresses and a line to try', async () => {
  const text = await firstOutput(start(['up', ...FREE_PORTS], { SHOAL_REDIS_URL: server.url }), /Ctrl-C/);
  expect(text).toMatch(/HTTP +http:\/\/127\.0\.0\.1:\d+\/v1\/embeddings/);
  expect(text).toContain(`queue      ${server.url}   REDIS_URL of programs`);
  expect(text).toMatch(
    /curl http:\/\/127\.0\.0\.1:\d+\/v1\/embeddings -H 'content-type: .*\/json' -d '\{"model": "tiny-random", .*\}'/,
  );
});

test('serve and dashboard alone print their address and end with 0', async () => {
  for (const [args, path] of [
    [['serve', '--http-port', '0'], '/readyz'],
    [['dashboard', '--dashboard-port', '0'], '/queues/api/queues'],
  ] as const) {
    const one = start([...args], { SHOAL_REDIS_URL: server.url });
    const url = (await firstOutput(one, /\n/)).trim();
    expect((await fetch(`${url}${path}`)).status).toBe(200);
    one.child.kill('SIGTERM');
    expect(await one.ended).toMatchObject({ code: 0, stdout: `${url}\n` });
  }
});

test(
  'serve without a worker says so once and which command starts one; that command serves, and then nothing is ' +
    'said',
  async () => {
    const at = ['--redis-url', server.url, '--prefix', '{no worker yet}'];
    const alone = start(['serve', '--http-port', '0', '--log-level', 'warn', ...at]);
    const url = (await firstOutput(alone, /\n/)).trim();
    expect(alone.stderr()).toBe(
      'shoal: no worker serves the model tiny-random yet, and requests wait for one; start one with: shoal ' +
        `worker --model tiny-random --redis-url ${server.url} --prefix '{no worker yet}'\n`,
    );
    const ready = await fetch(`${url}/readyz`);
    expect([ready.status, await ready.json()]).toMatchObject([200, { status: 'ready', workers: 0, waiting: 0 }]);
    start(['worker', '--model', 'tiny-random', ...at], { SHOAL_DEVICE: 'cpu' });
    expect(await dimensionsOf(url)).toBe(32);
    const served = start(['serve', '--http-port', '0', '--log-level', 'warn', ...at]);
    await firstOutput(served, /\n/);
    expect(served.stderr()).toBe('');
  },
);

test('a password of the queue server is not in the command that starts a worker', async () => {
  await server.command('ACL', 'SETUSER', 'reader', 'on', '>secret', '~*', '&*', '+@all');
  const one = start([
    'serve',
    '--http-port',
    '0',
    '--redis-url',
    server.url.replace('redis://', 'redis://reader:secret@'),
  ]);
  await firstOutput(one, /\n/);
  expect(one.stderr()).toMatch(
    /start one with: shoal worker --model tiny-random --redis-url '?redis:\/\/[^ ]*\*\*\*@127/,
  );
  expect(one.stderr()).not.toContain('secret');
});

const ALONE = [
  ['worker', '--kind', 'similarity'],
  ['serve', '--http-port', '0'],
  ['dashboard', '--dashboard-port', '0'],
];
if (!isNight) console.warn('without a queue server, up and worker are tried by day, the others at night');
test.each([['worker', '--device', 'cpu'], ['up', ...FREE_PORTS], ...(isNight ? ALONE : [])])(
  '%s %s: a queue server that cannot be reached is told once, with what to do',
  async (...args) => {
    expect(await start([...args, '--redis-url', 'redis://127.0.0.1:1']).ended).toMatchObject({
      code: 1,
      stdout: '',
      stderr:
        'shoal: the queue server at redis://127.0.0.1:1 does not answer: connect ECONNREFUSED 127.0.0.1:1. Start ' +
        'it, or set redisUrl (REDIS_URL) to one that runs; unset, Shoal starts its own\n',
    });
    expect(sandbox.processes()).toEqual([]);
  },
);
