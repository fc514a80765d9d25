// What a worker tells of itself: core's Metrics, written into the catalogue, and at each scrape the memory of its
// processes and, where nvidia-smi answers, of its devices. Decides nothing.

import { readFile } from 'node:fs/promises';
import { invariant } from '@shoal/contract';
import { LANE_REASONS, LENGTH_CLASSES, noMetrics, type Metrics } from '@shoal/core';
import { SIDES, type LedgerFacts, type SimilarityFacts } from '@shoal/core/similarity';
import { SIMILARITY_METRICS, WORKER_METRICS } from './catalogue/metric-catalogue.ts';
import { createMetrics, type MetricRegistry } from './metrics.ts';
import { startMetricsServer } from './metrics-server.ts';
import { cachedReader, type DeviceReading, type DevicesRead } from './nvidia-smi.ts';

export interface WorkerMetrics {
  /** For the Pipeline. */
  readonly recorder: Metrics;
  /** For the metrics server. */
  readonly registry: Pick<Registry, 'contentType' | 'text'>;
}

export interface WorkerMetricsOptions {
  /** Default: nvidia-smi, at most every 5 s. */
  readonly readDevices?: () => Promise<DevicesRead>;
}

const DEVICES_MAX_AGE_MS = 5_000;

export function createWorkerMetrics({
  readDevices = cachedReader({}, DEVICES_MAX_AGE_MS),
}: WorkerMetricsOptions = {}): WorkerMetrics {
  const registry = createMetrics(WORKER_METRICS);
  const similarity = createMetrics(SIMILARITY_METRICS);
  const executor: ExecutorSeen = { pid: undefined, compares: false };
  registry.onScrape(() => collectProcesses(registry, executor.pid));
  registry.onScrape(collectDevices(registry, readDevices));
  return {
    registry: {
      contentType: registry.contentType,
      text: async () => `${await registry.text()}${executor.compares ? await similarity.text() : ''}`,
    },
    recorder: recorderOf({ registry, similarity }, executor),
  };
}

export interface ServedMetrics {
  /** For the Pipeline. */
  readonly recorder: Metrics;
  /** http://127.0.0.1:9100, or undefined when nothing is served. */
  readonly url: string | undefined;
  stop(): Promise<void>;
}

/**
 * What a worker counts, and where it is served; with port 0 neither. Throws CONFIG_INVALID when it cannot listen there.
 */
export async function serveWorkerMetrics({
  host,
  hosts,
  port,
}: {
  readonly host: string;
  readonly hosts?: string | undefined;
  readonly port: number;
}): Promise<ServedMetrics> {
  if (port === 0) return { recorder: noMetrics, url: undefined, stop: async () => undefined };
  const { recorder, registry } = createWorkerMetrics();
  const { url, stop } = await startMetricsServer({ host, hosts, port, metrics: registry });
  return { recorder, url, stop };
}

type Registry = MetricRegistry<typeof WORKER_METRICS>;
type SimilarityRegistry = MetricRegistry<typeof SIMILARITY_METRICS>;

interface Registries {
  readonly registry: Registry;
  readonly similarity: SimilarityRegistry;
}

interface ExecutorSeen {
  pid: number | undefined;
  /** It has told what only those tell that compare. */
  compares: boolean;
}

function recorderOf(registries: Registries, executor: ExecutorSeen): Metrics {
  const { registry } = registries;
  return {
    ...recordsOfJobs(registry),
    ...recordsOfRuns(registry),
    ...recordsOfQueue(registry),
    ...recordsOfExecutors(registries, executor),
  };
}

type JobRecords = Pick<Metrics, 'jobClaimed' | 'inFlight' | 'jobSettled' | 'leaseLost'>;

function recordsOfJobs(registry: Registry): JobRecords {
  return {
    jobClaimed(queuedMs, kind) {
      registry.count('shoal_claims_total', {});
      registry.observe('shoal_claim_wait_seconds', { class: kind }, queuedMs / 1_000);
    },
    inFlight(claims, tokens) {
      registry.set('shoal_claims_in_flight', {}, claims);
      registry.set('shoal_pool_tokens', {}, tokens);
    },
    jobSettled({ outcome, code, rows }) {
      registry.count('shoal_jobs_settled_total', code === undefined ? { outcome } : { outcome, code });
      if (outcome === 'complete') registry.count('shoal_texts_total', {}, rows);
    },
    leaseLost: () => registry.count('shoal_leases_lost_total', {}),
  };
}

type RunRecords = Pick<Metrics, 'microBatchRan' | 'microBatchSplit' | 'rowsRerun' | 'budgetChanged' | 'memoryMeasured'>;

function recordsOfRuns(registry: Registry): RunRecords {
  return {
    microBatchRan({ rows, width, tokens, runMs, duplicates, poolAgeMs }) {
      const padded = rows * width;
      invariant(tokens <= padded, 'a micro-batch has no more real tokens than padded ones');
      registry.count('shoal_tokens_total', { kind: 'real' }, tokens);
      registry.count('shoal_tokens_total', { kind: 'padded' }, padded);
      registry.observe('shoal_run_duration_seconds', {}, runMs / 1_000);
      registry.observe('shoal_micro_batch_rows', {}, rows);
      registry.observe('shoal_micro_batch_tokens', {}, padded);
      registry.observe('shoal_padding_efficiency_ratio', {}, tokens / padded);
      registry.count('shoal_duplicate_rows_total', {}, duplicates);
      registry.set('shoal_pool_age_seconds', {}, poolAgeMs / 1_000);
    },
    microBatchSplit: (code) => registry.count('shoal_splits_total', { code }),
    rowsRerun: (rows) => registry.count('shoal_rerun_rows_total', {}, rows),
    budgetChanged({ maxPaddedTokens, limitedBy }) {
      registry.forget('shoal_budget_tokens');
      registry.set('shoal_budget_tokens', { limited_by: limitedBy }, maxPaddedTokens);
    },
    memoryMeasured({ predictedBytes, measuredBytes, source }) {
      registry.forget('shoal_run_memory_bytes');
      if (predictedBytes !== undefined) registry.set('shoal_run_memory_bytes', { kind: 'predicted' }, predictedBytes);
      registry.set('shoal_run_memory_bytes', { kind: 'measured' }, measuredBytes);
      if (predictedBytes !== undefined && measuredBytes > 0)
        registry.observe('shoal_run_memory_prediction_ratio', {}, predictedBytes / measuredBytes);
      registry.forget('shoal_run_memory_source');
      registry.set('shoal_run_memory_source', { source }, 1);
    },
  };
}

type QueueRecords = Pick<Metrics, 'claimingBraked' | 'janitorSwept' | 'laneChosen'>;

function recordsOfQueue(registry: Registry): QueueRecords {
  return {
    claimingBraked(reason) {
      for (const known of ['memory', 'unread'] as const)
        registry.set('shoal_claiming_braked', { reason: known }, reason === known ? 1 : 0);
    },
    janitorSwept({ durationMs, inputBytes, ...findings }) {
      for (const finding of WORKER_METRICS.shoal_janitor_findings_total.labels.finding)
        registry.count('shoal_janitor_findings_total', { finding }, findings[finding]);
      registry.count('shoal_janitor_input_bytes_total', {}, inputBytes);
      registry.count('shoal_janitor_sweeps_total', {});
      registry.set('shoal_janitor_last_sweep_duration_seconds', {}, durationMs / 1_000);
      registry.set('shoal_janitor_last_sweep_timestamp_seconds', {}, Date.now() / 1_000);
    },
    laneChosen({ reason, breakEven }) {
      for (const known of LANE_REASONS)
        registry.set('shoal_main_lane_choice', { reason: known }, reason === known ? 1 : 0);
      registry.forget('shoal_break_even_tokens');
      for (const length of LENGTH_CLASSES)
        if (breakEven[length] !== undefined) registry.set('shoal_break_even_tokens', { length }, breakEven[length]);
    },
  };
}

type ExecutorRecords = Pick<Metrics, 'similarityTold' | 'executorRecycled' | 'executorReady' | 'executorLost'>;

function recordsOfExecutors({ registry, similarity }: Registries, executor: ExecutorSeen): ExecutorRecords {
  let told: SimilarityFacts | undefined;
  return {
    similarityTold(facts) {
      executor.compares = true;
      recordSimilarity(similarity, facts, told);
      told = facts;
    },
    executorRecycled: () => registry.count('shoal_executor_recycles_total', {}),
    executorReady(pid) {
      executor.pid = pid;
    },
    executorLost(reason) {
      executor.pid = undefined;
      told = undefined; // the next one counts from nothing, and may tell before it is known to be ready
      registry.count('shoal_executor_losses_total', { reason });
    },
  };
}

/** What an executor has counted since it last told. */
function recordSimilarity(
  registry: SimilarityRegistry,
  facts: SimilarityFacts,
  before: SimilarityFacts | undefined,
): void {
  const { host, gpu, calls, fallbacks, isGpuLost, breakEvens = [] } = facts;
  recordLedger(registry, 'host', host, before?.host);
  if (gpu === undefined) return;
  recordLedger(registry, 'gpu', gpu, before?.gpu);
  for (const side of SIDES)
    registry.count('shoal_similarity_calls_total', { side }, calls[side] - (before?.calls[side] ?? 0));
  registry.count('shoal_similarity_fallbacks_total', {}, fallbacks - (before?.fallbacks ?? 0));
  registry.set('shoal_similarity_gpu_lost', {}, isGpuLost ? 1 : 0);
  registry.forget('shoal_similarity_break_even_values');
  for (const { kind, queries, work } of breakEvens)
    if (work !== undefined)
      registry.set('shoal_similarity_break_even_values', { kind, queries: String(queries) }, work);
}

function recordLedger(
  registry: SimilarityRegistry,
  memory: 'host' | 'gpu',
  { residents, bytes, budgetBytes, evictions }: LedgerFacts,
  before: LedgerFacts | undefined,
): void {
  registry.set('shoal_similarity_residents', { memory }, residents);
  registry.set('shoal_similarity_resident_bytes', { memory }, bytes);
  registry.set('shoal_similarity_budget_bytes', { memory }, budgetBytes);
  registry.count('shoal_similarity_evictions_total', { memory }, evictions - (before?.evictions ?? 0));
}

async function collectProcesses(registry: Registry, executorPid: number | undefined): Promise<void> {
  const executorBytes = executorPid === undefined ? undefined : await residentBytes(executorPid);
  registry.forget('shoal_process_resident_bytes');
  registry.set('shoal_process_resident_bytes', { process: 'claimer' }, process.memoryUsage.rss());
  if (executorBytes !== undefined) registry.set('shoal_process_resident_bytes', { process: 'executor' }, executorBytes);
}

/** Of another process, on Linux; elsewhere, and when it is gone, undefined. */
async function residentBytes(pid: number): Promise<number | undefined> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const kibibytes = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1];
  return kibibytes === undefined ? undefined : Number(kibibytes) * 1024;
}

/** A machine without the tool is asked once: drivers do not appear under a running worker. */
function collectDevices(registry: Registry, readDevices: () => Promise<DevicesRead>): () => Promise<void> {
  let hasTool = true;
  return async () => {
    if (!hasTool) return;
    const read = await readDevices();
    hasTool = read.ok || read.reason !== 'no-tool';
    for (const name of [
      'shoal_device_memory_bytes',
      'shoal_device_utilization_ratio',
      'shoal_device_power_watts',
      'shoal_device_temperature_celsius',
    ] as const)
      registry.forget(name);
    if (read.ok) for (const device of read.devices) setDevice(registry, device);
  };
}

function setDevice(
  registry: Registry,
  { index, uuid, totalBytes, usedBytes, freeBytes, utilization, powerWatts, temperatureCelsius }: DeviceReading,
): void {
  const card = { device: String(index), ...(uuid === undefined ? {} : { gpu_uuid: uuid }) };
  for (const [state, bytes] of [
    ['total', totalBytes],
    ['used', usedBytes],
    ['free', freeBytes],
  ] as const) {
    if (bytes !== undefined) registry.set('shoal_device_memory_bytes', { ...card, state }, bytes);
  }
  if (utilization !== undefined) registry.set('shoal_device_utilization_ratio', card, utilization);
  if (powerWatts !== undefined) registry.set('shoal_device_power_watts', card, powerWatts);
  if (temperatureCelsius !== undefined) registry.set('shoal_device_temperature_celsius', card, temperatureCelsius);
}
