// What the chart holds of the rest of the project, because helm reads nothing outside of it: the names of all settings in
// its schema, the configuration of the queue server, the rules of Prometheus. `npm run docs` writes them; a test fails
// when one is stale.

import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { settingsSchema } from '../../libs/core/src/settings/schema.ts';

const CHART = 'infra/helm/shoal';
const SCHEMA = `${CHART}/values.schema.json`;
const RULES = 'infra/prometheus';
/** Given by the chart itself: the queue server, password files, a worker's name, and what ports and probes are named by. */
const OF_THE_CHART = new Set([
  'redisUrl',
  'redisCa',
  'redisCert',
  'redisKey',
  'redisServerName',
  'redisPasswordFile',
  'workerName',
  'model',
  'cacheDir',
  'modelsDir',
  'webhookSecret',
  'dashboardKeyFile',
  'httpHost',
  'httpPort',
  'httpHosts',
  'metricsHost',
  'metricsPort',
  'exporterHost',
  'exporterPort',
  'dashboardHost',
  'dashboardPort',
]);

interface Schema {
  readonly definitions: { readonly settings: { readonly propertyNames: { enum: readonly string[] } } };
}

/** Path in the repository to content, of every file of the chart that follows from another one. */
export function chartFiles(root: string): ReadonlyMap<string, string> {
  const read = (path: string): string => readFileSync(join(root, path), 'utf8');
  const schema = JSON.parse(read(SCHEMA)) as Schema;
  schema.definitions.settings.propertyNames.enum = Object.keys(settingsSchema.shape).filter(
    (key) => !OF_THE_CHART.has(key),
  );
  const rules = existsSync(join(root, RULES))
    ? readdirSync(join(root, RULES)).filter((name) => name.endsWith('.rules.yml'))
    : [];
  return new Map([
    [SCHEMA, `${JSON.stringify(schema, undefined, 2)}\n`],
    [`${CHART}/files/valkey.conf`, read('infra/valkey/valkey.conf')],
    ...rules.map((name) => [`${CHART}/files/${name}`, read(`${RULES}/${name}`)] as const),
  ]);
}

export function writeChartFiles(root: string): void {
  for (const [path, content] of chartFiles(root)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), content);
  }
}

/**
 * Of all that the rendered manifests follow from, in hexadecimal digits: they carry it, so that a stale one is seen
 * without helm.
 */
export function chartDigest(root: string): string {
  const hash = createHash('sha256');
  const paths = ['Chart.yaml', 'values.yaml', 'files/valkey.conf', ...templatesOf(root)];
  for (const path of paths.toSorted()) hash.update(`${path}\n`).update(readFileSync(join(root, CHART, path)));
  return hash.update(readFileSync(join(root, 'infra/kustomize/values.yaml'))).digest('hex');
}

function templatesOf(root: string): string[] {
  return readdirSync(join(root, CHART, 'templates')).map((name) => `templates/${name}`);
}
