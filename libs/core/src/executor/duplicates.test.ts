// Merging equal rows changes who runs, never who gets what.

import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { mergeTwins } from './duplicates.ts';

interface Row {
  readonly ids: readonly number[];
  twins: Row[];
}

const NONE: Row[] = [];
const rowsOf = (lists: readonly (readonly number[])[]): Row[] => lists.map((ids) => ({ ids, twins: NONE }));

test('each row runs or is the twin of one equal to it, whatever the rows; the first of equals runs', () => {
  fc.assert(
    fc.property(
      fc.array(fc.array(fc.integer({ min: 0, max: 2 }), { minLength: 1, maxLength: 12 }), { maxLength: 80 }),
      (lists) => {
        const rows = rowsOf(lists);
        const run = mergeTwins(rows);
        for (const row of run) for (const twin of row.twins) expect(twin.ids).toEqual(row.ids);
        expect(new Set(run.flatMap((row) => [row, ...row.twins]))).toEqual(new Set(rows));
        expect(run.reduce((sum, row) => sum + 1 + row.twins.length, 0)).toBe(rows.length);
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
  expect(mergeTwins(rowsOf(lists))).toHaveLength(250);
});

test('does not compare every text of one template with every other', () => {
  let looks = 0;
  const template = Array.from({ length: 60 }, (_, i) => 1_000 + i);
  // They differ only where the hash does not look; each look at an id is counted.
  const rows = Array.from({ length: 2_000 }, (_, i) => ({
    twins: [],
    ids: new Proxy(template.with(1, i), { get: (ids, key) => (looks++, Reflect.get(ids, key)) }),
  }));
  expect(mergeTwins(rows).length).toBe(2_000);
  expect(looks).toBeLessThan(2_000 * 100);
});
