// The catalogue as whoever writes rules and boards needs it: names with their units, closed labels, a page that is
// current; and prom-client's objects are made from it and from nothing else.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { CATALOGUE, catalogueEntries, seriesNames } from './metric-catalogue.ts';
import { FEW, type MetricCatalogue } from './metric-definition.ts';
import { metricsPage } from './metrics-page.ts';
import { STANDARD_METRICS } from './standard-metrics.ts';
import { createMetrics } from '../metrics.ts';

const root = new URL('../../../../', import.meta.url);
const entries = catalogueEntries();

/** What a name ends with, by unit: Prometheus's base units. */
const ENDINGS: Readonly<Record<string, RegExp>> = {
  seconds: /_seconds(_total)?$/,
  bytes: /_bytes(_total)?$/,
  ratio: /_ratio$/,
  watts: /_watts$/,
  celsius: /_celsius$/,
  'Unix time in seconds': /_timestamp_seconds$/,
  'tokens a second': /_tokens_per_second$/,
};

const NO_BASE_UNIT = /(?<!_(?:seconds|bytes|ratio|watts|celsius)(?:_total)?)$/;

test.each(entries)('$name: plain sentences, and a name that ends with its unit', (entry) => {
  const { name, type, unit, help, labels, mayLack = [], beginsAtZero = [] } = entry;
  expect(name).toMatch(/^shoal_[a-z_]+$/);
  expect(help).toMatch(/^[A-Z0-9].*\.$/);
  expect(name.endsWith('_total')).toBe(type === 'counter');
  expect(name).toMatch(ENDINGS[unit] ?? NO_BASE_UNIT);
  expect(Object.keys(labels)).toEqual(expect.arrayContaining([...mayLack]));
  for (const series of beginsAtZero)
    for (const [label, value] of Object.entries(series)) expect(labels[label]).toContain(value);
});

test('a name belongs to one kind of process, and no series of one is that of another', () => {
  const names = entries.flatMap((entry) => [...new Set([entry.name, ...seriesNames(entry)])]);
  expect(names.length).toBe(new Set(names).size);
});

test('labels without a closed set are those whose values the machine or the fleet bounds', () => {
  const open = entries.flatMap(({ labels }) =>
    Object.entries(labels).flatMap(([label, of]) => (of === FEW ? label : [])),
  );
  expect([...new Set(open)].sort()).toEqual(
    ['cell', 'commit', 'device', 'encoder', 'gpu_uuid', 'kind', 'model', 'precision', 'queries', 'queue'].concat([
      'revision',
      'route',
      'server',
      'status',
      'version',
      'worker',
    ]),
  );
});

test('docs/metrics.md is made from it: npm run docs', () => {
  expect(readFileSync(new URL('docs/metrics.md', root), 'utf8')).toBe(metricsPage());
});

test('what prom-client counts of a process by itself has the names that the page says', async () => {
  const metrics = createMetrics({});
  metrics.standard();
  const names = [...(await metrics.text()).matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  expect(names.sort()).toEqual(Object.keys(STANDARD_METRICS).sort());
});

test('one file makes metrics, and it makes them from the catalogue', () => {
  const files = execFileSync('git', ['grep', '-lE', '^import .* from .prom-client.', '--', '*.ts'], {
    cwd: root,
    encoding: 'utf8',
  });
  expect(files.trim()).toBe('libs/ops/src/metrics.ts');
  const made = readFileSync(new URL('libs/ops/src/metrics.ts', root), 'utf8').match(/new (Counter|Gauge|Histogram)\b/g);
  expect(made).toEqual(['new Counter', 'new Gauge', 'new Histogram']);
  const every: MetricCatalogue[] = Object.values(CATALOGUE);
  expect(every.flatMap((metrics) => Object.keys(metrics)).length).toBe(entries.length);
});
