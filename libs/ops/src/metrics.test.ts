// Metrics as a scraper sees them: the text parses, every name is in the catalogue with its unit, and a source that
// fails or hangs costs its own metrics only.

import { afterEach, expect, test, vi } from 'vitest';
import { PRODUCER_METRICS } from './catalogue/metric-catalogue.ts';
import { createMetrics } from './metrics.ts';
import type { DevicesRead } from './nvidia-smi.ts';
import { parseMetrics } from './testing/parse-metrics.ts';
import { createWorkerMetrics, type WorkerMetrics, type WorkerMetricsOptions } from './worker-metrics.ts';

afterEach(() => void vi.useRealTimers());

const CARD = { worker: 'w', queue: 'q', model: 'm', revision: '1', device: 'cuda:0', card: '1' };

function worker(more: Partial<WorkerMetricsOptions> = {}): WorkerMetrics {
  return createWorkerMetrics({
    server: { isUp: true, memory: { usedBytes: 5, maxBytes: 0 }, reconnects: 2 },
    status: { isExecutorUp: true, ready: () => ({ reasons: ['drained'] }) },
    version: '1.2.3',
    ...more,
  });
}

const noDevices = async (): Promise<DevicesRead> => ({ ok: false, reason: 'no-tool', message: '' });

test('what can be the first event of its kind is there at zero, so that it can be seen as a rise', async () => {
  const { registry } = worker();
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
  const { registry, recorder } = worker();
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
    value('shoal_rerun_rows_total'),
    value('shoal_executor_recycles_total'),
  ]).toEqual([2, 3, 1]);
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
  const { registry, recorder } = worker();
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
  const { registry, recorder } = worker();
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
  const { registry, recorder } = worker();
  recorder.executorReady(process.pid); // stands in for an executor
  const executor = { process: 'executor' };
  const first = parseMetrics(await registry.text());
  expect(first.value('shoal_process_resident_bytes', { process: 'claimer' })).toBeGreaterThan(10_000_000);
  expect((first.value('shoal_process_resident_bytes', executor) ?? Infinity) > 10_000_000).toBe(true);
  recorder.executorLost('signal');
  expect(parseMetrics(await registry.text()).value('shoal_process_resident_bytes', executor)).toBeUndefined();
});

test('of cards its own alone is told of, with its UUID, and nothing when the driver stops telling', async () => {
  const device = {
    index: 1,
    uuid: 'GPU-1',
    name: undefined,
    driverVersion: undefined,
    computeCapability: undefined,
    migMode: undefined,
    temperatureCelsius: 61,
  };
  const sizes = { totalBytes: 100, usedBytes: undefined, freeBytes: 60, utilization: 0.5, powerWatts: undefined };
  const answers: DevicesRead[] = [
    { ok: true, devices: [{ ...device, ...sizes }] },
    { ok: false, reason: 'no-answer', message: 'hangs' },
  ];
  const asked: string[] = [];
  const { registry, introduce } = worker({
    readDevices: (card) => {
      asked.push(card);
      return async () => answers.shift()!;
    },
    readErrors: async (index) => 2 * index,
  });
  introduce(CARD);
  const { value, samples } = parseMetrics(await registry.text());
  const card = { device: '1', gpu_uuid: 'GPU-1' };
  expect(value('shoal_device_memory_bytes', { ...card, state: 'free' })).toBe(60);
  expect(value('shoal_device_utilization_ratio', card)).toBe(0.5);
  expect(value('shoal_device_temperature_celsius', card)).toBe(61);
  expect(value('shoal_device_uncorrected_errors', card)).toBe(2);
  const who = { worker: 'w', queue: 'q', model: 'm', revision: '1', device: 'cuda:0' };
  expect(value('shoal_worker_info', { ...who, gpu_uuid: 'GPU-1' })).toBe(1);
  expect(samples.filter(({ name }) => /device_(?!busy)/.test(name))).toHaveLength(5);
  const { samples: later } = parseMetrics(await registry.text());
  expect(later.filter(({ name }) => /device_(?!busy)/.test(name))).toHaveLength(0);
  expect(asked).toEqual(['1']);
});

test('a machine without nvidia-smi is asked once, and a worker on no card never', async () => {
  const readDevices = vi.fn<typeof noDevices>(noDevices);
  const { registry, introduce } = worker({ readDevices: () => readDevices });
  introduce({ ...CARD, card: undefined });
  await registry.text();
  expect(readDevices).toHaveBeenCalledTimes(0);
  introduce(CARD);
  await registry.text();
  await registry.text();
  expect(readDevices).toHaveBeenCalledTimes(1);
});

test('the pool grows older while a device hangs, and is empty when nothing is in flight', async () => {
  let nowMs = 0;
  const { registry, recorder } = worker({ nowMs: () => nowMs });
  const age = async (): Promise<number | undefined> =>
    parseMetrics(await registry.text()).value('shoal_pool_age_seconds');
  recorder.inFlight(2, 100);
  nowMs = 1_000;
  recorder.microBatchRan({ rows: 8, width: 64, tokens: 400, runMs: 25, duplicates: 0, poolAgeMs: 500 });
  nowMs = 31_000;
  expect(await age()).toBe(30.5);
  recorder.inFlight(0, 0);
  expect(await age()).toBe(0);
});

test('time at the device is counted by how many run side by side', async () => {
  let nowMs = 0;
  const { registry, recorder } = worker({ nowMs: () => nowMs });
  for (const [atMs, runs] of [
    [1_000, 1],
    [2_000, 2],
    [5_000, 1],
    [6_000, 0],
  ] as const) {
    nowMs = atMs;
    recorder.atDevice(runs);
  }
  nowMs = 9_000;
  const { value } = parseMetrics(await registry.text());
  const busy = ['1', '2', '3'].map((lane) => value('shoal_device_busy_seconds_total', { lane }));
  expect(busy).toEqual([5, 3, 0]);
});

test('a process tells which version it is, and how it gets on with the queue server', async () => {
  const { registry, roundTrip } = worker();
  roundTrip(3);
  const { value, samples } = parseMetrics(await registry.text());
  const build = samples.find(({ name }) => name === 'shoal_build_info');
  expect([build?.labels['version'], build?.value]).toEqual(['1.2.3', 1]);
  expect([value('shoal_queue_server_up'), value('shoal_queue_server_reconnects_total')]).toEqual([1, 2]);
  expect(value('shoal_queue_server_memory_bytes', { kind: 'used' })).toBe(5);
  expect(value('shoal_queue_server_memory_bytes', { kind: 'max' })).toBeUndefined();
  expect(value('shoal_queue_server_round_trip_seconds_count')).toBe(1);
  expect([value('shoal_ready'), value('shoal_executor_up')]).toEqual([0, 1]);
  expect(value('process_start_time_seconds')).toBeGreaterThan(1_000_000_000);
});

test('a source that fails or never answers does not keep the others from being read', async () => {
  vi.useFakeTimers();
  const metrics = createMetrics(PRODUCER_METRICS);
  metrics.onScrape(() => Promise.reject(new Error('queue server lost')));
  metrics.onScrape(() => {
    throw new Error('at once');
  });
  metrics.onScrape(() => new Promise(() => undefined));
  metrics.onScrape(() => metrics.count('shoal_http_requests_total', { route: '/"a"\\', status: '200' }, 2));
  const text = metrics.text();
  await vi.advanceTimersByTimeAsync(3_000);
  expect(parseMetrics(await text).value('shoal_http_requests_total', { route: '/"a"\\', status: '200' })).toBe(2);
});

test('what a CPU worker takes from the main lane, and from which backlog on', async () => {
  const { registry, recorder } = worker();
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
