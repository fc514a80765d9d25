// `shoal gpu install`: fetches what ONNX Runtime needs to use NVIDIA GPUs, builds native code where there are compilers, and says what is still missing. How that is done and checked is libs/worker's business.

import { cacheFolder } from '@shoal/core';
import { buildNative, installCudaProvider, type NativeBuildOptions, type NativeReport } from '@shoal/worker';
import { downloadProgress } from '../progress.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface GpuFlags {
  readonly force?: boolean;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export async function install(terminal: Terminal, flags: GpuFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const isQuiet = flags.quiet === true || flags.json === true;
  const bar = downloadProgress(terminal, 'CUDA provider', !isQuiet);
  try {
    const report = await installCudaProvider({
      cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
      environment: terminal.environment,
      force: flags.force === true,
      onProgress: (done, total) => bar.update(done, total),
    });
    bar.stop();
    if (!isQuiet) say(terminal, 'native encoder and similarity …');
    const [encoder, similarity] = await buildBoth({
      cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
      environment: terminal.environment,
    });
    if (flags.json === true) return await print(terminal, `${JSON.stringify({ ...report, encoder, similarity })}\n`);
    if (!isQuiet)
      say(
        terminal,
        `ONNX Runtime's CUDA provider ${report.version} is ${report.wasThere ? 'in' : 'now in'} ` +
          `${report.kept}, linked from ${report.linked}`,
      );
    if (report.problem !== undefined)
      say(terminal, `not usable yet: ${report.problem}. "shoal doctor" looks at everything a GPU worker needs`);
    if (isQuiet) return;
    say(terminal, inWords('the native encoder', encoder, 'Workers use ONNX Runtime, at about half the rate'));
    say(terminal, inWords('similarity on CUDA', similarity, 'The CPU compares'));
  } finally {
    bar.stop();
  }
}

/** One after the other: nvcc takes gigabytes. */
async function buildBoth(options: NativeBuildOptions): Promise<readonly [NativeReport, NativeReport]> {
  const encoder = await buildNative('encoder', options);
  return [encoder, await buildNative('similarity', options)];
}

function inWords(what: string, { isThere, found, problem }: NativeReport, without: string): string {
  if (!isThere) return `${what} is not here: ${found}. ${without}`;
  return problem === undefined
    ? `${what} is in ${found}; workers on NVIDIA GPUs use it`
    : `${what} is in ${found} and not usable yet: ${problem}`;
}
