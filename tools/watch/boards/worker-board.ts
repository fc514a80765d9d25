// One worker and its card: where its time and its memory go.

import type { Board } from './panel.ts';

const HERE = 'instance=~"$instance"';

export const WORKER_BOARD: Board = {
  uid: 'worker',
  title: 'Shoal: worker and GPU',
  description: 'Where the time and the memory of a worker go.',
  variables: [{ label: 'instance', of: 'shoal_worker_info' }],
  rows: [
    {
      title: 'What it is',
      panels: [
        {
          title: 'Workers',
          description: 'Queue, model, card and encoder.',
          kind: 'table',
          unit: 'short',
          queries: [{ expr: `shoal_worker_info{${HERE}}`, legend: '' }],
        },
        {
          title: 'Ready',
          description: '0: its /readyz says why.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: `shoal_ready{${HERE}}`, legend: '{{instance}} ready' },
            { expr: `shoal_executor_up{${HERE}}`, legend: '{{instance}} executor' },
          ],
        },
      ],
    },
    {
      title: 'Time',
      panels: [
        {
          title: 'Device at work',
          description: 'Share of time with a run at the device.',
          kind: 'timeseries',
          unit: 'percentunit',
          queries: [{ expr: `rate(shoal_device_busy_seconds_total{lane="1",${HERE}}[5m])`, legend: '{{instance}}' }],
        },
        {
          title: 'Stages',
          description:
            'Mean time of each. Fill and commit long: network or queue server. Tokenize long: too few cores.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            {
              expr: `sum by (stage) (rate(shoal_stage_duration_seconds_sum{${HERE}}[5m])) / (sum by (stage) (rate(shoal_stage_duration_seconds_count{${HERE}}[5m])) > 0)`,
              legend: '{{stage}}',
            },
          ],
        },
        {
          title: 'Runs, p50 and p99',
          description: 'Time of one micro-batch at the device.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            {
              expr: `histogram_quantile(0.5, sum by (instance, le) (rate(shoal_run_duration_seconds_bucket{${HERE}}[5m])))`,
              legend: '{{instance}} p50',
            },
            {
              expr: `histogram_quantile(0.99, sum by (instance, le) (rate(shoal_run_duration_seconds_bucket{${HERE}}[5m])))`,
              legend: '{{instance}} p99',
            },
          ],
        },
      ],
    },
    {
      title: 'Work',
      panels: [
        {
          title: 'Tokens a second',
          description: 'Real ones, and with padding.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [
            {
              expr: `sum by (instance, kind) (rate(shoal_tokens_total{${HERE}}[5m]))`,
              legend: '{{instance}} {{kind}}',
            },
          ],
        },
        {
          title: 'Claims and pool',
          description: 'Jobs claimed and not settled, and their tokens.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: `shoal_claims_in_flight{${HERE}}`, legend: '{{instance}} claims' },
            { expr: `shoal_pool_tokens{${HERE}}`, legend: '{{instance}} tokens' },
          ],
        },
        {
          title: 'Splits, re-runs, losses',
          description: 'In five minutes; all are handled, and should be none.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: `sum by (instance) (increase(shoal_splits_total{${HERE}}[5m]))`, legend: '{{instance}} splits' },
            { expr: `increase(shoal_rerun_rows_total{${HERE}}[5m])`, legend: '{{instance}} rows again in fp32' },
            {
              expr: `sum by (instance) (increase(shoal_executor_losses_total{${HERE}}[5m]))`,
              legend: '{{instance}} executors lost',
            },
          ],
        },
      ],
    },
    {
      title: 'Memory',
      panels: [
        {
          title: 'Budget',
          description: 'Padded tokens that one run may have, and what limits them.',
          kind: 'timeseries',
          unit: 'short',
          queries: [{ expr: `shoal_budget_tokens{${HERE}}`, legend: '{{instance}} by {{limited_by}}' }],
        },
        {
          title: 'Predicted ÷ measured memory',
          description: 'Near 1. Below, runs take more than was said.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            {
              expr: `histogram_quantile(0.05, sum by (instance, le) (rate(shoal_run_memory_prediction_ratio_bucket{${HERE}}[30m])))`,
              legend: '{{instance}} p5',
            },
            {
              expr: `histogram_quantile(0.95, sum by (instance, le) (rate(shoal_run_memory_prediction_ratio_bucket{${HERE}}[30m])))`,
              legend: '{{instance}} p95',
            },
          ],
        },
        {
          title: 'Processes',
          description: 'Resident memory of claimer and executor.',
          kind: 'timeseries',
          unit: 'bytes',
          queries: [{ expr: `shoal_process_resident_bytes{${HERE}}`, legend: '{{instance}} {{process}}' }],
        },
      ],
    },
    {
      title: 'Card',
      panels: [
        {
          title: 'Device memory',
          description: 'As the driver tells it.',
          kind: 'timeseries',
          unit: 'bytes',
          queries: [{ expr: `shoal_device_memory_bytes{${HERE}}`, legend: '{{instance}} {{state}}' }],
        },
        {
          title: 'Utilization',
          description: 'Share of the last sample period with a kernel.',
          kind: 'timeseries',
          unit: 'percentunit',
          queries: [{ expr: `shoal_device_utilization_ratio{${HERE}}`, legend: '{{instance}}' }],
        },
        {
          title: 'Power',
          description: 'Draw of the card.',
          kind: 'timeseries',
          unit: 'watt',
          queries: [{ expr: `shoal_device_power_watts{${HERE}}`, legend: '{{instance}}' }],
        },
        {
          title: 'Memory errors',
          description: 'That ECC could not correct, since the driver was loaded.',
          kind: 'timeseries',
          unit: 'short',
          queries: [{ expr: `shoal_device_uncorrected_errors{${HERE}}`, legend: '{{instance}} GPU {{device}}' }],
        },
      ],
    },
  ],
};
