// "Is it well, and who does what": one page for the whole prefix.

import type { Board } from './panel.ts';

export const FLEET_BOARD: Board = {
  uid: 'fleet',
  title: 'Shoal: fleet',
  description: 'Whether the fleet is well: alerts, the queue server, workers, rates, versions.',
  variables: [],
  rows: [
    {
      title: 'Now',
      panels: [
        {
          title: 'Alerts that fire',
          description: 'Each has a page in docs/runbooks.',
          kind: 'table',
          unit: 'short',
          queries: [
            {
              expr: 'count by (alertname, severity, queue) (ALERTS{alertstate="firing",alertname=~"Shoal.+"})',
              legend: '',
            },
          ],
        },
        {
          title: 'Workers that answer',
          description: 'Of those that Prometheus was told of.',
          kind: 'stat',
          unit: 'percentunit',
          queries: [{ expr: 'avg(up{job="shoal-worker"})', legend: '' }],
        },
        {
          title: 'Processes that reach the queue server',
          description: 'Below 70 % somebody is woken.',
          kind: 'stat',
          unit: 'percentunit',
          queries: [{ expr: 'avg(shoal_queue_server_up)', legend: '' }],
        },
      ],
    },
    {
      title: 'Work',
      panels: [
        {
          title: 'Texts a second',
          description: 'Texts of completed jobs by queue.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [{ expr: 'queue:shoal_texts:rate5m', legend: '{{queue}}' }],
        },
        {
          title: 'Backlog',
          description: 'How long the waiting work takes the workers that claim; scale on this.',
          kind: 'timeseries',
          unit: 's',
          queries: [{ expr: 'queue:shoal_backlog_seconds:max', legend: '{{queue}}' }],
        },
        {
          title: 'Devices at work',
          description: 'Share of time in which a device had a run. Low while work waits: see the worker board, stages.',
          kind: 'timeseries',
          unit: 'percentunit',
          queries: [{ expr: 'queue:shoal_device_busy:ratio_rate5m', legend: '{{queue}}' }],
        },
      ],
    },
    {
      title: 'Workers',
      panels: [
        {
          title: 'Workers by state',
          description: 'Drained, paused and braked ones live and claim nothing.',
          kind: 'timeseries',
          unit: 'short',
          queries: [{ expr: 'sum by (state) (max by (queue, state) (shoal_queue_workers))', legend: '{{state}}' }],
        },
        {
          title: 'Executors lost',
          description: 'In ten minutes; above 3 at one worker there is a ticket.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            {
              expr: 'sum by (instance, reason) (increase(shoal_executor_losses_total[10m])) > 0',
              legend: '{{instance}} {{reason}}',
            },
          ],
        },
        {
          title: 'Versions',
          description: 'Two for longer than an upgrade takes: somebody was forgotten.',
          kind: 'table',
          unit: 'short',
          queries: [{ expr: 'count by (version, job, instance) (shoal_build_info)', legend: '' }],
        },
      ],
    },
    {
      title: 'Queue server',
      panels: [
        {
          title: 'Memory',
          description: 'Used and most; workers are braked before it is full.',
          kind: 'timeseries',
          unit: 'bytes',
          queries: [
            { expr: 'max by (kind) (shoal_queue_server_memory_bytes)', legend: '{{kind}}' },
            { expr: 'max(shoal_queue_reserved_bytes)', legend: 'reserved' },
            { expr: 'max(shoal_queue_unread_bytes)', legend: 'unread results' },
          ],
        },
        {
          title: 'Round trip, p99',
          description: 'Of a PING every five seconds, by kind of process.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            {
              expr: 'histogram_quantile(0.99, sum by (job, le) (rate(shoal_queue_server_round_trip_seconds_bucket[5m])))',
              legend: '{{job}}',
            },
          ],
        },
        {
          title: 'Reconnects',
          description: 'Connections lost and there again, a minute.',
          kind: 'timeseries',
          unit: 'short',
          queries: [{ expr: 'sum by (job) (increase(shoal_queue_server_reconnects_total[1m]))', legend: '{{job}}' }],
        },
      ],
    },
  ],
};
