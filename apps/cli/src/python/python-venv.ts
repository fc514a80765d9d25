// For tests: a virtual environment with what the Python client needs, in the versions of requirements.json, below the
// cache folder under a hash of that file, so that a second run has it at once.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { isMade, makeOnce } from '@shoal/fetch/testing';

const WANTED = readFileSync(new URL('requirements.json', import.meta.url), 'utf8');

/** The interpreter of the environment; undefined where it has not been made. */
export function pythonOf(cacheDir: string): string | undefined {
  const folder = folderIn(cacheDir);
  return isMade(folder) ? join(folder, 'bin/python') : undefined;
}

/** The same, made where it is not there: half a minute and 300 MB. Throws what pip said. */
export async function installPython(cacheDir: string): Promise<string> {
  const folder = folderIn(cacheDir);
  await makeOnce(folder, () => {
    run('python3', ['-m', 'venv', folder]);
    const pinned = Object.entries(JSON.parse(WANTED) as Record<string, string>).map(([name, at]) => `${name}==${at}`);
    run(join(folder, 'bin/python'), ['-m', 'pip', 'install', '--quiet', ...pinned]);
  });
  return join(folder, 'bin/python');
}

function folderIn(cacheDir: string): string {
  return join(cacheDir, `test-python-${createHash('sha256').update(WANTED).digest('hex').slice(0, 16)}`);
}

function run(program: string, args: readonly string[]): void {
  execFileSync(program, args, { stdio: ['ignore', 'ignore', 'inherit'], timeout: 600_000 });
}
