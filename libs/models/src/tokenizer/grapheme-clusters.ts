// Where the grapheme clusters of a text end, by frozen tables (unicode-tables.ts): a charsmap replaces whole clusters, so
// that ids depend on them. Unicode's rules GB3 to GB13 (UAX #29), as the crate `unicode-segmentation` has them, but for
// flags, which are always longer than what a charsmap looks at.

import { rangesOf } from './unicode-sets.ts';
import { TABLE_RANGES } from './unicode-tables.ts';

const KIND = {
  OTHER: 0,
  CONTROL: 1,
  EXTEND: 2,
  JOINER: 3,
  SPACING: 4,
  PREPENDED: 5,
  LEADING: 6,
  VOWEL: 7,
  TRAILING: 8,
  OPEN_SYLLABLE: 9,
  CLOSED_SYLLABLE: 10,
} as const;
const KIND_BITS = 15;
const [PICTOGRAPH, CONSONANT, LINKER, CONJOINED] = [16, 32, 64, 128];

/** Hangul, which never changes: leading consonants, vowels, trailing consonants. */
const JAMO: readonly (readonly [from: number, to: number, kind: number])[] = [
  [0x1100, 0x115f, KIND.LEADING],
  [0xa960, 0xa97c, KIND.LEADING],
  [0x1160, 0x11a7, KIND.VOWEL],
  [0xd7b0, 0xd7c6, KIND.VOWEL],
  [0x11a8, 0x11ff, KIND.TRAILING],
  [0xd7cb, 0xd7fb, KIND.TRAILING],
];

let table: Uint8Array | undefined;

/** Kind and flags of every code point: 1.1 MB, made when the first charsmap is opened. */
function kinds(): Uint8Array {
  if (table !== undefined) return table;
  const made = new Uint8Array(0x110000);
  const setAll = (ranges: string, kind: number): void => {
    for (const [from, to] of rangesOf(ranges)) made.fill(kind, from, to + 1);
  };
  setAll(TABLE_RANGES.CONTROL, KIND.CONTROL);
  setAll(TABLE_RANGES.PREPENDED, KIND.PREPENDED);
  setAll(TABLE_RANGES.EXTENDS, KIND.EXTEND);
  setAll(TABLE_RANGES.SPACING, KIND.SPACING);
  made[0x200d] = KIND.JOINER;
  for (const [from, to, kind] of JAMO) made.fill(kind, from, to + 1);
  for (let point = 0xac00; point <= 0xd7a3; point++)
    made[point] = (point - 0xac00) % 28 === 0 ? KIND.OPEN_SYLLABLE : KIND.CLOSED_SYLLABLE;
  for (const [ranges, flag] of [
    [TABLE_RANGES.PICTOGRAPH, PICTOGRAPH],
    [TABLE_RANGES.CONSONANT, CONSONANT],
    [TABLE_RANGES.LINKER, LINKER],
    [TABLE_RANGES.CONJOINED, CONJOINED],
  ] as const)
    for (const [from, to] of rangesOf(ranges)) for (let point = from; point <= to; point++) made[point]! |= flag;
  return (table = made);
}

/** Whether this code point is never of the cluster of another one, whatever stands around it but marks. */
export function standsAsCluster(point: number): boolean {
  const kind = kinds()[point]!;
  return kind === KIND.OTHER || kind === KIND.CONTROL;
}

/** Whether this code point belongs to the cluster of the one before it, unless that is a control. */
export function extendsCluster(point: number): boolean {
  const kind = kinds()[point]! & KIND_BITS;
  return kind === KIND.EXTEND || kind === KIND.JOINER || kind === KIND.SPACING;
}

/** Whether no blank before or behind this code point is of its cluster, and it is no control. */
export function standsAlways(point: number): boolean {
  const kind = kinds()[point]! & KIND_BITS;
  return kind === KIND.OTHER || kind >= KIND.LEADING;
}

/** Where the cluster that begins at `start` ends, in code units. Text must be well-formed and go on there. */
export function clusterEnd(text: string, start: number): number {
  const all = kinds();
  const first = text.codePointAt(start)!;
  let at = start + (first > 0xffff ? 2 : 1);
  if (first === 0xd && text.charCodeAt(at) === 0xa) return at + 1;
  let is = all[first]!;
  if ((is & KIND_BITS) === KIND.CONTROL) return at;
  // 1: a pictograph and what extends it, 2: and a joiner behind; 1: a consonant, 2: and a linker
  let pictographs = (is & PICTOGRAPH) === 0 ? 0 : 1;
  let consonants = (is & CONSONANT) === 0 ? 0 : 1;
  while (at < text.length) {
    const point = text.codePointAt(at)!;
    const next = all[point]!;
    const kind = next & KIND_BITS;
    if (kind === KIND.CONTROL) break;
    const isJoined =
      kind === KIND.EXTEND ||
      kind === KIND.JOINER ||
      kind === KIND.SPACING ||
      (is & KIND_BITS) === KIND.PREPENDED ||
      isSyllable(is & KIND_BITS, kind) ||
      (pictographs === 2 && (next & PICTOGRAPH) !== 0) ||
      (consonants === 2 && (next & CONSONANT) !== 0);
    if (!isJoined) break;
    if ((next & PICTOGRAPH) !== 0) pictographs = 1;
    else if (kind === KIND.JOINER && pictographs === 1) pictographs = 2;
    else if (kind !== KIND.EXTEND || pictographs === 2) pictographs = 0;
    if ((next & CONSONANT) !== 0) consonants = 1;
    else if ((next & LINKER) !== 0) consonants = consonants === 0 ? 0 : 2;
    else if ((next & CONJOINED) === 0) consonants = 0;
    is = next;
    at += point > 0xffff ? 2 : 1;
  }
  return at;
}

/** Whether the second jamo or syllable goes on with the first one. */
function isSyllable(first: number, second: number): boolean {
  switch (first) {
    case KIND.LEADING:
      return second >= KIND.LEADING && second !== KIND.TRAILING;
    case KIND.OPEN_SYLLABLE:
    case KIND.VOWEL:
      return second === KIND.VOWEL || second === KIND.TRAILING;
    case KIND.CLOSED_SYLLABLE:
    case KIND.TRAILING:
      return second === KIND.TRAILING;
    default:
      return false;
  }
}
