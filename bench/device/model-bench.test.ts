// The benches that run a real model, in a short form. They reckon while those of bench.test.ts, on simulated devices,
// mostly wait: the two files run side by side.

import { expect, test } from 'vitest';
import { runBench } from '../rig/run-bench.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const LINES = 20_000;
/** What is looked at in minilm's own weights takes a minute of a core: by day these are small and random. */
const MODEL = isNightly ? 'minilm' : 'tiny-random';
// They take half a minute to a minute and a half of a core.
if (!isNightly)
  console.warn(
    'peers, interactive-wait, long-file, memory-model, long-shapes, tune-grid and start-up run at night (npm run test:nightly)',
  );

test('queue-ratio: the queue gives the vectors that the bare engine gives', async () => {
  const { leastCosine, ratio } = await runBench(
    'queue/queue-ratio',
    '--model',
    MODEL,
    '--texts',
    '96',
    '--rounds',
    '1',
  );
  expect(leastCosine).toBeGreaterThanOrEqual(0.999999);
  expect(ratio).toBeGreaterThan(0);
});

test.skipIf(!isNightly)(
  'peers: without Python, ours alone: the queue gives the vectors of the bare engine, and a row is made',
  async () => {
    const { sides, rows } = await runBench('peers/peers', '--model', 'tiny-random', '--texts', '48', '--rounds', '1');
    expect(sides).toEqual([
      expect.objectContaining({ name: 'tiny-random, bare' }),
      expect.objectContaining({ name: 'tiny-random, queue' }),
    ]);
    expect(rows).toEqual([
      expect.objectContaining({ figures: expect.objectContaining({ queue_to_bare: expect.any(Number) }) }),
    ]);
  },
);

test.skipIf(!isNightly)('interactive-wait: the same engine runs on ONNX Runtime', async () => {
  const { device, interactiveJobs } = await runBench(
    'queue/interactive-wait',
    '--device',
    'tiny',
    '--batches',
    '60',
    '--report',
  );
  expect(device).toBe('cpu');
  expect(interactiveJobs).toBeGreaterThan(0);
});

test.skipIf(process.platform !== 'linux' || !isNightly)(
  '(nightly) long-file: many lines, killed half-way and resumed, are the rows of a quiet run',
  async () => {
    const { rows, resumedBehind, leastCosine } = await runBench('queue/long-file', '--rows', String(LINES));
    expect(rows).toBe(LINES);
    expect(resumedBehind).toBeGreaterThan(0);
    expect(leastCosine).toBeGreaterThanOrEqual(0.999999);
  },
);

test.skipIf(process.platform !== 'linux' || !isNightly)(
  '(nightly) long-file: of Parquet, killed half-way and resumed, has the same rows and columns',
  async () => {
    const { rows, resumedBehind, leastCosine } = await runBench(
      'queue/long-file',
      '--form',
      'parquet',
      '--rows',
      '5000',
    );
    expect(rows).toBe(5_000);
    expect(resumedBehind).toBeGreaterThan(0);
    expect(leastCosine).toBeGreaterThanOrEqual(0.999999);
  },
);

test.skipIf(!isNightly || process.platform !== 'linux')(
  'memory-model: an executor runs exactly the shape that was asked for, and what it holds is near what was said',
  async () => {
    const shapes = 2;
    const counts = ['--shapes', String(shapes), '--equal-runs', '5'];
    const { graphs } = await runBench('device/memory-model', '--graphs', 'int8', ...counts);
    expect(graphs).toMatchObject([{ graph: 'int8', total: { count: shapes } }]);
  },
);

test.skipIf(!isNightly || process.platform !== 'linux')(
  'long-shapes: jobs of mixed shapes commit, and their memory is read',
  async () => {
    const { rows, readings } = await runBench('device/long-shapes', '--minutes', '0.1', '--model', 'tiny-random');
    expect(rows).toBeGreaterThan(0);
    expect(readings).toBeGreaterThan(0);
  },
);

test.skipIf(!isNightly)('tune-grid: every cell gives the same vectors, and the pick is one of them', async () => {
  const { share } = await runBench(
    'device/tune-grid',
    '--model',
    'tiny-random',
    '--texts',
    '32',
    '--rounds',
    '1',
    '--final',
    '1',
    '--budgets',
    '512',
    '--rows',
    '64',
  );
  expect(share).toBeGreaterThan(0);
});

test.skipIf(!isNightly)(
  'start-up: a graph that was optimised before gives the same vectors, and a worker starts again',
  async () => {
    const { sessions, workers } = await runBench('queue/start-up', '--model', MODEL, '--rounds', '1');
    expect(Object.keys(sessions as object)).toEqual(['built', 'optimised', 'ort']);
    expect(workers).toEqual([
      expect.objectContaining({ device: 'cpu', firstMs: expect.any(Number), secondMs: expect.any(Number) }),
    ]);
  },
);
