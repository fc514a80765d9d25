// Every bench still runs and still checks its answers: a short form of each. No figure is judged here; figures are rows in
// bench/results, made on a quiet machine.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { nativeProblem } from '@shoal/similarity';
import { expect, test } from 'vitest';

async function bench(name: string, ...args: string[]): Promise<Record<string, unknown>> {
  const path = fileURLToPath(new URL(`./${name}.ts`, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, ['--conditions=@shoal/source', path, ...args], { timeout: 170_000 });
  return JSON.parse(stdout) as Record<string, unknown>;
}

test('queue-ratio: the queue gives the vectors that the bare engine gives', async () => {
  const { leastCosine, ratio } = await bench('queue-ratio', '--texts', '96', '--rounds', '1');
  expect(leastCosine).toBeGreaterThanOrEqual(0.999999);
  expect(ratio).toBeGreaterThan(0);
});

test('similarity-queue: the queue gives the rankings that the kernels give', async () => {
  const { ratio } = await bench('similarity-queue', '--jobs', '16', '--rounds', '1', '--rows', '2000', '--dims', '32');
  expect(ratio).toBeGreaterThan(0);
});

if (nativeProblem() !== undefined) console.warn(`similarity is not run: ${nativeProblem()}`);
test.skipIf(nativeProblem() !== undefined)('similarity: every instruction set and every peer gives the rows of fp64', async () => {
  const { single } = await bench('similarity', '--rows', '3000', '--queries', '50', '--dims', '64', '--rounds', '1');
  expect(single).toHaveLength(4);
});

test('sim-device: every row comes back through the whole path as the simulated device made it', async () => {
  const { textsPerSecond } = await bench('sim-device', '--seconds', '1', '--warm', '2', '--job-texts', '64');
  expect(textsPerSecond).toBeGreaterThan(0);
});

test('interactive-wait: in simulated time an interactive text waits 1.5 batch times at most, and bulk work keeps 0.9', async () => {
  expect(await bench('interactive-wait', '--batches', '300')).toMatchObject({ device: 'fake', isKept: true });
});

test('interactive-wait: the same engine runs on ONNX Runtime', async () => {
  const { device, interactiveJobs } = await bench('interactive-wait', '--device', 'tiny', '--batches', '60', '--report');
  expect(device).toBe('cpu');
  expect(interactiveJobs).toBeGreaterThan(0);
});

test.skipIf(process.platform !== 'linux')('long-file: 20,000 lines, killed half-way and resumed, are the rows of a quiet run', async () => {
  const { rows, resumedBehind, leastCosine } = await bench('long-file', '--rows', '20000');
  expect(rows).toBe(20_000);
  expect(resumedBehind).toBeGreaterThan(0);
  expect(leastCosine).toBeGreaterThanOrEqual(0.999999);
});

test.skipIf(process.platform !== 'linux')('memory-model: an executor runs exactly the shape that was asked for, and what it holds is near what was said', async () => {
  const { graphs } = await bench('memory-model', '--graphs', 'int8', '--shapes', '2');
  expect(graphs).toMatchObject([{ graph: 'int8', total: { count: 2 } }]);
});

test.skipIf(process.platform !== 'linux')('long-shapes: jobs of mixed shapes commit, and their memory is read', async () => {
  const { rows, readings } = await bench('long-shapes', '--minutes', '0.1', '--model', 'tiny-random');
  expect(rows).toBeGreaterThan(0);
  expect(readings).toBeGreaterThan(0);
});

test('batch-budget: every length mix and every co-tenant has a row', async () => {
  const { cases } = await bench('batch-budget', '--batches', '400', '--oracle-batches', '60', '--devices', '8');
  expect(cases).toHaveLength(12);
});

test('tenant-wait: in simulated time a tenant with little takes less than twice as long beside one with much', async () => {
  expect(await bench('tenant-wait', '--looks', '12')).toMatchObject({ rateOfA: { rowsPerRun: expect.any(Number) as number } });
});

test('tune-grid: every cell gives the same vectors, and the pick is one of them', async () => {
  const { share } = await bench('tune-grid', '--model', 'tiny-random', '--texts', '32', '--rounds', '1', '--final', '1', '--budgets', '512', '--rows', '64');
  expect(share).toBeGreaterThan(0);
});

test('queue-rates: every job of a short run comes back right, near and far from the server', async () => {
  for (const distance of ['0', '2.4']) {
    const { rows } = await bench('queue-rates', '--rates', '40x64', '--seconds', '1', '--rtt', distance, '--report');
    expect(rows).toEqual([expect.objectContaining({ rate: '40x64', textsPerSecond: expect.any(Number) })]);
  }
}, 250_000);

test('bare-bullmq: what BullMQ alone carries can be measured', async () => {
  const { rows } = await bench('bare-bullmq', '--rates', '40x64', '--seconds', '1', '--warm', '0');
  expect(rows).toEqual([expect.objectContaining({ rate: '40x64', textsPerSecond: expect.any(Number) })]);
});

test('fairness: a newcomer is not kept behind a backlog, and every situation can be measured', async () => {
  const { tenants, plain, classes, poison } = await bench('fairness', '--backlog', '400', '--plain', '200', '--seconds', '1', '--rounds', '1', '--report');
  expect(tenants).toMatchObject({ ratio: expect.any(Number) });
  expect(plain).toMatchObject({ plainJobsLeftThen: [expect.any(Number)] });
  expect(classes).toMatchObject({ p99: [expect.any(Number)], medianP99: expect.any(Number) });
  expect(poison).toMatchObject({ nan: { failed: expect.any(Number) } });
});

test('fairness in a soak: the queue is never empty, and the newcomer gets its turns', async () => {
  const { soak } = await bench('fairness', '--soak', '--jobs', '6000', '--report');
  expect(soak).toMatchObject({ rebased: 0, ratio: expect.any(Number) });
});

test('admission: at an overload everything accepted is delivered and no write is refused, though nobody reads for a while', async () => {
  const report = await bench('admission', '--seconds', '3', '--maxmemory', '48', '--clients', '2', '--report');
  expect(report).toMatchObject({ refusedWrites: 0, failed: 0, delivered: report['accepted'] });
});

test('order-cost: what the steps cost the server can be told apart', async () => {
  const { microsPerJob } = await bench('order-cost', '--jobs', '500', '--rounds', '1');
  expect(microsPerJob).toMatchObject({ order: expect.any(Number), reserve: expect.any(Number) });
});

test('start-up: a graph that the runtime optimised before gives the same vectors, and a worker starts a second time', async () => {
  const { sessions, workers } = await bench('start-up', '--rounds', '1');
  expect(Object.keys(sessions as object)).toEqual(['built', 'optimised', 'ort']);
  expect(workers).toEqual([expect.objectContaining({ device: 'cpu', firstMs: expect.any(Number), secondMs: expect.any(Number) })]);
});

test.skipIf(process.platform !== 'linux')('gpu/up: the walk without a GPU serves over HTTP and queue, gets its killed worker back, and leaves nothing', async () => {
  expect(await bench('gpu/up', '--device', 'cpu', '--small')).toMatchObject({ what: 'up', devices: ['cpu'], rows: 400, exitCode: 0, isHeld: true });
});
