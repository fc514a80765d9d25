// The execution providers Shoal asks for, and what can be said of CUDA's without loading it: whether its files lie
// beside the runtime, and which libraries of the system its loader will miss. Loading a provider with something missing
// tells only "Failed to load shared library"; here each missing thing has its name.

import { execFile } from 'node:child_process';
import { access, readdir } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { delimiter, dirname, join } from 'node:path';
import { arch, platform } from 'node:process';
import { promisify } from 'node:util';
import { ShoalError } from '@shoal/contract';

export type Provider = 'cuda' | 'webgpu' | 'cpu';

/** As the runtime calls them in its trace. */
export const PROVIDER_NAMES: Readonly<Record<Provider, string>> = {
  cuda: 'CUDAExecutionProvider',
  webgpu: 'WebGpuExecutionProvider',
  cpu: 'CPUExecutionProvider',
};

/**
 * Both have to lie beside libonnxruntime.so.1, and to be of exactly its version: what they speak with each other is not
 * versioned.
 */
export const CUDA_PROVIDER_FILES = ['libonnxruntime_providers_shared.so', 'libonnxruntime_providers_cuda.so'] as const;

/** Where the libraries of this platform lie in the runtime's package. */
export const RUNTIME_LIBRARIES = join('bin', 'napi-v6', platform, arch);

export interface InstalledRuntime {
  /** The folder of libonnxruntime. */
  readonly folder: string;
  readonly version: string;
}

const require = createRequire(import.meta.url);

/** Names a copy of the runtime's package that this process loads, where its own folder may not be written to. */
export const RUNTIME_ELSEWHERE = 'SHOAL_ONNX_RUNTIME';

/**
 * The main file of the package that has ONNX Runtime. `onnxruntime-node` carries the libraries of every platform (300
 * MB) and a script that fetches more; where Shoal was installed from packages, one has this platform's alone.
 * SETUP_FAILED where none is there.
 */
export function runtimeMain(environment: Readonly<Record<string, string | undefined>> = process.env): string {
  const elsewhere = environment[RUNTIME_ELSEWHERE] ?? '';
  for (const name of [elsewhere, `@shoal/onnxruntime-${platform}-${arch}`]) {
    try {
      if (name !== '') return require.resolve(name);
    } catch {
      // the next one
    }
  }
  try {
    return require.resolve('onnxruntime-node');
  } catch (cause) {
    throw new ShoalError(
      'SETUP_FAILED',
      `ONNX Runtime is not installed for ${platform}-${arch}: a package of its own has it for linux-x64, linux-arm64 and ` +
        'darwin-arm64 (@shoal/onnxruntime-linux-x64 …); install it beside shoal, or install shoal with optional packages',
      { platform, arch },
      cause,
    );
  }
}

export function installedRuntime(environment?: Readonly<Record<string, string | undefined>>): InstalledRuntime {
  const root = dirname(dirname(runtimeMain(environment))); // …/onnxruntime-node/dist/index.js
  const { version } = require(join(root, 'package.json')) as { version: string };
  return { folder: join(root, RUNTIME_LIBRARIES), version };
}

/** Why the CUDA provider cannot be loaded, or undefined when nothing speaks against it. */
export async function cudaProviderProblem(
  { folder }: InstalledRuntime = installedRuntime(),
): Promise<string | undefined> {
  for (const file of CUDA_PROVIDER_FILES) {
    const isThere = await access(join(folder, file)).then(
      () => true,
      () => false,
    );
    if (!isThere)
      return (
        `ONNX Runtime's CUDA provider is not installed (${file} is not in ${folder}); "shoal gpu install" ` +
        'fetches it'
      );
  }
  const missing = await missingLibraries(join(folder, CUDA_PROVIDER_FILES[1]));
  if (missing.length === 0) return undefined;
  return (
    `the CUDA provider needs ${missing.map((name) => `${name} (${originOf(name)})`).join(', ')}, which the ` +
    'loader does not find: install them, or add their folders to LD_LIBRARY_PATH'
  );
}

/** Libraries that a shared object needs and the loader of this system does not find; empty where ldd cannot tell. */
export async function missingLibraries(path: string): Promise<readonly string[]> {
  const { stdout } = await promisify(execFile)('ldd', [path], {
    timeout: 20_000,
    env: { ...process.env, LC_ALL: 'C' },
  }).catch(() => ({ stdout: '' }));
  return [...stdout.matchAll(/^\s*(\S+) => not found/gm)].map(([, name]) => name!);
}

/**
 * Whether the loader will find cuDNN, which the provider opens only when it runs: its absence shows in no list of
 * needs.
 */
export async function findsCudnn(
  environment: Readonly<Record<string, string | undefined>> = process.env,
): Promise<boolean> {
  const folders = (environment['LD_LIBRARY_PATH'] ?? '').split(delimiter).filter((folder) => folder !== '');
  const names = (await Promise.all(folders.map((folder) => readdir(folder).catch(() => [])))).flat();
  if (names.some((name) => name.startsWith('libcudnn.so'))) return true;
  const { stdout } = await promisify(execFile)('ldconfig', ['-p'], {
    timeout: 20_000,
    env: { ...process.env, PATH: `${process.env['PATH'] ?? ''}:/sbin:/usr/sbin` },
  }).catch(() => ({ stdout: '' }));
  return stdout.includes('libcudnn.so');
}

function originOf(library: string): string {
  if (library === 'libcuda.so.1') return 'the NVIDIA driver';
  return /^lib(?:cu|nv)/.test(library) ? 'CUDA 13' : 'a package of the system';
}
