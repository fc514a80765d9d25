// By night: the chart, rendered by helm's engine, against the schemas of Kubernetes, KEDA and Prometheus' operator, and
// the manifests of Kustomize against what the chart gives now. Broken variants are caught. What the chart says by itself
// of its values is looked at every time (infra.test.ts).

import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { kustomizeFrom, placeOf, RENDERED } from './render-kustomize.ts';
import { crdFolders, pythonTools, type Had } from './tools-of-others.ts';

const ROOT = join(import.meta.dirname, '../..');
const CHART = join(ROOT, 'infra/helm/shoal');
const FULL = join(import.meta.dirname, 'chart-values.yaml');
const SCRIPT = join(import.meta.dirname, 'check_chart.py');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const folder = mkdtempSync(join(tmpdir(), 'shoal-chart-'));

let tools: Had<string> = { why: 'by day' };
let crds: Had<readonly string[]> = { why: 'by day' };

beforeAll(async () => {
  if (!isNight) return;
  tools = await pythonTools();
  crds = await crdFolders();
  for (const [what, had] of Object.entries({ 'the chart': tools, 'kinds of KEDA and Prometheus’ operator': crds }))
    if ('why' in had) console.log(`${what}: not tried, because ${had.why}`);
});
afterAll(() => rmSync(folder, { recursive: true }));

function check(...args: readonly string[]): { readonly status: number | null; readonly text: string } {
  if ('why' in tools) throw new Error(tools.why);
  const { status, stdout, stderr } = spawnSync(join(tools.had, 'python'), [SCRIPT, ...args], {
    encoding: 'utf8',
    maxBuffer: 16e6,
  });
  return { status, text: stdout + stderr };
}

/** What helm makes of these values in the namespace shoal: kind and name to manifest. */
function rendered(values: string): ReadonlyMap<string, string> {
  const path = join(folder, 'values.yaml');
  writeFileSync(path, values);
  const { status, text } = check(CHART, '--values', path, '--namespace', 'shoal', '--render');
  expect([status, text]).toEqual([0, expect.anything()]);
  return new Map(text.split(/^---\n/m).map((manifest) => [placeOf(manifest), manifest]));
}

/** What KEDA is told of a group of GPUs beside the chart's own queue server. */
function scaledGroup(more: string, scaling = ''): string | undefined {
  return rendered(
    `${VALKEY}monitoring: { podMonitor: { enabled: true } }\nworkers: [{ name: a, target: cuda, model: m, replicas: 1, ` +
      `${more}autoscaling: { enabled: true, min: 1, max: 2${scaling} } }]`,
  ).get('ScaledObject shoal-worker-a');
}

const VALKEY = 'valkey: { enabled: true }\n';
const GROUP = 'name: a, target: cpu, model: Org/Model.1@r, replicas: 1';
const SCALES = `workers: [{ ${GROUP}, autoscaling: { enabled: true, min: 0, max: 2, cooldownSeconds: 0 } }]\n`;

const kinds = (): readonly string[] => ('why' in crds ? [] : crds.had.flatMap((each) => ['--crds', each]));

describe.skipIf(!isNight)('(nightly)', () => {
  test('the chart with everything switched on is as the schemas want it', (context) => {
    if ('why' in tools || 'why' in crds) return context.skip();
    expect(check(CHART, '--values', FULL, ...kinds())).toEqual({
      status: 0,
      text: expect.stringMatching(/^\d+ manifests are as the schemas/),
    });
  });

  test('OpenTelemetry is told to workers and HTTP alone, numbers as numbers, secrets by reference', (context) => {
    if ('why' in tools) return context.skip();
    const { status, text } = check(CHART, '--values', FULL, '--render');
    expect(status).toBe(0);
    const pods = text.split(/^---\n/m).filter((manifest) => /^kind: (StatefulSet|Deployment)$/m.test(manifest));
    const tellers = pods.filter((manifest) => manifest.includes('OTEL_'));
    expect(tellers.map((manifest) => /^ {2}name: (\S+)$/m.exec(manifest)?.[1]).toSorted()).toEqual([
      'shoal-http',
      'shoal-worker-cpu',
      'shoal-worker-gpu',
    ]);
    for (const manifest of tellers)
      for (const words of [
        'name: OTEL_BSP_MAX_QUEUE_SIZE\n              value: "1000000"',
        'name: OTEL_TRACES_SAMPLER_ARG\n              value: "0.05"',
        'valueFrom: { secretKeyRef: { name: collector, key: headers } }',
        'value: /etc/shoal/otel/client.key',
        'secret: { secretName: collector-tls, defaultMode: 0440 }',
      ])
        expect(manifest).toContain(words);
  });

  test('where buckets are is told to those whose settings name one', (context) => {
    if ('why' in tools) return context.skip();
    const { status, text } = check(CHART, '--values', FULL, '--render');
    expect(status).toBe(0);
    const told = text.split(/^---\n/m).filter((manifest) => manifest.includes('AWS_'));
    expect(told.map((manifest) => /^ {2}name: (\S+)$/m.exec(manifest)?.[1]).toSorted()).toEqual([
      'shoal-http',
      'shoal-worker-cpu',
    ]);
    for (const manifest of told)
      for (const words of [
        'name: AWS_ENDPOINT_URL_S3\n              value: "http://minio.storage.svc:9000"',
        'valueFrom: { secretKeyRef: { name: bucket, key: AWS_SECRET_ACCESS_KEY } }',
      ])
        expect(manifest).toContain(words);
    expect(text).toContain('- { port: 9000 }');
    const parts = `s3: { region: eu-west-1 }\nworkers: [{ ${GROUP}, settings: { partFolders: "/data,s3://bucket/texts" } }]\n`;
    expect(rendered(VALKEY + parts).get('StatefulSet shoal-worker-a')).toContain('name: AWS_REGION');
  });

  test('what a group of workers says beats what all are told, 0 and nothing as well', (context) => {
    if ('why' in tools) return context.skip();
    const own = `workers: [{ ${GROUP}, settings: { drainTimeoutMs: 0, collectionsDir: "", maxRows: 5 } }]\n`;
    const all = 'settings: { drainTimeoutMs: 50000, collectionsDir: /all, maxRows: 9, precision: fp32 }\n';
    const worker = rendered(VALKEY + all + own).get('StatefulSet shoal-worker-a');
    for (const [name, value] of Object.entries({
      SHOAL_DRAIN_TIMEOUT_MS: '0',
      SHOAL_COLLECTIONS_DIR: '',
      SHOAL_MAX_ROWS: '5',
      SHOAL_PRECISION: 'fp32',
    }))
      expect(worker).toContain(`- name: ${name}\n              value: "${value}"`);
  });

  test.for([
    ['redis://{user}@h:6380/2', 'redis', ['address: "h:6380"', 'databaseIndex: "2"'], [6379, 6380]],
    ['redis://{user}@h?passwordFile=/x/y&db=4', 'redis', ['address: "h:6379"', 'databaseIndex: "4"'], [6379]],
    ['rediss://{user}@[::1]', 'redis', ["enableTLS: 'true'", 'address: "[::1]:6379"'], [6379]],
    [
      'redis+sentinel://{user}@a,b:26380/main?db=3',
      'redis-sentinel',
      ['addresses: "a:26379,b:26380"', 'sentinelMaster: "main"', 'databaseIndex: "3"'],
      [6379, 26379, 26380],
    ],
    [
      'rediss+cluster://{user}@a:7000,b',
      'redis-cluster',
      ['addresses: "a:7000,b:6379"', "enableTLS: 'true'"],
      [6379, 7000],
    ],
  ] as const)('KEDA and network policies find the queue server of %s', ([url, type, words, ports], context) => {
    if ('why' in tools) return context.skip();
    const manifests = rendered(`queue: { url: "${url}" }\nnetworkPolicy: { enabled: true }\n${SCALES}`);
    const scaled = manifests.get('ScaledObject shoal-worker-a')!;
    expect([...scaled.matchAll(/ - type: (\S+)/g)].map(([, each]) => each)).toEqual(['prometheus', type, type]);
    // a group of CPUs is woken by the CPU lane as well
    for (const queue of ['embed-org--model-1', 'embed-org--model-1-cpu'])
      expect(scaled).toContain(`listName: "{shoal}:${queue}:prioritized"`);
    for (const each of words) expect(scaled.split(each)).toHaveLength(3);
    expect(scaled).toMatch(/cooldownPeriod: 0\n[^]*stabilizationWindowSeconds: 0\n *policies/);
    const policy = manifests.get('NetworkPolicy shoal')!;
    const [, open] = /port: 53, protocol: TCP \}\n([^]*?) to: /.exec(policy)!;
    expect([...open!.matchAll(/port: (\d+)/g)].map(([, port]) => Number(port)).toSorted((a, b) => a - b)).toEqual(
      ports,
    );
  });

  test('KEDA gets authority and certificates of the queue server, and may reach one that the chart makes', (context) => {
    if ('why' in tools) return context.skip();
    const tls = 'queue: { url: "rediss://{user}@h", tls: { secret: authority, clientCertificate: true } }\n';
    const trusts = rendered(tls + SCALES).get('TriggerAuthentication shoal-queue');
    for (const [parameter, key] of Object.entries({ ca: 'ca.pem', cert: 'client.pem', key: 'client.key' }))
      expect(trusts).toContain(`{ parameter: ${parameter}, name: authority, key: ${key} }`);
    const policies = 'networkPolicy: { enabled: true, kedaNamespace: scaler }\n';
    const opens = (values: string): string => rendered(VALKEY + policies + values).get('NetworkPolicy shoal-valkey')!;
    expect(opens(SCALES)).toContain('kubernetes.io/metadata.name: scaler');
    expect(opens('')).not.toContain('namespaceSelector');
  });

  test('KEDA looks at the queue that a group serves, among its own fleet', (context) => {
    if ('why' in tools) return context.skip();
    expect(scaledGroup('')).toContain('{queue=~"embed-m", namespace="shoal"}');
    expect(scaledGroup('settings: { kind: similarity }, ')).toContain('{queue=~"similarity", namespace="shoal"}');
    expect(scaledGroup('', ', queue: rerank-m')).toContain('listName: "{shoal}:rerank-m:prioritized"');
  });

  test('what fetches a model asks for as much as the process after it, so that a quota lets it in', (context) => {
    if ('why' in tools) return context.skip();
    const pulls = 'models: { source: pull }\nhttp: { resources: { requests: { cpu: 3 }, limits: { memory: 7Gi } } }\n';
    const { init, main } =
      /initContainers:[^]*?resources:\n(?<init>[^]*?) volumeMounts:[^]*? resources:\n(?<main>[^]*?) volumeMounts:/.exec(
        rendered(VALKEY + pulls).get('Deployment shoal-http')!,
      )!.groups!;
    expect(init!.replaceAll(' ', '')).toBe('limits:\nmemory:7Gi\nrequests:\ncpu:3\nmemory:1Gi\n');
    expect(main!.replaceAll(' ', '')).toBe(init!.replaceAll(' ', ''));
  });

  test.for([
    ['1a', /begin with a letter/],
    ['a.b', /to have no dot/],
    ['a'.repeat(40), /45 characters at most/],
    ['a'.repeat(39), /has 56 characters, and a StatefulSet has no pods with more than 52/],
  ] as const)('a release called %s is refused before anything is made', ([release, said], context) => {
    if ('why' in tools) return context.skip();
    const path = join(folder, 'values.yaml');
    writeFileSync(path, VALKEY);
    const found = check(CHART, '--values', path, '--release', release);
    expect(found).toEqual({ status: 1, text: expect.stringMatching(said) });
  });

  test('the manifests of Kustomize are what the chart gives', (context) => {
    if ('why' in tools) return context.skip();
    const values = join(ROOT, 'infra/kustomize/values.yaml');
    const { status, text } = check(CHART, '--values', values, '--namespace', 'shoal', '--render');
    expect([status, readFileSync(join(ROOT, RENDERED), 'utf8')]).toEqual([0, kustomizeFrom(ROOT, text)]);
  });

  test.for([
    ['workers.yaml', 'livenessProbe:', 'livenesProbe:', /StatefulSet shoal-worker-cpu: .*livenesProbe/],
    ['workers.yaml', 'maxUnavailable: 1', 'maxUnavailabel: 1', /PodDisruptionBudget .*maxUnavailabel/],
    ['autoscaling.yaml', 'maxReplicaCount:', 'maxReplicaCout:', /ScaledObject .*maxReplicaCout/],
    ['monitoring.yaml', 'podMetricsEndpoints:', 'podMetricEndpoints:', /PodMonitor .*podMetric/],
    ['network-policy.yaml', 'policyTypes: [Ingress]', 'policyTypes: Ingress', /NetworkPolicy .*policyTypes/],
    ['http.yaml', 'replicas: {{ .Values.http.replicas }}', 'replicas: many', /Deployment shoal-http: .*replicas/],
  ] as const)('%s with "%s" as "%s" is caught', ([template, from, to, said], context) => {
    if ('why' in tools || 'why' in crds) return context.skip();
    const copy = join(folder, `chart-${template}`);
    cpSync(CHART, copy, { recursive: true });
    const path = join(copy, 'templates', template);
    const text = readFileSync(path, 'utf8');
    writeFileSync(path, text.replace(from, to));
    const enabled = join(folder, 'valkey.yaml');
    writeFileSync(enabled, 'queue: { url: "" }\nvalkey: { enabled: true }\n');
    const found = check(copy, '--values', FULL, '--values', enabled, ...kinds());
    expect(found).toEqual({ status: 1, text: expect.stringMatching(said) });
  });

  test.for([
    ['workers: [{ name: a, target: tpu, model: x, replicas: 1 }]', /workers\/0\/target/],
    ['settings: { maxRowz: 5 }', /invalid propertyName 'maxRowz'/],
    ['{}', /queue\.url is empty and valkey\.enabled is false/],
    ['valkey: { enabled: true }\nqueue: { url: "redis://{user}@host:1" }', /leave one of them out/],
    ['valkey: { enabled: true }\nmodels: { source: claim }', /models\.claim: the name of a volume claim/],
    ['queue: { url: "redis://:secret@host:1" }', /queue\/url/],
    ['otel: { environment: { OTEL_TRACES_SAMPLER: jaeger_remote } }', /OTEL_TRACES_SAMPLER/],
    ['valkey: { enabled: true }\notel: { headersSecret: collector }', /otel is set, and nobody sends spans/],
    ['valkey: { enabled: true }\ns3: { region: eu-west-1 }', /s3 is set, and no setting names a bucket/],
    [`${VALKEY}settings: { traces: off }`, /traces is false, which YAML makes of yes, no, on and off/],
    [`${VALKEY}settings: { httpPort: 9000 }`, /invalid propertyName 'httpPort'/],
    [`${VALKEY}workers: [{ ${GROUP} }, { ${GROUP} }]`, /two groups are called a/],
    [`${VALKEY}${SCALES.replace('min: 0', 'min: 3')}`, /autoscaling of a has min 3 above max 2/],
    [
      `queue: { url: "rediss://{user}@h", tls: { serverName: q } }\n${SCALES}`,
      /KEDA cannot be told queue.tls.serverName/,
    ],
    [`queue: { url: "redis+sentinel://{user}@h/m?sentinelPassword=x" }\n${SCALES}`, /without the sentinelPassword/],
  ] as const)('values %j are refused with a reason', ([values, said], context) => {
    if ('why' in tools) return context.skip();
    const path = join(folder, 'values.yaml');
    writeFileSync(path, values);
    expect(check(CHART, '--values', path)).toEqual({ status: 1, text: expect.stringMatching(said) });
  });
});
