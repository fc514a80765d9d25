// The catalogue: every metric that Shoal exports, and which process tells it. A contract with whoever writes rules and
// boards, so a name changes only with a CHANGELOG line. Carries no prom-client: @shoal/ops/catalogue.

import { EVERY_PROCESS } from './every-process.ts';
import { OF_THE_FLEET } from './of-the-fleet.ts';
import { OF_HTTP } from './of-http.ts';
import type { MetricCatalogue, MetricDefinition } from './metric-definition.ts';
import { OF_SIMILARITY } from './of-similarity.ts';
import { OF_WORKERS } from './of-workers.ts';

/** The kinds of process that serve /metrics. The dashboard tells what the exporter tells. */
export type MetricTeller = 'every process' | 'worker' | 'similarity worker' | 'HTTP' | 'exporter, dashboard';

export interface CatalogueEntry extends MetricDefinition {
  readonly name: string;
  readonly toldBy: MetricTeller;
}

/** By who tells it. */
export const CATALOGUE = {
  'every process': EVERY_PROCESS,
  worker: OF_WORKERS,
  'similarity worker': OF_SIMILARITY,
  HTTP: OF_HTTP,
  'exporter, dashboard': OF_THE_FLEET,
} as const satisfies Readonly<Record<MetricTeller, MetricCatalogue>>;

/** What a worker's registry is made from; that of a similarity worker has SIMILARITY_METRICS besides. */
export const WORKER_METRICS = { ...EVERY_PROCESS, ...OF_WORKERS } as const;
export const SIMILARITY_METRICS = OF_SIMILARITY;
/** What HTTP's registry is made from. */
export const PRODUCER_METRICS = { ...EVERY_PROCESS, ...OF_HTTP } as const;
/** What the registry of the exporter and of the dashboard is made from. */
export const EXPORTER_METRICS = { ...EVERY_PROCESS, ...OF_THE_FLEET } as const;

/** Every metric of the catalogue, in the order of docs/metrics.md. */
export function catalogueEntries(): readonly CatalogueEntry[] {
  return Object.entries<MetricCatalogue>(CATALOGUE).flatMap(([toldBy, metrics]) =>
    Object.entries<MetricDefinition>(metrics).map(([name, definition]) => ({
      name,
      toldBy: toldBy as MetricTeller,
      ...definition,
    })),
  );
}

/** The names under which a metric is stored: of a histogram its three. */
export function seriesNames({ name, type }: Pick<CatalogueEntry, 'name' | 'type'>): readonly string[] {
  return type === 'histogram' ? ['_bucket', '_sum', '_count'].map((end) => name + end) : [name];
}
