// By night: what docs/deployment.md says of Kubernetes, before a real API server with the kinds of KEDA and Prometheus'
// operator. It takes every manifest of the chart and of Kustomize, in a dry run of kubectl's and of its own and for good,
// and refuses what is broken. Pods need a cluster: nothing here runs one, so the lines that wait for them are left out.

import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer } from './api-server.ts';
import type { Ran } from './container-rig.ts';
import { block, PAGE } from './guide-page.ts';
import { placeOf, RENDERED } from './render-kustomize.ts';
import { clusterPrograms, crdFolders, type Had } from './tools-of-others.ts';

const ROOT = join(import.meta.dirname, '../..');
const CHART = join(ROOT, 'infra/helm/shoal');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const MOST_MS = 4_000_000; // the first night builds the server
/** Where the page's commands run: the clone's infra, and a folder for passwords that is nobody else's. */
const place = mkdtempSync(join(tmpdir(), 'shoal-cluster-'));
const KINDS = ['scaledobjects', 'triggerauthentications', 'podmonitors', 'prometheusrules'];

let has: Had<ApiServer> = { why: 'by day' };

beforeAll(async () => {
  if (!isNight) return;
  has = await serverWithKinds();
  if ('why' in has) console.log(`the chart is put before no API server, because ${has.why}`);
}, MOST_MS);
afterAll(async () => {
  if ('had' in has) await has.had.stop();
  rmSync(place, { recursive: true, force: true });
});

async function serverWithKinds(): Promise<Had<ApiServer>> {
  const programs = await clusterPrograms();
  if ('why' in programs) return programs;
  const crds = await crdFolders();
  if ('why' in crds) return crds;
  const folder = join(place, 'server');
  mkdirSync(folder);
  symlinkSync(join(ROOT, 'infra'), join(place, 'infra'));
  const server = new ApiServer({ programs: programs.had, folder });
  has = { had: server }; // what was started is stopped
  await server.start();
  for (const each of crds.had)
    for (const kind of KINDS)
      must(
        server.shell(
          `for file in ${each}/*${kind}.yaml; do [ ! -e "$file" ] || kubectl create -f "$file"; done`,
          place,
        ),
      );
  must(server.shell('kubectl wait --for condition=established --timeout=300s customresourcedefinitions --all', place));
  return { had: server };
}

function must(ran: Ran): string {
  expect([ran.status, ran.stderr.trim().split('\n').slice(-20)]).toEqual([0, expect.anything()]);
  return ran.stdout;
}

function said(commands: string): Ran {
  if ('why' in has) throw new Error(has.why);
  return has.had.shell(commands, place);
}

/** A line of the page that begins with these words. */
function line(begin: string): string {
  const found = block('kubernetes')
    .split('\n')
    .find((each) => each.startsWith(begin));
  if (found === undefined) throw new Error(`the page has no line that begins with ${begin}`);
  return found;
}

describe.skipIf(!isNight)('(nightly) docs/deployment.md before an API server', () => {
  test('namespace and passwords', (context) => {
    if ('why' in has) return context.skip();
    for (const begin of ['kubectl create namespace', 'sh infra/valkey/', 'kubectl --namespace shoal create secret'])
      must(said(line(begin)));
    const secret = 'kubectl --namespace shoal get secret shoal-queue --output jsonpath={.data}';
    expect(Object.keys(JSON.parse(must(said(secret))))).toContain('worker.password');
  });

  test.for(['client', 'server'])('without helm, --dry-run=%s', (how, context) => {
    if ('why' in has) return context.skip();
    const [apply] = /kubectl apply --kustomize \S+(?=`)/.exec(PAGE)!;
    const taken = must(said(`${apply} --dry-run=${how}`))
      .trim()
      .split('\n');
    expect(taken).toHaveLength(readFileSync(join(ROOT, RENDERED), 'utf8').match(/^kind: /gm)!.length);
    for (const each of taken)
      expect(each).toMatch(new RegExp(` created \\(${how === 'server' ? 'server ' : ''}dry run\\)$`));
  });

  test.for(['client', 'server'])('the chart with everything switched on, --dry-run=%s', (how, context) => {
    if ('why' in has) return context.skip();
    const values = join(import.meta.dirname, 'chart-values.yaml');
    must(said(`helm template shoal infra/helm/shoal --namespace shoal --values ${values} >full.yaml`));
    const taken = must(said(`kubectl --namespace shoal apply --dry-run=${how} --filename full.yaml`));
    for (const kind of ['statefulset.apps', 'scaledobject.keda.sh', 'podmonitor', 'prometheusrule', 'networkpolicy'])
      expect(taken).toContain(kind);
  });

  test('by helm, first dry and then for good: all that it renders is there', (context) => {
    if ('why' in has) return context.skip();
    must(said(`${line('helm install')} --dry-run=server`));
    expect(must(said('kubectl --namespace shoal get statefulsets --output name'))).toBe('');
    must(said(line('helm install')));
    const wanted = readFileSync(join(ROOT, RENDERED), 'utf8')
      .split(/^---\n/m)
      .slice(1)
      .map(placeOf);
    const kinds = [...new Set(wanted.map((each) => each.split(' ')[0]))].join();
    const names = '{range .items[*]}{.kind} {.metadata.name}{"\\n"}{end}';
    const there = must(said(`kubectl --namespace shoal get ${kinds} --output 'jsonpath=${names}'`)).split('\n');
    expect(there).toEqual(expect.arrayContaining(wanted));
  });

  test.for([
    [
      'workers.yaml',
      'matchLabels:\n      {{- include "shoal.selector" (list $ $component) | nindent 6 }}',
      'matchLabels: { of: another }',
      /worker-cpu[^]*`selector` does not match template `labels`/,
    ],
    ['http.yaml', 'containerPort: 8787', 'containerPort: 87870', /http[^]*must be between 1 and 65535/],
  ] as const)(
    'a chart whose %s is broken where only a server looks is refused',
    ([template, from, to, words], context) => {
      if ('why' in has) return context.skip();
      const copy = mkdtempSync(join(place, 'chart-'));
      cpSync(CHART, copy, { recursive: true });
      const path = join(copy, 'templates', template);
      const text = readFileSync(path, 'utf8');
      writeFileSync(path, text.replace(from, to));
      expect(readFileSync(path, 'utf8')).not.toBe(text);
      must(said(`helm template broken ${copy} --namespace shoal --set valkey.enabled=true >broken.yaml`));
      const refused = said('kubectl --namespace shoal apply --dry-run=server --filename broken.yaml');
      expect([refused.status, refused.stderr]).toEqual([1, expect.stringMatching(words)]);
    },
  );
});
