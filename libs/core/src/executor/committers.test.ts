import { expect, test } from 'vitest';
import { byCell } from './committers.ts';

interface Row {
  readonly at: number;
  readonly cell?: { readonly name: string; readonly address: string };
}

test('those of one cell stay together, in their order, and what is all of one is not copied', () => {
  const b = { name: 'b', address: 'redis://b' };
  const of = (one: Row) => one.cell;
  const home: readonly Row[] = [{ at: 0 }, { at: 1 }];
  expect(byCell(home, of)).toEqual([[undefined, home]]);
  expect(byCell(home, of)[0]![1]).toBe(home);
  expect(byCell([], of)).toEqual([[undefined, []]]);
  const mixed: readonly Row[] = [{ at: 0 }, { at: 1, cell: b }, { at: 2 }, { at: 3, cell: { ...b } }];
  expect(byCell(mixed, of)).toEqual([
    [undefined, [mixed[0], mixed[2]]],
    [b, [mixed[1], mixed[3]]],
  ]);
});
