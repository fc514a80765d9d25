// `shoal gpu install`: fetches what ONNX Runtime needs to use NVIDIA GPUs, builds the native encoder where there are
// compilers, and says what is still missing. How that is done and checked is libs/worker's business.

import { cacheFolder } from '@shoal/core';
import { buildNativeEncoder, installCudaProvider, type NativeEncoderReport } from '@shoal/worker';
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
    if (!isQuiet) say(terminal, 'building the native encoder …');
    const encoder = await buildNativeEncoder({
      cacheDir: cacheFolder(settings.cacheDir, terminal.environment),
      environment: terminal.environment,
    });
    if (flags.json === true) return await print(terminal, `${JSON.stringify({ ...report, encoder })}\n`);
    if (!isQuiet)
      say(
        terminal,
        `ONNX Runtime's CUDA provider ${report.version} is ${report.wasThere ? 'in' : 'now in'} ` +
          `${report.kept}, linked from ${report.linked}`,
      );
    if (report.problem !== undefined)
      say(terminal, `not usable yet: ${report.problem}. "shoal doctor" looks at everything a GPU worker needs`);
    if (!isQuiet) say(terminal, inWords(encoder));
  } finally {
    bar.stop();
  }
}

function inWords({ isBuilt, found, problem }: NativeEncoderReport): string {
  if (!isBuilt) return `the native encoder was not built: ${found}. Workers use ONNX Runtime, at about half the rate`;
  return problem === undefined
    ? `the native encoder is in ${found}; workers on NVIDIA GPUs use it`
    : `the native encoder is in ${found} and not usable yet: ${problem}`;
}
