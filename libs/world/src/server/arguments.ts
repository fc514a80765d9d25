// Reading the arguments of commands, with the words that real servers refuse them by.

import { scanNumber, upToZero } from '../lua/numbers.ts';
import type { Flavour } from './command.ts';
import { CommandError, notInteger, notModelled, syntaxError } from './replies.ts';

/** A whole number as servers read it: no plus, no zeros before it, no space. Throws beyond 2^53, which JavaScript lacks. */
export function integerOf(text: string | undefined, failure: () => CommandError = notInteger): number {
  if (text === undefined || !/^(?:0|-?[1-9]\d*)$/.test(text)) throw failure();
  const value = Number(text);
  if (Number.isSafeInteger(value)) return value;
  if (text.length > 20 || BigInt.asIntN(64, BigInt(text)) !== BigInt(text)) throw failure();
  throw notModelled('whole numbers beyond 2^53');
}

/** A score or what is added to one. What is too large, or too small to be anything but 0, is refused. */
export function floatOf(
  text: string | undefined,
  flavour: Flavour,
  failure = 'ERR value is not a valid float',
): number {
  const found = text === undefined || text === '' ? undefined : floatIn(text, flavour);
  const isLost =
    found !== undefined && (Number.isFinite(found) ? found === 0 && !ZERO.test(text!) : !INFINITE.test(text!));
  if (found === undefined || isLost || /^\s/.test(text!)) throw new CommandError(failure);
  return found;
}

const ZERO = /^[+-]?(?:0x)?[0.]+(?:[ep][+-]?\d+)?$/i;
const INFINITE = /inf/i;

/** The whole of a text. Only Redis 7.0 takes hexadecimal digits and leading space, being strtod. */
function floatIn(text: string, flavour: Flavour): number | undefined {
  if (flavour !== 'redis-7.0' && /^(?:\s|[+-]?0x)/i.test(text)) return undefined;
  const found = scanNumber(text);
  return found === undefined || found.end !== text.length || Number.isNaN(found.value) ? undefined : found.value;
}

export interface Bound {
  readonly value: number;
  readonly isExclusive: boolean;
}

/** `5`, `(5`, `-inf`. An empty one is 0, and a byte 0 ends it. */
export function scoreBound(given: string | undefined, flavour: Flavour): Bound {
  const text = upToZero(given ?? '');
  const isExclusive = text.startsWith('(');
  const number = isExclusive ? text.slice(1) : text;
  const value = number === '' ? 0 : floatIn(number, flavour);
  if (value === undefined) throw new CommandError('ERR min or max is not a float');
  return { value, isExclusive };
}

/** A range of members by their bytes. */
export interface LexRange {
  readonly isAbove: (member: string) => boolean;
  readonly isBelow: (member: string) => boolean;
  /** Nothing can be in it. */
  readonly isNothing: boolean;
}

/** `[a`, `(a`, `-`, `+`. */
export function lexRange(least: string | undefined, most: string | undefined): LexRange {
  const [from, to] = [lexBound(least), lexBound(most)];
  const isExclusive = from.isExclusive || to.isExclusive;
  const order = from.rank - to.rank || (from.text < to.text ? -1 : Number(from.text > to.text));
  return {
    isAbove: (member) =>
      from.rank < 0 || (from.rank === 0 && (from.isExclusive ? member > from.text : member >= from.text)),
    isBelow: (member) => to.rank > 0 || (to.rank === 0 && (to.isExclusive ? member < to.text : member <= to.text)),
    isNothing: order > 0 || (order === 0 && isExclusive),
  };
}

/** `rank` is -1 and 1 for the two ends, which hold nothing themselves. */
function lexBound(text: string | undefined): { rank: number; text: string; isExclusive: boolean } {
  if (text === '-' || text === '+') return { rank: text === '-' ? -1 : 1, text: '', isExclusive: true };
  if (text === undefined || !/^[[(]/.test(text)) throw new CommandError('ERR min or max not valid string range item');
  return { rank: 0, text: text.slice(1), isExclusive: text.startsWith('(') };
}

/** Where a range of `length` begins and ends (exclusive) that is given as LRANGE and its like give it. */
export function rangeOf(length: number, start: number, stop: number): readonly [from: number, to: number] {
  const from = Math.max(start < 0 ? start + length : start, 0);
  const to = Math.min(stop < 0 ? stop + length : stop, length - 1);
  return from > to || from >= length ? [0, 0] : [from, to + 1];
}

/** Throws a syntax error unless the words are over. */
export function ended(args: readonly string[], at: number): void {
  if (at < args.length) throw syntaxError();
}

/** A pattern of KEYS, SCAN and PSUBSCRIBE. */
export function globMatcher(pattern: string): (text: string) => boolean {
  let source = '';
  for (let at = 0; at < pattern.length; at++) {
    const char = pattern[at]!;
    if (char === '*') source += '[\\s\\S]*';
    else if (char === '?') source += '[\\s\\S]';
    else if (char === '\\' && at + 1 < pattern.length) source += literal(pattern[++at]!);
    else if (char === '[') {
      const end = pattern.indexOf(']', at + 1);
      if (end < 0 || pattern.slice(at, end).includes('\\')) throw notModelled(`the pattern ${pattern}`);
      const isNot = pattern[at + 1] === '^';
      const inner = pattern.slice(at + (isNot ? 2 : 1), end);
      source += `[${isNot ? '^' : ''}${inner.replaceAll(/[\]\\^]/g, String.raw`\$&`)}]`;
      at = end;
    } else source += literal(char);
  }
  const expression = new RegExp(`^${source}$`);
  return (text) => expression.test(text);
}

function literal(char: string): string {
  return /[\w\s]/.test(char) || char > '\u007f' ? char : `\\${char}`;
}
