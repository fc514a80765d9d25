// docs/metrics.md, made from the catalogue by tools/write-docs.ts; metrics-page.test.ts says when it is stale.

import { CATALOGUE, seriesNames, type MetricTeller } from './metric-catalogue.ts';
import { FEW, type MetricCatalogue, type MetricDefinition } from './metric-definition.ts';
import { STANDARD_METRICS } from './standard-metrics.ts';

const HEADINGS: Readonly<Record<MetricTeller, string>> = {
  'every process': 'Every process',
  worker: 'Workers',
  'similarity worker': 'Similarity workers, besides',
  HTTP: 'HTTP',
  'exporter, dashboard': 'The fleet: exporter and dashboard',
};

const ABOUT: Readonly<Record<MetricTeller, string>> = {
  'every process': 'Workers, HTTP, the dashboard and the exporter, each of itself.',
  worker: 'Each of itself. Join `shoal_worker_info` by `instance` for queue, model and card.',
  'similarity worker': 'Those that serve the queue `similarity`; workers of models have none of these.',
  HTTP: 'Each replica of itself, under `/metrics` of its port. What waits in queues is the exporter’s to tell.',
  'exporter, dashboard':
    'Of every queue of the prefix, whoever feeds it: `shoal exporter`, and the process of the dashboard. Several tell ' +
    'the same, so rules take `max by (queue, …)`. None of these is there while the queue server is away: ' +
    '`shoal_queue_server_up` is 0 then.',
};

/** The page as Markdown. */
export function metricsPage(): string {
  return `${[
    '# Metrics',
    'Made from the catalogue in `libs/ops/src/catalogue` by `npm run docs`; nothing is exported under another name, and',
    'a name changes only with a line in [CHANGELOG.md](../CHANGELOG.md). Names, units and types are those of',
    '[Prometheus](https://prometheus.io/docs/practices/naming/). *Few* values are bounded by the machine or the fleet:',
    'queues, routes, cards, payload servers. Ids, texts, tenants and addresses of callers are never labels. Which to be woken for:',
    '[operations.md](operations.md#alerts); where each process serves them: [the same](operations.md#metrics-and-probes).',
    '',
    ...Object.entries<MetricCatalogue>(CATALOGUE).flatMap(([teller, metrics]) =>
      section(teller as MetricTeller, metrics),
    ),
    ...standardSection(),
  ].join('\n')}\n`;
}

function section(teller: MetricTeller, metrics: MetricCatalogue): string[] {
  return [
    `## ${HEADINGS[teller]}`,
    '',
    ABOUT[teller],
    '',
    '| metric | type, unit | labels | |',
    '| --- | --- | --- | --- |',
    ...Object.entries<MetricDefinition>(metrics).map(([name, definition]) => row(name, definition)),
    '',
  ];
}

function row(name: string, definition: MetricDefinition): string {
  const { type, unit, help } = definition;
  return `| \`${name}\` | ${type}, ${unit} | ${labelsOf(definition)} | ${help}${bucketsOf(name, definition)} |`;
}

function labelsOf({ labels, mayLack = [] }: MetricDefinition): string {
  return Object.entries(labels)
    .map(([label, values]) => {
      const listed = values === FEW ? 'few' : valuesOf(values);
      return `\`${label}\`${mayLack.includes(label) ? ' (may lack)' : ''}: ${listed}`;
    })
    .join('; ');
}

/** The codes of errors are listed in docs/jobs.md. */
function valuesOf(values: readonly string[]): string {
  return values.length > 20 ? '[error codes](jobs.md)' : values.join(', ');
}

function bucketsOf(name: string, { type, buckets = [] }: MetricDefinition): string {
  if (type !== 'histogram') return '';
  return ` (\`${seriesNames({ name, type })[0]}\` from ${buckets[0]} to ${buckets.at(-1)})`;
}

function standardSection(): string[] {
  return [
    '## Standard, of every process',
    '',
    'As prom-client collects them from Node, of the process that serves them (of a worker its claimer). They cost it a',
    'thousandth of a core (`libs/ops/src/process-metrics.ts`).',
    '',
    '| metric | |',
    '| --- | --- |',
    ...Object.entries(STANDARD_METRICS).map(([name, what]) => `| \`${name}\` | ${what} |`),
  ];
}
