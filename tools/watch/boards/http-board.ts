// The HTTP producer: what users of the API meet.

import type { Board } from './panel.ts';

export const HTTP_BOARD: Board = {
  uid: 'http',
  title: 'Shoal: HTTP',
  description: 'Requests of the HTTP API: rate, errors, time, what is held.',
  variables: [{ label: 'instance', of: 'shoal_http_requests_open' }],
  rows: [
    {
      title: 'Requests',
      panels: [
        {
          title: 'Requests a second',
          description: 'By route.',
          kind: 'timeseries',
          unit: 'reqps',
          queries: [
            {
              expr: 'sum by (route) (rate(shoal_http_requests_total{instance=~"$instance"}[5m]))',
              legend: '{{route}}',
            },
          ],
        },
        {
          title: 'Answers that are no 2xx',
          description:
            '499: the caller left. 429: no room, or a limit of a key. 503: nobody serves, or no queue server.',
          kind: 'timeseries',
          unit: 'reqps',
          queries: [
            {
              expr: 'sum by (route, status) (rate(shoal_http_requests_total{instance=~"$instance",status!~"2.."}[5m])) > 0',
              legend: '{{route}} {{status}}',
            },
          ],
        },
        {
          title: 'Share of errors',
          description: '5xx without probes. The promise is 0.1 % a month.',
          kind: 'timeseries',
          unit: 'percentunit',
          queries: [
            { expr: 'shoal:http_errors:ratio_rate5m', legend: '5 min' },
            { expr: 'shoal:http_errors:ratio_rate1h', legend: '1 h' },
            { expr: 'shoal:http_errors:ratio_rate6h', legend: '6 h' },
          ],
        },
      ],
    },
    {
      title: 'Time and room',
      panels: [
        {
          title: 'Time of requests, p50 and p99',
          description: 'First byte of a request to the last of its answer, by route.',
          kind: 'timeseries',
          unit: 's',
          queries: [
            {
              expr: 'histogram_quantile(0.5, sum by (route, le) (rate(shoal_http_request_duration_seconds_bucket{instance=~"$instance"}[5m])))',
              legend: '{{route}} p50',
            },
            {
              expr: 'histogram_quantile(0.99, sum by (route, le) (rate(shoal_http_request_duration_seconds_bucket{instance=~"$instance"}[5m])))',
              legend: '{{route}} p99',
            },
          ],
        },
        {
          title: 'Requests open and waiting',
          description: 'Those that wait are beyond maxOpenRequests.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            { expr: 'shoal_http_requests_open{instance=~"$instance"}', legend: '{{instance}} open' },
            { expr: 'shoal_http_requests_waiting{instance=~"$instance"}', legend: '{{instance}} waiting' },
          ],
        },
        {
          title: 'Memory held for callers',
          description: 'Bodies and answers.',
          kind: 'timeseries',
          unit: 'bytes',
          queries: [{ expr: 'shoal_http_held_bytes{instance=~"$instance"}', legend: '{{instance}}' }],
        },
      ],
    },
    {
      title: 'Work',
      panels: [
        {
          title: 'Texts a second',
          description: 'Inputs of answered requests.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [{ expr: 'sum(rate(shoal_http_texts_total{instance=~"$instance"}[5m]))', legend: 'texts' }],
        },
        {
          title: 'Jobs added',
          description: 'By class, a second.',
          kind: 'timeseries',
          unit: 'ops',
          queries: [
            { expr: 'sum by (class) (rate(shoal_jobs_added_total{instance=~"$instance"}[5m]))', legend: '{{class}}' },
          ],
        },
        {
          title: 'No room for jobs',
          description: 'Refusals by what is used up, in five minutes.',
          kind: 'timeseries',
          unit: 'short',
          queries: [
            {
              expr: 'sum by (reason) (increase(shoal_admission_refused_total{instance=~"$instance"}[5m]))',
              legend: '{{reason}}',
            },
          ],
        },
      ],
    },
  ],
};
