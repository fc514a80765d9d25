// Where Prometheus' and Alertmanager's programs are for tests: on PATH, or below dist/setup, where Debian's packages are
// unpacked once at night. They are no part of a set-up.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { delimiter, join } from 'node:path';

export type WatchProgram = 'promtool' | 'amtool' | 'prometheus' | 'prometheus-alertmanager';

/** Where Debian's packages lie. */
export const UNPACKED = join(import.meta.dirname, '../../dist/setup/prometheus');
const PACKAGES = ['prometheus', 'prometheus-alertmanager'];

/** The path of a program, or why there is none, for a test to print when it is skipped. */
export function findWatchProgram(
  name: WatchProgram,
): { readonly path: string; readonly missing?: undefined } | { readonly path?: undefined; readonly missing: string } {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), join(UNPACKED, 'usr/bin')];
  const found = (): string | undefined => folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
  let path = found();
  if (path === undefined && process.env['SHOAL_TEST_NIGHTLY'] !== undefined) {
    unpack();
    path = found();
  }
  return path === undefined
    ? { missing: `${name} is not on PATH (apt-get install prometheus prometheus-alertmanager)` }
    : { path };
}

function unpack(): void {
  mkdirSync(UNPACKED, { recursive: true });
  try {
    execFileSync('apt-get', ['download', '-q', ...PACKAGES], { cwd: UNPACKED, stdio: 'ignore' });
    for (const file of readdirSync(UNPACKED).filter((entry) => entry.endsWith('.deb')))
      execFileSync('dpkg', ['-x', file, '.'], { cwd: UNPACKED, stdio: 'ignore' });
  } catch {
    // no Debian, or no network: the test says what is missing
  }
}
