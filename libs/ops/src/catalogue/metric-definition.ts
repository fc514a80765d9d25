// What is said of a metric before it is made: prom-client's objects, docs/metrics.md, and the checks of rules and boards
// are all made from these. A label has a closed set of values or, marked FEW, values that this machine or this fleet
// bounds: a card's index, a queue's name, a route's pattern, the payload servers of a setting. Ids, texts, tenants and
// addresses of callers are never labels.

/** Values that are not listed here, but are few. */
export const FEW = 'few';

/** What the number counts or measures; the name of a metric ends with those that Prometheus knows as base units. */
export type MetricUnit =
  | 'seconds'
  | 'bytes'
  | 'watts'
  | 'celsius'
  | 'ratio'
  | '1 or 0'
  | 'Unix time in seconds'
  | 'batches'
  | 'bodies'
  | 'collections'
  | 'connections'
  | 'errors'
  | 'executors'
  | 'jobs'
  | 'calls'
  | 'files'
  | 'leases'
  | 'lines'
  | 'micro-batches'
  | 'queues'
  | 'refusals'
  | 'requests'
  | 'rows'
  | 'sets'
  | 'spans'
  | 'sweeps'
  | 'texts'
  | 'things'
  | 'tokens'
  | 'tokens a second'
  | 'values'
  | 'workers';

export interface MetricDefinition {
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly unit: MetricUnit;
  /** One plain sentence or a few. */
  readonly help: string;
  readonly labels: Readonly<Record<string, readonly string[] | typeof FEW>>;
  /** Labels that a series may be without, as Prometheus understands an empty value. */
  readonly mayLack?: readonly string[];
  /** Upper bounds of a histogram. */
  readonly buckets?: readonly number[];
  /**
   * The series that are there at 0 from the start, so that rate() sees their first event. Left out: one for each value
   * of a single closed label, or the one of a metric without labels.
   */
  readonly beginsAtZero?: readonly Readonly<Record<string, string>>[];
}

export type MetricCatalogue = Readonly<Record<`shoal_${string}`, MetricDefinition>>;
