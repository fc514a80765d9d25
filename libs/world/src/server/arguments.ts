// Reading the arguments of commands, with the words that real servers refuse them by.

import { scanNumber } from '../lua/numbers.ts';
import { CommandError, notInteger, notModelled, syntaxError } from './replies.ts';

/** A whole number as servers read it: no plus, no zeros before it, no space. Throws beyond 2^53, which JavaScript lacks. */
export function integerOf(text: string | undefined, failure: () => CommandError = notInteger): number {
  if (text === undefined || !/^(?:0|-?[1-9]\d*)$/.test(text)) throw failure();
  const value = Number(text);
  if (Number.isSafeInteger(value)) return value;
  if (text.length > 20 || BigInt.asIntN(64, BigInt(text)) !== BigInt(text)) throw failure();
  throw notModelled('whole numbers beyond 2^53');
}

export function floatOf(text: string | undefined, failure = 'ERR value is not a valid float'): number {
  const found = text === undefined || /^\s/.test(text) ? undefined : scanNumber(text);
  if (found === undefined || found.end !== text!.length || Number.isNaN(found.value)) throw new CommandError(failure);
  return found.value;
}

export interface Bound {
  readonly value: number;
  readonly isExclusive: boolean;
}

/** `5`, `(5`, `-inf`. */
export function scoreBound(text: string | undefined): Bound {
  const isExclusive = text?.startsWith('(') === true;
  return { value: floatOf(isExclusive ? text!.slice(1) : text, 'ERR min or max is not a float'), isExclusive };
}

/** `[a`, `(a`, `-`, `+`: undefined for the two ends. */
export function lexBound(
  text: string | undefined,
): { readonly text: string; readonly isExclusive: boolean } | '-' | '+' {
  if (text === '-' || text === '+') return text;
  if (text === undefined || !/^[[(]/.test(text)) throw new CommandError('ERR min or max not valid string range item');
  return { text: text.slice(1), isExclusive: text.startsWith('(') };
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
