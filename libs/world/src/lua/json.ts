// cjson as Redis builds it: how it writes numbers and strings, which tables are arrays, and what it says of a text that
// is no JSON. The order of an object's fields is that of their insertion; Redis' is that of its hashes.

import { formatNumber, scanNumber } from './numbers.ts';
import { LuaError, LuaTable, LuaUserdata, display, typeOf, type LuaValue } from './values.ts';

export const JSON_NULL = new LuaUserdata('NULL');
const MOST_DEPTH = 1000;
/** A table whose highest place is above this, and above twice the number of its values, is refused. */
const SAFE_PLACES = 10;
const SPARSE_RATIO = 2;

/** Throws LuaError for what cjson refuses. */
export function encodeJson(value: LuaValue): string {
  return encode(value, 0);
}

function encode(value: LuaValue, depth: number): string {
  switch (typeof value) {
    case 'string':
      return quoted(value);
    case 'number':
      if (!Number.isFinite(value)) throw cannot('number', 'must not be NaN or Inf');
      return formatNumber(value);
    case 'boolean':
      return String(value);
    case 'undefined':
      return 'null';
    case 'function':
      throw cannot('function', 'type not supported');
    default:
      return value instanceof LuaTable ? encodeTable(value, depth + 1) : 'null';
  }
}

function cannot(type: string, why: string): LuaError {
  return new LuaError(`Cannot serialise ${type}: ${why}`);
}

function encodeTable(table: LuaTable, depth: number): string {
  if (depth > MOST_DEPTH) throw new LuaError(`Cannot serialise, excessive depth (${depth})`);
  const places = placesOf(table);
  if (places > 0) return `[${Array.from({ length: places }, (_, at) => encode(table.get(at + 1), depth)).join(',')}]`;
  const fields = table.keys().map((key) => {
    if (typeof key !== 'string' && typeof key !== 'number')
      throw cannot(typeOf(key), 'table key must be a number or string');
    return `${typeof key === 'string' ? quoted(key) : `"${formatNumber(key)}"`}:${encode(table.get(key), depth)}`;
  });
  return `{${fields.join(',')}}`;
}

/** Of an array its highest place; -1 for an object, and for an empty table, which is one. */
function placesOf(table: LuaTable): number {
  let [highest, count] = [0, 0];
  for (const key of table.keys()) {
    if (typeof key !== 'number' || key < 1 || !Number.isInteger(key)) return -1;
    highest = Math.max(highest, key);
    count++;
  }
  if (highest > count * SPARSE_RATIO && highest > SAFE_PLACES) throw cannot('table', 'excessively sparse array');
  return highest === 0 ? -1 : highest;
}

const SHORT: Readonly<Record<string, string>> = {
  '\b': '\\b',
  '\t': '\\t',
  '\n': '\\n',
  '\f': '\\f',
  '\r': '\\r',
  '"': '\\"',
  '/': '\\/',
  '\\': '\\\\',
};
// oxlint-disable-next-line no-control-regex -- these are what must be written otherwise
const SPECIAL = /[\u0000-\u001f"\\/\u007f]/g;

function quoted(text: string): string {
  return `"${text.replace(SPECIAL, (char) => SHORT[char] ?? `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)}"`;
}

/** Throws LuaError with cjson's words. */
export function decodeJson(text: string): LuaValue {
  return new Decoder(text).decode();
}

class Decoder {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  decode(): LuaValue {
    if (this.#text.length > 1 && (this.#text[0] === '\0' || this.#text[1] === '\0'))
      throw new LuaError('JSON parser does not support UTF-16 or UTF-32');
    const value = this.#value(0);
    this.#skip();
    if (this.#at < this.#text.length) throw this.#expected('the end');
    return value;
  }

  #value(depth: number): LuaValue {
    this.#skip();
    const here = this.#text[this.#at];
    switch (here) {
      case '{':
        return this.#object(this.#deeper(depth));
      case '[':
        return this.#array(this.#deeper(depth));
      case '"':
        return this.#string('value');
      case 't':
        return this.#word('true', true);
      case 'f':
        return this.#word('false', false);
      case 'n':
        if (this.#text.startsWith('null', this.#at)) return this.#word('null', JSON_NULL);
        break;
      default:
    }
    return this.#number();
  }

  #deeper(depth: number): number {
    if (depth + 1 > MOST_DEPTH)
      throw new LuaError(`Found too many nested data structures (${depth + 1}) at character ${this.#at}`);
    return depth + 1;
  }

  #word(word: string, value: LuaValue): LuaValue {
    if (!this.#text.startsWith(word, this.#at)) throw this.#expected('value');
    this.#at += word.length;
    return value;
  }

  /** strtod, so that `0x10`, `inf` and `nan` are numbers, unless a space or a plus is before them. */
  #number(): number {
    const here = this.#text[this.#at];
    if (here === undefined || !/[-\dinIN]/.test(here)) throw this.#expected('value');
    const found = scanNumber(this.#text.slice(this.#at, this.#at + 400));
    if (found === undefined) throw this.#expected('value');
    this.#at += found.end;
    return found.value;
  }

  #array(depth: number): LuaTable {
    this.#at++;
    const list: LuaValue[] = [];
    this.#skip();
    if (this.#text[this.#at] === ']') {
      this.#at++;
      return new LuaTable(list);
    }
    while (true) {
      list.push(this.#value(depth));
      this.#skip();
      const here = this.#text[this.#at];
      if (here !== ',' && here !== ']') throw this.#expected('comma or array end');
      this.#at++;
      if (here === ']') return new LuaTable(list);
    }
  }

  #object(depth: number): LuaTable {
    this.#at++;
    const table = new LuaTable();
    this.#skip();
    if (this.#text[this.#at] === '}') {
      this.#at++;
      return table;
    }
    while (true) {
      this.#skip();
      if (this.#text[this.#at] !== '"') throw this.#expected('object key string');
      const key = this.#string('object key string');
      this.#skip();
      if (this.#text[this.#at] !== ':') throw this.#expected('colon');
      this.#at++;
      table.set(key, this.#value(depth));
      this.#skip();
      const here = this.#text[this.#at];
      if (here !== ',' && here !== '}') throw this.#expected('comma or object end');
      this.#at++;
      if (here === '}') return table;
    }
  }

  #string(wanted: string): string {
    const text = this.#text;
    let made = '';
    let from = this.#at + 1;
    for (let at = from; at < text.length; at++) {
      const here = text[at];
      if (here === '"') {
        this.#at = at + 1;
        return made + text.slice(from, at);
      }
      if (here !== '\\') continue;
      made += text.slice(from, at);
      const [piece, length] = this.#escape(at, wanted);
      made += piece;
      at += length - 1;
      from = at + 1;
    }
    this.#at = text.length;
    throw this.#expected(wanted, 'unexpected end of string');
  }

  #escape(at: number, wanted: string): [piece: string, length: number] {
    const mark = this.#text[at + 1];
    const short = ({ b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', '"': '"', '/': '/', '\\': '\\' } as const)[
      mark ?? ''
    ];
    if (short !== undefined) return [short, 2];
    if (mark !== 'u') throw this.#expected(wanted, 'invalid escape code', at);
    const unit = this.#unit(at);
    if (unit === undefined) throw this.#expected(wanted, 'invalid unicode escape code', at);
    if ((unit & 0xf800) !== 0xd800) return [utf8(unit), 6];
    const low = (unit & 0x400) === 0 ? this.#unit(at + 6) : undefined;
    if (low === undefined || (low & 0xfc00) !== 0xdc00) throw this.#expected(wanted, 'invalid unicode escape code', at);
    return [utf8(0x10000 + ((unit & 0x3ff) << 10) + (low & 0x3ff)), 12];
  }

  #unit(at: number): number | undefined {
    const digits = /^\\u([\da-f]{4})/i.exec(this.#text.slice(at, at + 6))?.[1];
    return digits === undefined ? undefined : Number.parseInt(digits, 16);
  }

  #skip(): void {
    while (' \t\n\r'.includes(this.#text[this.#at] ?? '!')) this.#at++;
  }

  #expected(wanted: string, token?: string, at = this.#at): LuaError {
    return new LuaError(`Expected ${wanted} but found ${token ?? this.#tokenHere()} at character ${at + 1}`);
  }

  #tokenHere(): string {
    const rest = this.#text.slice(this.#at);
    const names = {
      '': 'the end',
      '{': 'T_OBJ_BEGIN',
      '}': 'T_OBJ_END',
      '[': 'T_ARR_BEGIN',
      ']': 'T_ARR_END',
      ',': 'T_COMMA',
      ':': 'T_COLON',
      '"': 'T_STRING',
    } as const;
    const name = names[(rest[0] ?? '') as keyof typeof names];
    if (name === 'the end') return 'T_END';
    if (name !== undefined) return name;
    if (rest.startsWith('true') || rest.startsWith('false')) return 'T_BOOLEAN';
    if (rest.startsWith('null')) return 'T_NULL';
    return /^[-\d]/.test(rest) ? 'T_NUMBER' : 'invalid token';
  }
}

function utf8(point: number): string {
  return Buffer.from(String.fromCodePoint(point)).toString('latin1');
}

/** The argument of cjson's functions. */
export function jsonText(value: LuaValue): string {
  if (typeof value === 'string' || typeof value === 'number') return display(value);
  throw new LuaError(
    `bad argument #1 to 'decode' (string expected, got ${value === undefined ? 'no value' : typeOf(value)})`,
  );
}
