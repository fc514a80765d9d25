// A worker on a device that does not exist but has memory to run out of: `--device sim:2GB`, everything else as in
// production.

import { afterAll, beforeAll, expect, test } from 'vitest';
import { resolveSettings } from '@shoal/core';
import { RecordingLogger, deliveredVector } from '@shoal/core/testing';
import { openModel, openTokenizer } from '@shoal/models';
import { WorkerBench } from '../../testing/worker-bench.ts';
import { startWorker } from '../../claimer/worker.ts';

const MODEL = 'tiny-random';
const JOBS = 24;
const ROWS = 64;
let bench: WorkerBench;

beforeAll(async () => {
  bench = await WorkerBench.start();
});
afterAll(() => bench.stop());

const rowOf = (job: number, row: number): number[] =>
  Array.from({ length: 3 + ((job + row) % 20) }, (_, i) => 5 + ((job * 31 + row * 7 + i) % 60));
const rowsOf = (job: number): number[][] => Array.from({ length: ROWS }, (_, row) => rowOf(job, row));

test('a worker on a simulated device serves a queue of its own and gives every row the vector of its ids', async () => {
  const model = await openModel(MODEL, { cacheDir: bench.cacheDir });
  const settings = {
    ...resolveSettings({ flags: { device: 'sim:2GB', model: MODEL, cacheDir: bench.cacheDir } }),
    redisUrl: bench.url,
  };
  const worker = await startWorker({ settings, log: new RecordingLogger() });
  try {
    expect(worker.facts).toMatchObject({ device: 'sim:2GB', precision: 'fp16' });
    const queue = await bench.addJobs(
      `${MODEL}-sim`,
      (await openTokenizer(model)).hash,
      new Map(Array.from({ length: JOBS }, (_, job) => [`job-${job}`, rowsOf(job)])),
    );
    for (let job = 0; job < JOBS; job++) {
      const value = await bench.finished(queue, `job-${job}`);
      expect(value.device).toBe('sim:2GB');
      const vectors = await bench.vectorsOf(value);
      for (const [row, ids] of rowsOf(job).entries())
        expect(vectors.slice(row * model.dims, (row + 1) * model.dims)).toEqual(deliveredVector(ids, model.dims));
    }
  } finally {
    await worker.stop();
  }
});
