// A simulated device in place of a model's workers, as the command line meets it: commands go through, and nobody takes
// what comes for the model's.

import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { keySpace, mainQueue } from '@shoal/contract';
import { Fleet, closeConnection, openConnection } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, type Result, type Running } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000, hookTimeout: 120_000 }); // nine processes in all

const box = new Sandbox();
const PREFIX = '{trial}';
const QUEUE = mainQueue('tiny-random');
let server: TestServer;
let worker: Running;
let here: readonly string[];

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
  here = ['--redis-url', server.url, '--prefix', PREFIX];
  worker = box.start(['worker', '--device', 'sim:8000', '--sim-serves', 'model', ...here]);
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  await vi.waitUntil(async () => (await fleet.read()).workers.length === 1, { timeout: 110_000, interval: 100 });
  await fleet.close();
});
afterAll(async () => {
  worker.child.kill('SIGTERM');
  await worker.ended;
  await server.stop();
  box.remove();
});

test('every command says that vectors are simulated, and no collection keeps them', async () => {
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
  await expect.poll(worker.stderr).toContain('A TRIAL');
});

test('rows of a trial and rows of the model never come into one output', async () => {
  // the 64 rows of the first job are kept: what comes behind the record after it cannot be read
  const good = Array.from({ length: 65 }, (_, row) => `${JSON.stringify({ text: `text ${row}` })}\n`);
  writeFileSync(box.path('broken.jsonl'), `${good.join('')}{"text":\n`);
  const embed = (output: string, ...more: readonly string[]): Promise<Result> =>
    box.run(['embed', 'broken.jsonl', '-o', output, ...here, ...more]);
  const state = (output: string): string => box.path(`.${output}.shoal-partial.json`);
  expect((await embed('simulated.jsonl')).stderr).toMatch(/64 of .* kept in .*; the same command goes on/);

  // as if workers that compute the model had given the same rows
  copyFileSync(box.path('.simulated.jsonl.shoal-partial'), box.path('.models.jsonl.shoal-partial'));
  const { request, ...run } = JSON.parse(readFileSync(state('simulated.jsonl'), 'utf8'));
  const { trial, ...options } = request.options;
  expect(trial).toBe('yes');
  writeFileSync(state('models.jsonl'), JSON.stringify({ ...run, request: { ...request, options } }));
  const [onModels, onSimulated] = await Promise.all([
    embed('models.jsonl'),
    embed('simulated.jsonl', '--prefix', '{elsewhere}'),
  ]);
  expect(onModels).toMatchObject({ code: 2, stderr: expect.stringContaining('and there is a trial now') });
  expect(onSimulated).toMatchObject({ code: 2, stderr: expect.stringContaining('and there is no trial now') });
  for (const { stderr } of [onModels, onSimulated]) expect(stderr).toContain('--fresh removes them and begins again');
  for (const output of ['models.jsonl', 'simulated.jsonl']) expect(existsSync(state(output))).toBe(true);

  // a trial that begins later: when the command looked, the queue was the model's
  const connection = openConnection({ url: server.url, prefix: PREFIX, name: 'test' });
  await connection.hset(keySpace(PREFIX).load(), `service ${QUEUE}`, 'model');
  await closeConnection(connection);
  expect(await embed('late.jsonl')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(`a trial (simServes) has begun on ${QUEUE}`),
  });
  expect(existsSync(state('late.jsonl'))).toBe(false);
});
