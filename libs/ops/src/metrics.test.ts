// Metrics as a scraper sees them: the text parses, every name is in the catalogue with its unit, and a source that
// fails or hangs costs its own metrics only.

import { afterEach, expect, test, vi } from 'vitest';
import { PRODUCER_METRICS } from './catalogue/metric-catalogue.ts';
import { createMetrics } from './metrics.ts';
import type { DevicesRead } from './nvidia-smi.ts';
import { parseMetrics } from './testing/parse-metrics.ts';
import { createWorkerMetrics } from './worker-metrics.ts';

afterEach(() => void vi.useRealTimers());

const noDevices = async (): Promise<DevicesRead> => ({ ok: false, reason: 'no-tool', message: '' });

test('what can be the first event of its kind is there at zero, so that it can be seen as a rise', async () => {
  const { registry } = createWorkerMetrics({ readDevices: noDevices });
  const { value, samples } = parseMetrics(await registry.text());
  expect(value('shoal_tokens_total', { kind: 'real' })).toBe(0);
  expect(value('shoal_claims_total')).toBe(0);
  expect(value('shoal_jobs_settled_total', { outcome: 'quarantine', code: 'QUARANTINED' })).toBe(0);
  expect(value('shoal_jobs_settled_total', { outcome: 'fail', code: 'INPUT_LOST' })).toBe(0);
  expect(value('shoal_claiming_braked', { reason: 'unread' })).toBe(0);
  expect(samples.filter(({ name }) => name === 'shoal_splits_total').map(({ labels }) => labels['code'])).toEqual([
    'OUT_OF_VRAM',
    'INFERENCE_FAILED',
  ]);
});

test('what a worker does is counted once, in the unit that the name says', async () => {
  const { registry, recorder } = createWorkerMetrics({ readDevices: noDevices });
  recorder.jobClaimed(1_500, 'interactive');
  recorder.inFlight(3, 700);
  recorder.microBatchRan({ rows: 8, width: 64, tokens: 400, runMs: 25, duplicates: 2, poolAgeMs: 500 });
  recorder.rowsRerun(3);
  recorder.executorRecycled();
  recorder.microBatchSplit('OUT_OF_VRAM');
  recorder.jobSettled({ outcome: 'complete', code: undefined, rows: 64 });
  recorder.jobSettled({ outcome: 'fail', code: 'INPUT_TOO_LONG', rows: 0 });
  recorder.leaseLost();
  recorder.executorLost('silence');
  const { value } = parseMetrics(await registry.text());
  expect(value('shoal_claim_wait_seconds_sum', { class: 'interactive' })).toBe(1.5);
  expect([value('shoal_claims_in_flight'), value('shoal_pool_tokens')]).toEqual([3, 700]);
  expect([value('shoal_tokens_total', { kind: 'real' }), value('shoal_tokens_total', { kind: 'padded' })]).toEqual([
    400, 512,
  ]);
  expect([
    value('shoal_run_duration_seconds_sum'),
    value('shoal_run_duration_seconds_bucket', { le: '0.02' }),
    value('shoal_run_duration_seconds_bucket', { le: '0.05' }),
  ]).toEqual([0.025, 0, 1]);
  expect(value('shoal_padding_efficiency_ratio_sum')).toBeCloseTo(400 / 512);
  expect(value('shoal_micro_batch_rows_sum')).toBe(8);
  expect([
    value('shoal_duplicate_rows_total'),
    value('shoal_pool_age_seconds'),
    value('shoal_rerun_rows_total'),
    value('shoal_executor_recycles_total'),
  ]).toEqual([2, 0.5, 3, 1]);
  expect(value('shoal_texts_total')).toBe(64);
  expect(value('shoal_jobs_settled_total', { outcome: 'complete' })).toBe(1);
  expect(value('shoal_jobs_settled_total', { outcome: 'fail', code: 'INPUT_TOO_LONG' })).toBe(1);
  expect([
    value('shoal_splits_total', { code: 'OUT_OF_VRAM' }),
    value('shoal_leases_lost_total'),
    value('shoal_executor_losses_total', { reason: 'silence' }),
  ]).toEqual([1, 1, 1]);
});

test('a similarity worker counts on from executor to executor, and has lines of a GPU only with one', async () => {
  const { registry, recorder } = createWorkerMetrics({ readDevices: noDevices });
  const ledger = { residents: 2, bytes: 300, budgetBytes: 1_000, evictions: 5 };
  const facts = {
    host: ledger,
    gpu: { ...ledger, evictions: 1 },
    calls: { cpu: 3, gpu: 7 },
    fallbacks: 1,
    isGpuLost: true,
    breakEvens: [
      { kind: 'topk/f32', queries: 8, work: 40_000 },
      { kind: 'spread', queries: 1, work: undefined },
    ],
  };
  recorder.similarityTold({ host: ledger, calls: { cpu: 0, gpu: 0 }, fallbacks: 0, isGpuLost: false });
  expect(parseMetrics(await registry.text()).value('shoal_similarity_residents', { memory: 'gpu' })).toBeUndefined();
  recorder.executorReady(1);
  recorder.similarityTold({
    host: { ...ledger, evictions: 9 },
    calls: { cpu: 0, gpu: 0 },
    fallbacks: 0,
    isGpuLost: false,
  });
  recorder.executorLost('signal');
  recorder.similarityTold(facts); // read together with `ready`, which is told a microtask later
  recorder.executorReady(2);
  recorder.similarityTold({ ...facts, calls: { cpu: 3, gpu: 9 } });
  const { value } = parseMetrics(await registry.text());
  expect([
    value('shoal_similarity_evictions_total', { memory: 'host' }),
    value('shoal_similarity_evictions_total', { memory: 'gpu' }),
  ]).toEqual([14, 1]);
  expect([
    value('shoal_similarity_calls_total', { side: 'cpu' }),
    value('shoal_similarity_calls_total', { side: 'gpu' }),
    value('shoal_similarity_fallbacks_total'),
  ]).toEqual([3, 9, 1]);
  expect([
    value('shoal_similarity_resident_bytes', { memory: 'gpu' }),
    value('shoal_similarity_budget_bytes', { memory: 'gpu' }),
    value('shoal_similarity_gpu_lost'),
  ]).toEqual([300, 1_000, 1]);
  expect([
    value('shoal_similarity_break_even_values', { kind: 'topk/f32', queries: '8' }),
    value('shoal_similarity_break_even_values', { kind: 'spread', queries: '1' }),
  ]).toEqual([40_000, undefined]);
});

test('the budget stands under what limits it now, and without a prediction a run has no predicted memory', async () => {
  const { registry, recorder } = createWorkerMetrics({ readDevices: noDevices });
  recorder.budgetChanged({ maxPaddedTokens: 65_536, limitedBy: 'knee', source: 'fitted' });
  recorder.budgetChanged({ maxPaddedTokens: 49_152, limitedBy: 'memory', source: 'corrected' });
  recorder.memoryMeasured({ predictedBytes: 1_000, measuredBytes: 1_100, source: 'process' });
  const first = parseMetrics(await registry.text());
  expect([
    first.value('shoal_budget_tokens', { limited_by: 'memory' }),
    first.value('shoal_budget_tokens', { limited_by: 'knee' }),
  ]).toEqual([49_152, undefined]);
  expect([
    first.value('shoal_run_memory_bytes', { kind: 'predicted' }),
    first.value('shoal_run_memory_bytes', { kind: 'measured' }),
  ]).toEqual([1_000, 1_100]);
  recorder.memoryMeasured({ predictedBytes: undefined, measuredBytes: 1_200, source: 'arena' });
  const second = parseMetrics(await registry.text());
  expect([
    second.value('shoal_run_memory_bytes', { kind: 'predicted' }),
    second.value('shoal_run_memory_bytes', { kind: 'measured' }),
  ]).toEqual([undefined, 1_200]);
  expect([
    second.value('shoal_run_memory_source', { source: 'process' }),
    second.value('shoal_run_memory_source', { source: 'arena' }),
  ]).toEqual([undefined, 1]);
});

test('memory of both processes is read at the scrape, of an executor that is gone no more', async () => {
  const { registry, recorder } = createWorkerMetrics({ readDevices: noDevices });
  recorder.executorReady(process.pid); // stands in for an executor
  const executor = { process: 'executor' };
  const first = parseMetrics(await registry.text());
  expect(first.value('shoal_process_resident_bytes', { process: 'claimer' })).toBeGreaterThan(10_000_000);
  expect((first.value('shoal_process_resident_bytes', executor) ?? Infinity) > 10_000_000).toBe(true);
  recorder.executorLost('signal');
  expect(parseMetrics(await registry.text()).value('shoal_process_resident_bytes', executor)).toBeUndefined();
});

test('devices show what their driver tells, and nothing when it stops telling', async () => {
  const device = {
    index: 1,
    uuid: undefined,
    name: undefined,
    driverVersion: undefined,
    computeCapability: undefined,
    migMode: undefined,
    temperatureCelsius: undefined,
  };
  const answers: DevicesRead[] = [
    {
      ok: true,
      devices: [
        { ...device, totalBytes: 100, usedBytes: undefined, freeBytes: 60, utilization: 0.5, powerWatts: undefined },
      ],
    },
    { ok: false, reason: 'no-answer', message: 'hangs' },
  ];
  const { registry } = createWorkerMetrics({ readDevices: async () => answers.shift()! });
  const { value, samples } = parseMetrics(await registry.text());
  expect(value('shoal_device_memory_bytes', { device: '1', state: 'free' })).toBe(60);
  expect(value('shoal_device_utilization_ratio', { device: '1' })).toBe(0.5);
  expect(samples.filter(({ name }) => /device_(?!busy)/.test(name))).toHaveLength(3);
  expect(parseMetrics(await registry.text()).samples.filter(({ name }) => /device_(?!busy)/.test(name))).toHaveLength(
    0,
  );
});

test('a machine without nvidia-smi is asked once', async () => {
  const readDevices = vi.fn<typeof noDevices>(noDevices);
  const { registry } = createWorkerMetrics({ readDevices });
  await registry.text();
  await registry.text();
  expect(readDevices).toHaveBeenCalledTimes(1);
});

test('a source that fails or never answers does not keep the others from being read', async () => {
  vi.useFakeTimers();
  const metrics = createMetrics(PRODUCER_METRICS);
  metrics.onScrape(() => Promise.reject(new Error('queue server lost')));
  metrics.onScrape(() => {
    throw new Error('at once');
  });
  metrics.onScrape(() => new Promise(() => undefined));
  metrics.onScrape(() => metrics.set('shoal_queue_workers', { queue: 'embed-"minilm"\\', state: 'ready' }, 2));
  const text = metrics.text();
  await vi.advanceTimersByTimeAsync(3_000);
  expect(parseMetrics(await text).value('shoal_queue_workers', { queue: 'embed-"minilm"\\', state: 'ready' })).toBe(2);
});

test('what a CPU worker takes from the main lane, and from which backlog on', async () => {
  const { registry, recorder } = createWorkerMetrics({ readDevices: noDevices });
  recorder.laneChosen({ jobs: 8, reason: 'shortens', breakEven: { short: 125_000 } });
  recorder.laneChosen({ jobs: 0, reason: 'gpu-is-sooner', breakEven: { long: 250_000 } });
  const { value, has } = parsed(await registry.text());
  expect([
    value('shoal_main_lane_choice', { reason: 'shortens' }),
    value('shoal_main_lane_choice', { reason: 'gpu-is-sooner' }),
  ]).toEqual([0, 1]);
  expect([value('shoal_break_even_tokens', { length: 'long' }), has('short')]).toEqual([250_000, false]);
});

function parsed(text: string) {
  return {
    value: parseMetrics(text).value,
    has: (length: string) => text.includes(`shoal_break_even_tokens{length="${length}"}`),
  };
}
