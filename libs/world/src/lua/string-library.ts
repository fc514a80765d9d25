// string.* of Lua 5.1, as far as scripts of the product and of BullMQ could use it; string.dump is not there.

import { formatE, formatF, formatG } from './numbers.ts';
import { Matcher } from './patterns.ts';
import {
  LuaError,
  LuaTable,
  display,
  first,
  isTrue,
  toNumber,
  toText,
  typeOf,
  type LuaFunction,
  type LuaValue,
} from './values.ts';

/** Throws what Lua says of an argument that is of another type. */
export function badArgument(place: number, name: string, wanted: string, value: LuaValue): LuaError {
  const found = value === undefined ? 'no value' : typeOf(value);
  return new LuaError(`bad argument #${place} to '${name}' (${wanted} expected, got ${found})`);
}

export function textAt(args: readonly LuaValue[], place: number, name: string): string {
  const text = toText(args[place - 1]);
  if (text === undefined) throw badArgument(place, name, 'string', args[place - 1]);
  return text;
}

export function numberAt(args: readonly LuaValue[], place: number, name: string, otherwise?: number): number {
  const value = args[place - 1];
  if (value === undefined && otherwise !== undefined) return otherwise;
  const number = toNumber(value);
  if (number === undefined) throw badArgument(place, name, 'number', value);
  return number;
}

/** As C's cast makes it. */
export function integerAt(args: readonly LuaValue[], place: number, name: string, otherwise?: number): number {
  const value = numberAt(args, place, name, otherwise);
  return Math.abs(value) < 2 ** 63 ? Math.trunc(value) || 0 : -(2 ** 63);
}

/** The lower 32 bits of it, where the library keeps an int. */
export function intAt(args: readonly LuaValue[], place: number, name: string, otherwise?: number): number {
  return integerAt(args, place, name, otherwise) | 0;
}

const MAGIC = /[\^$*+?.([%-]/;

function search(args: readonly LuaValue[], name: string, isFind: boolean): LuaValue | LuaValue[] {
  const [text, pattern] = [textAt(args, 1, name), textAt(args, 2, name)];
  const given = integerAt(args, 3, name, 1);
  const start = Math.min(Math.max(given > 0 ? given - 1 : given < 0 ? text.length + given : 0, 0), text.length);
  if (isFind && (isTrue(args[3]) || !MAGIC.test(pattern))) {
    const at = text.indexOf(pattern, start);
    return at < 0 ? undefined : [at + 1, at + pattern.length];
  }
  const isAnchored = pattern.startsWith('^');
  const matcher = new Matcher(text, pattern);
  for (let at = start; at <= text.length; at++) {
    const end = matcher.matchAt(at, isAnchored ? 1 : 0);
    if (end !== undefined)
      return isFind ? [at + 1, end, ...matcher.captures(at, end, false)] : matcher.captures(at, end, true);
    if (isAnchored) break;
  }
  return undefined;
}

function gsub(...args: LuaValue[]): LuaValue[] {
  const [text, pattern, replacement] = [textAt(args, 1, 'gsub'), textAt(args, 2, 'gsub'), args[2]];
  const most = args[3] === undefined ? text.length + 1 : intAt(args, 4, 'gsub');
  const isAnchored = pattern.startsWith('^');
  const matcher = new Matcher(text, pattern);
  let [made, at, count] = ['', 0, 0];
  while (count < most) {
    const end = matcher.matchAt(at, isAnchored ? 1 : 0);
    if (end !== undefined) {
      count++;
      made += replacementOf(matcher, text, at, end, replacement);
    }
    if (end !== undefined && end > at) at = end;
    else if (at < text.length) made += text[at++]!;
    else break;
    if (isAnchored) break;
  }
  return [made + text.slice(at), count];
}

function replacementOf(matcher: Matcher, text: string, at: number, end: number, replacement: LuaValue): string {
  const whole = text.slice(at, end);
  let value: LuaValue;
  if (typeof replacement === 'string' || typeof replacement === 'number')
    return toText(replacement)!.replace(/%(.?)/gs, (_, mark: string) => {
      if (mark === '0') return whole;
      return mark >= '1' && mark <= '9' ? display(matcher.capture(Number(mark) - 1, at, end)) : mark;
    });
  if (replacement instanceof LuaTable) value = replacement.get(matcher.capture(0, at, end));
  else if (typeof replacement === 'function') value = first(replacement(...matcher.captures(at, end, true)));
  else throw badArgument(3, 'gsub', 'string/function/table', replacement);
  if (!isTrue(value)) return whole;
  const made = toText(value);
  if (made === undefined) throw new LuaError(`invalid replacement value (a ${typeOf(value)})`);
  return made;
}

function gmatch(...args: LuaValue[]): LuaFunction {
  const [text, pattern] = [textAt(args, 1, 'gmatch'), textAt(args, 2, 'gmatch')];
  const matcher = new Matcher(text, pattern);
  let from = 0;
  return () => {
    for (let at = from; at <= text.length; at++) {
      const end = matcher.matchAt(at, 0);
      if (end === undefined) continue;
      from = end === at ? end + 1 : end;
      return matcher.captures(at, end, true);
    }
    from = text.length + 1;
    return undefined;
  };
}

const DIRECTIVE = /%([-+ #0]*)(\d*)(?:\.(\d*))?(.?)/gs;

function format(...args: LuaValue[]): string {
  let place = 1;
  return textAt(args, 1, 'format').replace(DIRECTIVE, (_, flags: string, width: string, digits, kind: string) => {
    if (kind === '%') return '%';
    place++;
    if (place > args.length)
      throw badArgument(place, 'format', kind === 's' || kind === 'q' ? 'string' : 'number', undefined);
    return padded(formatOne(args, place, kind, flags, digits as string | undefined), flags, Number(width), kind);
  });
}

function formatOne(args: LuaValue[], place: number, kind: string, flags: string, digits: string | undefined): string {
  const places = digits === undefined ? undefined : Number(digits);
  const signed = (text: string): string =>
    /^[-]/.test(text) ? text : flags.includes('+') ? `+${text}` : flags.includes(' ') ? ` ${text}` : text;
  switch (kind) {
    case 's':
      return places === undefined ? textAt(args, place, 'format') : textAt(args, place, 'format').slice(0, places);
    case 'c':
      return String.fromCharCode(intAt(args, place, 'format') & 255);
    case 'd':
    case 'i':
      return signed(withDigits(toInt64(numberAt(args, place, 'format')).toString(), places));
    case 'u':
    case 'o':
    case 'x':
    case 'X': {
      const value = BigInt.asUintN(64, toInt64(numberAt(args, place, 'format')));
      const text = withDigits(value.toString(kind === 'o' ? 8 : kind === 'u' ? 10 : 16), places);
      return kind === 'X' ? text.toUpperCase() : text;
    }
    case 'f':
      return signed(formatF(numberAt(args, place, 'format'), places ?? 6));
    case 'e':
      return signed(formatE(numberAt(args, place, 'format'), places ?? 6));
    case 'g':
      return signed(formatG(numberAt(args, place, 'format'), places ?? 6));
    default:
      throw new LuaError(`invalid option '%${kind}' to 'format'`);
  }
}

/** What a C cast gives for a number out of range, and for none: the smallest. */
function toInt64(value: number): bigint {
  return Math.abs(value) < 2 ** 63 ? BigInt(Math.trunc(value)) : -(2n ** 63n);
}

function withDigits(text: string, digits: number | undefined): string {
  if (digits === undefined) return text;
  return text.startsWith('-') ? `-${text.slice(1).padStart(digits, '0')}` : text.padStart(digits, '0');
}

function padded(text: string, flags: string, width: number, kind: string): string {
  if (text.length >= width) return text;
  if (flags.includes('-')) return text.padEnd(width);
  if (!flags.includes('0') || kind === 's' || kind === 'c' || /[in]/.test(text)) return text.padStart(width);
  const sign = /^[-+ ]/.test(text) ? text[0]! : '';
  return sign + text.slice(sign.length).padStart(width - sign.length, '0');
}

/** From and to, 1-based and inclusive, counted from the end where negative: string.sub's rule, and GETRANGE's nearly. */
function sub(text: LuaValue, from: LuaValue, to?: LuaValue): string {
  const args = [text, from, to];
  const whole = typeof text === 'string' ? text : textAt(args, 1, 'sub');
  let start = integerAt(args, 2, 'sub');
  let end = integerAt(args, 3, 'sub', -1);
  if (start < 0) start = Math.max(whole.length + start + 1, 1);
  else if (start === 0) start = 1;
  if (end < 0) end = whole.length + end + 1;
  return end < start ? '' : whole.slice(start - 1, end);
}

function byte(...args: LuaValue[]): LuaValue[] {
  const text = textAt(args, 1, 'byte');
  const from = integerAt(args, 2, 'byte', 1);
  const start = from < 0 ? Math.max(text.length + from + 1, 1) : Math.max(from, 1);
  const to = integerAt(args, 3, 'byte', start);
  const end = Math.min(to < 0 ? text.length + to + 1 : to, text.length);
  return Array.from({ length: Math.max(end - start + 1, 0) }, (_, at) => text.charCodeAt(start - 1 + at));
}

function char(...args: LuaValue[]): string {
  return args
    .map((_, at) => {
      const code = intAt(args, at + 1, 'char');
      if (code < 0 || code > 255) throw new LuaError(`bad argument #${at + 1} to 'char' (invalid value)`);
      return String.fromCharCode(code);
    })
    .join('');
}

/** Letters of ASCII alone: the server's locale is C. */
const lower = (text: string): string => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
const upper = (text: string): string => text.replace(/[a-z]+/g, (letters) => letters.toUpperCase());

export const STRING_LIBRARY = {
  find: (...args: LuaValue[]) => search(args, 'find', true),
  match: (...args: LuaValue[]) => search(args, 'match', false),
  gmatch,
  gsub,
  format,
  sub,
  byte,
  char,
  rep: (...args: LuaValue[]) => textAt(args, 1, 'rep').repeat(Math.max(intAt(args, 2, 'rep'), 0)),
  reverse: (...args: LuaValue[]) => [...textAt(args, 1, 'reverse')].toReversed().join(''),
  len: (...args: LuaValue[]) => textAt(args, 1, 'len').length,
  lower: (...args: LuaValue[]) => lower(textAt(args, 1, 'lower')),
  upper: (...args: LuaValue[]) => upper(textAt(args, 1, 'upper')),
} satisfies Readonly<Record<string, LuaFunction>>;
