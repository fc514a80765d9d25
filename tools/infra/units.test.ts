// By night: what systemd says of the units. A copy is looked at whose programs are there; `verify` ends with 0 even for
// keys that it does not know, so that any word of it is a fault.

import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { hasProgram } from './tools-of-others.ts';

const UNITS = join(import.meta.dirname, '../../infra/systemd');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const canRun = isNight && hasProgram('systemd-analyze');
if (isNight && !canRun) console.log('the units are not verified: there is no systemd-analyze here');

const folder = mkdtempSync(join(tmpdir(), 'shoal-units-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** The units, with instances made of templates and programs that every machine has; returns their paths. */
function copied(change: (text: string) => string = (text) => text): readonly string[] {
  return readdirSync(UNITS)
    .filter((name) => /\.(?:service|target)$/.test(name))
    .map((name) => {
      const path = join(folder, name.replace('@.', '@0.'));
      const text = readFileSync(join(UNITS, name), 'utf8').replace(/^ExecStart=\S+/m, 'ExecStart=/bin/true');
      writeFileSync(path, change(text));
      return path;
    });
}

/** Everything that it says: the exit code tells too little. */
function verified(paths: readonly string[]): string {
  const { stdout, stderr } = spawnSync('systemd-analyze', ['verify', ...paths], { encoding: 'utf8' });
  return `${stdout}${stderr}`;
}

describe.skipIf(!canRun)('(nightly) systemd', () => {
  test('finds nothing in the units', () => {
    expect(verified(copied())).toBe('');
  });

  test('finds a key that there is not', () => {
    expect(verified(copied((text) => text.replace('Restart=always', 'Restrat=always')))).toMatch(/Restrat/);
  });

  test('gives each service an exposure of 2.0 at most', () => {
    for (const path of copied().filter((each) => each.endsWith('.service'))) {
      const told = execFileSync('systemd-analyze', ['security', '--offline=true', path], { encoding: 'utf8' });
      const exposure = /Overall exposure level for \S+: ([\d.]+)/.exec(told)?.[1];
      expect([path, Number(exposure) <= 2]).toEqual([path, true]);
    }
  });
});
