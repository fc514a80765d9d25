// What the HTTP producer tells of the requests it answers and of the jobs it adds.

import { FEW, type MetricCatalogue } from './metric-definition.ts';

const REQUEST_SECONDS = [0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];

export const OF_HTTP = {
  shoal_http_requests_total: {
    type: 'counter',
    unit: 'requests',
    help: 'Requests answered, by route pattern and status; 499 is a caller that left before its answer.',
    labels: { route: FEW, status: FEW },
  },
  shoal_http_request_duration_seconds: {
    type: 'histogram',
    unit: 'seconds',
    help: 'Time from the first byte of a request to the last of its answer.',
    labels: { route: FEW },
    buckets: REQUEST_SECONDS,
  },
  shoal_http_requests_open: {
    type: 'gauge',
    unit: 'requests',
    help: 'Requests for embeddings that are being answered.',
    labels: {},
  },
  shoal_http_requests_waiting: {
    type: 'gauge',
    unit: 'requests',
    help: 'Requests that wait for their turn.',
    labels: {},
  },
  shoal_http_held_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Memory that bodies and answers take for callers.',
    labels: {},
  },
  shoal_http_texts_total: { type: 'counter', unit: 'texts', help: 'Inputs of answered requests.', labels: {} },
  shoal_http_tokens_total: { type: 'counter', unit: 'tokens', help: 'Real tokens of answered requests.', labels: {} },
  shoal_batches: {
    type: 'gauge',
    unit: 'batches',
    help: 'Batches that this process works on, by state. Those that wait for a process are none of them.',
    labels: { state: ['validating', 'in_progress', 'finalizing', 'cancelling'] },
  },
  shoal_batches_ended_total: {
    type: 'counter',
    unit: 'batches',
    help: 'Batches that ended: failed is one whose input could not be taken; lines that failed end none.',
    labels: { status: ['completed', 'failed', 'expired', 'cancelled'] },
  },
  shoal_batch_lines_total: {
    type: 'counter',
    unit: 'lines',
    help: 'Lines of batches that have their answer or, failed, expired and cancelled, their place in the error file.',
    labels: { outcome: ['completed', 'failed', 'expired', 'cancelled'] },
  },
  shoal_batch_files_total: {
    type: 'counter',
    unit: 'files',
    help: 'Files that were stored: uploads (batch), and outputs and error files of batches (batch_output).',
    labels: { purpose: ['batch', 'batch_output'] },
  },
  shoal_batch_file_bytes_total: {
    type: 'counter',
    unit: 'bytes',
    help: 'What these files have.',
    labels: { purpose: ['batch', 'batch_output'] },
  },
  shoal_webhook_deliveries_total: {
    type: 'counter',
    unit: 'calls',
    help: 'Notices of ended batches and jobs: taken (delivered), to be sent again (not_taken), or given up after the last attempt.',
    labels: { outcome: ['delivered', 'not_taken', 'given_up'] },
  },
  shoal_jobs_added_total: {
    type: 'counter',
    unit: 'jobs',
    help: 'Jobs that this process put on queues, by class; those that were there already do not count.',
    labels: { class: ['interactive', 'bulk'] },
  },
  shoal_admission_refused_total: {
    type: 'counter',
    unit: 'refusals',
    help:
      'Times that the queue had no room for jobs of this process: too many rows or bytes, the share of their tenant is ' +
      'used, others stand in line, or the memory of the server is full.',
    labels: { reason: ['rows', 'bytes', 'tenant', 'line', 'memory'] },
  },
  shoal_payloads_total: {
    type: 'counter',
    unit: 'bodies',
    help:
      'Inputs that this process put on payload servers, inputs that went by the queue server because none took them, and ' +
      'results that payload servers had lost when they were read, or gave otherwise than they were put (damaged), ' +
      'whose jobs were asked for again.',
    labels: { outcome: ['put', 'by_queue_server', 'lost', 'damaged'] },
  },
} as const satisfies MetricCatalogue;
