// What every process that serves tells: a worker, HTTP, the dashboard, the exporter.

import { FEW, type MetricCatalogue } from './metric-definition.ts';

const ROUND_TRIP_SECONDS = [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2];

export const EVERY_PROCESS = {
  shoal_build_info: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Always 1: the version of Shoal that runs, and the commit it was made from, where that is known.',
    labels: { version: FEW, commit: FEW },
  },
  shoal_queue_server_up: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Whether the queue server answered the last question of this process, a PING every 5 seconds, within 2 seconds.',
    labels: {},
  },
  shoal_queue_server_round_trip_seconds: {
    type: 'histogram',
    unit: 'seconds',
    help: 'Time until the queue server answered a PING of this process, sent every 5 seconds.',
    labels: {},
    buckets: ROUND_TRIP_SECONDS,
  },
  shoal_queue_server_reconnects_total: {
    type: 'counter',
    unit: 'connections',
    help: 'Connections of this process to the queue server that were lost and are there again.',
    labels: {},
  },
  shoal_queue_server_memory_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help:
      'Memory of the queue server: used, without its buffers for replicas and the append-only file, and maxmemory (max), ' +
      'which is missing where there is no limit.',
    labels: { kind: ['used', 'max'] },
  },
  shoal_trace_spans_total: {
    type: 'counter',
    unit: 'spans',
    help:
      'Spans of this process that the collector took (exported), and that nobody will see (dropped): it did not take them, ' +
      'or too many waited for it. 0 with traces off.',
    labels: { outcome: ['exported', 'dropped'] },
  },
  shoal_process_resident_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Resident memory of a process: of a worker its claimer and its executor, of others the one that tells it.',
    labels: { process: ['claimer', 'executor', 'producer', 'dashboard', 'exporter'] },
  },
} as const satisfies MetricCatalogue;
