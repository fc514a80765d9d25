// Text into the words that WordPiece takes: BertNormalizer and BertPreTokenizer of the official `tokenizers` package,
// by its tables (unicode-classes.ts) and in its order: clean, set Chinese apart, decompose and strip, lower, split. The
// tokenizer scans raw text by `roles` and comes here only for stretches it has not met before.

import { CLASS_RANGES } from './unicode-classes.ts';
import type { NormalizerOptions } from './word-piece-facts.ts';

/** What a code point of raw text does to the word being scanned. */
export const ROLE = {
  /** An ASCII letter or digit: part of a word, changed by nothing but lower case. */
  PLAIN: 0,
  /** Ends a word. */
  SPACE: 1,
  /** Ends a word and is one. */
  ALONE: 2,
  /** Part of a stretch that must be normalized before anything is known about it. */
  ODD: 3,
  /** May begin an added token such as [SEP]; if it does not, the tokenizer looks at its other role. */
  ADDED: 4,
} as const;

const CLASS = { DROPPED: 1, SPACE: 2, PUNCTUATION: 4, CHINESE: 8, DECOMPOSED: 16, MARK: 32 } as const;

const RANGES = Object.entries(CLASS).flatMap(([name, bit]) =>
  rangesOf(CLASS_RANGES[name as keyof typeof CLASS]).map((range) => ({ ...range, bit })),
);

/** 1.1 MB, filled in 3 ms: one lookup instead of six regular expressions with the u flag. */
const classes = new Uint8Array(0x110000);
for (const { from, to, bit } of RANGES) for (let point = from; point <= to; point++) classes[point]! |= bit;

/** Marks that other marks may move across, and that are stripped: they are dropped before anything is put in order. */
const MOVING_MARK = CLASS.DECOMPOSED | CLASS.MARK;
/** Up to so many code units Unicode's own normalization is faster; above, one that is linear whatever the marks. */
const SHORT_RUN = 64;

export class BertWords {
  readonly #options: NormalizerOptions;

  constructor(options: NormalizerOptions) {
    this.#options = options;
  }

  /**
   * The role of every code point. A stretch may be cut at SPACE and ALONE before it is normalized, because those are
   * starters that NFD leaves as they are: nothing moves across them, and no other character changes what they become.
   */
  roles(): Uint8Array {
    const roles = new Uint8Array(0x110000).fill(ROLE.ODD);
    const byClass = Uint8Array.from({ length: 64 }, (_, is) => this.#roleOf(is));
    for (let point = 0x21; point < 0x7f; point++) roles[point] = ROLE.PLAIN;
    for (const { from, to, bit } of RANGES) {
      if ((bit & (CLASS.SPACE | CLASS.CHINESE | CLASS.PUNCTUATION)) === 0) continue;
      for (let point = from; point <= to; point++) roles[point] = byClass[classes[point]!]!;
    }
    return roles;
  }

  /** The words of a stretch of text, normalized. Text must be well-formed. */
  split(text: string): readonly string[] {
    if (/^[0-9A-Za-z]+$/.test(text)) return [this.#options.lowercase ? text.toLowerCase() : text]; // most words
    return this.cut(this.#normalize(text));
  }

  /** The words of normalized text. */
  cut(normal: string): readonly string[] {
    const words: string[] = [];
    let start = 0; // of the word being read
    for (let at = 0; at < normal.length;) {
      const end = at + charLength(normal, at);
      const is = classOf(normal, at);
      if ((is & (CLASS.SPACE | CLASS.PUNCTUATION)) !== 0) {
        if (start < at) words.push(normal.slice(start, at));
        if ((is & CLASS.SPACE) === 0) words.push(normal.slice(at, end));
        start = end;
      }
      at = end;
    }
    if (start < normal.length) words.push(normal.slice(start));
    return words;
  }

  /** A whole text as the original normalizes it, blanks included. */
  normalize(text: string): string {
    const { cleanText } = this.#options;
    return cleanText
      ? replaceRuns(this.#normalize(text), CLASS.SPACE, (run) => ' '.repeat([...run].length))
      : this.#normalize(text);
  }

  /**
   * A long stretch as pieces of about `units` code units, some empty, whose words are those of the whole: one that a
   * piece ends with may go on in the next. What is dropped anyway is left out, and no piece begins with a mark that
   * another may move across; but where there are more than `units` of those in a row, which has to be more than a word may have.
   */
  *pieces(text: string, start: number, end: number, units: number): Generator<string, void, undefined> {
    const { cleanText, stripAccents } = this.#options;
    let kept = '';
    for (let at = start; at < end;) {
      let to = Math.min(end, at + units);
      if ((text.charCodeAt(to - 1) & 0xfc00) === 0xd800) to += 1;
      kept += keptOf(text.slice(at, to), cleanText, stripAccents);
      at = to;
      let cut = kept.length < units ? 0 : stripAccents ? lastStart(kept) : kept.length;
      if (cut === 0 && kept.length >= 2 * units) cut = kept.length;
      yield kept.slice(0, cut);
      kept = kept.slice(cut);
    }
    yield kept;
  }

  #roleOf(is: number): number {
    const { cleanText, handleChineseChars, stripAccents } = this.#options;
    if (cleanText && (is & CLASS.DROPPED) !== 0) return ROLE.ODD;
    if ((is & CLASS.SPACE) !== 0) return ROLE.SPACE;
    if (handleChineseChars && (is & CLASS.CHINESE) !== 0) return ROLE.ALONE;
    if (stripAccents && (is & (CLASS.DECOMPOSED | CLASS.MARK)) !== 0) return ROLE.ODD;
    return (is & CLASS.PUNCTUATION) !== 0 ? ROLE.ALONE : ROLE.ODD;
  }

  /** Spaces stay as they are: the original makes them all U+0020, but they end words either way. */
  #normalize(text: string): string {
    const { cleanText, handleChineseChars, stripAccents, lowercase } = this.#options;
    let normal = text;
    if (cleanText) normal = replaceRuns(normal, CLASS.DROPPED, () => '');
    if (handleChineseChars) normal = replaceRuns(normal, CLASS.CHINESE, (run) => ` ${[...run].join(' ')} `);
    // By runs, so that what only a newer Node would decompose or move stays as it is in the original's older tables:
    // the characters between the runs are starters without a decomposition, nothing moves across them.
    if (stripAccents) normal = replaceRuns(normal, CLASS.DECOMPOSED, decomposed);
    if (stripAccents) normal = replaceRuns(normal, CLASS.MARK, () => '');
    // Per character in the original: a sigma at the end of a word stays σ, which toLowerCase() alone would make ς.
    return lowercase ? normal.replaceAll('Σ', 'σ').toLowerCase() : normal;
  }
}

/** Without what is dropped, and without the marks that are stripped in the end and that others move across. */
function keptOf(text: string, cleanText: boolean, stripAccents: boolean): string {
  const parts: string[] = [];
  let start = 0; // of what has not been copied yet
  for (let at = 0; at < text.length;) {
    const next = at + charLength(text, at);
    const is = classOf(text, at);
    if ((cleanText && (is & CLASS.DROPPED) !== 0) || (stripAccents && (is & MOVING_MARK) === MOVING_MARK)) {
      if (start < at) parts.push(text.slice(start, at));
      start = next;
    }
    at = next;
  }
  if (start < text.length) parts.push(text.slice(start));
  return parts.join('');
}

/** Where the last character begins that nothing moves across; 0 where only the first one, or none, is such. */
function lastStart(text: string): number {
  let at = text.length;
  while (at > 0) {
    at -= (text.charCodeAt(at - 1) & 0xfc00) === 0xdc00 ? 2 : 1;
    if (isStart(text.codePointAt(at)!)) return at;
  }
  return 0;
}

/** Of those that decompose, some 13,000. */
const starts = new Map<number, boolean>();

function isStart(point: number): boolean {
  if ((classes[point]! & (CLASS.DECOMPOSED | CLASS.MARK)) === 0) return true;
  let is = starts.get(point);
  if (is === undefined) {
    const first = String.fromCodePoint(point).normalize('NFD').codePointAt(0)!;
    starts.set(point, (is = (classes[first]! & (CLASS.DECOMPOSED | CLASS.MARK)) === 0));
  }
  return is;
}

function decomposed(run: string): string {
  return run.length <= SHORT_RUN ? run.normalize('NFD') : decomposedLong(run);
}

/**
 * The NFD of a run without the marks that are stripped from it afterwards. normalize() puts marks in order by moving
 * each back past those before it: the time for marks of alternating classes grows with the square of their number.
 */
function decomposedLong(run: string): string {
  const parts: string[] = [];
  let moving: string[] = []; // marks in a row that stay, a dozen of music and Hangul: in the order of their classes
  const known = new Map<string, string>();
  for (let at = 0; at < run.length;) {
    const size = charLength(run, at);
    if ((classOf(run, at) & MOVING_MARK) !== MOVING_MARK) {
      const char = run.slice(at, at + size);
      let parted = known.get(char);
      if (parted === undefined) known.set(char, (parted = char.normalize('NFD')));
      for (const part of parted) {
        const is = classOf(part, 0);
        if ((is & MOVING_MARK) === MOVING_MARK) continue;
        if ((is & CLASS.DECOMPOSED) !== 0) {
          moving.push(part);
          continue;
        }
        if (moving.length > 0) {
          parts.push(moving.length === 1 ? moving[0]! : inOrder(moving));
          moving = [];
        }
        parts.push(part);
      }
    }
    at += size;
  }
  parts.push(inOrder(moving));
  return parts.join('');
}

/** Marks by their class, those of one class as they came. */
function inOrder(marks: readonly string[]): string {
  const kinds = [...new Set(marks)];
  if (kinds.length < 2) return marks.join('');
  // how many kinds a mark is moved behind says its class among them
  const rank = new Map(kinds.map((kind) => [kind, kinds.filter((other) => isBehind(kind, other)).length]));
  const ranked = Array.from(kinds, (): string[] => []);
  for (const mark of marks) ranked[rank.get(mark)!]!.push(mark);
  return ranked.map((some) => some.join('')).join('');
}

/** By both marks; a dozen kinds of marks stay, so there are few. */
const behind = new Map<string, boolean>();

function isBehind(mark: string, other: string): boolean {
  const both = mark + other;
  let is = behind.get(both);
  if (is === undefined) behind.set(both, (is = both.normalize('NFD') !== both));
  return is;
}

/**
 * Replaces each longest run of characters of a class. Parts are joined once: a 20 MB word stays linear in time and
 * memory.
 */
function replaceRuns(text: string, wanted: number, replace: (run: string) => string): string {
  const parts: string[] = [];
  let start = 0; // of what has not been copied yet
  for (let at = 0; at < text.length;) {
    if ((classOf(text, at) & wanted) === 0) {
      at += charLength(text, at);
      continue;
    }
    let end = at;
    while (end < text.length && (classOf(text, end) & wanted) !== 0) end += charLength(text, end);
    parts.push(text.slice(start, at), replace(text.slice(at, end)));
    start = end;
    at = end;
  }
  if (parts.length === 0) return text;
  parts.push(text.slice(start));
  return parts.join('');
}

function classOf(text: string, at: number): number {
  return classes[text.codePointAt(at)!]!;
}

/** In code units. */
function charLength(text: string, at: number): number {
  return (text.charCodeAt(at) & 0xfc00) === 0xd800 ? 2 : 1;
}

function rangesOf(text: string): { readonly from: number; readonly to: number }[] {
  return text
    .trim()
    .split(/\s+/)
    .map((range) => {
      const [from = '', to = from] = range.split('-');
      return { from: Number.parseInt(from, 16), to: Number.parseInt(to, 16) };
    });
}
