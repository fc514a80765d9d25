// One turn of sim-device.ts in processes of its own, for benches that compare two of its settings.

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export interface SimDeviceTurn {
  /** µs of the queue server's command thread for a job. */
  readonly commandMicrosPerJob: number;
  readonly textsPerSecond: number;
}

/** `flags`: of sim-device.ts. It checks every row of every result. */
export function simDeviceTurn(flags: readonly string[]): SimDeviceTurn {
  const program = fileURLToPath(new URL('sim-device.ts', import.meta.url));
  const told = execFileSync(process.execPath, ['--conditions=@shoal/source', program, '--peeks', ...flags], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const { commandMicrosPerJob, textsPerSecond } = JSON.parse(told) as SimDeviceTurn;
  return { commandMicrosPerJob, textsPerSecond };
}
