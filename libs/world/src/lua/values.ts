// Lua's values in JavaScript: nil is undefined, booleans and numbers are themselves, a string is a JavaScript string of
// bytes (each character 0 to 255), a table is a LuaTable, a function is a function. A function answers with one value,
// or with an array where it answers with several or none: no value of Lua is an array.

import { formatNumber, parseNumber } from './numbers.ts';

export type LuaValue = undefined | boolean | number | string | LuaTable | LuaFunction | LuaUserdata;
export type LuaResult = LuaValue | readonly LuaValue[];
export type LuaFunction = (...args: LuaValue[]) => LuaResult;

/** What is neither table nor function: cjson.null. */
export class LuaUserdata {
  readonly name: string;

  constructor(name: string) {
    this.name = name;
  }
}

/** A function that answers with nothing. */
export const NONE: readonly LuaValue[] = [];

/** What `error` raises, and what the language itself does. `value` is what pcall hands out. */
export class LuaError extends Error {
  readonly value: LuaValue;
  /** The language raised it in a function that is not the script's, so that it names no line. */
  readonly isWithoutLine: boolean;

  constructor(value: LuaValue, isWithoutLine = false) {
    super(typeof value === 'string' ? value : 'a Lua error');
    this.value = value;
    this.isWithoutLine = isWithoutLine;
  }
}

/** The model does not have what a script uses. It is never caught by pcall: a guess would be worth nothing. */
export class NotModelled extends Error {}

/**
 * A table: what lies at 1 to n in a list, all else in a map. `next` goes through the list, then through the map in the
 * order of its insertions; real Lua's order is that of its hashes, which no sound script relies on. The length of a
 * table with holes is the place of its last value in the list, one of the lengths that Lua may give.
 */
export class LuaTable {
  list: LuaValue[];
  map: Map<LuaValue, LuaValue> | undefined;

  constructor(list: LuaValue[] = []) {
    this.list = list;
    trim(list);
  }

  get(key: LuaValue): LuaValue {
    if (typeof key === 'number') {
      const value = this.list[key - 1];
      if (value !== undefined) return value;
    }
    return this.map?.get(key);
  }

  set(key: LuaValue, value: LuaValue): void {
    if (typeof key === 'number') {
      const { list } = this;
      if (key >= 1 && key <= list.length && Number.isInteger(key)) {
        list[key - 1] = value;
        if (value === undefined && key === list.length) trim(list);
        return;
      }
      if (key === list.length + 1 && value !== undefined) {
        this.map?.delete(key);
        list.push(value);
        this.#gather();
        return;
      }
      if (Number.isNaN(key)) throw new LuaError('table index is NaN');
    } else if (key === undefined) throw new LuaError('table index is nil');
    if (value === undefined) this.map?.delete(key);
    else (this.map ??= new Map()).set(key, value);
  }

  get length(): number {
    return this.list.length;
  }

  /** The keys as they are now, list first. */
  keys(): LuaValue[] {
    const keys: LuaValue[] = [];
    for (let at = 0; at < this.list.length; at++) if (this.list[at] !== undefined) keys.push(at + 1);
    if (this.map !== undefined) for (const key of this.map.keys()) keys.push(key);
    return keys;
  }

  /** Keys that follow on the list come over from the map. */
  #gather(): void {
    const { map, list } = this;
    if (map === undefined || map.size === 0) return;
    for (let next = map.get(list.length + 1); next !== undefined; next = map.get(list.length + 1)) {
      map.delete(list.length + 1);
      list.push(next);
    }
  }
}

function trim(list: LuaValue[]): void {
  while (list.length > 0 && list[list.length - 1] === undefined) list.pop();
}

/** Of a constructor: what has no key, then keys and values in turn. */
export function tableOf(list: LuaValue[], pairs: readonly LuaValue[]): LuaTable {
  const table = new LuaTable();
  for (let at = 0; at < pairs.length; at += 2) table.set(pairs[at], pairs[at + 1]);
  if (list.length > 0) {
    for (let at = 1; at <= list.length; at++) table.map?.delete(at);
    table.list = list;
    trim(list);
  }
  return table;
}

export function typeOf(value: LuaValue): string {
  switch (typeof value) {
    case 'undefined':
      return 'nil';
    case 'object':
      return value instanceof LuaTable ? 'table' : 'userdata';
    default:
      return typeof value;
  }
}

/** The first of what a call answered. */
export function first(result: LuaResult): LuaValue {
  return Array.isArray(result) ? (result[0] as LuaValue) : (result as LuaValue);
}

/** All of what a call answered. */
export function all(result: LuaResult): readonly LuaValue[] {
  return Array.isArray(result) ? (result as readonly LuaValue[]) : [result as LuaValue];
}

export function isTrue(value: LuaValue): boolean {
  return value !== undefined && value !== false;
}

/** As arithmetic takes it: a string that looks like a number is one. */
export function toNumber(value: LuaValue): number | undefined {
  if (typeof value === 'number') return value;
  return typeof value === 'string' ? parseNumber(value) : undefined;
}

/** As concatenation and the string library take it; undefined for what is neither string nor number. */
export function toText(value: LuaValue): string | undefined {
  if (typeof value === 'string') return value;
  return typeof value === 'number' ? formatNumber(value) : undefined;
}

/** As `tostring` writes it. Tables and functions have no address here. */
export function display(value: LuaValue): string {
  const text = toText(value);
  if (text !== undefined) return text;
  if (value instanceof LuaUserdata) return `userdata: ${value.name}`;
  if (typeof value === 'boolean') return String(value);
  return value === undefined ? 'nil' : `${typeOf(value)}: 0x0`;
}
