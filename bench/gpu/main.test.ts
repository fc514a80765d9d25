// How the command answers before anything runs: no GPU needed, and nothing written.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { STEPS } from './steps.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-gpu-bench-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const out = join(folder, 'out');

const OPTIONS = 'there is --out, --steps, --device, --small, --seconds, --commit, --help';

function bench(...args: string[]) {
  const path = fileURLToPath(new URL('./main.ts', import.meta.url));
  return spawnSync(
    process.execPath,
    ['--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', path, '--out', out, ...args],
    { encoding: 'utf8' },
  );
}

test.each(['--help', '-h'])('%s names every option and step, and exits with 0', (flag) => {
  const { status, stdout, stderr } = bench(flag);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  for (const option of ['--out', '--steps', '--device', '--small', '--seconds', '--commit'])
    expect(stdout).toContain(`  ${option} `);
  for (const { name, group } of STEPS) expect(stdout).toMatch(new RegExp(`^  ${group} .*\\b${name}(;|$)`, 'm'));
  expect(existsSync(out)).toBe(false);
});

test.each([
  [['--stepz', 'speed'], `Unknown option '--stepz'; ${OPTIONS}`],
  [['--steps'], `Option '--steps <value>' argument missing; ${OPTIONS}`],
  [['speed'], `Unexpected argument 'speed'; ${OPTIONS}`],
  [['--steps', 'speed,sped'], 'There is no step sped; --help says what there is'],
  [['--steps', 'speed', '--steps', 'sped'], 'There is no step sped; --help says what there is'],
])('%j is refused in one line, with 2', (args, reason) => {
  const { status, stdout, stderr } = bench(...args);
  expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
  expect(stderr).toBe(`${reason}\n`);
  expect(existsSync(out)).toBe(false);
});

test.each([
  [['two: both, f16 results'], ['two: both, f16 results']],
  [
    ['corpus,precision: tf32', 'two: both, f16 results'],
    ['corpus', 'precision: tf32', 'two: both, f16 results'],
  ],
  [
    ['up', 'similarity: queue'],
    ['similarity: queue', 'up'],
  ],
])('--steps %j are those steps, in the order they run, though a name has a comma', (asked, names) => {
  const { status, stderr } = bench('--seconds', '0', ...asked.flatMap((value) => ['--steps', value]));
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  const rows = readFileSync(join(out, 'rows.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { part: string; failed?: string });
  rmSync(out, { recursive: true });
  expect(rows.slice(1)).toEqual(
    names.map((part) => ({ part, failed: expect.stringMatching(/^not run: -?0 s were left$/) as string })),
  );
});
