// Unicode's normalization form C as the official `tokenizers` package does it, whose tables are older than Node's: a
// newer Node composes and moves characters that are nothing special there. Runs of characters that those tables know
// are given to Node; all others stay as they are and part the runs. That is exact, because Unicode's policy of stability
// keeps the normal form of everything that a version had, and a composition added later always has a new character.

import { TEXT_CLASS_RANGES } from './text-classes.ts';
import { hasPoint, setOf } from './unicode-sets.ts';

/** Nothing below is changed, moved or joined with what stands before it. */
const FIRST_FOLLOWING = 0x300;

/** Up to so many code units Unicode's own normalization is fast, whatever the marks. */
const SHORT_RUN = 64;

let following: Uint8Array | undefined;
let composing: Uint8Array | undefined;

/** NFC of well-formed text; the same string where it is already so. Linear in its length. */
export function nfc(text: string): string {
  // oxlint-disable-next-line no-control-regex -- every character below U+0300
  if (/^[\0-\u02ff]*$/.test(text)) return text;
  following ??= setOf(TEXT_CLASS_RANGES.FOLLOWING);
  composing ??= setOf(TEXT_CLASS_RANGES.COMPOSING);
  const parts: string[] = [];
  let copied = 0;
  for (let at = 0; at < text.length;) {
    const point = text.codePointAt(at)!;
    if (point < FIRST_FOLLOWING || !hasPoint(following, point)) {
      at += point > 0xffff ? 2 : 1;
      continue;
    }
    const from = at > copied ? startOfComposing(text, at, composing) : at;
    const end = endOfFollowing(text, at, following);
    const run = text.slice(from, end);
    parts.push(text.slice(copied, from), run.length <= SHORT_RUN ? run.normalize('NFC') : longRun(run));
    copied = end;
    at = end;
  }
  if (parts.length === 0) return text;
  parts.push(text.slice(copied));
  return parts.join('');
}

/** Whether normalization changes, moves or joins nothing across `at`, where a character begins. */
export function beginsRun(text: string, at: number): boolean {
  const point = text.codePointAt(at)!;
  if (point < FIRST_FOLLOWING) return true;
  following ??= setOf(TEXT_CLASS_RANGES.FOLLOWING);
  return !hasPoint(following, point);
}

/** Where the character before begins, if what follows may be joined with it. */
function startOfComposing(text: string, at: number, composes: Uint8Array): number {
  const before = (text.charCodeAt(at - 1) & 0xfc00) === 0xdc00 ? at - 2 : at - 1;
  return hasPoint(composes, text.codePointAt(before)!) ? before : at;
}

function endOfFollowing(text: string, at: number, follows: Uint8Array): number {
  while (at < text.length) {
    const point = text.codePointAt(at)!;
    if (point < FIRST_FOLLOWING || !hasPoint(follows, point)) break;
    at += point > 0xffff ? 2 : 1;
  }
  return at;
}

function longRun(run: string): string {
  return inCanonicalOrder(run, 'NFD').normalize('NFC');
}

/**
 * A run decomposed, with its marks in order. normalize() puts marks in order by moving each back past those before it: its
 * time for marks of alternating classes grows with the square of their number. Behind this it has nothing left to move.
 */
export function inCanonicalOrder(run: string, form: 'NFD' | 'NFKD'): string {
  const parts: string[] = [];
  let marks: string[] = [];
  for (const char of run) {
    for (const part of char.normalize(form)) {
      if (!isStarter(part)) {
        marks.push(part);
        continue;
      }
      if (marks.length > 0) parts.push(inOrder(marks).join(''));
      marks = [];
      parts.push(part);
    }
  }
  parts.push(inOrder(marks).join(''));
  return parts.join('');
}

interface MarkClass {
  /** Its place among the combining classes met so far. */
  place: number;
  /** One mark of the class. */
  readonly mark: string;
}

/** Undefined for a starter, whose combining class is 0. */
const classOfMark = new Map<string, MarkClass | undefined>();
/** In ascending order; Unicode has 55. */
const classes: MarkClass[] = [];

function isStarter(char: string): boolean {
  if (!classOfMark.has(char)) classOfMark.set(char, movesAtAll(char) ? findClass(char) : undefined);
  return classOfMark.get(char) === undefined;
}

/** U+0334 has the lowest combining class that there is, and U+0345 the highest. */
function movesAtAll(char: string): boolean {
  return movesBefore('\u0334', char) || movesBefore(char, '\u0345') || movesBefore(char, '\u0301');
}

/** Whether `mark` is moved before `other` where it stands behind it. */
function movesBefore(mark: string, other: string): boolean {
  return (other + mark).normalize('NFD') !== other + mark;
}

function findClass(mark: string): MarkClass {
  const at = classes.findIndex((other) => !movesBefore(other.mark, mark));
  const found = at < 0 ? undefined : classes[at];
  if (found !== undefined && !movesBefore(mark, found.mark)) return found;
  const added = { place: 0, mark };
  classes.splice(at < 0 ? classes.length : at, 0, added);
  for (const [place, one] of classes.entries()) one.place = place;
  return added;
}

/** Marks by their combining class, those of one class as they came (sorting is stable). */
function inOrder(marks: readonly string[]): readonly string[] {
  return marks.toSorted((a, b) => classOfMark.get(a)!.place - classOfMark.get(b)!.place);
}
