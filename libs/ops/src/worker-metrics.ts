// What a worker tells of itself: core's Metrics, written into the catalogue, and at each scrape the memory of its
// processes and, where nvidia-smi answers, of its devices. Decides nothing.

import { readFile } from 'node:fs/promises';
import { invariant, isShoalError } from '@shoal/contract';
import { LANE_REASONS, LENGTH_CLASSES, type Logger, type Metrics } from '@shoal/core';
import { SIDES, type LedgerFacts, type SimilarityFacts } from '@shoal/core/similarity';
import { SIMILARITY_METRICS, WORKER_METRICS } from './catalogue/metric-catalogue.ts';
import { BusyLanes } from './busy-lanes.ts';
import { createMetrics, type MetricRegistry } from './metrics.ts';
import { startMetricsServer, type Probe } from './metrics-server.ts';
import { readDetails } from './nvidia-details.ts';
import { cardReader, keptFor, type DeviceReading, type DevicesRead } from './nvidia-smi.ts';
import { tellProcess, type ServerSeen } from './process-metrics.ts';

/** What a worker is, once its executor has said so. */
export interface WorkerIdentity {
  readonly worker: string;
  readonly queue: string;
  readonly model: string;
  readonly revision: string;
  readonly device: string;
  readonly precision?: string | undefined;
  /** What runs the model: native, onnx, sim. */
  readonly encoder?: string | undefined;
  /** Its card as nvidia-smi knows it: an index, a UUID or a MIG id. Undefined: it runs on none of NVIDIA's. */
  readonly card?: string | undefined;
}

/** Whether it works: WorkerStatus of libs/worker. */
export interface StatusSeen {
  readonly isExecutorUp: boolean;
  live(): Probe;
  ready(): Probe;
}

export interface WorkerMetrics {
  /** For the Pipeline. */
  readonly recorder: Metrics;
  /** For the metrics server. */
  readonly registry: Pick<Registry, 'contentType' | 'text'>;
  /** Tells who it is, and from then on of its own card. */
  introduce(identity: WorkerIdentity): void;
  /** A round trip to the queue server took so long. */
  roundTrip(ms: number): void;
}

export interface WorkerMetricsOptions {
  readonly server: ServerSeen;
  readonly status: Pick<StatusSeen, 'isExecutorUp' | 'ready'>;
  /** Of Shoal. */
  readonly version: string;
  /** Default: nvidia-smi, by the reader that the whole process shares. */
  readonly readDevices?: (card: string) => () => Promise<DevicesRead>;
  /** Uncorrected errors of a card by its index; undefined where they are not told. Default: nvidia-smi, once a minute. */
  readonly readErrors?: (index: number) => Promise<number | undefined>;
  /** Default: the clock of this process. */
  readonly nowMs?: () => number;
}

/** Errors of memory come once in months. */
const DETAILS_MAX_AGE_MS = 60_000;

export function createWorkerMetrics({
  server,
  status,
  version,
  readDevices = cardReader,
  readErrors = cachedErrors(),
  nowMs = () => performance.now(),
}: WorkerMetricsOptions): WorkerMetrics {
  const registry = createMetrics(WORKER_METRICS);
  const similarity = createMetrics(SIMILARITY_METRICS);
  const executor: ExecutorSeen = { pid: undefined, compares: false };
  const { roundTrip } = tellProcess(registry, { process: 'claimer', server, version });
  registry.onScrape(() => collectExecutor(registry, executor.pid));
  registry.onScrape(() => {
    registry.set('shoal_ready', {}, status.ready().reasons.length === 0 ? 1 : 0);
    registry.set('shoal_executor_up', {}, status.isExecutorUp ? 1 : 0);
  });
  return {
    registry: {
      contentType: registry.contentType,
      text: async () => `${await registry.text()}${executor.compares ? await similarity.text() : ''}`,
    },
    recorder: recorderOf({ registry, similarity }, executor, nowMs),
    roundTrip,
    introduce: ({ card, ...identity }) => {
      registry.set('shoal_worker_info', labelsOf(identity), 1);
      if (card !== undefined)
        registry.onScrape(collectDevice(registry, labelsOf(identity), readDevices(card), readErrors));
    },
  };
}

export interface ServedMetrics extends Pick<WorkerMetrics, 'recorder' | 'introduce' | 'roundTrip'> {
  /** http://127.0.0.1:9464, or undefined where every port is taken. */
  readonly url: string | undefined;
  stop(): Promise<void>;
}

export interface ServeWorkerMetricsOptions extends WorkerMetricsOptions {
  readonly host: string;
  readonly hosts?: string | undefined;
  /** The first that is tried. */
  readonly port: number;
  readonly status: StatusSeen;
  readonly log: Logger;
}

/** Workers of one machine find theirs side by side. */
const PORTS = 100;

/**
 * What a worker counts, and where it is served: at the first free port. Nothing but a host that this machine has not is
 * a reason not to start: CONFIG_INVALID.
 */
export async function serveWorkerMetrics(options: ServeWorkerMetricsOptions): Promise<ServedMetrics> {
  const { host, hosts, port, status, log } = options;
  const { registry, ...metrics } = createWorkerMetrics(options);
  try {
    const { url, stop } = await startMetricsServer({
      host,
      hosts,
      port,
      ports: PORTS,
      metrics: registry,
      live: () => status.live(),
      ready: () => status.ready(),
    });
    log.info({ url: `${url}/metrics` }, 'metrics are served');
    return { ...metrics, url, stop };
  } catch (error) {
    if (!isTaken(error)) throw error;
    log.warn(
      { host, port, ports: PORTS },
      'no port is free for metrics and probes, so none are served; set metricsPort to where some are, or to 0',
    );
    return { ...metrics, url: undefined, stop: async () => undefined };
  }
}

function isTaken(error: unknown): boolean {
  if (!isShoalError(error, 'CONFIG_INVALID') || !(error.cause instanceof Error)) return false;
  const code: unknown = Reflect.get(error.cause, 'code');
  return code === 'EADDRINUSE' || code === 'EACCES';
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

function recorderOf(registries: Registries, executor: ExecutorSeen, nowMs: () => number): Metrics {
  const { registry } = registries;
  return {
    ...recordsOfJobs(registry),
    ...recordsOfRuns(registry),
    ...recordsOfPool(registry, nowMs),
    ...recordsOfBusy(registry, nowMs),
    ...recordsOfQueue(registry),
    ...recordsOfExecutors(registries, executor),
  };
}

type JobRecords = Pick<Metrics, 'jobClaimed' | 'jobSettled' | 'jobStalled' | 'leaseLost' | 'stageTook'>;

function recordsOfJobs(registry: Registry): JobRecords {
  return {
    jobClaimed(queuedMs, kind) {
      registry.count('shoal_claims_total', {});
      registry.observe('shoal_claim_wait_seconds', { class: kind }, queuedMs / 1_000);
    },
    jobSettled({ outcome, code, rows }) {
      registry.count('shoal_jobs_settled_total', code === undefined ? { outcome } : { outcome, code });
      if (outcome === 'complete') registry.count('shoal_texts_total', {}, rows);
    },
    jobStalled: () => registry.count('shoal_jobs_stalled_total', {}),
    leaseLost: () => registry.count('shoal_leases_lost_total', {}),
    stageTook: (stage, ms) => registry.observe('shoal_stage_duration_seconds', { stage }, ms / 1_000),
  };
}

/**
 * The executor tells how old the oldest row is after each run. Since then it has grown older by the time that passed,
 * for as long as anything is in flight: of a device that hangs nothing is told.
 */
function recordsOfPool(registry: Registry, nowMs: () => number): Pick<Metrics, 'inFlight' | 'microBatchRan'> {
  const { microBatchRan } = recordsOfRuns(registry);
  let [claims, toldMs, ageMs] = [0, nowMs(), 0];
  registry.onScrape(() =>
    registry.set('shoal_pool_age_seconds', {}, claims === 0 ? 0 : (ageMs + nowMs() - toldMs) / 1_000),
  );
  return {
    inFlight(open, tokens) {
      if (claims === 0) [toldMs, ageMs] = [nowMs(), 0];
      claims = open;
      registry.set('shoal_claims_in_flight', {}, open);
      registry.set('shoal_pool_tokens', {}, tokens);
    },
    microBatchRan(run) {
      [toldMs, ageMs] = [nowMs(), run.poolAgeMs];
      microBatchRan(run);
    },
  };
}

const LANES = WORKER_METRICS.shoal_device_busy_seconds_total.labels.lane;

function recordsOfBusy(registry: Registry, nowMs: () => number): Pick<Metrics, 'atDevice'> {
  const busy = new BusyLanes(LANES.length, nowMs);
  registry.onScrape(() => {
    for (const [at, ms] of busy.sums().entries())
      registry.countTo('shoal_device_busy_seconds_total', { lane: LANES[at]! }, ms / 1_000);
  });
  return { atDevice: (runs) => busy.are(runs) };
}

type RunRecords = Pick<
  Metrics,
  | 'microBatchRan'
  | 'microBatchSplit'
  | 'rowsRerun'
  | 'partsOpen'
  | 'partRows'
  | 'bodiesBeside'
  | 'budgetChanged'
  | 'memoryMeasured'
>;

function recordsOfRuns(registry: Registry): RunRecords {
  return {
    microBatchRan({ rows, width, tokens, runMs, duplicates }) {
      const padded = rows * width;
      invariant(tokens <= padded, 'a micro-batch has no more real tokens than padded ones');
      registry.count('shoal_tokens_total', { kind: 'real' }, tokens);
      registry.count('shoal_tokens_total', { kind: 'padded' }, padded);
      registry.observe('shoal_run_duration_seconds', {}, runMs / 1_000);
      registry.observe('shoal_stage_duration_seconds', { stage: 'run' }, runMs / 1_000);
      registry.observe('shoal_micro_batch_rows', {}, rows);
      registry.observe('shoal_micro_batch_tokens', {}, padded);
      registry.observe('shoal_padding_efficiency_ratio', {}, tokens / padded);
      registry.count('shoal_duplicate_rows_total', {}, duplicates);
    },
    microBatchSplit: (code) => registry.count('shoal_splits_total', { code }),
    rowsRerun: (rows) => registry.count('shoal_rerun_rows_total', {}, rows),
    partsOpen: (parts) => registry.set('shoal_parts_running', {}, parts),
    partRows: (rows) => registry.count('shoal_part_rows_total', {}, rows),
    bodiesBeside({ put, byQueueServer }) {
      registry.count('shoal_result_payloads_total', { outcome: 'put' }, put);
      registry.count('shoal_result_payloads_total', { outcome: 'by_queue_server' }, byQueueServer);
    },
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

type QueueRecords = Pick<Metrics, 'claimingBraked' | 'janitorSwept' | 'laneChosen' | 'cellHelped'>;

function recordsOfQueue(registry: Registry): QueueRecords {
  return {
    claimingBraked(reason) {
      for (const known of ['memory', 'unread'] as const)
        registry.set('shoal_claiming_braked', { reason: known }, reason === known ? 1 : 0);
    },
    janitorSwept({ durationMs, inputBytes, resultsExpired, ...findings }) {
      for (const finding of WORKER_METRICS.shoal_janitor_findings_total.labels.finding)
        registry.count('shoal_janitor_findings_total', { finding }, findings[finding]);
      registry.count('shoal_janitor_input_bytes_total', {}, inputBytes);
      registry.count('shoal_results_expired_unread_total', {}, resultsExpired);
      registry.count('shoal_janitor_sweeps_total', {});
      registry.set('shoal_janitor_last_sweep_duration_seconds', {}, durationMs / 1_000);
      registry.set('shoal_janitor_last_sweep_timestamp_seconds', {}, Date.now() / 1_000);
    },
    cellHelped: (cell, jobs) => registry.count('shoal_helped_jobs_total', { cell }, jobs),
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

/** After `tellProcess`, which tells of this process. */
async function collectExecutor(registry: Registry, pid: number | undefined): Promise<void> {
  registry.forget('shoal_process_resident_bytes');
  registry.set('shoal_process_resident_bytes', { process: 'claimer' }, process.memoryUsage.rss());
  const bytes = pid === undefined ? undefined : await residentBytes(pid);
  if (bytes !== undefined) registry.set('shoal_process_resident_bytes', { process: 'executor' }, bytes);
}

/** Of another process, on Linux; elsewhere, and when it is gone, undefined. */
async function residentBytes(pid: number): Promise<number | undefined> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const kibibytes = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1];
  return kibibytes === undefined ? undefined : Number(kibibytes) * 1024;
}

const DEVICE_METRICS = [
  'shoal_device_memory_bytes',
  'shoal_device_utilization_ratio',
  'shoal_device_power_watts',
  'shoal_device_temperature_celsius',
  'shoal_device_uncorrected_errors',
] as const;

/**
 * Of the worker's own card alone. A machine without the tool is asked once: drivers do not appear under a running worker.
 * Its UUID joins the worker's facts once it is known.
 */
function collectDevice(
  registry: Registry,
  identity: LabelsOfInfo,
  readDevice: () => Promise<DevicesRead>,
  readErrors: (index: number) => Promise<number | undefined>,
): () => Promise<void> {
  let hasTool = true;
  let knownUuid: string | undefined;
  return async () => {
    if (!hasTool) return;
    const read = await readDevice();
    hasTool = read.ok || read.reason !== 'no-tool';
    for (const name of DEVICE_METRICS) registry.forget(name);
    const [device] = read.ok ? read.devices : [];
    if (device === undefined) return;
    setDevice(registry, device, await readErrors(device.index).catch(() => undefined));
    if (device.uuid === undefined || device.uuid === knownUuid) return;
    knownUuid = device.uuid;
    registry.forget('shoal_worker_info');
    registry.set('shoal_worker_info', { ...identity, gpu_uuid: device.uuid }, 1);
  };
}

type LabelsOfInfo = ReturnType<typeof labelsOf>;

function labelsOf({ precision, encoder, worker, queue, model, revision, device }: Omit<WorkerIdentity, 'card'>) {
  return {
    worker,
    queue,
    model,
    revision,
    device,
    ...(precision === undefined ? {} : { precision }),
    ...(encoder === undefined ? {} : { encoder }),
  };
}

function setDevice(
  registry: Registry,
  { index, uuid, totalBytes, usedBytes, freeBytes, utilization, powerWatts, temperatureCelsius }: DeviceReading,
  uncorrectedErrors: number | undefined,
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
  if (uncorrectedErrors !== undefined) registry.set('shoal_device_uncorrected_errors', card, uncorrectedErrors);
}

/** Of all cards of the machine, since the tool takes as long for one. */
function cachedErrors(): (index: number) => Promise<number | undefined> {
  const read = keptFor(DETAILS_MAX_AGE_MS, () => readDetails());
  return async (index) => (await read()).find((device) => device.index === index)?.uncorrectedErrors;
}
