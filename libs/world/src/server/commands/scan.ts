// SCAN and its kin. The order is that of a hash of the names, and a cursor is a place in that order, so that what is there
// from the first page to the last is on one of them, whatever comes and goes meanwhile: real servers promise that, and
// nothing of the order.

import { upToZero } from '../../lua/numbers.ts';
import { globMatcher, integerOf } from '../arguments.ts';
import type { Flavour } from '../command.ts';
import { CommandError, syntaxError } from '../replies.ts';

export interface ScanOptions {
  readonly cursor: number;
  readonly matches: (text: string) => boolean;
  readonly count: number;
  readonly type: string | undefined;
}

/** A hash, a set and a sorted set of up to so many members are handed out at once. */
export const COMPACT_MEMBERS = 128;

/** `args` from the cursor on. */
export function scanOptions(args: readonly string[], mayHaveType: boolean, flavour: Flavour): ScanOptions {
  const cursor = cursorOf(args[0] ?? '', flavour);
  let [pattern, count, type]: [string, number, string | undefined] = ['*', 10, undefined];
  for (let at = 1; at < args.length; at += 2) {
    const value = args[at + 1];
    if (value === undefined) throw syntaxError();
    switch (args[at]!.toUpperCase()) {
      case 'MATCH':
        pattern = value;
        break;
      case 'COUNT':
        count = integerOf(value);
        if (count < 1) throw syntaxError();
        break;
      case 'TYPE':
        if (!mayHaveType) throw syntaxError();
        type = value.toLowerCase();
        break;
      default:
        throw syntaxError();
    }
  }
  return { cursor, matches: globMatcher(pattern), count, type };
}

/**
 * As C's strtoul reads it, up to a byte 0. Redis 7.0 takes nothing for 0 and turns what is below 0 round; Valkey 9 takes
 * space before it.
 */
function cursorOf(given: string, flavour: Flavour): number {
  const text = upToZero(given);
  const isRedis = flavour === 'redis-7.0';
  if (isRedis && text === '') return 0;
  const found = (isRedis ? /^([+-]?)(\d+)$/ : /^\s*(\+?)(\d+)$/).exec(text);
  const digits = BigInt(found?.[2] ?? 2n ** 64n);
  if (digits >= 2n ** 64n) throw new CommandError('ERR invalid cursor');
  return Number(found![1] === '-' ? BigInt.asUintN(64, -digits) : digits);
}

/** The next page of names, before any is filtered, and where the page after it begins. */
export function pageOf(
  names: readonly string[],
  cursor: number,
  count: number,
): readonly [next: string, page: string[]] {
  const placed = names
    .map((name) => [placeOf(name), name] as const)
    .filter(([place]) => place > cursor || cursor === 0)
    .sort(([a, nameA], [b, nameB]) => a - b || (nameA < nameB ? -1 : 1));
  let end = Math.min(count, placed.length);
  while (end < placed.length && placed[end]![0] === placed[end - 1]![0]) end++;
  const next = end < placed.length ? String(placed[end - 1]![0]) : '0';
  return [next, placed.slice(0, end).map(([, name]) => name)];
}

/** FNV-1a, and never 0. */
function placeOf(name: string): number {
  let hash = 0x811c9dc5;
  for (let at = 0; at < name.length; at++) hash = Math.imul(hash ^ name.charCodeAt(at), 0x01000193);
  return (hash >>> 0) + 1;
}
