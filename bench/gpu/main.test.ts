// How the command answers before anything runs: no GPU needed, and nothing written.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { STEPS } from './steps.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-gpu-bench-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const out = join(folder, 'out');

function bench(...args: string[]) {
  const path = fileURLToPath(new URL('./main.ts', import.meta.url));
  return spawnSync(process.execPath, ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', path, '--out', out, ...args], { encoding: 'utf8' });
}

test.each(['--help', '-h'])('%s names every option and step, and exits with 0', (flag) => {
  const { status, stdout, stderr } = bench(flag);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  for (const option of ['--out', '--steps', '--device', '--small', '--seconds', '--commit']) expect(stdout).toContain(`  ${option} `);
  for (const { name, group } of STEPS) expect(stdout).toMatch(new RegExp(`^  ${group} .*\\b${name}(;|$)`, 'm'));
  expect(existsSync(out)).toBe(false);
});

test.each([
  [['--stepz', 'speed'], "Unknown option '--stepz'"],
  [['--steps'], "Option '--steps <value>' argument missing"],
  [['speed'], "Unexpected argument 'speed'"],
  [['--steps', 'speed,sped'], 'There is no step sped'],
])('%j is refused in one line, with 2', (args, reason) => {
  const { status, stdout, stderr } = bench(...args);
  expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
  expect(stderr).toBe(`${reason}; --help says what there is\n`);
  expect(existsSync(out)).toBe(false);
});
