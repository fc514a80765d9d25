// `shoal gpu install`: ONNX Runtime's CUDA provider, which npm does not carry, out of the pinned wheel of the same
// version. Kept in the cache folder and linked beside the runtime's library, where alone it is looked for; so a fresh
// node_modules needs a link and no download, and one that is read-only neither. Installs nothing of CUDA itself: what the loader will miss is named.

import { access, copyFile, cp, mkdir, readlink, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import {
  fetchReason,
  fetchWheel,
  makeOpenFolder,
  placeAtomically,
  sha256File,
  withLock,
  type OnProgress,
  type Wheel,
} from '@shoal/fetch';
import {
  RUNTIME_ELSEWHERE,
  RUNTIME_LIBRARIES,
  cudaProviderProblem,
  installedRuntime,
  type InstalledRuntime,
} from '@shoal/inference';

export interface PinnedProvider {
  readonly wheel: Wheel;
  readonly folderInWheel: string;
  /** sha256 by name. */
  readonly files: Readonly<Record<string, string>>;
}

/**
 * MIT; CUDA 13, cuDNN 9, for drivers of 580 and newer. Every Python's build holds the same libraries; one is pinned.
 */
export const CUDA_PROVIDER: PinnedProvider = {
  wheel: {
    project: 'onnxruntime-gpu',
    version: '1.30.0',
    sha256: { 'linux-x64': '6acc0f4b3d5ac5f2984432faa59dd8fcce6775f8b43a7140afa0f322c7a703b1' },
    build: { python: '3.12', platform: 'manylinux_2_28_x86_64' },
  },
  folderInWheel: 'onnxruntime/capi',
  files: {
    'libonnxruntime_providers_shared.so': '086ec1d5388f64153d9c63470d126693db9a182c8ce236d3a1119068471b8a0d',
    'libonnxruntime_providers_cuda.so': '35da2e7ed0dd0d1aec5cdb16ce11a51d06c0c48cf62d1b1c9332946a4fae14fc',
  },
};

const RUNTIME_LIBRARY = 'libonnxruntime.so.1';

export interface InstallOptions {
  readonly cacheDir: string;
  readonly force?: boolean;
  readonly onProgress?: OnProgress;
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** Given by tests alone. */
  readonly runtime?: InstalledRuntime;
  readonly provider?: PinnedProvider;
}

export interface InstallReport {
  readonly version: string;
  /** The folder in which the files are kept. */
  readonly kept: string;
  /** The folder in which the runtime finds them. */
  readonly linked: string;
  readonly wasThere: boolean;
  /** Why it cannot be loaded yet; undefined when nothing is missing. */
  readonly problem: string | undefined;
}

/**
 * Throws SETUP_FAILED when there is no provider for this system or this runtime, it cannot be fetched, or may not be
 * put in place.
 */
export async function installCudaProvider(options: InstallOptions): Promise<InstallReport> {
  const { cacheDir, force = false, runtime = installedRuntime({}), provider = CUDA_PROVIDER } = options;
  const { version } = provider.wheel;
  refuseOthers(version, runtime);
  const kept = keptIn(cacheDir, version);
  const wasThere = !force && (await isWhole(kept, provider));
  if (!wasThere) {
    for (const folder of [dirname(kept), kept]) await makeOpenFolder(folder);
    await withLock(`${kept}.lock`, async () => {
      if (force || !(await isWhole(kept, provider))) await fetchFiles(kept, provider, options);
    });
  }
  const linked = await bring(kept, Object.keys(provider.files), runtime);
  return { version, kept, linked, wasThere, problem: await cudaProviderProblem({ ...runtime, folder: linked }) };
}

/**
 * What an earlier `installCudaProvider` kept is linked again: `npm ci` took the links away, or this process and those
 * that it starts have to load ONNX Runtime from there. Does nothing else, and never fails.
 */
export async function linkKeptProvider(
  cacheDir: string,
  { wheel, files }: PinnedProvider = CUDA_PROVIDER,
  runtime: InstalledRuntime = installedRuntime({}),
): Promise<void> {
  if (runtime.version !== wheel.version) return;
  const kept = keptIn(cacheDir, wheel.version);
  const missing = [];
  for (const file of Object.keys(files))
    if (!(await exists(join(runtime.folder, file))) && (await exists(join(kept, file)))) missing.push(file);
  if (missing.length > 0) await bring(kept, missing, runtime).catch(() => undefined);
}

/**
 * Provider and runtime into one folder, which is returned: the provider to the runtime, or, where an installed package
 * may not be written to, the runtime to the provider, for this process and all that it starts from here on.
 */
async function bring(kept: string, files: readonly string[], runtime: InstalledRuntime): Promise<string> {
  try {
    for (const file of files) await link(join(kept, file), join(runtime.folder, file));
    return runtime.folder;
  } catch (error) {
    if (!isForbidden((error as Error).cause)) throw error;
    const copy = await copyRuntime(kept, runtime);
    for (const file of files) await link(join(kept, file), join(copy, RUNTIME_LIBRARIES, file));
    process.env[RUNTIME_ELSEWHERE] = copy;
    return join(copy, RUNTIME_LIBRARIES);
  }
}

/** The runtime's package in `kept`: its large library is a link, all else a copy, since modules are where links end. */
async function copyRuntime(kept: string, { folder }: InstalledRuntime): Promise<string> {
  const copy = join(kept, 'runtime');
  const library = join(folder, RUNTIME_LIBRARY);
  if ((await readlink(join(copy, RUNTIME_LIBRARIES, RUNTIME_LIBRARY)).catch(() => undefined)) === library) return copy;
  const origin = folder.slice(0, -RUNTIME_LIBRARIES.length);
  const common = createRequire(join(origin, 'package.json')).resolve('onnxruntime-common');
  await withLock(`${copy}.lock`, async () => {
    await rm(copy, { recursive: true, force: true });
    await mkdir(join(copy, RUNTIME_LIBRARIES), { recursive: true });
    for (const part of ['package.json', 'dist', join(RUNTIME_LIBRARIES, 'onnxruntime_binding.node')])
      await cp(join(origin, part), join(copy, part), { recursive: true });
    await mkdir(join(copy, 'node_modules'));
    await symlink(dirname(dirname(dirname(common))), join(copy, 'node_modules', 'onnxruntime-common')); // …/dist/cjs/index.js
    await symlink(library, join(copy, RUNTIME_LIBRARIES, RUNTIME_LIBRARY)); // last: it says that all is there
  });
  return copy;
}

function isForbidden(cause: unknown): boolean {
  return ['EACCES', 'EPERM', 'EROFS'].includes((cause as NodeJS.ErrnoException | undefined)?.code ?? '');
}

function keptIn(cacheDir: string, version: string): string {
  return join(cacheDir, 'providers', `onnxruntime-cuda-${version}`);
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

function refuseOthers(version: string, runtime: InstalledRuntime): void {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new ShoalError(
      'SETUP_FAILED',
      `ONNX Runtime's CUDA provider is built for linux-x64, and this is ${process.platform}-${process.arch}; ` +
        'Shoal uses WebGPU or the CPU here',
    );
  }
  if (runtime.version !== version) {
    throw new ShoalError(
      'SETUP_FAILED',
      `onnxruntime-node ${runtime.version} is installed and the CUDA provider that is pinned here is ` +
        `${version}; they have to be the same: install onnxruntime-node ${version}`,
    );
  }
}

async function isWhole(folder: string, { files }: PinnedProvider): Promise<boolean> {
  const found = await Promise.all(
    Object.keys(files).map((file) => sha256File(join(folder, file)).catch(() => undefined)),
  );
  return Object.values(files).every((sha256, at) => found[at] === sha256);
}

async function fetchFiles(
  kept: string,
  { wheel, folderInWheel, files }: PinnedProvider,
  { onProgress, environment }: InstallOptions,
): Promise<void> {
  const keepAll = async (unpacked: string): Promise<void> => {
    for (const [file, sha256] of Object.entries(files))
      await keep(join(unpacked, folderInWheel, file), join(kept, file), sha256);
  };
  try {
    await fetchWheel(wheel, keepAll, {
      ...(onProgress !== undefined && { onProgress }),
      ...(environment !== undefined && { environment }),
    });
  } catch (error) {
    if (fetchReason(error) === undefined) throw error;
    throw new ShoalError(
      'SETUP_FAILED',
      `ONNX Runtime's CUDA provider could not be fetched: ${(error as Error).message}`,
      { reason: fetchReason(error) },
      error,
    );
  }
}

async function keep(from: string, to: string, sha256: string): Promise<void> {
  const found = await sha256File(from);
  if (found !== sha256)
    throw new ShoalError(
      'SETUP_FAILED',
      `${from} should have the sha256 ${sha256} and has ${found}; nothing was kept`,
      { file: from },
    );
  await placeAtomically(to, (temporary) => copyFile(from, temporary));
}

async function link(target: string, path: string): Promise<void> {
  if ((await readlink(path).catch(() => undefined)) === target) return;
  try {
    await rm(path, { force: true });
    await symlink(target, path);
  } catch (cause) {
    const { message } = cause as NodeJS.ErrnoException;
    const cure = isForbidden(cause) ? 'run the command as the owner of that folder' : 'look at the folder';
    throw new ShoalError(
      'SETUP_FAILED',
      `the CUDA provider is in ${target}, but cannot be put beside ONNX Runtime (${message}): ${cure}`,
      { path },
      cause,
    );
  }
}
