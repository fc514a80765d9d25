import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { problemsOfRow, readResults, type Machines, type ResultRow } from '../bench/rig/results.ts';
import { resultsPage } from './results-page.ts';

const MACHINES: Machines = {
  one: {
    kind: 'two cores',
    cpu: 'A processor',
    cores: 2,
    memory_gb: 8,
    gpu: null,
    gpus: 0,
    driver: null,
    neighbours: null,
  },
  other: {
    kind: 'two cores',
    cpu: 'A processor',
    cores: 2,
    memory_gb: 8,
    gpu: null,
    gpus: 0,
    driver: null,
    neighbours: 'a compiler',
  },
  gpu: {
    kind: 'H200',
    cpu: null,
    cores: 16,
    memory_gb: null,
    gpu: 'NVIDIA H200',
    gpus: 1,
    driver: null,
    neighbours: null,
  },
};

function row(change: Partial<Record<keyof ResultRow, unknown>> = {}): ResultRow {
  return {
    date: '2026-11-26',
    commit: '1aaa68f',
    machine: 'one',
    command: 'bench/a.ts',
    case: 'a case',
    figures: { texts_per_s: 1_000 },
    bar: null,
    held: null,
    ...change,
  } as ResultRow;
}

function pageOf(...rows: ResultRow[]): string {
  return resultsPage({ machines: MACHINES, benches: new Map([['a', rows]]) });
}

test('every row in bench/results is one, and its machine is explained', () => {
  const { benches } = readResults();
  expect([...benches.keys()]).toEqual(
    expect.arrayContaining(['sim-device', 'queue-rates', 'similarity', 'gpu/end-to-end']),
  );
  expect([...benches].filter(([, rows]) => rows.length === 0)).toEqual([]);
});

test('bench/results/README.md is what the rows say: npm run docs', () => {
  const page = readFileSync(new URL('../bench/results/README.md', import.meta.url), 'utf8');
  expect(page).toBe(resultsPage());
});

test.each<[string, Partial<Record<keyof ResultRow, unknown>>, string]>([
  ['a date in words', { date: '26 November' }, 'date is not YYYY-MM-DD'],
  ['a day that does not exist', { date: '2026-02-30' }, 'date is not YYYY-MM-DD'],
  ['a branch instead of a commit', { commit: 'main' }, 'commit is neither null nor hexadecimal digits'],
  ['a machine that nobody explains', { machine: 'nowhere' }, 'machine "nowhere" is not in machines.json'],
  [
    'a path of somebody',
    { command: 'bench/a.ts --python /home/me/venv/bin/python' },
    "command has a path of somebody's machine",
  ],
  ['an empty case', { case: '' }, 'case is no text'],
  ['no figures', { figures: {} }, 'there is no figure'],
  ['a figure that is a text', { figures: { texts_per_s: '1,000' } }, 'the figure texts_per_s is no number'],
  [
    'a figure named otherwise',
    { figures: { textsPerSecond: 1 } },
    'the figure "textsPerSecond" is not named like texts_per_s',
  ],
  [
    'a bar for a figure that is not there',
    { bar: { figure: 'p99_ms', at_most: 80 }, held: true },
    'bar is neither null nor a figure of the row with at_least or at_most',
  ],
  [
    'a bar without a limit',
    { bar: { figure: 'texts_per_s' }, held: true },
    'bar is neither null nor a figure of the row with at_least or at_most',
  ],
  [
    'held beside a figure that is too small',
    { bar: { figure: 'texts_per_s', at_least: 2_000 }, held: true },
    'held is true and the figure says otherwise',
  ],
  ['held without a bar', { held: true }, 'held says something and there is no bar'],
])('a row with %s is refused', (_, change, problem) => {
  expect(problemsOfRow(row(change), MACHINES)).toEqual([problem]);
});

test('a row with a key too few or too many is refused, and one with nulls where nothing is known is not', () => {
  const { held: _, ...without } = row();
  expect(problemsOfRow({ ...without, remark: 'quiet' }, MACHINES)).toEqual([
    'held is missing',
    'remark is unknown',
    'held says something and there is no bar',
  ]);
  expect(problemsOfRow(row({ commit: null, machine: null, command: null }), MACHINES)).toEqual([]);
});

test('the page shows the newest row of each case, bar and kind of machine', () => {
  const page = pageOf(
    row({ figures: { texts_per_s: 4 }, machine: 'other' }),
    row({ figures: { texts_per_s: 3 } }),
    row({ figures: { texts_per_s: 5 }, date: '2026-11-25' }),
    row({ figures: { texts_per_s: 12_345.5 }, machine: 'gpu', commit: null }),
    row({ figures: { p99_ms: 90 }, bar: { figure: 'p99_ms', at_most: 80 }, held: false }),
  );
  const missed = '| a case | p99_ms 90 | p99_ms ≤ 80 | **no** | two cores | 2026-11-26, 1aaa68f |';
  expect(page.split('\n').filter((line) => line.includes('a case'))).toEqual([
    `| a ${missed}`,
    '| a case | texts_per_s 3 |  |  | two cores | 2026-11-26, 1aaa68f |',
    '| a case | texts_per_s 12,345.5 |  |  | H200 | 2026-11-26, not noted |',
    missed,
  ]);
  expect(page).toContain('0 of 1 bars are held by their newest row.');
});
