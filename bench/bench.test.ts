// Every bench still runs and still checks its answers: a short form of each; those that run a real model are in
// model-bench.test.ts. No figure is judged here; figures are rows in bench/results, made on a quiet machine.

import { nativeProblem } from '@shoal/similarity';
import { expect, test } from 'vitest';
import { runBench } from './rig/run-bench.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
// They start many processes, or last long: together they took a twelfth of what all tests take.
if (!isNightly)
  console.warn(
    'http, rolling, cells, cells-helping, parts, batch-parts, span-cost, trace-cost, queue-rates, bare-bullmq, batch-budget, tenant-wait, fairness, admission and gpu/up run at night (npm run test:nightly)',
  );

test('similarity-queue: the queue gives the rankings that the kernels give', async () => {
  const { ratio } = await runBench(
    'similarity/similarity-queue',
    '--jobs',
    '16',
    '--rounds',
    '1',
    '--rows',
    '2000',
    '--dims',
    '32',
  );
  expect(ratio).toBeGreaterThan(0);
});

if (nativeProblem() !== undefined) console.warn(`similarity is not run: ${nativeProblem()}`);
test.skipIf(nativeProblem() !== undefined)(
  'similarity: every instruction set and every peer gives the rows of fp64',
  async () => {
    const { single } = await runBench(
      'similarity/similarity',
      '--rows',
      '3000',
      '--queries',
      '50',
      '--dims',
      '64',
      '--rounds',
      '1',
    );
    expect(single).toHaveLength(4);
  },
);

test('sim-device: every row comes back through the whole path as the simulated device made it', async () => {
  const { textsPerSecond } = await runBench('device/sim-device', '--seconds', '1', '--warm', '2', '--job-texts', '64');
  expect(textsPerSecond).toBeGreaterThan(0);
});

test.skipIf(!isNightly)('cells: every row is the one that a single cell gives, also while one is away', async () => {
  const turns = ['--rounds', '1', '--seconds', '2', '--warm', '1', '--away', '3'];
  const { away } = await runBench('queue/cells', '--cells', '2', ...turns);
  expect(away).toMatchObject({ rows: expect.any(Number) });
});

test.skipIf(!isNightly)('cells-helping: rows that a worker of another cell ran are those of their own', async () => {
  const turns = ['--rounds', '1', '--seconds', '2', '--tokens-per-ms', '20'];
  expect((await runBench('queue/cells-helping', ...turns))['ratio']).toBeGreaterThan(0);
});

test.skipIf(!isNightly)(
  'span-cost: a job that is followed costs CPU, and the collector gets what is kept',
  async () => {
    const { all_us_per_job } = await runBench('queue/span-cost', '--jobs', '2000');
    expect(all_us_per_job).toBeGreaterThan(0);
  },
);

test.skipIf(!isNightly)('trace-cost: every way answers, and a collector hears of what is followed alone', async () => {
  const { ratioAll } = await runBench('queue/trace-cost', '--rounds', '1', '--seconds', '1', '--warm', '2');
  expect(ratioAll).toBeGreaterThan(0);
});

test.skipIf(!isNightly)(
  'http: every request is answered with as many vectors as texts, and every call of the official client',
  async () => {
    const report = await runBench('queue/http', '--report', '--seconds', '5', '--overload-seconds', '20');
    expect(report).toMatchObject({ single: { p99_ms: expect.any(Number) }, crowd: { failed: 0 } });
  },
);

test('interactive-wait: in simulated time an interactive text waits 1.5 batch times, bulk work keeps 0.9', async () => {
  expect(await runBench('queue/interactive-wait', '--batches', '300')).toMatchObject({ device: 'fake', isKept: true });
});

test.skipIf(!isNightly)('batch-budget: every length mix and every co-tenant has a row', async () => {
  const { cases } = await runBench(
    'device/batch-budget',
    '--batches',
    '400',
    '--oracle-batches',
    '60',
    '--devices',
    '8',
  );
  expect(cases).toHaveLength(12);
});

test.skipIf(!isNightly)(
  'tenant-wait: in simulated time a small tenant takes less than twice as long beside a large one',
  async () => {
    expect(await runBench('queue/tenant-wait', '--looks', '12')).toMatchObject({
      rateOfA: { rowsPerRun: expect.any(Number) as number },
    });
  },
);

test.skipIf(!isNightly).each([[[]], [['--s3', 'moto']]])(
  'parts %j: workers are killed, and each row is there once with the vector that jobs give',
  async (place) => {
    const sizes = ['--rows', '60000', '--part-rows', '8192', '--tokens-per-ms', '40', '--kill-every', '12'];
    expect(await runBench('queue/parts', ...sizes, ...place)).toMatchObject({
      rows_missing: 0,
      rows_twice: 0,
      objects_left: 0,
      objects_same: 1,
      vectors_as_by_jobs: 1,
    });
  },
);

test.skipIf(!isNightly)('batch-parts: a batch has the same output by parts as by the queue', async () => {
  const sizes = ['--lines', '6000', '--part-lines', '2000', '--report'];
  expect(await runBench('queue/batch-parts', ...sizes)).toMatchObject({ outputs_same: 1 });
});

test.skipIf(!isNightly)('rolling: four workers are replaced under load and no job fails', async () => {
  const load = ['--texts', '200', '--interactive', '20', '--seconds', '1', '--rounds', '1'];
  const report = await runBench('queue/rolling', '--workers', '4', ...load, '--report');
  expect(report).toMatchObject({ failed: 0, restarted: 4 });
});

test.skipIf(!isNightly)(
  'queue-rates: every job of a short run comes back right, far from the server and near it',
  async () => {
    for (const distance of ['0', '2.4']) {
      const { rows } = await runBench(
        'queue/queue-rates',
        '--rates',
        '40x64',
        '--seconds',
        '1',
        '--rtt',
        distance,
        '--report',
      );
      expect(rows).toEqual([expect.objectContaining({ rate: '40x64', textsPerSecond: expect.any(Number) })]);
    }
  },
  250_000,
);

test.skipIf(!isNightly)('bare-bullmq: what BullMQ alone carries can be measured', async () => {
  const { rows } = await runBench('queue/bare-bullmq', '--rates', '40x64', '--seconds', '1', '--warm', '0');
  expect(rows).toEqual([expect.objectContaining({ rate: '40x64', textsPerSecond: expect.any(Number) })]);
});

test.skipIf(!isNightly)(
  'fairness: a newcomer is not kept behind a backlog, and every situation can be measured',
  async () => {
    const { tenants, plain, classes, poison } = await runBench(
      'queue/fairness',
      '--backlog',
      '400',
      '--plain',
      '200',
      '--seconds',
      '1',
      '--rounds',
      '1',
      '--report',
    );
    expect(tenants).toMatchObject({ ratio: expect.any(Number) });
    expect(plain).toMatchObject({ plainJobsLeftThen: [expect.any(Number)] });
    expect(classes).toMatchObject({ p99: [expect.any(Number)], medianP99: expect.any(Number) });
    expect(poison).toMatchObject({ nan: { failed: expect.any(Number) } });
  },
);

test.skipIf(!isNightly)('fairness in a soak: the queue is never empty, and the newcomer gets its turns', async () => {
  const { soak } = await runBench('queue/fairness', '--soak', '--jobs', '6000', '--report');
  expect(soak).toMatchObject({ rebased: 0, ratio: expect.any(Number) });
});

test.skipIf(!isNightly)(
  'admission: at an overload everything accepted is delivered and no write is refused, though nobody reads for a ' +
    'while',
  async () => {
    const report = await runBench(
      'queue/admission',
      '--seconds',
      '3',
      '--maxmemory',
      '48',
      '--clients',
      '2',
      '--report',
    );
    expect(report).toMatchObject({ refusedWrites: 0, failed: 0, delivered: report['accepted'] });
  },
);

test('order-cost: what the steps cost the server can be told apart', async () => {
  const { microsPerJob } = await runBench('queue/order-cost', '--jobs', '500', '--rounds', '1');
  expect(microsPerJob).toMatchObject({ order: expect.any(Number), reserve: expect.any(Number) });
});

test.skipIf(!isNightly || process.platform !== 'linux')(
  'gpu/up: the walk without a GPU serves over HTTP and queue, gets its killed worker back, and leaves nothing',
  async () => {
    expect(await runBench('gpu/up', '--device', 'cpu', '--small')).toMatchObject({
      what: 'up',
      devices: ['cpu'],
      rows: 400,
      exitCode: 0,
      isHeld: true,
    });
  },
);
