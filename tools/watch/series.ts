// Which series an expression of PromQL asks for, and whether somebody tells them: metrics of the catalogue, with labels
// and values that they have, recording rules, and a closed list of what other exporters tell. promtool knows the
// language and no names: an alert on a misspelt series is valid and never fires.

import { catalogueEntries, seriesNames, FEW, STANDARD_METRICS, type CatalogueEntry } from '@shoal/ops/catalogue';

/** One selector: a name and what its labels are compared with. */
export interface Selector {
  readonly name: string;
  readonly matchers: readonly { readonly label: string; readonly operator: string; readonly value: string }[];
}

/** What exporters beside Shoal tell, as their own pages list it. */
const FOREIGN: ReadonlySet<string> = new Set([
  // redis_exporter 1.x
  'redis_aof_last_write_status',
  'redis_aof_last_bgrewrite_status',
  'redis_rdb_last_bgsave_status',
  'redis_master_link_up',
  'redis_connected_slave_lag_seconds',
  'redis_latest_fork_seconds',
  // dcgm-exporter, its default counters
  'DCGM_FI_DEV_XID_ERRORS',
  'DCGM_FI_DEV_ROW_REMAP_FAILURE',
  'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS',
  'DCGM_FI_DEV_GPU_TEMP',
  // blackbox_exporter
  'probe_ssl_earliest_cert_expiry',
]);

/** What Prometheus itself adds to every target. */
const OF_PROMETHEUS: ReadonlySet<string> = new Set(['up', 'ALERTS']);
const TARGET_LABELS: ReadonlySet<string> = new Set(['job', 'instance']);

const KEYWORDS: ReadonlySet<string> = new Set(['and', 'or', 'unless', 'bool', 'offset', 'Inf', 'NaN']);
const GROUPING = /\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)/g;
const SELECTOR = /(?<![\w:])([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?(?!\w|\s*\()/g;
const MATCHER = /(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"/g;

/** Every series that an expression reads. */
export function selectorsIn(expr: string): readonly Selector[] {
  const bare = expr.replaceAll(GROUPING, ' ').replaceAll(/\[[^\]]*\]/g, ' ');
  return [...bare.matchAll(SELECTOR)]
    .filter(([, name = '']) => !KEYWORDS.has(name))
    .map(([, name = '', braces = '']) => ({
      name,
      matchers: [...braces.matchAll(MATCHER)].map(([, label = '', operator = '', value = '']) => ({
        label,
        operator,
        value,
      })),
    }));
}

/**
 * What is wrong with an expression's names, one sentence a finding; none when every series can exist. `records` are the
 * names of the recording rules that go with it.
 */
export function unknownSeries(expr: string, records: ReadonlySet<string>): readonly string[] {
  return selectorsIn(expr).flatMap((selector) => {
    const { name } = selector;
    if (records.has(name) || FOREIGN.has(name) || OF_PROMETHEUS.has(name) || name in STANDARD_METRICS) return [];
    const entry = catalogueEntries().find((known) => seriesNames(known).includes(name));
    if (entry === undefined) return [`nobody tells ${name}: it is in no catalogue, and no recording rule has the name`];
    return wrongMatchers(selector, entry);
  });
}

function wrongMatchers({ name, matchers }: Selector, { labels, type }: CatalogueEntry): readonly string[] {
  return matchers.flatMap(({ label, operator, value }) => {
    if (TARGET_LABELS.has(label) || (type === 'histogram' && label === 'le')) return [];
    const values = labels[label];
    if (values === undefined)
      return [`${name} has no label ${label}; it has ${Object.keys(labels).join(', ') || 'none'}`];
    // a variable of a board, and values that only a fleet knows
    if (values === FEW || value.includes('$')) return [];
    const fits = (known: string): boolean =>
      operator.endsWith('~') ? new RegExp(`^(?:${value})$`).test(known) : known === value;
    return values.some(fits) ? [] : [`${name}: no value of ${label} is ${value}; there are ${values.join(', ')}`];
  });
}
