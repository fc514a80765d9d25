// What the fleet exporter tells of every queue of the prefix: `shoal exporter`, and the dashboard's process. Two of them
// tell the same, so rules take `max by (queue, …)`.

import { FEW, type MetricCatalogue } from './metric-definition.ts';

const CLASSES = ['interactive', 'bulk'] as const;

export const OF_THE_FLEET = {
  shoal_queue_jobs: {
    type: 'gauge',
    unit: 'jobs',
    help:
      'Jobs of a queue by state; of those that wait, by class as well. Handed over: they wait for their child in the ' +
      'CPU lane. Ended ones (completed, failed, cancelled) are kept for a while only.',
    labels: {
      queue: FEW,
      state: ['waiting', 'active', 'delayed', 'handed-over', 'completed', 'failed', 'cancelled'],
      class: CLASSES,
    },
    mayLack: ['class'],
  },
  shoal_queue_oldest_waiting_seconds: {
    type: 'gauge',
    unit: 'seconds',
    help: 'Age of the job of each class that waits longest, by the clock of the queue server; 0 when none waits.',
    labels: { queue: FEW, class: CLASSES },
  },
  shoal_queue_waiting_rows: {
    type: 'gauge',
    unit: 'rows',
    help: 'Rows for which room is reserved and that have not ended: they wait or run. Jobs added by hand have none.',
    labels: { queue: FEW },
  },
  shoal_queue_waiting_tokens: {
    type: 'gauge',
    unit: 'tokens',
    help:
      'Real tokens that wait: waiting jobs × the tokens of a job that workers of the queue had lately; missing while ' +
      'no worker has told any and jobs wait.',
    labels: { queue: FEW },
  },
  shoal_queue_capacity_tokens_per_second: {
    type: 'gauge',
    unit: 'tokens a second',
    help:
      'Real tokens a second that the workers which claim from the queue can run together: each measured at its device ' +
      'over its last runs, for the mix of lengths that it had. A worker that has not run yet adds nothing.',
    labels: { queue: FEW },
  },
  shoal_queue_backlog_seconds: {
    type: 'gauge',
    unit: 'seconds',
    help:
      'Time that the waiting jobs will take: waiting tokens ÷ the capacity of workers that claim. 0 when none waits; ' +
      '86,400 (a day), which is also the most, when jobs wait and no worker claims; missing while those that claim ' +
      'have not measured a rate yet.',
    labels: { queue: FEW },
  },
  shoal_queue_workers: {
    type: 'gauge',
    unit: 'workers',
    help:
      'Live workers that serve a queue by state: starting (its executor is not ready), ready (it claims), braked (the ' +
      'queue server lacks room), paused (the queue is), draining (it finishes what it has), drained (it claims nothing).',
    labels: { queue: FEW, state: ['starting', 'ready', 'braked', 'paused', 'draining', 'drained'] },
  },
  shoal_queue_paused: {
    type: 'gauge',
    unit: '1 or 0',
    help: 'Whether the queue is paused: nothing is claimed from it.',
    labels: { queue: FEW },
  },
  shoal_queue_quarantined: {
    type: 'gauge',
    unit: 'jobs',
    help: 'Jobs in the quarantine of a queue: they killed executors, and a person decides.',
    labels: { queue: FEW },
  },
  shoal_queue_parked: {
    type: 'gauge',
    unit: 'jobs',
    help:
      'Jobs that wait for a worker that knows the version of their format, by that version; no series where none is ' +
      'parked. They do not count as delayed.',
    labels: { queue: FEW, version: FEW },
  },
  shoal_queue_reserved_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Memory of the queue server reserved for inputs and results of all queues of the prefix.',
    labels: {},
  },
  shoal_queue_unread_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'The part of the reserved memory that belongs to results which nobody has read yet.',
    labels: {},
  },
  shoal_queue_left_rows_total: {
    type: 'counter',
    unit: 'rows',
    help: 'Rows that have left a queue, as the queue server counts them where room was reserved; its rate drains the queue.',
    labels: { queue: FEW },
  },
  shoal_queue_payload_sets: {
    type: 'gauge',
    unit: 'sets',
    help:
      'Sets of payload servers that workers which claim from a queue have, having none among them; more than 1: ' +
      'everything goes by the queue server. Missing where nobody has any.',
    labels: { queue: FEW },
  },
  shoal_payload_server_workers: {
    type: 'gauge',
    unit: 'workers',
    help: 'Workers that have a payload server, by whether it answers them or the last question to it failed.',
    labels: { server: FEW, state: ['answers', 'fails'] },
  },
  shoal_payload_server_used_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'Memory that a Valkey or Redis server holds that is a payload server, as a worker was told by it.',
    labels: { server: FEW },
  },
  shoal_payload_server_limit_bytes: {
    type: 'gauge',
    unit: 'bytes',
    help: 'The most that it may hold (maxmemory); missing where it has no limit.',
    labels: { server: FEW },
  },
  shoal_exporter_queues: {
    type: 'gauge',
    unit: 'queues',
    help: 'Queues of the prefix that the last scrape told of.',
    labels: {},
  },
  shoal_exporter_scrape_duration_seconds: {
    type: 'gauge',
    unit: 'seconds',
    help: 'Time the last scrape took to ask the queue server.',
    labels: {},
  },
} as const satisfies MetricCatalogue;
