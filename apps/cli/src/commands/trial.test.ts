// A simulated device in place of a model's workers, as the command line meets it: commands go through, and nobody takes
// what comes for the model's.

import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { mainQueue } from '@shoal/contract';
import { Fleet } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, type Result } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000 }); // five processes

const box = new Sandbox();
const PREFIX = '{trial}';
let server: TestServer;

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
});
afterAll(async () => {
  await server.stop();
  box.remove();
});

test('every command says that vectors are simulated, and no collection keeps them', async () => {
  const here = ['--redis-url', server.url, '--prefix', PREFIX];
  const worker = box.start(['worker', '--device', 'sim:8000', '--sim-serves', 'model', ...here]);
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix: PREFIX, queue: mainQueue('tiny-random') });
  await expect.poll(async () => (await fleet.read()).workers.length, { timeout: 60_000 }).toBe(1);
  await fleet.close();
  writeFileSync(box.path('texts.txt'), 'one text\nanother\n');
  const run = (...args: string[]): Promise<Result> => box.run([...args, ...here]);
  const [embed, build, status, doctor] = await Promise.all([
    run('embed', 'texts.txt', '-q'),
    run('index', 'build', 'docs', 'texts.txt'),
    run('fleet', 'status'),
    box.run(['doctor', '--device', 'sim:1', '--redis-url', server.url], { environment: { SHOAL_PREFIX: PREFIX } }),
  ]);
  expect(embed).toMatchObject({ code: 0, stderr: expect.stringContaining('are not those of the model') });
  expect(embed.stdout.trim().split('\n')).toHaveLength(2);
  expect(build).toMatchObject({ code: 2, stderr: expect.stringContaining('the collection "docs" is not built') });
  expect(status.stdout).toContain('! a trial: simulated is ');
  expect(doctor.stdout).toContain('is for a trial (simServes)');
  worker.child.kill('SIGTERM');
  expect((await worker.ended).stderr).toContain('A TRIAL');
});
