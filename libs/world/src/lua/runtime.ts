// What compiled scripts call while they run: the language's operations where their operands are not what the fast path
// of the compiled text expects.

import { CONSTANTS, FUNCTIONS, pairsOf } from './base-library.ts';
import { isBelow } from './table-library.ts';
import { STRING_LIBRARY } from './string-library.ts';
import {
  LuaError,
  LuaTable,
  NONE,
  NotModelled,
  all,
  first,
  isTrue,
  tableOf,
  toNumber,
  toText,
  typeOf,
  type LuaFunction,
  type LuaValue,
} from './values.ts';

const METHODS: Readonly<Record<string, LuaFunction>> = STRING_LIBRARY;

function index(value: LuaValue, key: LuaValue, what: string): LuaValue {
  if (value instanceof LuaTable) return value.get(key);
  if (typeof value === 'string') return typeof key === 'string' ? METHODS[key] : undefined;
  throw new LuaError(`attempt to index ${what} (a ${typeOf(value)} value)`);
}

function setIndex(value: LuaValue, key: LuaValue, to: LuaValue, what: string): void {
  if (!(value instanceof LuaTable)) throw new LuaError(`attempt to index ${what} (a ${typeOf(value)} value)`);
  value.set(key, to);
}

function callable(value: LuaValue, what: string): LuaFunction {
  if (typeof value === 'function') return value as LuaFunction;
  throw new LuaError(`attempt to call ${what} (a ${typeOf(value)} value)`);
}

function operand(value: LuaValue): number {
  if (typeof value === 'number') return value;
  const number = toNumber(value);
  if (number === undefined) throw new LuaError(`attempt to perform arithmetic on a ${typeOf(value)} value`);
  return number;
}

function piece(value: LuaValue): string {
  if (typeof value === 'string') return value;
  const text = toText(value);
  if (text === undefined) throw new LuaError(`attempt to concatenate a ${typeOf(value)} value`);
  return text;
}

function lengthOf(value: LuaValue): number {
  if (typeof value === 'string' || value instanceof LuaTable) return value.length;
  throw new LuaError(`attempt to get length of a ${typeOf(value)} value`);
}

function bound(value: LuaValue, name: string): number {
  const number = toNumber(value);
  if (number === undefined) throw new LuaError(`'for' ${name} must be a number`);
  return number;
}

/** Lua's, whose sign is the divisor's. */
const modulo = (a: number, b: number): number => a - Math.floor(a / b) * b;

/** Rises with `error` where a text is raised: the line is put before it, as the language does. */
function raise(line: number, value: LuaValue, level: LuaValue): never {
  const isPlaced = typeof value === 'string' && level !== 0;
  throw new LuaError(isPlaced ? `user_script:${line}: ${value}` : value);
}

function missing(name: string): never {
  throw new LuaError(`Script attempted to access nonexistent global variable '${name}'`);
}

function readOnly(): never {
  throw new LuaError('Attempt to modify a readonly table');
}

/** Loops of the product's scripts have some thousand turns; what has so many keeps a real server busy. */
const MOST_TURNS = 200_000;

function endless(): never {
  throw new NotModelled(`the model does not have scripts of more than ${MOST_TURNS} turns of loops`);
}

export const RUNTIME = {
  CONSTANTS,
  FUNCTIONS,
  LuaTable,
  MOST_TURNS,
  NONE,
  all,
  bound,
  callable,
  endless,
  first,
  index,
  isBelow,
  isTrue,
  lengthOf,
  missing,
  modulo,
  operand,
  pairsOf,
  piece,
  raise,
  readOnly,
  setIndex,
  tableOf,
};
