import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Finding } from '@shoal/worker';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox } from '../testing/shoal-process.ts';

const PASSWORD = 'Planted-in-Url-77';
const OTHERS = ['planted-master-key-88', 'planted-cloud-secret-99'];

let server: TestServer;
let sandbox: Sandbox;

beforeAll(async () => {
  server = await startTestServer();
  sandbox = new Sandbox();
  await server.command('CONFIG', 'SET', 'requirepass', PASSWORD);
});

afterAll(async () => {
  sandbox.remove();
  await server.stop();
});

test('doctor makes more than 25 checks of a server, and no secret is in its output, its bundle or the process list', async () => {
  const url = server.url.replace('redis://', `redis://:${PASSWORD}@`);
  const log = sandbox.path('worker.log');
  writeFileSync(log, `started with REDIS_URL=${url}\n`);
  const running = sandbox.start(
    ['doctor', '--json', '--device', 'cpu', '--bundle', sandbox.path('b.tar'), '--log', log],
    {
      environment: { REDIS_URL: url, SHOAL_HTTP_MASTER_KEY: OTHERS[0]!, AWS_SECRET_ACCESS_KEY: OTHERS[1]! },
    },
  );
  const commands = sandbox.processes().map(({ command }) => command);
  const { stdout, stderr } = await running.ended;
  const { findings } = JSON.parse(stdout) as { findings: Finding[] };
  expect(findings.length).toBeGreaterThanOrEqual(25);
  expect(findings.find(({ about }) => about === 'server round trip')).toMatchObject({
    found: expect.stringMatching(/ms$/),
  });
  expect(findings.find(({ about }) => about === 'password of REDIS_URL')?.state).toBe('warning');
  const incurable = findings.filter(({ state, cure }) => (state === 'warning' || state === 'broken') && !cure);
  expect(incurable).toEqual([]);
  execFileSync('tar', ['-xf', sandbox.path('b.tar'), '-C', sandbox.files]);
  const folder = sandbox.path('shoal-doctor');
  const texts = readdirSync(folder).map((name) => readFileSync(`${folder}/${name}`, 'utf8'));
  expect(readdirSync(folder)).toEqual(
    expect.arrayContaining(['findings.json', 'log.txt', 'queues.json', 'server-info.txt']),
  );
  const all = [stdout, stderr, ...commands, ...texts].join('\n');
  for (const secret of [PASSWORD, ...OTHERS]) expect(all).not.toContain(secret);
});

test('a server that refuses the password is told of without the password', async () => {
  const url = server.url.replace('redis://', 'redis://:Wrong-Planted-55@');
  const { stdout, stderr, code } = await sandbox.run(['doctor', '--device', 'cpu'], {
    environment: { REDIS_URL: url },
  });
  expect(code).toBe(1);
  expect(stdout).toMatch(/✗ queue server .*WRONGPASS|invalid username-password/);
  expect(stdout + stderr).not.toContain('Wrong-Planted-55');
});

test('a log without a bundle is refused', async () => {
  expect(await sandbox.run(['doctor', '--log', 'x'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--bundle FILE'),
  });
});
