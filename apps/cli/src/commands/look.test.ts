// Commands that look over all queues, and what they leave in the audit; with a real server and processes of their own.

import { afterAll, beforeAll, expect, test } from 'vitest';
import type { WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { WorkerPresence, type JobAnswer, type Tenants } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { runHere } from '../testing/command-here.ts';
import { Sandbox, says } from '../testing/shoal-process.ts';

const FACTS: WorkerFacts = {
  device: 'cuda:0',
  precision: 'fp16',
  model: 'x@1',
  host: 'h',
  pid: 7,
  name: 'gpu',
  version: '0.2.0',
  standing: { state: 'ready', reason: 'it claims', sinceMs: 1 },
  lanes: ['main'],
  isDrained: false,
  claims: 0,
  poolTokens: 0,
  tokensPerJob: 640,
  rates: {},
  mix: {},
};

let server: TestServer;
let sandbox: Sandbox;
let presence: WorkerPresence;

beforeAll(async () => {
  server = await startTestServer();
  sandbox = new Sandbox();
  for (const queue of ['embed-x', 'similarity']) {
    await server.command('HSET', `{shoal}:${queue}:meta`, 'v', '1');
    await server.command('SADD', '{shoal}:queues', queue);
  }
  presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix: '{shoal}',
    queue: 'embed-x',
    workerId: 'gpu-11111111',
    facts: () => FACTS,
    log: new RecordingLogger(),
  });
  await presence.start();
  const data = JSON.stringify({ v: 1, texts: ['a', 'b'], tenant: 'loud' });
  await server.command('HSET', '{shoal}:embed-x:job-1', 'name', 'embed', 'data', data, 'timestamp', String(Date.now()));
  await server.command('RPUSH', '{shoal}:embed-x:wait', 'job-1');
});

afterAll(async () => {
  await presence.stop();
  sandbox.remove();
  await server.stop();
});

const run = (...args: string[]) => runHere(sandbox, [...args, '--redis-url', server.url]);

test('fleet status and queue counts show every queue with --all, and refuse one by name beside it', async () => {
  const { stdout } = await run('fleet', 'status', '--all');
  expect(stdout).toMatch(/^embed-x +1 +0 .* 1 ready$/m);
  expect(stdout).toMatch(/^similarity +0 .* none$/m);
  expect(stdout).toMatch(/^gpu-11111111 +ready/m);
  const counts = JSON.parse((await run('queue', 'counts', '--all', '--json')).stdout) as {
    queues: { queue: string }[];
  };
  expect(counts.queues.map(({ queue }) => queue)).toEqual(['embed-x', 'similarity']);
  expect(await run('fleet', 'status', '--all', '--queue', 'embed-x')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--all is about every queue of the prefix, --queue about one'),
  });
});

test('queue why says in a sentence why a job waits, over all queues, and fails where nobody knows it', async () => {
  const { code, stdout } = await run('queue', 'why', 'job-1');
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^job-1: it waits in embed-x for .*: it gets its place in line with the next claim, and one worker/,
  );
  expect(stdout).toContain('tenant: loud');
  const nobody = await run('queue', 'why', 'nobody', '--json');
  expect(nobody).toMatchObject({ code: 1, stderr: expect.stringContaining('looked at: embed-x, similarity') });
  expect((JSON.parse(nobody.stdout) as JobAnswer).found).toEqual([]);
});

test('queue tenants names those with most waiting rows', async () => {
  expect((await run('queue', 'tenants', '--queue', 'embed-x')).stdout).toMatch(/^loud +2 +1 +- +- +- +[\d.]+ s +-$/m);
  const { tenants } = JSON.parse((await run('queue', 'tenants', '--queue', 'embed-x', '--json')).stdout) as Tenants;
  expect(tenants).toMatchObject([{ tenant: 'loud', rows: 2, jobs: 1 }]);
});

test('a restart says whom it is about, drains, and lets a worker claim again when it is interrupted', async () => {
  const dry = await run('fleet', 'restart', '--rolling', '--dry-run', '--queue', 'embed-x');
  expect(dry).toMatchObject({ code: 0, stderr: expect.stringContaining('1 worker would be restarted, 1 at a time') });
  expect(dry.stdout).toContain('gpu-11111111  ready  0 claimed  version 0.2.0');
  const real = sandbox.start(['fleet', 'restart', '--rolling', '--queue', 'embed-x', '--redis-url', server.url]);
  await says(real, 'gpu-11111111 drains, 0 claimed jobs left');
  expect(await server.command('SMEMBERS', '{shoal}:drained:embed-x')).toEqual(['gpu-11111111']);
  real.child.kill('SIGINT');
  expect(await real.ended).toMatchObject({ code: 130 });
  expect(await server.command('SMEMBERS', '{shoal}:drained:embed-x')).toEqual([]);
  expect(await server.command('EXISTS', '{shoal}:leaving:embed-x')).toBe(0);
});

test('what was done by hand is in the audit, with who did it', async () => {
  await run('queue', 'pause', '--queue', 'embed-x');
  await run('queue', 'retry', 'job-1', '--queue', 'embed-x');
  const { stdout } = await run('audit', '--since', '1h');
  expect(stdout).toMatch(/^\S+Z {2}\S+@\S+ {2}shoal: queue pause on embed-x$/m);
  expect(stdout).toMatch(/shoal: queue retry on embed-x \[job-1\] not-failed=1$/m);
  expect(stdout).toMatch(/shoal: fleet restart on embed-x \[gpu-11111111\] atOnce=1$/m);
  const [first = ''] = (await run('audit', '--json', '--most', '1')).stdout.split('\n');
  expect(JSON.parse(first)).toMatchObject({ what: 'queue retry', program: 'shoal', details: { 'not-failed': 1 } });
});
