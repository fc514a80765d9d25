// Texts into token ids by a Unigram model: exactly those of the official `tokenizers` package. One pass over the raw text
// cuts it into stretches (the blanks before a word, and the word) where neither the normalizer nor the pre-tokenizer can
// tell; a cache knows the ids of most, and only new ones are normalized, cut into words and looked up. Stops when a row
// is full. Where a file's steps look over blanks, a stretch is all that lies between two added tokens.

import type { Encoded } from '@shoal/core';
import { AddedTokens, blanksBefore, blanksBehind, standsAlone, type AddedToken } from './added-tokens.ts';
import type { Ends } from './ends.ts';
import { standsAlways } from './grapheme-clusters.ts';
import { endedRow, roomBefore, type RowOptions } from './row-options.ts';
import { wordsOf, type PreTokenizerStep } from './metaspace.ts';
import { normalized, replacesBlanksOnly, type NormalizerStep, type Place } from './normalizer-steps.ts';
import { isSpace, rangesOf } from './unicode-sets.ts';
import { TABLE_RANGES } from './unicode-tables.ts';
import { STEP_UNITS, lastOf } from './steps.ts';
import type { UnigramFacts } from './unigram-facts.ts';
import type { TextTokenizer } from './text-tokenizer.ts';
import { Unigram } from './unigram.ts';
import { WordCache } from './word-cache.ts';

/** What a code unit of raw text does to the stretch being scanned. */
const ROLE = {
  NEW: 0,
  /** Part of a word, beside which blanks may be cut. */
  SOLID: 1,
  /** Part of a stretch that is not cut beside it: a mark, what may become a blank, half of a pair. */
  ODD: 2,
  /** A blank before which a stretch may end. */
  BLANK: 3,
} as const;

/** Longer than any that is remembered. */
const LONG_STRETCH = 1_000;

/** Of a long stretch. */
const WORDS_PER_STEP = 1_024;

/** Code units of a stretch. */
const LONGEST_AT_ONCE = 2 * STEP_UNITS;

/** Where a text has been read to. */
interface Cursor {
  at: number;
  /** Of the stretch being scanned. */
  start: number;
  /** By added tokens and what lies before them. */
  covered: number;
  /** No added token begins before this: one was found that does not stand alone. */
  passed: number;
}

/** Where the text begins. */
const begin = (): Cursor => ({ at: 0, start: 0, covered: 0, passed: 0 });

/** A stretch from the cursor's on. `isEnd`: an added token, or the end of the text, is behind it. */
interface LongStretch {
  readonly end: number;
  readonly isEnd: boolean;
}

/** Blanks that may end a stretch, if the steps make of each what begins a word. */
const BLANKS = [' ', '\t', '\n', '\r'];

export class UnigramTokenizer implements TextTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #ends: Ends;
  readonly #normalizer: readonly NormalizerStep[];
  readonly #preTokenizer: readonly PreTokenizerStep[];
  readonly #unigram: Unigram;
  readonly #added: AddedTokens;
  /** Looked for in normalized text. */
  readonly #normalizedAdded: AddedTokens;
  /** By UTF-16 code unit, as far as met. */
  readonly #roles = new Uint8Array(0x10000);
  readonly #cuts: boolean;
  /** Ids by stretch: at the beginning of a row, behind an added token, and elsewhere. */
  readonly #caches = [new WordCache(), new WordCache(), new WordCache()] as const;

  constructor(facts: UnigramFacts, options: RowOptions) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#ends = facts.ends;
    this.#normalizer = facts.normalizer;
    this.#preTokenizer = facts.preTokenizer;
    this.#unigram = new Unigram(facts.model);
    this.#added = new AddedTokens(
      facts.addedTokens.filter((token) => !token.isNormalized).map((token) => [token.content, token]),
    );
    const patterns = facts.addedTokens
      .filter((token) => token.isNormalized)
      .map((token) => [normalized(facts.normalizer, token.content), token] as const);
    this.#normalizedAdded = new AddedTokens(patterns);
    this.#cuts = mayCut(facts, patterns);
    // a lone surrogate is not met: texts are well-formed
    this.#roles.fill(ROLE.ODD, 0xd800, 0xe000);
    for (const blank of BLANKS) {
      const isCut = this.#cuts && beginsWords(facts.preTokenizer, normalized(facts.normalizer, blank, INSIDE));
      this.#roles[blank.charCodeAt(0)] = isCut ? ROLE.BLANK : ROLE.ODD;
    }
  }

  encode(text: string): Encoded {
    const ids = [...this.#ends.before];
    const most = this.#most;
    this.appendText(text.toWellFormed(), ids, most);
    return endedRow(ids, this.#ends, most);
  }

  /** The same in steps of a few milliseconds; the longest are those that look once through all of a text. */
  *encodeSteps(text: string): Generator<void, Encoded, undefined> {
    const ids = [...this.#ends.before];
    const most = this.#most;
    yield* this.#appendSteps(text.toWellFormed(), ids, most);
    return endedRow(ids, this.#ends, most);
  }

  /** Appends the ids of `text` until there are more than `most`. */
  appendText(text: string, ids: number[], most: number): void {
    if (text.length > STEP_UNITS) lastOf(this.#appendSteps(text, ids, most));
    else this.#scan(text, begin(), text.length, ids, most);
  }

  get #most(): number {
    return roomBefore(this.#ends, this.maxTokens);
  }

  *#appendSteps(text: string, ids: number[], most: number): Generator<void, void, undefined> {
    const cursor = begin();
    while (cursor.start < text.length) {
      const long = this.#scan(text, cursor, cursor.at + STEP_UNITS, ids, most);
      if (long !== undefined) {
        yield* this.#appendLong(text, cursor, long, ids, most);
        cursor.start = long.end;
      }
      if (ids.length > most) return;
      yield;
    }
  }

  /**
   * Appends stretch by stretch from `cursor` on, which it moves, up to `limit` or until there are more than `most` ids. A
   * stretch that is too long for one step is returned, and left to the caller.
   */
  #scan(text: string, cursor: Cursor, limit: number, ids: number[], most: number): LongStretch | undefined {
    const roles = this.#roles;
    const added = this.#added;
    let { at, start, covered, passed } = cursor;
    const stop = Math.min(limit, text.length);
    while (at < stop) {
      const unit = text.charCodeAt(at);
      if (added.mayBegin(unit) && at >= passed) {
        const found = added.longestAt(text, at);
        if (found !== undefined) {
          const { token, end } = found;
          if (token.isSingleWord && !standsAlone(text, at, end)) passed = end;
          else {
            const from = token.stripsLeft ? Math.max(covered, blanksBefore(text, at)) : at;
            if (from - start > LONGEST_AT_ONCE) {
              Object.assign(cursor, { at, start, covered, passed });
              return { end: from, isEnd: true };
            }
            this.#append(text, start, from, covered, true, ids, most);
            ids.push(token.id);
            if (ids.length > most) return undefined;
            covered = token.stripsRight ? blanksBehind(text, end) : end;
            start = covered;
            at = end;
            continue;
          }
        }
      }
      const role = roles[unit]! || this.#learnRole(unit);
      if (role !== ROLE.BLANK) {
        at += 1;
        continue;
      }
      let end = at + 1;
      while (end < text.length && roles[text.charCodeAt(end)] === ROLE.BLANK && !added.mayBegin(text.charCodeAt(end)))
        end += 1;
      if (at > start && end < text.length && this.#isSolid(text, at - 1) && this.#isSolid(text, end)) {
        if (!(added.mayBegin(text.charCodeAt(end)) && added.longestAt(text, end) !== undefined)) {
          if (at - start > LONGEST_AT_ONCE) {
            Object.assign(cursor, { at, start, covered, passed });
            return { end: at, isEnd: false };
          }
          this.#append(text, start, at, covered, false, ids, most);
          if (ids.length > most) return undefined;
          start = at;
        }
      }
      at = end;
    }
    Object.assign(cursor, { at, start, covered, passed });
    if (at < text.length) return undefined;
    if (text.length - start > LONGEST_AT_ONCE) return { end: text.length, isEnd: true };
    this.#append(text, start, text.length, covered, true, ids, most);
    cursor.start = text.length;
    return undefined;
  }

  #isSolid(text: string, at: number): boolean {
    const unit = text.charCodeAt(at);
    return (this.#roles[unit]! || this.#learnRole(unit)) === ROLE.SOLID;
  }

  /** Solid is what stays a word of its own whatever stands around it: it begins and ends with no blank. */
  #learnRole(unit: number): number {
    const isSolid =
      this.#cuts &&
      standsAlways(unit) &&
      holdsNoBlanks(this.#preTokenizer, normalized(this.#normalizer, String.fromCharCode(unit), INSIDE));
    return (this.#roles[unit] = isSolid ? ROLE.SOLID : ROLE.ODD);
  }

  /** The ids of text[start, end), which lies in a stretch between added tokens that begins at `covered`. */
  #append(
    text: string,
    start: number,
    end: number,
    covered: number,
    isEnd: boolean,
    ids: number[],
    most: number,
  ): void {
    if (start >= end) return;
    const stretch = text.slice(start, end);
    // blanks at an end may be stripped there
    const isPlain = !isEnd || !isSpace(stretch.charCodeAt(stretch.length - 1));
    const cache = this.#caches[start === 0 ? 0 : start === covered ? 1 : 2];
    const known = isPlain ? cache.get(stretch) : undefined;
    if (typeof known === 'number') ids.push(known);
    else if (known !== undefined) for (const id of known) ids.push(id);
    else {
      // what is remembered is learnt whole
      const enough = stretch.length > LONG_STRETCH ? most - ids.length : Infinity;
      const learnt = this.#learn(stretch, start === 0, { isStart: start === covered, isEnd }, enough);
      if (isPlain) cache.add(stretch, learnt.length === 1 ? learnt[0]! : learnt);
      for (const id of learnt) ids.push(id);
    }
  }

  /** Of a stretch that has more than `enough`, perhaps only the first ones. */
  #learn(stretch: string, isFirst: boolean, place: Place, enough: number): readonly number[] {
    const ids: number[] = [];
    const normal = normalized(this.#normalizer, stretch, place);
    for (const { start, end, id } of this.#normalizedAdded.pieces(normal)) {
      if (id !== undefined) ids.push(id);
      else this.#appendWords(normal.slice(start, end), isFirst && start === 0, ids, enough);
      if (ids.length > enough) break;
    }
    return ids;
  }

  /** As `#append`, of a stretch that is too long to be remembered or read at once. */
  *#appendLong(
    text: string,
    { start: from, covered }: Cursor,
    { end: to, isEnd }: LongStretch,
    ids: number[],
    most: number,
  ): Generator<void, void, undefined> {
    const normal = normalized(this.#normalizer, text.slice(from, to), { isStart: from === covered, isEnd });
    const unigram = this.#unigram.beside(); // whoever works between two steps may read other words
    yield;
    for (const { start, end, id } of this.#normalizedAdded.pieces(normal)) {
      if (id !== undefined) ids.push(id);
      else
        for (const [at, word] of wordsOf(this.#preTokenizer, normal.slice(start, end), from + start === 0).entries()) {
          if (at % WORDS_PER_STEP === 0) yield;
          yield* unigram.appendSteps(word, ids, most - ids.length);
          if (ids.length > most) return;
        }
      if (ids.length > most) return;
    }
  }

  #appendWords(normal: string, isFirst: boolean, ids: number[], enough: number): void {
    for (const word of wordsOf(this.#preTokenizer, normal, isFirst)) {
      if (ids.length > enough) return;
      this.#unigram.append(word, ids, enough - ids.length);
    }
  }
}

const INSIDE: Place = { isStart: false, isEnd: false };

/** Whether the steps let blanks be cut: words are apart, and nothing looks at a blank and at what stands before it. */
function mayCut(
  { normalizer, preTokenizer }: UnigramFacts,
  patterns: readonly (readonly [pattern: string, token: AddedToken])[],
): boolean {
  const splitsAtSpaces = preTokenizer[0]?.type === 'WhitespaceSplit';
  const last = preTokenizer.at(-1);
  const isKnown =
    preTokenizer.length === 1 || (preTokenizer.length === 2 && splitsAtSpaces && preTokenizer[1]!.type === 'Metaspace');
  if (!isKnown || (!splitsAtSpaces && !(last?.type === 'Metaspace' && last.splits))) return false;
  if (!normalizer.every((step) => letsCut(step, preTokenizer))) return false;
  return patterns.every(
    ([pattern, token]) => holdsNoBlanks(preTokenizer, pattern) && (!token.stripsRight || splitsAtSpaces),
  );
}

/** Whether a step makes of blanks what begins words, of anything else what holds none, and of no two of them one. */
function letsCut(step: NormalizerStep, preTokenizer: readonly PreTokenizerStep[]): boolean {
  if (step.type === 'Precompiled')
    return rangesOf(TABLE_RANGES.PREPENDED).every(([from, to]) => {
      for (let point = from; point <= to; point++) if (!step.charsmap.keeps(point)) return false;
      return true;
    });
  if (step.type !== 'Replace') return true;
  if (replacesBlanksOnly(step)) return beginsWords(preTokenizer, step.content);
  return holdsNoBlanks(preTokenizer, String(step.pattern)) && holdsNoBlanks(preTokenizer, step.content);
}

/** Whether words begin at what the steps make of a blank. */
function beginsWords(preTokenizer: readonly PreTokenizerStep[], blank: string): boolean {
  if (blank === '') return false;
  if (preTokenizer[0]?.type === 'WhitespaceSplit') return isAllSpaces(blank);
  const marks = preTokenizer.flatMap((step) => (step.type === 'Metaspace' ? [step.mark] : []));
  return [...blank].every((char) => char === ' ' || marks.includes(char));
}

function isAllSpaces(text: string): boolean {
  return [...text].every((char) => isSpace(char.codePointAt(0)!));
}

/** Whether it is something, and no word begins or ends in it. */
function holdsNoBlanks(preTokenizer: readonly PreTokenizerStep[], normal: string): boolean {
  const isCut = (char: string): boolean =>
    isSpace(char.codePointAt(0)!) || preTokenizer.some((step) => step.type === 'Metaspace' && step.mark === char);
  return normal !== '' && ![...normal].some(isCut);
}
