// What scripts find without a table's name, and math, cjson and cmsgpack. Each name that is not here is refused when a
// script is compiled.

import { decodeJson, encodeJson, jsonText, JSON_NULL } from './json.ts';
import { unpackMessage } from './message-pack.ts';
import { badArgument, intAt, numberAt, STRING_LIBRARY, textAt } from './string-library.ts';
import { tableAt, TABLE_LIBRARY } from './table-library.ts';
import {
  LuaError,
  LuaTable,
  all,
  display,
  isTrue,
  toNumber,
  typeOf,
  type LuaFunction,
  type LuaResult,
  type LuaValue,
} from './values.ts';

/** So many values fit on Lua's stack of a C function. */
const MOST_ON_STACK = 8000;

function unpack(...args: LuaValue[]): LuaValue[] {
  const table = tableAt(args, 1, 'unpack');
  const [from, to] = [intAt(args, 2, 'unpack', 1), intAt(args, 3, 'unpack', table.length)];
  if (from > to) return [];
  if (to - from + 1 + args.length > MOST_ON_STACK) throw new LuaError('too many results to unpack');
  if (from === 1 && to === table.list.length) return [...table.list];
  return Array.from({ length: to - from + 1 }, (_, at) => table.get(from + at));
}

/** Runs a function and says whether it went well. What the model does not have is no error of the script. */
function pcall(...args: LuaValue[]): LuaValue[] {
  const [run, ...given] = args;
  try {
    if (typeof run !== 'function') throw new LuaError(`attempt to call a ${typeOf(run)} value`);
    return [true, ...all(run(...given))];
  } catch (error) {
    if (error instanceof LuaError) return [false, error.value];
    if (error instanceof RangeError) return [false, 'stack overflow'];
    throw error;
  }
}

function toNumberOf(...args: LuaValue[]): number | undefined {
  const [value, base] = args;
  if (args.length === 0) throw badArgument(1, 'tonumber', 'any', undefined);
  if (base === undefined || base === 10) return toNumber(value);
  const [text, radix] = [textAt(args, 1, 'tonumber').trim().toLowerCase(), intAt(args, 2, 'tonumber')];
  const digits = radix === 16 ? text.replace(/^0x/, '') : text;
  const isSound = digits !== '' && [...digits].every((digit) => Number.parseInt(digit, 36) < radix);
  return isSound ? Number.parseInt(digits, radix) : undefined;
}

function select(...args: LuaValue[]): LuaResult {
  const [which, ...rest] = args;
  if (which === '#') return rest.length;
  const at = intAt(args, 1, 'select');
  if (at < 0 && -at <= rest.length) return rest.slice(at);
  if (at < 1) throw new LuaError("bad argument #1 to 'select' (index out of range)");
  return rest.slice(at - 1);
}

function next(...args: LuaValue[]): LuaResult {
  const table = tableAt(args, 1, 'next');
  const keys = table.keys();
  const at = args[1] === undefined ? 0 : keys.indexOf(args[1]) + 1;
  return at < keys.length ? [keys[at], table.get(keys[at])] : undefined;
}

export const pairsOf = (table: LuaValue, name: string): LuaTable => tableAt([table], 1, name);

/** Numbers of scripts begin anew in each call, as Redis has it: drand48's generator from seed 0. */
export class ScriptRandom {
  #state = 0x330en;

  next(): number {
    this.#state = (this.#state * 0x5deece66dn + 0xbn) & 0xffffffffffffn;
    return (Number(this.#state >> 17n) % 0x7fffffff) / 0x7fffffff;
  }
}

/** Not JavaScript's: a value that is no number never wins, unless it comes first. */
const most =
  (name: string, wins: (value: number, best: number) => boolean) =>
  (...args: LuaValue[]) => {
    let best = numberAt(args, 1, name);
    for (let place = 2; place <= args.length; place++) {
      const value = numberAt(args, place, name);
      if (wins(value, best)) best = value;
    }
    return best;
  };
const one =
  (name: string, compute: (value: number) => number) =>
  (...args: LuaValue[]) =>
    compute(numberAt(args, 1, name));

/** By the name that a script calls them. `redis.call` and its like belong to whoever runs the script. */
export const FUNCTIONS: Readonly<Record<string, LuaFunction>> = {
  unpack,
  pcall,
  select,
  next,
  tonumber: toNumberOf,
  tostring: (value) => display(value),
  type: (...args) => {
    if (args.length === 0) throw badArgument(1, 'type', 'value', undefined);
    return typeOf(args[0]);
  },
  error: (value) => {
    throw new LuaError(value);
  },
  assert: (...args) => {
    if (isTrue(args[0])) return args;
    throw new LuaError(args[1] ?? 'assertion failed!');
  },
  rawget: (...args) => tableAt(args, 1, 'rawget').get(args[1]),
  rawset: (...args) => {
    tableAt(args, 1, 'rawset').set(args[1], args[2]);
    return args[0];
  },
  rawequal: (a, b) => a === b,
  ipairs: (table) => [
    (of, at) => {
      const place = (at as number) + 1;
      const value = (of as LuaTable).get(place);
      return value === undefined ? undefined : [place, value];
    },
    pairsOf(table, 'ipairs'),
    0,
  ],
  pairs: (table) => [next, pairsOf(table, 'pairs'), undefined],
  ...named('string', STRING_LIBRARY),
  ...named('table', TABLE_LIBRARY),
  'math.floor': one('floor', Math.floor),
  'math.ceil': one('ceil', Math.ceil),
  'math.abs': one('abs', Math.abs),
  'math.sqrt': one('sqrt', Math.sqrt),
  'math.exp': one('exp', Math.exp),
  'math.log': one('log', Math.log),
  'math.max': most('max', (value, best) => value > best),
  'math.min': most('min', (value, best) => value < best),
  'math.pow': (...args) => numberAt(args, 1, 'pow') ** numberAt(args, 2, 'pow'),
  'math.fmod': (...args) => numberAt(args, 1, 'fmod') % numberAt(args, 2, 'fmod'),
  'cjson.encode': (...args) => {
    if (args.length !== 1) throw new LuaError("bad argument #1 to 'encode' (expected 1 argument)");
    return encodeJson(args[0]);
  },
  'cjson.decode': (value) => decodeJson(jsonText(value)),
  'cmsgpack.unpack': (...args) => unpackMessage(textAt(args, 1, 'unpack')),
};

/** Values that are no functions. */
export const CONSTANTS: Readonly<Record<string, LuaValue>> = {
  'math.huge': Infinity,
  'math.pi': Math.PI,
  'cjson.null': JSON_NULL,
};

function named(library: string, functions: Readonly<Record<string, LuaFunction>>): Record<string, LuaFunction> {
  return Object.fromEntries(Object.entries(functions).map(([name, run]) => [`${library}.${name}`, run]));
}
