import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { commandOf, idOf, record, thisMachine } from './record.ts';
import { readResults, type Machine } from './results.ts';

const TWO_CORES: Machine = {
  kind: '2 cores of an EPYC, AVX-512',
  cpu: 'AMD EPYC with AVX-512',
  cores: 2,
  memory_gb: 24,
  gpu: null,
  gpus: 0,
  driver: null,
  neighbours: null,
};
const MEASURED = { bench: 'rooms/a', case: 'a case', figures: { texts_per_s: 1_000, p99_ms: 12.5 } } as const;
const BAR = { figure: 'p99_ms', at_most: 12 } as const;
const NOW = new Date('2026-11-26T10:00:00Z');

let root: string;
let commit: string;

const git = (...args: string[]): string =>
  execFileSync('git', ['-C', root, '-c', 'user.name=a', '-c', 'user.email=a@example.org', ...args], {
    encoding: 'utf8',
  }).trim();

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'shoal-record-'));
  mkdirSync(join(root, 'bench/results'), { recursive: true });
  writeFileSync(join(root, 'bench/results/machines.json'), '{}\n');
  writeFileSync(join(root, 'bench/a.ts'), '');
  git('init', '--quiet');
  git('add', '.');
  git('commit', '--quiet', '--message', 'a tree');
  commit = git('rev-parse', '--short=7', 'HEAD');
});
afterEach(() => rmSync(root, { recursive: true }));

function surroundings(...args: string[]) {
  return { root, argv: ['node', join(root, 'bench/a.ts'), ...args], now: NOW, machine: TWO_CORES };
}

test('without --record the row is returned and nothing is written', () => {
  expect(record({ ...MEASURED, bar: BAR }, surroundings('--seconds', '5'))).toEqual({
    date: '2026-11-26',
    commit,
    machine: 'amd-epyc-with-avx-512-2',
    command: 'bench/a.ts --seconds 5',
    case: 'a case',
    figures: { texts_per_s: 1_000, p99_ms: 12.5 },
    bar: BAR,
    held: false,
  });
  expect(existsSync(join(root, 'bench/results/rooms'))).toBe(false);
  expect(readFileSync(join(root, 'bench/results/machines.json'), 'utf8')).toBe('{}\n');
});

test('with --record rows are appended, the machine is explained once, and what was written can be read', () => {
  const first = record(MEASURED, surroundings('--record'));
  const second = record({ ...MEASURED, bar: { figure: 'p99_ms', at_most: 13 } }, surroundings('--record'));
  expect(second).toMatchObject({ commit, command: 'bench/a.ts', held: true }); // rows alone make no tree dirty
  const { machines, benches } = readResults(join(root, 'bench/results'));
  expect(benches).toEqual(new Map([['rooms/a', [first, second]]]));
  expect(machines).toEqual({ 'amd-epyc-with-avx-512-2': TWO_CORES });
});

test('a changed file makes the commit dirty, and where there is no git there is no commit', () => {
  writeFileSync(join(root, 'bench/a.ts'), '// changed');
  expect(record(MEASURED, surroundings()).commit).toBe(`${commit}+dirty`);
  rmSync(join(root, '.git'), { recursive: true });
  expect(record(MEASURED, surroundings()).commit).toBeNull();
});

test('a row that would be refused when it is read is not written', () => {
  expect(() => record({ ...MEASURED, figures: { p99_ms: Number.NaN } }, surroundings('--record'))).toThrow(
    'the row of rooms/a is none: the figure p99_ms is no number',
  );
  expect(() => record({ ...MEASURED, bar: { figure: 'p50_ms', at_most: 1 } }, surroundings('--record'))).toThrow(
    'bar is neither null nor a figure',
  );
  expect(existsSync(join(root, 'bench/results/rooms'))).toBe(false);
});

test('a command says nothing of where it ran', () => {
  const argv = [
    '/usr/bin/node',
    '/home/me/shoal/bench/queue/a.ts',
    '--python',
    '/home/me/venv/bin/python',
    '--scratch=/home/me/shoal/dist/x',
    '--url',
    'redis://me@host:1',
    '--record',
    '--steps',
    'co-tenant: blind',
  ];
  expect(commandOf(argv, '/home/me/shoal/')).toBe(
    "bench/queue/a.ts --python python --scratch=dist/x --url URL --steps 'co-tenant: blind'",
  );
});

test('a machine that differs in anything has a name of its own', () => {
  const known = { 'amd-epyc-with-avx-512-2': TWO_CORES };
  expect(idOf({ ...TWO_CORES }, known)).toBe('amd-epyc-with-avx-512-2');
  expect(idOf({ ...TWO_CORES, memory_gb: 48 }, known)).toBe('amd-epyc-with-avx-512-2-2');
  const gpus = { gpu: 'NVIDIA H100 80GB HBM3', gpus: 2, driver: '580', cores: 32, cpu: 'Intel(R) Xeon(R) Platinum' };
  expect(idOf({ ...TWO_CORES, ...gpus }, known)).toBe('intel-xeon-platinum-32-nvidia-h100-80gb-hbm3-2');
});

test('this machine says what it is and not whose', () => {
  const machine = thisMachine();
  expect(machine).toMatchObject({
    kind: expect.any(String),
    cpu: expect.any(String),
    cores: expect.any(Number),
    neighbours: null,
  });
  const texts = Object.values(machine).filter((value) => typeof value === 'string');
  expect(texts.filter((text) => text.split(/\s/).includes(hostname()) || text.includes(userInfo().homedir))).toEqual(
    [],
  );
});
