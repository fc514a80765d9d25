// Metrics in memory and as Prometheus text. The only importer of prom-client. Names, labels and their values are
// checked by the compiler against a catalogue, so that a misspelt metric cannot be recorded. Values that exist only on
// request, such as the depth of a queue, are collected at a scrape; a source that fails or hangs costs its own metrics
// and nothing else.

import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics } from 'prom-client';
import { invariant } from '@shoal/contract';
import { FEW, type MetricCatalogue, type MetricDefinition } from './catalogue/metric-definition.ts';

/** A source that has not answered by then is left out of this scrape; Prometheus itself gives up after 10 s. */
const COLLECT_MS = 3_000;
/** At prom-client's own 10 ms an idle process takes five times the CPU, see process-metrics.ts. */
const LAG_MS = 50;
/** Gauges that are called counters; they say nothing that those by type do not. */
const MISNAMED = ['nodejs_active_resources_total', 'nodejs_active_handles_total', 'nodejs_active_requests_total'];

type NameOf<Catalogue, Type extends MetricDefinition['type']> = {
  [Name in keyof Catalogue]: Catalogue[Name] extends { readonly type: Type } ? Name : never;
}[keyof Catalogue] &
  string;

type ValueOf<Values> = Values extends readonly (infer Value)[] ? Value : string;
type LackedBy<Definition> = Definition extends { readonly mayLack: readonly (infer Label)[] } ? Label : never;

type LabelsOf<Definition> = Definition extends { readonly labels: infer Labels }
  ? { readonly [Label in Exclude<keyof Labels, LackedBy<Definition>>]: ValueOf<Labels[Label]> } & {
      readonly [Label in Extract<keyof Labels, LackedBy<Definition>>]?: ValueOf<Labels[Label]>;
    }
  : never;

export interface MetricRegistry<Catalogue extends MetricCatalogue> {
  count<Name extends NameOf<Catalogue, 'counter'>>(name: Name, labels: LabelsOf<Catalogue[Name]>, by?: number): void;
  /** Sets a counter to what somebody else has counted, since a beginning that this process does not know. */
  countTo<Name extends NameOf<Catalogue, 'counter'>>(
    name: Name,
    labels: LabelsOf<Catalogue[Name]>,
    total: number,
  ): void;
  set<Name extends NameOf<Catalogue, 'gauge'>>(name: Name, labels: LabelsOf<Catalogue[Name]>, value: number): void;
  observe<Name extends NameOf<Catalogue, 'histogram'>>(
    name: Name,
    labels: LabelsOf<Catalogue[Name]>,
    value: number,
  ): void;
  /** Forgets every value of a metric: what it measured is not known any more. */
  forget(name: NameOf<Catalogue, 'gauge' | 'counter'>): void;
  /** Tells what prom-client counts of every Node process as well, from now on. */
  standard(): void;
  /** Called before every text; sets gauges. */
  onScrape(collect: () => void | Promise<void>): void;
  readonly contentType: string;
  /** Prometheus text format 0.0.4. */
  text(): Promise<string>;
}

export function createMetrics<Catalogue extends MetricCatalogue>(catalogue: Catalogue): MetricRegistry<Catalogue> {
  const registry = new Registry();
  const metrics = new Map(
    Object.entries(catalogue).map(([name, definition]) => [name, register(registry, name, definition)]),
  );
  const collectors: (() => void | Promise<void>)[] = [];
  return {
    contentType: registry.contentType,
    count: (name, labels, by = 1) => counterOf(metrics, name).inc(labels, by),
    countTo(name, labels, total) {
      const counter = counterOf(metrics, name);
      counter.remove(labels);
      counter.inc(labels, total);
    },
    set: (name, labels, value) => gaugeOf(metrics, name).set(labels, value),
    observe: (name, labels, value) => histogramOf(metrics, name).observe(labels, value),
    forget: (name) => metrics.get(name)?.reset(),
    onScrape: (collect) => void collectors.push(collect),
    standard() {
      collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: LAG_MS });
      for (const name of MISNAMED) registry.removeSingleMetric(name);
    },
    async text() {
      await Promise.all(collectors.map(collectInTime));
      return registry.metrics();
    },
  };
}

type AnyMetric = Counter | Gauge | Histogram;

function register(registry: Registry, name: string, definition: MetricDefinition): AnyMetric {
  const { type, help, labels, buckets } = definition;
  const common = { name, help, labelNames: Object.keys(labels), registers: [registry] };
  switch (type) {
    case 'counter': {
      const counter = new Counter(common);
      for (const series of seriesAtZero(definition)) counter.inc(series, 0);
      return counter;
    }
    case 'gauge': {
      const gauge = new Gauge(common);
      for (const series of definition.beginsAtZero ?? []) gauge.set(series, 0);
      return gauge;
    }
    case 'histogram':
      return new Histogram({ ...common, ...(buckets === undefined ? {} : { buckets: [...buckets] }) });
  }
}

/** A counter that appears with its first event hides that event from rate(). */
function seriesAtZero({ beginsAtZero, labels }: MetricDefinition): readonly Readonly<Record<string, string>>[] {
  const [only, ...others] = Object.entries(labels);
  if (beginsAtZero !== undefined || others.length > 0) return beginsAtZero ?? [];
  if (only === undefined) return [{}];
  const [label, values] = only;
  return values === FEW ? [] : values.map((value) => ({ [label]: value }));
}

function counterOf(metrics: ReadonlyMap<string, AnyMetric>, name: string): Counter {
  const metric = metrics.get(name);
  invariant(metric instanceof Counter, `${name} is a counter of the catalogue`);
  return metric;
}

function gaugeOf(metrics: ReadonlyMap<string, AnyMetric>, name: string): Gauge {
  const metric = metrics.get(name);
  invariant(metric instanceof Gauge, `${name} is a gauge of the catalogue`);
  return metric;
}

function histogramOf(metrics: ReadonlyMap<string, AnyMetric>, name: string): Histogram {
  const metric = metrics.get(name);
  invariant(metric instanceof Histogram, `${name} is a histogram of the catalogue`);
  return metric;
}

async function collectInTime(collect: () => void | Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, COLLECT_MS)));
  try {
    await Promise.race([collect(), late]);
  } catch {
    // its metrics are missing, or keep their last value: that is the report
  } finally {
    clearTimeout(timer);
  }
}
