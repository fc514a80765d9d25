// @shoal/ops/catalogue: every metric that is exported, as data: for tests of rules and boards. Carries no prom-client.

export {
  CATALOGUE,
  catalogueEntries,
  seriesNames,
  type CatalogueEntry,
  type MetricTeller,
} from './catalogue/metric-catalogue.ts';
export { FEW, type MetricCatalogue, type MetricDefinition, type MetricUnit } from './catalogue/metric-definition.ts';
export { metricsPage } from './catalogue/metrics-page.ts';
export { STANDARD_METRICS } from './catalogue/standard-metrics.ts';
