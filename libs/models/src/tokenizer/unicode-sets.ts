// Sets of code points, from tables that were frozen (unicode-classes.ts, unicode-tables.ts): Unicode of the running Node
// would give other ids for what a newer version of it added.

import { TABLE_RANGES } from './unicode-tables.ts';

/** White_Space, which is \s of the regex crate and char::is_whitespace; no character beyond the basic plane. */
export function isSpace(point: number): boolean {
  if (point < 0x80) return point === 0x20 || (point >= 0x9 && point <= 0xd);
  return SPACES.has(point);
}

const SPACES = new Set([
  0x85,
  0xa0,
  0x1680,
  ...Array.from({ length: 11 }, (_, at) => 0x2000 + at),
  0x2028,
  0x2029,
  0x202f,
  0x205f,
  0x3000,
]);

/** \w of the regex crate. */
export function isWordChar(point: number): boolean {
  wordChars ??= setOf(TABLE_RANGES.WORD);
  return hasPoint(wordChars, point);
}

let wordChars: Uint8Array | undefined;

/** One bit a code point: 136 kB. */
export function setOf(...tables: readonly string[]): Uint8Array {
  const bits = new Uint8Array(0x110000 / 8);
  for (const table of tables)
    for (const [from, to] of rangesOf(table))
      for (let point = from; point <= to; point++) bits[point >> 3]! |= 1 << (point & 7);
  return bits;
}

export function hasPoint(bits: Uint8Array, point: number): boolean {
  return (bits[point >> 3]! & (1 << (point & 7))) !== 0;
}

/** First and last code points of the ranges of a table. */
export function rangesOf(table: string): readonly (readonly [number, number])[] {
  return table
    .trim()
    .split(/\s+/)
    .map((range) => {
      const [from = '', to = from] = range.split('-');
      return [Number.parseInt(from, 16), Number.parseInt(to, 16)] as const;
    });
}
