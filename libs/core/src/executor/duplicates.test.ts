// Merging equal rows changes who runs, never who gets what.

import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { mergeDuplicates } from './duplicates.ts';

interface Row {
  readonly ids: readonly number[];
  readonly second: number;
  duplicates: Row[];
}

const NONE: Row[] = [];
const rowsOf = (lists: readonly (readonly number[])[]): Row[] =>
  lists.map((ids) => ({ ids, second: 0, duplicates: NONE }));

test('each row runs or is the duplicate of one equal to it, whatever the rows; the first of equals runs', () => {
  fc.assert(
    fc.property(
      fc.array(fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 12 }), { maxLength: 80 }),
      (lists) => {
        const rows = rowsOf(lists);
        const run = mergeDuplicates(rows);
        for (const row of run) for (const { ids } of row.duplicates) expect(ids).toEqual(row.ids);
        expect(new Set(run.flatMap((row) => [row, ...row.duplicates]))).toEqual(new Set(rows));
        expect(run.reduce((sum, row) => sum + 1 + row.duplicates.length, 0)).toBe(rows.length);
        expect(run.map((row) => rows.indexOf(row))).toEqual(
          run.map((row) => rows.indexOf(row)).toSorted((a, b) => a - b),
        );
        expect(NONE).toEqual([]);
      },
    ),
    { numRuns: 500 },
  );
});

test('finds the equal ones among many', () => {
  const lists = Array.from({ length: 1_000 }, (_, i) =>
    Array.from({ length: 40 }, (__, at) => ((i % 250) * 31 + at * 7) % 5_000),
  );
  expect(mergeDuplicates(rowsOf(lists))).toHaveLength(250);
});

test('does not compare every text of one template with every other', () => {
  let looks = 0;
  const template = Array.from({ length: 60 }, (_, i) => 1_000 + i);
  // They differ only where the hash does not look; each look at an id is counted.
  const rows = Array.from({ length: 2_000 }, (_, i) => ({
    duplicates: [],
    second: 0,
    ids: new Proxy(template.with(1, i), { get: (ids, key) => (looks++, Reflect.get(ids, key)) }),
  }));
  expect(mergeDuplicates(rows).length).toBe(2_000);
  expect(looks).toBeLessThan(2_000 * 100);
});
