// Commands that look, over two cells: real servers, one of which is killed.

import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { mainQueue } from '@shoal/contract';
import { JobProducer, closeConnection, openConnection, untilReady } from '@shoal/queue';
import { startTestServer, startTestTopology, type TestServer } from '@shoal/queue/testing';
import { runHere } from '../testing/command-here.ts';
import { Sandbox, type Result } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000 }); // a server that is away is waited for, by each command

let [a, b]: TestServer[] = [];
let box: Sandbox;
let cells: string;

beforeAll(async () => {
  [a, b] = await Promise.all([startTestServer({ topology: 'single' }), startTestServer({ topology: 'single' })]);
  box = new Sandbox();
  cells = box.path('cells.json');
  list([
    { name: 'a', address: a!.url },
    { name: 'b', address: b!.url, write: false },
  ]);
  await Promise.all([add(a!, 'one'), add(b!, 'two', 'three')]);
});

afterAll(async () => {
  await Promise.all([a!.stop(), b!.stop()]);
  box.remove();
});

function list(content: unknown): void {
  writeFileSync(cells, JSON.stringify(content));
}

async function add({ url: redisUrl }: TestServer, ...jobIds: string[]): Promise<void> {
  const producer = await JobProducer.connect({ redisUrl, queue: mainQueue('x') });
  await producer.add(jobIds.map((jobId) => ({ jobId, data: { v: 1, fingerprint: '00112233445566ff', texts: ['t'] } })));
  await producer.close();
}

function run(...args: string[]): Promise<Result> {
  return runHere(box, [...args, '--cells', cells, '--model', 'x']);
}

test('two cells that are one server by two of its names are told', async () => {
  const other = a!.url.replace('127.0.0.1', 'localhost');
  writeFileSync(
    box.path('twice.json'),
    JSON.stringify([
      { name: 'a', address: a!.url },
      { name: 'b', address: other },
    ]),
  );
  const args = ['queue', 'counts', '--cells', box.path('twice.json'), '--model', 'x'];
  const { code, stderr } = await runHere(box, args);
  expect([code, stderr]).toEqual([0, expect.stringContaining('cells: "a" and "b" are the same server')]);
});

test('counts and fleet status tell of each cell, as text and as one object', async () => {
  const { stdout, code } = await run('queue', 'counts');
  expect(code).toBe(0);
  const [inA, inB] = stdout.split(/^(?=cell b)/m);
  expect(inA).toMatch(/^cell a \(home\), redis:\/\/127.0.0.1:\d+\nqueue .*\nembed-x +1 /);
  expect(inB).toMatch(/^cell b \(takes no new work\), redis:\/\/127.0.0.1:\d+\nqueue .*\nembed-x +2 /);
  const json = JSON.parse((await run('queue', 'counts', '--json')).stdout) as unknown;
  expect(json).toMatchObject({
    cells: [
      { cell: 'a', isHome: true, write: true, report: { lanes: [{ waiting: 1 }, {}] } },
      { cell: 'b', isHome: false, write: false, report: { lanes: [{ waiting: 2 }, {}] } },
    ],
  });
  const status = await run('fleet', 'status', '--json');
  expect(JSON.parse(status.stdout)).toMatchObject({
    cells: [{ report: { workers: [] } }, { report: { workers: [] } }],
  });
  expect((await run('fleet', 'status')).stdout).toContain('no worker is alive');
});

test('cells at one server are told apart by their prefixes, and prefix and server say which is home', async () => {
  const { url: address } = a!;
  const both = JSON.stringify(['{x.0}', '{x.1}'].map((prefix, at) => ({ name: `x-${at}`, address, prefix })));
  const producer = await JobProducer.connect({ redisUrl: address, prefix: '{x.1}', queue: mainQueue('x') });
  await producer.add([{ jobId: 'own', data: { v: 1, fingerprint: '00112233445566ff', texts: ['t'] } }]);
  await producer.close();
  const counts = (...more: string[]): Promise<Result> =>
    runHere(box, ['queue', 'counts', '--cells', both, '--model', 'x', ...more]);
  const { stdout, code } = await counts('--redis-url', address, '--prefix', '{x.1}');
  expect(code).toBe(0);
  expect(stdout).toMatch(/^cell x-0, .* under \{x\.0\}\nqueue .*\nembed-x +0 /m);
  expect(stdout).toMatch(/^cell x-1 \(home\), .* under \{x\.1\}\nqueue .*\nembed-x +1 /m);
  expect(JSON.parse((await counts('--json')).stdout)).toMatchObject({
    cells: [
      { cell: 'x-0', prefix: '{x.0}', isHome: true, report: { lanes: [{ waiting: 0 }, {}] } },
      { cell: 'x-1', prefix: '{x.1}', isHome: false, report: { lanes: [{ waiting: 1 }, {}] } },
    ],
  });
  const elsewhere = await counts('--redis-url', address, '--prefix', '{x.9}');
  expect(elsewhere).toMatchObject({ code: 2, stdout: '' });
  expect(elsewhere.stderr).toContain(
    'prefix is {x.9}, which is that of none of the cells there (x-0 has {x.0}, x-1 has {x.1})',
  );
});

test('doctor says of cells of one cluster that a node without a replica would stop them all, where that is so', async () => {
  const cluster = await startTestTopology('cluster', { replicas: 0, prefix: '{shoal.0}' });
  try {
    const coverage = async (): Promise<unknown[]> => {
      const { stdout } = await runHere(box, ['doctor', '--json', '--cells', `${cluster.url}?cells=2`, '--model', 'x']);
      const { findings } = JSON.parse(stdout) as { findings: { about: string; state: string; found: string }[] };
      return findings.flatMap(({ about, state, found }) => (found.includes('full-coverage') ? [[about, state]] : []));
    };
    expect(await coverage()).toEqual([0, 1].map((at) => [`cell shoal-${at}: queue server`, 'warning']));
    for (const { url } of cluster.servers) {
      const connection = openConnection({ url, name: 'test' });
      await untilReady(connection, url);
      await connection.config('SET', 'cluster-require-full-coverage', 'no');
      await closeConnection(connection);
    }
    expect(await coverage()).toEqual([]);
  } finally {
    await cluster.stop();
  }
});

test('a list that cannot be used is refused with what is wrong', async () => {
  const twice = JSON.stringify([
    { name: 'a', address: 'redis://x' },
    { name: 'a', address: 'redis://y' },
  ]);
  const refused = await runHere(box, ['queue', 'counts', '--cells', twice]);
  expect(refused).toMatchObject({ code: 2, stdout: '' });
  expect(refused.stderr).toContain('two cells are called "a"');
  const elsewhere = await run('queue', 'counts', '--redis-url', 'redis://127.0.0.1:1');
  expect(elsewhere).toMatchObject({ code: 2, stdout: '' });
  expect(elsewhere.stderr).toContain('which is none of the cells');
});

test('doctor looks at every cell, and a cell that is away is named while the others are shown', async () => {
  await b!.kill9();
  const counts = await run('queue', 'counts');
  expect(counts.code).toBe(1);
  expect(counts.stdout).toMatch(/^embed-x +1 /m);
  expect(counts.stdout).toMatch(/^cell b .*\n! /m);
  expect(counts.stderr).toContain('1 of 2 cells could not be looked at: "b"');
  const doctor = await run('doctor', '--json');
  const { findings } = JSON.parse(doctor.stdout) as { findings: { about: string; state: string; found: string }[] };
  const of = (about: string): unknown => findings.find((finding) => finding.about === about);
  expect(of('cells')).toMatchObject({ state: 'ok', found: 'a, b; home is a; b takes no new work' });
  expect(of('cell a: queue server')).toMatchObject({ state: 'ok' });
  expect(of('cell b: queue server')).toMatchObject({ state: 'broken' });
});
