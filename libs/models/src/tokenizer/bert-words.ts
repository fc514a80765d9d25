// Text into the words that WordPiece takes: BertNormalizer and BertPreTokenizer of the official `tokenizers` package, by
// its tables (unicode-classes.ts) and in its order: clean, set Chinese apart, decompose and strip, lower, split.
// The tokenizer scans raw text by `roles` and comes here only for stretches it has not met before.

import { CLASS_RANGES } from './unicode-classes.ts';
import type { NormalizerOptions } from './tokenizer-json.ts';

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

const RANGES = Object.entries(CLASS).flatMap(([name, bit]) => rangesOf(CLASS_RANGES[name as keyof typeof CLASS]).map((range) => ({ ...range, bit })));

/** 1.1 MB, filled in 3 ms: one lookup instead of six regular expressions with the u flag. */
const classes = new Uint8Array(0x110000);
for (const { from, to, bit } of RANGES) for (let point = from; point <= to; point++) classes[point]! |= bit;

const TAB = 9;
const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;

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
    const words: string[] = [];
    let word = '';
    const end = (): void => {
      if (word !== '') words.push(word);
      word = '';
    };
    for (const char of this.#normalize(text)) {
      const is = classes[char.codePointAt(0)!]!;
      if ((is & CLASS.SPACE) !== 0) end();
      else if ((is & CLASS.PUNCTUATION) !== 0) {
        end();
        words.push(char);
      } else word += char;
    }
    end();
    return words;
  }

  #roleOf(is: number): number {
    const { cleanText, handleChineseChars, stripAccents } = this.#options;
    if (cleanText && (is & CLASS.DROPPED) !== 0) return ROLE.ODD;
    if ((is & CLASS.SPACE) !== 0) return ROLE.SPACE;
    if (handleChineseChars && (is & CLASS.CHINESE) !== 0) return ROLE.ALONE;
    if (stripAccents && (is & (CLASS.DECOMPOSED | CLASS.MARK)) !== 0) return ROLE.ODD;
    return (is & CLASS.PUNCTUATION) !== 0 ? ROLE.ALONE : ROLE.ODD;
  }

  #normalize(text: string): string {
    const { cleanText, handleChineseChars, stripAccents, lowercase } = this.#options;
    let normal = cleanText || handleChineseChars ? this.#cleanAndSetApart(text) : text;
    if (stripAccents) normal = withoutMarks(decompose(normal));
    // Per character in the original: a sigma at the end of a word stays σ, which toLowerCase() alone would make ς.
    return lowercase ? normal.replaceAll('Σ', 'σ').toLowerCase() : normal;
  }

  #cleanAndSetApart(text: string): string {
    const { cleanText, handleChineseChars } = this.#options;
    let kept = '';
    for (const char of text) {
      const point = char.codePointAt(0)!;
      const is = classes[point]!;
      if (cleanText && (is & CLASS.DROPPED) !== 0) continue;
      if (cleanText && ((is & CLASS.SPACE) !== 0 || point === TAB || point === LINE_FEED || point === CARRIAGE_RETURN)) kept += ' ';
      else if (handleChineseChars && (is & CLASS.CHINESE) !== 0) kept += ` ${char} `;
      else kept += char;
    }
    return kept;
  }
}

/**
 * NFD of the runs that the original's older tables change; what only a newer Node would decompose or move is left alone.
 * The characters between the runs are starters without a decomposition, so runs can be taken one by one.
 */
function decompose(text: string): string {
  let result = '';
  let run = '';
  for (const char of text) {
    if ((classes[char.codePointAt(0)!]! & CLASS.DECOMPOSED) !== 0) run += char;
    else {
      result += run === '' ? char : run.normalize('NFD') + char;
      run = '';
    }
  }
  return result + run.normalize('NFD');
}

function withoutMarks(text: string): string {
  let kept = '';
  for (const char of text) if ((classes[char.codePointAt(0)!]! & CLASS.MARK) === 0) kept += char;
  return kept;
}

function rangesOf(text: string): { readonly from: number; readonly to: number }[] {
  return text.trim().split(/\s+/).map((range) => {
    const [from = '', to = from] = range.split('-');
    return { from: Number.parseInt(from, 16), to: Number.parseInt(to, 16) };
  });
}
