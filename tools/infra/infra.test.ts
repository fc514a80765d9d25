// infra/ agrees with the program and with itself, and each check sees what it is for: one thing is broken at a time.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { chartDigest, chartFiles } from './chart-files.ts';
import { checkInfra, readInfra } from './check-infra.ts';
import { RENDERED } from './render-kustomize.ts';

const ROOT = join(import.meta.dirname, '../..');
const files = readInfra(ROOT);

test('settings, images, ports, users and times to stop of infra/ are those of the program', () => {
  expect(checkInfra(files)).toEqual([]);
});

const BROKEN: readonly (readonly [path: string, from: string | RegExp, to: string, said: RegExp])[] = [
  ['infra/compose/compose.yaml', 'SHOAL_HTTP_ACCESS:', 'SHOAL_HTTP_ACESS:', /no setting SHOAL_HTTP_ACESS/],
  ['infra/compose/compose.yaml', 'stop_grace_period: 45s', 'stop_grace_period: 10s', /worker has 10 s .* needs 40 s/],
  ['infra/compose/compose.yaml', 'services:', 'services: {', /compose\.yaml: /],
  ['infra/compose/compose.yaml', 'redis://producer@', 'redis://http@', /no user http/],
  ['infra/compose/example.env', 'valkey:9.1.2', 'valkey:9.1.3', /the image of valkey is/],
  ['infra/systemd/shoal-worker@.service', 'TimeoutStopSec=60', 'TimeoutStopSec=30', /worker has 30 s/],
  ['infra/systemd/shoal.env', 'SHOAL_MODELS_DIR', 'SHOAL_MODEL_DIR', /no setting SHOAL_MODEL_DIR/],
  ['infra/docker/Dockerfile', /USER 10001:10001\nHEALTH/, 'HEALTH', /target cuda does not end as user/],
  ['infra/docker/Dockerfile', 'SHOAL_METRICS_PORT=9464', 'SHOAL_METRICS_PORT=9465', /the port of metrics is/],
  ['.dockerignore', '!infra/docker/healthcheck.mjs', '', /copies infra\/docker\/healthcheck\.mjs/],
  ['package.json', '"node": "22', '"node": "21', /Node 22.*tests run on 21/],
  ['infra/helm/shoal/values.yaml', 'replicas: 2', 'replicas: two', /values\.yaml: workers\.0\.replicas/],
  ['infra/helm/shoal/values.yaml', 'pullPolicy:', 'pulPolicy:', /values\.yaml: image: .*pulPolicy/],
  ['infra/helm/shoal/values.yaml', 'httpAccess: keys', 'httpAcess: keys', /values\.yaml: http\.settings/],
  ['infra/helm/shoal/values.yaml', 'httpAccess: keys', 'httpPort: 80', /values\.yaml: http\.settings/],
  ['infra/helm/shoal/values.yaml', 'repository: shoal', 'repository: Shoal', /values\.yaml: image\.repository/],
  ['infra/helm/shoal/values.yaml', "tag: ''", "tag: 'a b'", /values\.yaml: image\.tag/],
  ['infra/helm/shoal/values.yaml', 'size: 20Gi', 'size: 20gi', /values\.yaml: valkey\.storage\.size/],
  ['infra/helm/shoal/values.yaml', 'size: 20Gi', 'size: "0"', /values\.yaml: valkey\.storage\.size/],
  ['infra/helm/shoal/values.yaml', 'memory: 4Gi', 'memory: 4GB', /values\.yaml: valkey\.resources\.requests\.memory/],
  ['infra/helm/shoal/values.yaml', "queueCidr: ''", 'queueCidr: 10.0.0', /values\.yaml: networkPolicy\.queueCidr/],
  ['infra/helm/shoal/values.yaml', "host: ''", 'host: a_b', /values\.yaml: http\.ingress\.host/],
  ...(
    [
      ['OTEL_EXPORTER_OTLP_HEADERS: "authorization=x"', /environment.*OTEL_EXPORTER_OTLP_HEADERS/],
      ['OTEL_EXPORTER_OTLP_ENDPIONT: http://c:4318', /environment.*OTEL_EXPORTER_OTLP_ENDPIONT/],
      ['OTEL_EXPORTER_OTLP_ENDPOINT: "c:4318"', /environment\.OTEL_EXPORTER_OTLP_ENDPOINT/],
      ['OTEL_EXPORTER_OTLP_ENDPOINT: "http://user:secret@c:4318"', /environment\.OTEL_EXPORTER_OTLP_ENDPOINT/],
      ['OTEL_EXPORTER_OTLP_PROTOCOL: grpc', /environment\.OTEL_EXPORTER_OTLP_PROTOCOL/],
      ['OTEL_TRACES_SAMPLER: jaeger_remote', /environment\.OTEL_TRACES_SAMPLER/],
      ['OTEL_TRACES_SAMPLER_ARG: 1.5', /environment\.OTEL_TRACES_SAMPLER_ARG/],
      ['OTEL_TRACES_EXPORTER: zipkin', /environment\.OTEL_TRACES_EXPORTER/],
      ['OTEL_SDK_DISABLED: maybe', /environment\.OTEL_SDK_DISABLED/],
      ['OTEL_RESOURCE_ATTRIBUTES: production', /environment\.OTEL_RESOURCE_ATTRIBUTES/],
      ['OTEL_BSP_MAX_QUEUE_SIZE: 0', /environment\.OTEL_BSP_MAX_QUEUE_SIZE/],
    ] as const
  ).map(
    ([value, said]) =>
      ['infra/helm/shoal/values.yaml', '  environment: {}', `  environment: { ${value} }`, said] as const,
  ),
  ['infra/valkey/valkey.conf', 'maxmemory-policy noeviction', 'maxmemory-policy allkeys-lru', /noeviction/],
  ['infra/valkey/valkey.conf', 'port 6379', 'port 6379\ndir /data', /a dir has to exist/],
  ['infra/compose/compose.yaml', '--dir, /data, ', '', /compose\.yaml: the queue server is given no --dir/],
  ['infra/helm/shoal/templates/valkey.yaml', '--dir, /data, ', '', /valkey\.yaml: the queue server is given no --dir/],
  ['infra/systemd/shoal-valkey.service', '--dir ', '', /service: the queue server is given no --dir/],
  ['infra/valkey/users.acl.in', '+wait +waitaof -@dangerous', '+wait +waitaof', /user worker .* is not on the page/],
];

test.each(BROKEN)('%s with %j as %j is seen', (path, from, to, said) => {
  const text = files.get(path)!;
  const broken = text.replace(from, to);
  expect(broken).not.toBe(text);
  expect(checkInfra(new Map([...files, [path, broken]])).join('\n')).toMatch(said);
});

test('chart and compose pass on the variables of OpenTelemetry that the page names, all but those of files and secrets', () => {
  const page = readFileSync(join(ROOT, 'docs/observability.md'), 'utf8');
  const rows = page.split('\n').filter((line) => line.startsWith('| `OTEL_'));
  const named = rows.flatMap((row) => {
    const cell = row.split(' | ')[0]!;
    const [first = ''] = /OTEL_\w+/.exec(cell) ?? [];
    return [...cell.matchAll(/`(…?)(OTEL|)(_?\w+)[^`]*`/g)].map(([, more, begin, rest]) =>
      more === '…' ? first.replace(/_[A-Z]+$/, rest!) : `${begin}${rest}`,
    );
  });
  expect(named.length).toBeGreaterThan(15);
  const schema = JSON.parse(files.get('infra/helm/shoal/values.schema.json')!) as {
    readonly properties: {
      readonly otel: { readonly properties: { readonly environment: { readonly properties: object } } };
    };
  };
  const ofFiles = /_(CERTIFICATE|CLIENT_CERTIFICATE|CLIENT_KEY)$/;
  const plain = named.filter((name) => !ofFiles.test(name)).toSorted();
  const inCompose = [...files.get('infra/compose/compose.yaml')!.matchAll(/^ {2}(OTEL_\w+):$/gm)].map(
    ([, name]) => name,
  );
  expect(inCompose.toSorted()).toEqual(plain);
  const inChart = Object.keys(schema.properties.otel.properties.environment.properties);
  expect(inChart.toSorted()).toEqual(plain.filter((name) => !name.endsWith('_HEADERS')));
  const template = files.get('infra/helm/shoal/templates/_helpers.tpl')!;
  for (const name of named.filter((one) => ofFiles.test(one) || one.endsWith('_HEADERS')))
    expect(template).toContain(`name: ${name}\n`);
});

test('what the chart says itself in every pod is no setting of its values, where it would be dropped or break probes', () => {
  const templates = [...files].filter(([path]) => path.startsWith('infra/helm/shoal/templates/'));
  const own = templates.flatMap(([, text]) =>
    [...text.matchAll(/\$own := dict (.*) \}\}/g)].flatMap(([, pairs]) =>
      [...pairs!.matchAll(/"([a-z]+[A-Z]\w+|model)" (?:\S+|\(.*?\))/g)].map(([, key]) => key!),
    ),
  );
  expect(own).toEqual(expect.arrayContaining(['model', 'metricsPort', 'httpPort', 'httpHosts', 'exporterPort']));
  const { definitions } = JSON.parse(files.get('infra/helm/shoal/values.schema.json')!) as {
    readonly definitions: { readonly settings: { readonly propertyNames: { readonly enum: readonly string[] } } };
  };
  expect(own.filter((key) => definitions.settings.propertyNames.enum.includes(key))).toEqual([]);
});

test('what the chart holds of the project is current (npm run docs writes it)', () => {
  for (const [path, content] of chartFiles(ROOT)) expect([path, files.get(path)]).toEqual([path, content]);
});

test('the manifests of Kustomize were rendered from this chart (tools/infra/render-kustomize.ts)', () => {
  const [, digest] = readFileSync(join(ROOT, RENDERED), 'utf8').split('\n');
  expect(digest).toBe(`# ${chartDigest(ROOT)}`);
});
