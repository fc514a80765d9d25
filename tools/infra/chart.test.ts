// By night: the chart, rendered by helm's engine, against the schemas of Kubernetes, KEDA and Prometheus' operator, and
// the manifests of Kustomize against what the chart gives now. Broken variants are caught. What the chart says by itself
// of its values is looked at every time (infra.test.ts).

import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { kustomizeFrom, RENDERED } from './render-kustomize.ts';
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
  ] as const)('values %j are refused with a reason', ([values, said], context) => {
    if ('why' in tools) return context.skip();
    const path = join(folder, 'values.yaml');
    writeFileSync(path, values);
    expect(check(CHART, '--values', path)).toEqual({ status: 1, text: expect.stringMatching(said) });
  });
});
