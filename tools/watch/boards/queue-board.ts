// One queue: what waits, how long, who serves it, how jobs end.

import type { Board } from './panel.ts';

export const QUEUE_BOARD: Board = {
  uid: 'queue',
  title: 'Shoal: queue',
  description: 'What waits on a queue and how long, who serves it, how its jobs end.',
  variables: [{ label: 'queue', of: 'shoal_queue_jobs' }],
  rows: [
    {
      title: 'Waiting',
      panels: [
        {
          title: 'Jobs that wait',
          description: 'By class. Interactive ones go before bulk.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            {
              expr: 'max by (queue, class) (shoal_queue_jobs{state="waiting",queue=~"$queue"})',
              legend: '{{queue}} {{class}}',
            },
          ],
        },
        {
          title: 'Oldest job that waits',
          description: 'True age by class; not of the next in line.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            {
              expr: 'max by (queue, class) (shoal_queue_oldest_waiting_seconds{queue=~"$queue"})',
              legend: '{{queue}} {{class}}',
            },
          ],
        },
        {
          title: 'Backlog',
          description: 'Waiting tokens ÷ what the workers that claim can run.',
          kind: 'timeseries',
          unit: 's',
          queries: [{ expr: 'max by (queue) (shoal_queue_backlog_seconds{queue=~"$queue"})', legend: '{{queue}}' }],
        },
      ],
    },
    {
      title: 'States',
      panels: [
        {
          title: 'Jobs by state',
          description: 'Ended ones are kept for a while only.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            {
              expr: 'sum by (queue, state) (max by (queue, state, class) (shoal_queue_jobs{queue=~"$queue",state=~"active|delayed|handed-over|failed"}))',
              legend: '{{queue}} {{state}}',
            },
          ],
        },
        {
          title: 'Workers by state',
          description: 'Those that serve this queue.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: 'max by (queue, state) (shoal_queue_workers{queue=~"$queue"})', legend: '{{queue}} {{state}}' },
          ],
        },
        {
          title: 'What a person decides',
          description: 'In quarantine, parked for a newer worker, paused.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: 'max by (queue) (shoal_queue_quarantined{queue=~"$queue"})', legend: '{{queue}} in quarantine' },
            { expr: 'max by (queue) (shoal_queue_parked{queue=~"$queue"})', legend: '{{queue}} parked' },
            { expr: 'max by (queue) (shoal_queue_paused{queue=~"$queue"})', legend: '{{queue}} paused' },
          ],
        },
      ],
    },
    {
      title: 'Rates',
      panels: [
        {
          title: 'Texts a second',
          description: 'Of completed jobs.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [{ expr: 'queue:shoal_texts:rate5m{queue=~"$queue"}', legend: '{{queue}}' }],
        },
        {
          title: 'Padding efficiency',
          description: 'Real tokens ÷ tokens with padding.',
          kind: 'timeseries',
          unit: 'percentunit',
          queries: [{ expr: 'queue:shoal_padding_efficiency:ratio_rate5m{queue=~"$queue"}', legend: '{{queue}}' }],
        },
        {
          title: 'Wait until claimed',
          description: 'Of all queues, by class: half, and 99 of 100.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            { expr: 'class:shoal_claim_wait_seconds:p50_5m', legend: '{{class}} p50' },
            { expr: 'class:shoal_claim_wait_seconds:p99_5m', legend: '{{class}} p99' },
          ],
        },
      ],
    },
    {
      title: 'Endings',
      panels: [
        {
          title: 'Claims that ended',
          description: 'By outcome, a second. Returns and abandoned ones run again.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [{ expr: 'sum by (outcome) (rate(shoal_jobs_settled_total[5m]))', legend: '{{outcome}}' }],
        },
        {
          title: 'Failures by code',
          description: 'In five minutes.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: 'sum by (code) (increase(shoal_jobs_settled_total{outcome="fail"}[5m])) > 0', legend: '{{code}}' },
          ],
        },
        {
          title: 'Stalled jobs and lost leases',
          description: 'In five minutes: a worker died or was cut off.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: 'sum(increase(shoal_jobs_stalled_total[5m]))', legend: 'stalled' },
            { expr: 'sum(increase(shoal_leases_lost_total[5m]))', legend: 'leases lost' },
          ],
        },
        {
          title: 'Results that nobody read',
          description: 'Whose time to live ended, as sweeps found out in the last hour.',
          kind: 'timeseries',
          unit: 'short',
          queries: [{ expr: 'sum(increase(shoal_results_expired_unread_total[1h]))', legend: 'expired' }],
        },
      ],
    },
  ],
};
