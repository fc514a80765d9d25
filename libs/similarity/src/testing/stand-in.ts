// The CUDA library's stand-in (native/similarity/test/stand_in_cuda.cc), built when a test asks for it. For tests and
// benches.

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { CudaEngine, type CudaEngineOptions } from '../engines/cuda-engine.ts';
import { openCuda, type OpenedCuda } from '../engines/cuda-library.ts';

/** Where it lies; undefined, and a line that says why, where it cannot be built. */
export function standInLibrary(): string | undefined {
  const { status, stdout, stderr } = spawnSync(
    'sh',
    [fileURLToPath(new URL('../../../../native/similarity/build.sh', import.meta.url)), 'stand-in'],
    { encoding: 'utf8' },
  );
  if (status === 0) return stdout.trim();
  if (status !== 3) throw new Error(`the stand-in for the CUDA library cannot be built: ${stderr}`);
  console.warn('there is no C++ compiler: the CUDA engine is not tested with its stand-in');
  return undefined;
}

export function openStandIn(): OpenedCuda | undefined {
  const path = standInLibrary();
  const found = path === undefined ? undefined : openCuda(path);
  if (found?.ok === false) console.warn(`the CUDA engine is not tested with its stand-in: ${found.reason}`);
  return found?.ok === true ? found.cuda : undefined;
}

/** Room for whatever a test has, unless it says otherwise. */
export function standInEngine(cuda: OpenedCuda, options: Partial<CudaEngineOptions> = {}): CudaEngine {
  return new CudaEngine({ cuda, device: 0, residentBytes: 1 << 29, workBytes: 1 << 26, ...options });
}

/** With these variables, which the stand-in looks at with every call. */
export async function withStandIn<Value>(
  variables: Readonly<Record<`SHOAL_STAND_IN_${string}`, string | number>>,
  work: () => Promise<Value>,
): Promise<Value> {
  for (const [name, value] of Object.entries(variables)) process.env[name] = String(value);
  try {
    return await work();
  } finally {
    for (const name of Object.keys(variables)) delete process.env[name];
  }
}
