// The second half of `shoal gpu install`: builds the native encoder for the GPU that is here, where CUDA's compiler and
// a C++ compiler are. Workers run without it, so nothing of this is an error: what keeps it from being built is told.

import { spawn } from 'node:child_process';
import { access } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ENCODER_LIBRARIES, nativeEncoderProblem } from '@shoal/inference';
import { readDevices } from '@shoal/ops';

export interface NativeEncoderReport {
  readonly isBuilt: boolean;
  /** The path of the library, or why there is none. */
  readonly found: string;
  /** Why it cannot be used yet; undefined when it can. */
  readonly problem: string | undefined;
}

export interface NativeEncoderBuildOptions {
  readonly cacheDir: string;
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** The script that builds; given by tests alone. */
  readonly script?: string;
}

const SCRIPT = fileURLToPath(new URL('../../../../native/encoder/build.sh', import.meta.url));
/** One architecture takes 30 s, all of them some minutes. */
const BUILD_TIMEOUT_MS = 900_000;
/** The exit status of build.sh where a compiler is missing. */
const NO_COMPILER = 3;

export async function buildNativeEncoder({
  cacheDir,
  environment = process.env,
  script = SCRIPT,
}: NativeEncoderBuildOptions): Promise<NativeEncoderReport> {
  if (
    !(await access(script).then(
      () => true,
      () => false,
    ))
  )
    return { isBuilt: false, found: `its sources are not here (${script})`, problem: nativeEncoderProblem() };
  const own = { ...environment, SHOAL_CACHE_DIR: cacheDir, ...(await architectureHere()) };
  for (const part of ['addon', 'cuda']) {
    const { status, words } = await built(script, part, own);
    if (status === NO_COMPILER)
      return { isBuilt: false, found: `a compiler is missing: ${words}`, problem: nativeEncoderProblem() };
    if (status !== 0)
      return { isBuilt: false, found: `building ${part} failed: ${words}`, problem: nativeEncoderProblem() };
  }
  return { isBuilt: true, found: dirname(ENCODER_LIBRARIES.cuda), problem: nativeEncoderProblem() };
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
    cwd: join(dirname(script)),
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
