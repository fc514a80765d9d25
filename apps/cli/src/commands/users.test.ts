// The users of infra/valkey on a real server, as make-secrets.sh makes them: worker, HTTP, dashboard, exporter and
// operator do their work, each with its password from a file, and the server refuses none of them anything. Who only
// looks may write nothing.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, says, type Running } from '../testing/shoal-process.ts';

const SCRIPT = new URL('../../../../infra/valkey/make-secrets.sh', import.meta.url).pathname;
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
/** By day the first two alone. */
const COMMANDS: readonly (readonly [user: string, ...args: string[]])[] = [
  ['exporter', 'queue', 'counts'],
  ['operator', 'queue', 'repair'],
  ['exporter', 'fleet', 'status'],
  ['operator', 'queue', 'pause'],
  ['operator', 'queue', 'resume'],
  ['operator', 'fleet', 'drain', 'all'],
  ['operator', 'fleet', 'resume', 'all'],
  ['operator', 'key', 'create', 'me'],
];
const secrets = mkdtempSync(join(tmpdir(), 'shoal-secrets-'));
const box = new Sandbox();
const running: Running[] = [];
let server: TestServer;

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
  makeSecrets();
  for (const line of readFileSync(join(secrets, 'users.acl'), 'utf8').trim().split('\n')) {
    const [, name, ...rules] = line.split(' ');
    if (name !== 'default') await server.command('ACL', 'SETUSER', name!, ...rules); // the test's own connection
  }
  await server.command('ACL', 'LOG', 'RESET');
});

afterAll(async () => {
  for (const { child, ended } of running) {
    child.kill('SIGTERM');
    await ended;
  }
  await server.stop();
  box.remove();
  rmSync(secrets, { recursive: true });
});

function makeSecrets(): void {
  execFileSync('sh', [SCRIPT, secrets], { stdio: ['ignore', 'ignore', 'pipe'] });
}

const password = (user: string): string => join(secrets, `${user}.password`);

/** Who logs in as this user, with the password of its file. */
function as(user: string): readonly string[] {
  return ['--redis-url', server.url.replace('redis://', `redis://${user}@`), '--redis-password-file', password(user)];
}

/** The address that a service prints when it is ready. */
async function service(user: string, ...args: readonly string[]): Promise<string> {
  const started = box.start([...args, ...as(user)]);
  running.push(started);
  const { stdout } = started.child;
  return new Promise((resolve, reject) => {
    stdout?.on('data', (text: string) => /^http\S+$/m.test(text) && resolve(/^http\S+$/m.exec(text)![0]));
    void started.ended.then(({ stderr }) => reject(new Error(stderr)));
  });
}

/** What the server refused, to whom. */
async function refused(): Promise<unknown> {
  return server.command('ACL', 'LOG');
}

test('worker, HTTP, dashboard, exporter and operator work as the users of infra/valkey, and nothing is refused', async () => {
  const worker = box.start(['worker', '--device', 'sim:8000', '--sim-serves', 'model', ...as('worker')]);
  running.push(worker);
  await says(worker, 'serves');
  const [http, dashboard, exporter] = await Promise.all([
    service('producer', 'serve', '--http-port', '0'),
    service('dashboard', 'dashboard', '--dashboard-port', '0'),
    service('exporter', 'exporter', '--port', '0'),
  ]);
  const answer = await fetch(`${http}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'tiny-random', input: ['a text', 'another'] }),
  });
  expect([answer.status, ((await answer.json()) as { readonly data: unknown[] }).data]).toEqual([
    200,
    expect.objectContaining({ length: 2 }),
  ]);
  expect((await fetch(`${http}/metrics`)).status).toBe(200);
  expect((await fetch(`${dashboard}/queues/api/queues`)).status).toBe(200);
  expect(await (await fetch(new URL('/metrics', exporter))).text()).toContain('shoal_queue_jobs{');
  const commands = isNight ? COMMANDS : COMMANDS.slice(0, 2);
  const results = await Promise.all(commands.map(([user, ...args]) => box.run([...args, ...as(user)])));
  expect(results.map(({ code, stderr }, at) => [commands[at], code, code === 0 ? '' : stderr])).toEqual(
    commands.map((command) => [command, 0, '']),
  );
  expect(await refused()).toEqual([]);
});

test('the exporter looks and may write nothing, neither by commands nor through a script', async () => {
  await server.command('ACL', 'LOG', 'RESET');
  const dry = async (user: string, ...command: readonly string[]): Promise<string> =>
    String(await server.command('ACL', 'DRYRUN', user, ...command));
  expect(await dry('exporter', 'ZCARD', '{shoal}:embed-minilm:prioritized')).toBe('OK');
  for (const [user, ...command] of [
    ['exporter', 'SET', '{shoal}:a', '1'],
    ['exporter', 'PUBLISH', '{shoal}:a', '1'],
    ['worker', 'GET', 'somebody:else'],
    ['producer', 'FLUSHALL'],
    ['operator', 'CONFIG', 'SET', 'maxmemory', '0'],
    ['operator', 'ACL', 'SETUSER', 'operator', '+@all'],
  ] as const)
    expect(await dry(user, ...command)).toMatch(/has no permissions|can't access/i);
  const { code, stderr } = await box.run(['queue', 'pause', ...as('exporter')]);
  expect([code, stderr]).toEqual([1, expect.stringMatching(/permission/i)]);
});

test('passwords stay as they were made, and their folder is for its owner alone', () => {
  const before = readFileSync(password('worker'), 'utf8');
  expect(before).toMatch(/^[0-9a-f]{64}$/);
  rmSync(password('producer'));
  const users = readFileSync(join(secrets, 'users.acl'), 'utf8');
  makeSecrets();
  expect(readFileSync(password('worker'), 'utf8')).toBe(before);
  expect(readFileSync(join(secrets, 'users.acl'), 'utf8')).not.toBe(users);
  expect(statSync(secrets).mode & 0o777).toBe(0o700);
});
