// table.* of Lua 5.1. `sort` is its quicksort step by step, because an unstable order of equal values can be seen.

import { badArgument, intAt } from './string-library.ts';
import { LuaError, LuaTable, first, isTrue, toText, typeOf, type LuaFunction, type LuaValue } from './values.ts';

export function tableAt(args: readonly LuaValue[], place: number, name: string): LuaTable {
  const value = args[place - 1];
  if (!(value instanceof LuaTable)) throw badArgument(place, name, 'table', value);
  return value;
}

function insert(...args: LuaValue[]): readonly LuaValue[] {
  const table = tableAt(args, 1, 'insert');
  const end = table.length + 1;
  if (args.length === 2) {
    table.set(end, args[1]);
    return [];
  }
  if (args.length !== 3) throw new LuaError("wrong number of arguments to 'insert'");
  const place = intAt(args, 2, 'insert');
  for (let at = Math.max(end, place); at > place; at--) table.set(at, table.get(at - 1));
  table.set(place, args[2]);
  return [];
}

function remove(...args: LuaValue[]): LuaValue | readonly LuaValue[] {
  const table = tableAt(args, 1, 'remove');
  const end = table.length;
  const place = intAt(args, 2, 'remove', end);
  if (place < 1 || place > end) return [];
  const value = table.get(place);
  for (let at = place; at < end; at++) table.set(at, table.get(at + 1));
  table.set(end, undefined);
  return value;
}

function concat(...args: LuaValue[]): string {
  const table = tableAt(args, 1, 'concat');
  const separator = args[1] === undefined ? '' : toText(args[1]);
  if (separator === undefined) throw badArgument(2, 'concat', 'string', args[1]);
  const [from, to] = [intAt(args, 3, 'concat', 1), intAt(args, 4, 'concat', table.length)];
  const pieces: string[] = [];
  for (let at = from; at <= to; at++) {
    const text = toText(table.get(at));
    if (text === undefined)
      throw new LuaError(`invalid value (${typeOf(table.get(at))}) at index ${at} in table for 'concat'`);
    pieces.push(text);
  }
  return pieces.join(separator);
}

function sort(...args: LuaValue[]): readonly LuaValue[] {
  const table = tableAt(args, 1, 'sort');
  const [, compare] = args;
  if (compare !== undefined && typeof compare !== 'function') throw badArgument(2, 'sort', 'function', compare);
  const isLess = compare === undefined ? isBelow : (a: LuaValue, b: LuaValue) => isTrue(first(compare(a, b)));
  sortBetween(table, 1, table.length, isLess);
  return [];
}

/** `<` of the language. */
export function isBelow(a: LuaValue, b: LuaValue): boolean {
  if (typeof a === 'number' && typeof b === 'number') return a < b;
  if (typeof a === 'string' && typeof b === 'string') return a < b;
  const [one, other] = [typeOf(a), typeOf(b)];
  throw new LuaError(
    one === other ? `attempt to compare two ${one} values` : `attempt to compare ${one} with ${other}`,
  );
}

/** auxsort of ltablib.c. */
function sortBetween(table: LuaTable, from: number, to: number, isLess: (a: LuaValue, b: LuaValue) => boolean): void {
  const swap = (a: number, b: number): void => {
    const value = table.get(a);
    table.set(a, table.get(b));
    table.set(b, value);
  };
  let [low, up] = [from, to];
  while (low < up) {
    if (isLess(table.get(up), table.get(low))) swap(low, up);
    if (up - low === 1) break;
    const middle = Math.floor((low + up) / 2);
    if (isLess(table.get(middle), table.get(low))) swap(middle, low);
    else if (isLess(table.get(up), table.get(middle))) swap(middle, up);
    if (up - low === 2) break;
    const pivot = table.get(middle);
    swap(middle, up - 1);
    let [i, j] = [low, up - 1];
    while (true) {
      while (isLess(table.get(++i), pivot)) if (i > up) throw new LuaError('invalid order function for sorting');
      while (isLess(pivot, table.get(--j))) if (j < low) throw new LuaError('invalid order function for sorting');
      if (j < i) break;
      swap(i, j);
    }
    swap(up - 1, i);
    if (i - low < up - i) {
      sortBetween(table, low, i - 1, isLess);
      low = i + 1;
    } else {
      sortBetween(table, i + 1, up, isLess);
      up = i - 1;
    }
  }
}

export const TABLE_LIBRARY = {
  insert,
  remove,
  concat,
  sort,
  getn: (...args: LuaValue[]) => tableAt(args, 1, 'getn').length,
} satisfies Readonly<Record<string, LuaFunction>>;
