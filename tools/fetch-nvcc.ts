// `npm run fetch-nvcc`: the CUDA compiler out of five pinned wheels (105 MB, 430 MB unpacked) into the cache, where
// tools/nvcc.sh looks for it. For machines that build the CUDA libraries and have no toolkit: CI above all. Runs
// nothing of what it fetched, and is needed neither to build nor to run anything else. NVIDIA's licence (its text lies
// beside) allows use, not redistribution.

import { spawnSync } from 'node:child_process';
import { chmod, cp, mkdir, readdir, rename, rm } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { cacheFolder } from '@shoal/core';
import { fetchReason, fetchWheel, withLock, type Wheel } from '@shoal/fetch';

const VERSION = '13.0.88';

/** CUDA 13.0: its code runs with drivers of 580 and newer, as ONNX Runtime's provider does. */
const WHEELS: readonly Wheel[] = [
  {
    project: 'nvidia-cuda-nvcc',
    version: VERSION,
    sha256: { 'linux-x64': '56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03' },
  },
  {
    project: 'nvidia-nvvm',
    version: VERSION,
    sha256: { 'linux-x64': 'c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0' },
  },
  {
    project: 'nvidia-cuda-crt',
    version: VERSION,
    sha256: { 'linux-x64': '2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4' },
  },
  {
    project: 'nvidia-cuda-runtime',
    version: '13.0.96',
    sha256: { 'linux-x64': '7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548' },
  },
  {
    project: 'nvidia-cuda-cccl',
    version: '13.0.85',
    sha256: { 'linux-x64': 'e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649' },
  },
];

/** The folder that $CUDA_HOME would be. Errors are those of `fetchWheel`. */
export async function fetchNvcc(
  cacheDir: string,
  onProgress: (step: string) => void = () => undefined,
): Promise<string> {
  const home = join(cacheDir, 'nvcc', VERSION);
  if (existsSync(home)) return home;
  await withLock(
    `${home}.lock`,
    async () => {
      if (!existsSync(home)) await assemble(home, onProgress);
    },
    { onWait: () => onProgress('waiting for another command that fetches the CUDA compiler') },
  );
  return home;
}

/**
 * Why there is no CUDA compiler, fetched ones included; undefined where there is one. Throws when what was fetched is
 * not what was pinned.
 */
export async function nvccProblem(cacheDir: string): Promise<string | undefined> {
  const found = spawnSync('sh', [join(import.meta.dirname, 'nvcc.sh'), '--where'], {
    env: { ...process.env, SHOAL_CACHE_DIR: cacheDir },
  });
  if (found.status !== 3) return undefined;
  if (process.platform !== 'linux') return `there is no CUDA compiler for ${process.platform}`;
  try {
    await fetchNvcc(cacheDir, console.log);
    return undefined;
  } catch (error) {
    if (fetchReason(error) === undefined || fetchReason(error) === 'mismatch') throw error;
    return `there is no CUDA compiler, and none can be fetched: ${(error as Error).message}`;
  }
}

async function assemble(home: string, onProgress: (step: string) => void): Promise<void> {
  const working = `${home}.${process.pid}.part`;
  try {
    await mkdir(working, { recursive: true });
    for (const wheel of WHEELS) {
      onProgress(`fetching ${wheel.project} ${wheel.version}`);
      await fetchWheel(wheel, async (unpacked) => {
        await cp(join(unpacked, 'nvidia', 'cu13'), working, { recursive: true });
        await cp(
          join(unpacked, `${wheel.project.replaceAll('-', '_')}-${wheel.version}.dist-info`, 'licenses'),
          join(working, 'licenses', wheel.project),
          { recursive: true },
        );
      });
    }
    // Unpacking a wheel keeps no permissions.
    for (const folder of ['bin', 'nvvm/bin'])
      for (const { name, parentPath } of (await readdir(join(working, folder), { withFileTypes: true })).filter(
        (entry) => entry.isFile(),
      ))
        await chmod(join(parentPath, name), 0o755);
    await rename(working, home);
  } finally {
    await rm(working, { recursive: true, force: true });
  }
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.log(await fetchNvcc(cacheFolder(process.env['SHOAL_CACHE_DIR']), console.error));
}
