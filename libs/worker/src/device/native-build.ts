// The second half of `shoal gpu install`: native code for the GPU that is here, built where CUDA's compiler and a C++
// compiler are, or found in its package. Workers run without it, so nothing of this is an error: what keeps it from
// being there is told.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { nativeCure } from '@shoal/core/base';
import { ENCODER_LIBRARIES, nativeEncoderProblem } from '@shoal/inference';
import { readDevices } from '@shoal/ops';

export type NativePart = 'encoder' | 'similarity';

export interface NativeReport {
  /** Built now, or found in its package. */
  readonly isThere: boolean;
  /** The path of the library, or why there is none. */
  readonly found: string;
  /** Why it cannot be used yet; undefined when it can. */
  readonly problem: string | undefined;
}

export interface NativeBuildOptions {
  readonly cacheDir: string;
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** The script that builds; given by tests alone. */
  readonly script?: string;
}

/** One architecture takes 30 s, all of them some minutes. */
const BUILD_TIMEOUT_MS = 900_000;
/** The exit status of build.sh where a compiler is missing. */
const NO_COMPILER = 3;

export async function buildNative(
  part: NativePart,
  { cacheDir, environment = process.env, script = scriptOf(part) }: NativeBuildOptions,
): Promise<NativeReport> {
  const { library, problem } = await libraryOf(part);
  if (!existsSync(script))
    return existsSync(library)
      ? { isThere: true, found: library, problem: problem() }
      : { isThere: false, found: nativeCure('cuda', `its sources are not here (${script})`), problem: problem() };
  const own = { ...environment, SHOAL_CACHE_DIR: cacheDir, ...(await architectureHere()) };
  for (const step of ['addon', 'cuda']) {
    const { status, words } = await built(script, step, own);
    if (status === NO_COMPILER) return { isThere: false, found: `a compiler is missing: ${words}`, problem: problem() };
    if (status !== 0) return { isThere: false, found: `building ${step} failed: ${words}`, problem: problem() };
  }
  return { isThere: true, found: library, problem: problem() };
}

/** Of a checkout; installed packages have no sources. */
function scriptOf(part: NativePart): string {
  return fileURLToPath(new URL(`../../../../native/${part}/build.sh`, import.meta.url));
}

interface NativeLibrary {
  readonly library: string;
  readonly problem: () => string | undefined;
}

async function libraryOf(part: NativePart): Promise<NativeLibrary> {
  if (part === 'encoder') return { library: ENCODER_LIBRARIES.cuda, problem: nativeEncoderProblem };
  const { CUDA_LIBRARY, openCuda } = await import('@shoal/similarity'); // takes a while to load
  const problem = (): string | undefined => {
    const found = openCuda();
    return found.ok ? undefined : found.reason;
  };
  return { library: CUDA_LIBRARY, problem };
}

/** The architecture of the cards, where the driver tells it and all have the same: no other is compiled for then. */
async function architectureHere(): Promise<{ readonly ARCH?: string }> {
  const read = await readDevices({});
  const capabilities = new Set(read.ok ? read.devices.map(({ computeCapability }) => computeCapability) : []);
  const [only] = capabilities;
  return capabilities.size === 1 && only !== undefined ? { ARCH: only.replace('.', '') } : {};
}

async function built(
  script: string,
  part: string,
  environment: Readonly<Record<string, string | undefined>>,
): Promise<{ readonly status: number; readonly words: string }> {
  const child = spawn('sh', [script, part], {
    cwd: dirname(script),
    env: environment,
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: BUILD_TIMEOUT_MS,
  });
  let words = '';
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => (words = (words + chunk).slice(-2000)));
  const status = await new Promise<number>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? -1));
  });
  return { status, words: words.trim().split('\n').at(-1) ?? '' };
}
