import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { CELLS, CELL_NAMES, FAULTS, PROCESSES } from '../bench/chaos/matrix-cells.ts';
import type { ResultRow } from '../bench/rig/results.ts';
import { faultMatrixPage } from './fault-matrix-page.ts';

function row(name: string, breaches: number): ResultRow {
  return {
    date: '2026-11-27',
    commit: '1aaa68f',
    machine: null,
    command: null,
    case: name,
    figures: { breaches, completed_jobs: 5, claimed_again: 1, added_again: 0 },
    bar: { figure: 'breaches', at_most: 0 },
    held: breaches === 0,
  };
}

test('docs/fault-matrix.md is what cells and rows say: npm run docs', () => {
  expect(readFileSync(new URL('../docs/fault-matrix.md', import.meta.url), 'utf8')).toBe(faultMatrixPage());
});

test('there is a cell for each process and each fault, and each says what is promised or why it cannot be', () => {
  const names = Object.keys(PROCESSES).flatMap((who) => Object.keys(FAULTS).map((fault) => `${who}:${fault}`));
  expect(CELL_NAMES.toSorted()).toEqual(names.toSorted());
  for (const cell of Object.values(CELLS)) expect('not' in cell ? cell.not : cell.promise).toMatch(/\.$/);
});

test('a run that held, one that did not and a cell that was never run are told apart', () => {
  const page = faultMatrixPage([row('claimer, kill', 3), row('claimer, kill', 0), row('claimer, stop', 2)]);
  const line = (begin: string): string => page.split('\n').find((text) => text.startsWith(begin))!;
  expect(line('| claimer |')).toMatch(/^\| claimer \| ✓ \| ✗ \| {2}\|/);
  expect(page).toContain('2026-11-27, 1aaa68f: held, 5 jobs, 1 claimed again, 0 added again');
  expect(page).toContain('**2 breaches**');
  expect(page).toContain('2 were run by the matrix and 1 of those held');
});

test('a row of a cell that there is not is an error', () => {
  expect(() => faultMatrixPage([row('claimer, rust', 0)])).toThrow('a row of "claimer, rust", which is no cell');
});
