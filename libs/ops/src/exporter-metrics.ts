// What the fleet exporter tells: a survey of every queue, written into the catalogue at each scrape. Whoever scrapes while
// a survey is under way gets that one; while the server is away, or a survey fails, there are no series of queues, so that
// nobody takes old figures for new ones.

import { EXPORTER_METRICS } from './catalogue/metric-catalogue.ts';
import { createMetrics, type MetricRegistry } from './metrics.ts';
import { tellProcess, type ServerSeen } from './process-metrics.ts';

type ByClass = Readonly<Record<'interactive' | 'bulk', number>>;

/** One queue: SurveyedQueue of libs/queue. */
export interface QueueTold {
  readonly queue: string;
  readonly waiting: ByClass;
  readonly jobs: Readonly<Record<'active' | 'delayed' | 'handed-over' | 'completed' | 'failed' | 'cancelled', number>>;
  readonly oldestWaitingMs: ByClass;
  readonly reservedRows: number;
  readonly leftRows: number;
  readonly backlog: {
    readonly tokens: number | undefined;
    readonly tokensPerSecond: number | undefined;
    readonly seconds: number | undefined;
  };
  readonly workers: Readonly<Record<(typeof EXPORTER_METRICS.shoal_queue_workers.labels.state)[number], number>>;
  readonly isPaused: boolean;
  readonly quarantined: number;
  /** By version. */
  readonly parked: Readonly<Record<string, number>>;
  /** Undefined: no worker has payload servers. */
  readonly payloadSets?: number | undefined;
}

/** A payload server as workers see it: libs/queue's PayloadServerSeen. */
export interface PayloadServerTold {
  readonly name: string;
  readonly workers: readonly string[];
  readonly failing: readonly unknown[];
  readonly memory?: { readonly usedBytes: number; readonly maxBytes: number } | undefined;
}

export interface FleetTold {
  readonly queues: readonly QueueTold[];
  readonly payloadServers?: readonly PayloadServerTold[];
  readonly reservedBytes: number;
  readonly unreadBytes: number;
}

export interface ExporterMetricsOptions {
  readonly process: 'exporter' | 'dashboard';
  readonly server: ServerSeen;
  /** Of Shoal. */
  readonly version: string;
  /** Rejects while the server is away. */
  readonly survey: () => Promise<FleetTold>;
}

export interface ExporterMetrics {
  readonly contentType: string;
  text(): Promise<string>;
  /** A round trip to the queue server took so long. */
  roundTrip(ms: number): void;
}

type Registry = MetricRegistry<typeof EXPORTER_METRICS>;

const OF_QUEUES = [
  'shoal_queue_jobs',
  'shoal_queue_oldest_waiting_seconds',
  'shoal_queue_waiting_rows',
  'shoal_queue_waiting_tokens',
  'shoal_queue_capacity_tokens_per_second',
  'shoal_queue_backlog_seconds',
  'shoal_queue_workers',
  'shoal_queue_paused',
  'shoal_queue_quarantined',
  'shoal_queue_parked',
  'shoal_queue_reserved_bytes',
  'shoal_queue_unread_bytes',
  'shoal_queue_left_rows_total',
  'shoal_queue_payload_sets',
  'shoal_payload_server_workers',
  'shoal_payload_server_used_bytes',
  'shoal_payload_server_limit_bytes',
  'shoal_exporter_queues',
  'shoal_exporter_scrape_duration_seconds',
] as const;

export function createExporterMetrics({
  process: name,
  server,
  version,
  survey,
}: ExporterMetricsOptions): ExporterMetrics {
  const registry = createMetrics(EXPORTER_METRICS);
  const { roundTrip } = tellProcess(registry, { process: name, server, version });
  let surveying: Promise<FleetTold> | undefined;
  registry.onScrape(async () => {
    for (const one of OF_QUEUES) registry.forget(one);
    const sinceMs = performance.now();
    const fleet = await (surveying ??= survey().finally(() => (surveying = undefined)));
    for (const one of OF_QUEUES) registry.forget(one); // another scrape may have been faster
    tellFleet(registry, fleet);
    registry.set('shoal_exporter_scrape_duration_seconds', {}, (performance.now() - sinceMs) / 1_000);
  });
  return { contentType: registry.contentType, text: () => registry.text(), roundTrip };
}

function tellFleet(registry: Registry, { queues, payloadServers = [], reservedBytes, unreadBytes }: FleetTold): void {
  registry.set('shoal_exporter_queues', {}, queues.length);
  registry.set('shoal_queue_reserved_bytes', {}, reservedBytes);
  registry.set('shoal_queue_unread_bytes', {}, unreadBytes);
  for (const queue of queues) tellQueue(registry, queue);
  for (const server of payloadServers) tellPayloadServer(registry, server);
}

function tellPayloadServer(registry: Registry, { name: server, workers, failing, memory }: PayloadServerTold): void {
  registry.set('shoal_payload_server_workers', { server, state: 'answers' }, workers.length - failing.length);
  registry.set('shoal_payload_server_workers', { server, state: 'fails' }, failing.length);
  if (memory === undefined) return;
  registry.set('shoal_payload_server_used_bytes', { server }, memory.usedBytes);
  if (memory.maxBytes > 0) registry.set('shoal_payload_server_limit_bytes', { server }, memory.maxBytes);
}

const CLASSES = EXPORTER_METRICS.shoal_queue_oldest_waiting_seconds.labels.class;
const ENDS_AND_RUNS = ['active', 'delayed', 'handed-over', 'completed', 'failed', 'cancelled'] as const;

function tellQueue(registry: Registry, told: QueueTold): void {
  const { queue, waiting, jobs, oldestWaitingMs, backlog, workers } = told;
  for (const one of CLASSES) {
    registry.set('shoal_queue_jobs', { queue, state: 'waiting', class: one }, waiting[one]);
    registry.set('shoal_queue_oldest_waiting_seconds', { queue, class: one }, oldestWaitingMs[one] / 1_000);
  }
  for (const state of ENDS_AND_RUNS) registry.set('shoal_queue_jobs', { queue, state }, jobs[state]);
  registry.set('shoal_queue_waiting_rows', { queue }, told.reservedRows);
  registry.countTo('shoal_queue_left_rows_total', { queue }, told.leftRows);
  if (backlog.tokens !== undefined) registry.set('shoal_queue_waiting_tokens', { queue }, backlog.tokens);
  if (backlog.tokensPerSecond !== undefined)
    registry.set('shoal_queue_capacity_tokens_per_second', { queue }, backlog.tokensPerSecond);
  if (backlog.seconds !== undefined) registry.set('shoal_queue_backlog_seconds', { queue }, backlog.seconds);
  for (const state of EXPORTER_METRICS.shoal_queue_workers.labels.state)
    registry.set('shoal_queue_workers', { queue, state }, workers[state]);
  if (told.payloadSets !== undefined) registry.set('shoal_queue_payload_sets', { queue }, told.payloadSets);
  registry.set('shoal_queue_paused', { queue }, told.isPaused ? 1 : 0);
  registry.set('shoal_queue_quarantined', { queue }, told.quarantined);
  for (const [version, count] of Object.entries(told.parked))
    registry.set('shoal_queue_parked', { queue, version }, count);
}
