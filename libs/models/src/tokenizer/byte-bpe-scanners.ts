// Where words of byte-level BPE end: the regexes that models split texts with, as scanners by hand, one pass without
// backtracking. Each finds the same words as the regex in Oniguruma, the engine of the official package, whose classes
// of characters are frozen in text-classes.ts. A regex that is none of these is refused by whoever reads the file.

import { TEXT_CLASS_RANGES } from './text-classes.ts';
import { rangesOf } from './unicode-sets.ts';

/** Where the word that begins at `at` ends. Text is well-formed, and `at` lies before its end. */
export type Scanner = (text: string, at: number) => number;

/** What \p{L}, \p{N} and \s make of a character. */
const KIND = { OTHER: 0, LETTER: 1, NUMBER: 2, SPACE: 3, NEWLINE: 4 } as const;

const APOSTROPHE = 0x27;
const BLANK = 0x20;

/** 1.1 MB: one lookup for each character. */
let kindTable: Uint8Array | undefined;

function kinds(): Uint8Array {
  kindTable ??= readKinds();
  return kindTable;
}

function readKinds(): Uint8Array {
  const table = new Uint8Array(0x110000);
  const { LETTER, NUMBER, WHITE_SPACE } = TEXT_CLASS_RANGES;
  const fill = (ranges: string, kind: number): void => {
    for (const [from, to] of rangesOf(ranges)) table.fill(kind, from, to + 1);
  };
  fill(LETTER, KIND.LETTER);
  fill(NUMBER, KIND.NUMBER);
  fill(WHITE_SPACE, KIND.SPACE);
  table[0x0a] = KIND.NEWLINE;
  table[0x0d] = KIND.NEWLINE;
  return table;
}

/** 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ of GPT-2 and of ByteLevel itself. */
export function gpt2Scanner(): Scanner {
  const table = kinds();
  return (text, at) => {
    const unit = text.charCodeAt(at);
    if (unit === APOSTROPHE) {
      const end = contractionEnd(text, at, false);
      if (end > 0) return end;
    }
    let start = at;
    let kind = kindAt(text, at, table);
    if (unit === BLANK && at + 1 < text.length) {
      const behind = kindAt(text, at + 1, table);
      if (behind < KIND.SPACE) {
        kind = behind;
        start = at + 1;
      }
    }
    return kind < KIND.SPACE ? runEnd(text, start, kind, table) : blanksEnd(text, at, table, false);
  };
}

/**
 * (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ of
 * cl100k and Llama 3 (numbers of up to three digits) and of Qwen (of one).
 */
export function cl100kScanner(mostDigits: number): Scanner {
  const table = kinds();
  return (text, at) => {
    const unit = text.charCodeAt(at);
    if (unit === APOSTROPHE) {
      const end = contractionEnd(text, at, true);
      if (end > 0) return end;
    }
    const kind = kindAt(text, at, table);
    if (kind === KIND.LETTER) return runEnd(text, at, KIND.LETTER, table);
    if (kind === KIND.NUMBER) return numberEnd(text, at, mostDigits, table);
    const next = at + sizeAt(text, at);
    const behind = next < text.length ? kindAt(text, next, table) : KIND.SPACE;
    if (kind !== KIND.NEWLINE && behind === KIND.LETTER) return runEnd(text, next, KIND.LETTER, table);
    if (kind === KIND.OTHER) return newlinesEnd(text, runEnd(text, at, KIND.OTHER, table));
    if (unit === BLANK && behind === KIND.OTHER) return newlinesEnd(text, runEnd(text, next, KIND.OTHER, table));
    return blanksEnd(text, at, table, true);
  };
}

/** Numbers set apart from all else, digit by digit or in runs, as the pre-tokenizer Digits does. */
export function digitsScanner(isIndividual: boolean): Scanner {
  const table = digits();
  return (text, at) => {
    const isDigit = table[text.codePointAt(at)!] === 1;
    let end = at + sizeAt(text, at);
    if (isDigit && isIndividual) return end;
    while (end < text.length && (table[text.codePointAt(end)!] === 1) === isDigit) end += sizeAt(text, end);
    return end;
  };
}

let digitTable: Uint8Array | undefined;

function digits(): Uint8Array {
  if (digitTable !== undefined) return digitTable;
  digitTable = new Uint8Array(0x110000);
  for (const [from, to] of rangesOf(TEXT_CLASS_RANGES.DIGIT)) digitTable.fill(1, from, to + 1);
  return digitTable;
}

function kindAt(text: string, at: number, table: Uint8Array): number {
  const unit = text.charCodeAt(at);
  return table[(unit & 0xfc00) === 0xd800 ? text.codePointAt(at)! : unit]!;
}

/** In code units. */
function sizeAt(text: string, at: number): number {
  return (text.charCodeAt(at) & 0xfc00) === 0xd800 ? 2 : 1;
}

function runEnd(text: string, at: number, kind: number, table: Uint8Array): number {
  while (at < text.length && kindAt(text, at, table) === kind) at += sizeAt(text, at);
  return at;
}

function numberEnd(text: string, at: number, mostDigits: number, table: Uint8Array): number {
  for (let digit = 0; digit < mostDigits && at < text.length; digit++) {
    if (kindAt(text, at, table) !== KIND.NUMBER) break;
    at += sizeAt(text, at);
  }
  return at;
}

function newlinesEnd(text: string, at: number): number {
  while (at < text.length && (text.charCodeAt(at) === 0x0a || text.charCodeAt(at) === 0x0d)) at++;
  return at;
}

/**
 * The end of a word of blanks: with `toNewline` after the last line break among them; else before the last blank, which
 * belongs to what follows, unless it is the only one or nothing follows.
 */
function blanksEnd(text: string, at: number, table: Uint8Array, toNewline: boolean): number {
  let end = at;
  let newline = -1;
  for (; end < text.length; end++) {
    const kind = table[text.charCodeAt(end)]!; // all blanks are one code unit, and no half of a pair is one
    if (kind < KIND.SPACE) break;
    if (kind === KIND.NEWLINE) newline = end;
  }
  if (toNewline && newline >= 0) return newline + 1;
  return end < text.length && end - at > 1 ? end - 1 : end;
}

/** The end of 's, 't, 'm, 'd, 're, 've or 'll, or 0. In any case, ſ (U+017F) is an s to the engine. */
function contractionEnd(text: string, at: number, anyCase: boolean): number {
  const first = letterAt(text, at + 1, anyCase);
  if (first === 's' || first === 't' || first === 'm' || first === 'd') return at + 2;
  const second = letterAt(text, at + 2, anyCase);
  const isLong =
    (first === 'r' && second === 'e') || (first === 'v' && second === 'e') || (first === 'l' && second === 'l');
  return isLong ? at + 3 : 0;
}

function letterAt(text: string, at: number, anyCase: boolean): string {
  const char = text.charAt(at);
  if (!anyCase) return char;
  return char === 'ſ' ? 's' : char >= 'A' && char <= 'Z' ? char.toLowerCase() : char;
}
