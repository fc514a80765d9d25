// What a worker did is counted in steps of bounded size.

import { expect, test } from 'vitest';
import { noMetrics } from '../ports/metrics.ts';
import { HistoryMeter } from './worker-history.ts';

const RUN = { rows: 8, width: 32, tokens: 200, runMs: 12.345, duplicates: 0, poolAgeMs: 0 };

test('counts what passes it, tells it once, and begins anew', () => {
  let nowMs = 1_000;
  const meter = new HistoryMeter(() => nowMs);
  const metrics = meter.tap(noMetrics);
  metrics.microBatchRan({ ...RUN, jobIds: new Set(['a', 'b']) });
  metrics.microBatchRan({ ...RUN, rows: 4, runMs: 40, jobIds: new Set(['c', 'd', 'e', 'f']) });
  metrics.jobSettled({ outcome: 'complete', code: undefined, rows: 8 });
  metrics.jobSettled({ outcome: 'fail', code: 'INPUT_TOO_LONG', rows: 0 });
  metrics.jobSettled({ outcome: 'hand-over', code: 'OUT_OF_VRAM', rows: 0 });
  metrics.microBatchSplit('OUT_OF_VRAM');
  metrics.executorRecycled('the device ran out of memory below the arena');
  metrics.executorLost('signal', 'killed by SIGKILL');
  nowMs += 10_000;
  expect(meter.take()).toEqual({
    v: 1,
    ms: 10_000,
    jobs: 1,
    texts: 12,
    tokens: 400,
    padded: 384,
    runs: 2,
    busyMs: 52,
    batches: [
      [8, 32, 200, 12.3],
      [4, 32, 200, 40],
    ],
    slowest: { batch: [4, 32, 200, 40], jobs: 4, jobIds: ['c', 'd', 'e'] },
    events: {
      'failed INPUT_TOO_LONG': 1,
      'handed-over OUT_OF_VRAM': 1,
      'split OUT_OF_VRAM': 1,
      'recycled the device ran out of memory below the arena': 1,
      'lost killed by SIGKILL': 1,
    },
  });
  nowMs += 5_000;
  expect(meter.take()).toMatchObject({ ms: 5_000, runs: 0, batches: [], events: {} });
});

test('a step stays small, whatever happens in it', () => {
  const meter = new HistoryMeter(() => 0);
  const metrics = meter.tap(noMetrics);
  for (let i = 0; i < 1_000; i++) {
    metrics.microBatchRan({ ...RUN, jobIds: new Set([`job-${i}`]) });
    metrics.executorLost('signal', `reason ${i} ${'and so on '.repeat(100)}`);
  }
  const step = meter.take();
  expect(step.runs).toBe(1_000);
  expect(step.events['lost for other reasons']).toBe(984);
  expect(JSON.stringify(step).length).toBeLessThan(3_000);
});
