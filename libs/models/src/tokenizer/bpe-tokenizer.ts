// Texts into token ids by a byte pair encoding: exactly those of the official `tokenizers` package. A text is parted at
// its added tokens, each part normalized, cut into words and merged (bpe-text.ts). Stops when a row is full. A long text
// is read in steps, and as far as possible in pieces that are normalized one by one, so that what a row has no room for
// is never looked at. Refuses nothing: every string has ids.

import type { Encoded } from '@shoal/core';
import { AddedTokens } from './added-tokens.ts';
import type { BpeFacts } from './bpe-facts.ts';
import { bpeText, type BpeText } from './bpe-text.ts';
import type { Ends } from './ends.ts';
import { beginsRun, nfc } from './nfc.ts';
import { normalized, type NormalizerStep } from './normalizer-steps.ts';
import { endedRow, roomBefore, type RowOptions } from './row-options.ts';
import { STEP_UNITS, lastOf, wholeCharacters } from './steps.ts';
import type { TextTokenizer } from './text-tokenizer.ts';
import { isSpace } from './unicode-sets.ts';

export class BpeTokenizer implements TextTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #ends: Ends;
  readonly #added: AddedTokens;
  /** Looked for in normalized text. */
  readonly #normalizedAdded: AddedTokens;
  readonly #steps: readonly NormalizerStep[];
  readonly #normalize: (text: string) => string;
  readonly #text: BpeText;
  /** Whether a blank behind something else begins a word whatever stands before it. */
  readonly #cutsAtBlanks: boolean;

  constructor(facts: BpeFacts, options: RowOptions) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#ends = facts.ends;
    this.#steps = facts.normalizer;
    this.#normalize = normalizerOf(facts.normalizer);
    const patterns = (isNormalized: boolean, pattern: (content: string) => string): AddedTokens =>
      new AddedTokens(
        facts.addedTokens
          .filter((token) => token.isNormalized === isNormalized)
          .map((token) => [pattern(token.content), token]),
      );
    this.#added = patterns(false, (content) => content);
    this.#normalizedAdded = patterns(true, this.#normalize);
    this.#text = bpeText(facts);
    this.#cutsAtBlanks =
      this.#normalizedAdded.isEmpty &&
      isComposed(facts.normalizer) &&
      facts.words.spelling === 'bytes' &&
      facts.words.cuts.some(({ pattern }) => pattern !== undefined && pattern !== 'Digits');
  }

  encode(text: string): Encoded {
    if (text.length > STEP_UNITS) return lastOf(this.encodeSteps(text));
    const ids = [...this.#ends.before];
    const most = this.#most;
    this.#appendShort(text.toWellFormed(), ids, most);
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
    else this.#appendShort(text, ids, most);
  }

  get #most(): number {
    return roomBefore(this.#ends, this.maxTokens);
  }

  #appendShort(text: string, ids: number[], most: number): void {
    for (const { start, end, id } of this.#added.pieces(text)) {
      if (id === undefined) this.#appendPiece(text.slice(start, end), start === 0, ids, most);
      else ids.push(id);
      if (ids.length > most) return;
    }
  }

  /** Of text between two added tokens that are looked for in raw text. */
  #appendPiece(piece: string, isFirst: boolean, ids: number[], most: number): void {
    const normal = this.#normalize(piece);
    for (const { start, end, id } of this.#normalizedAdded.pieces(normal)) {
      if (id === undefined) this.#text.append(normal.slice(start, end), isFirst && start === 0, ids, most);
      else ids.push(id);
      if (ids.length > most) return;
    }
  }

  // ---- long texts -----------------------------------------------------------------------------------------------

  *#appendSteps(text: string, ids: number[], most: number): Generator<void, void, undefined> {
    for (const { start, end, id } of this.#added.pieces(text)) {
      if (id !== undefined) ids.push(id);
      else if (end - start <= STEP_UNITS) this.#appendPiece(text.slice(start, end), start === 0, ids, most);
      else yield* this.#appendLong(text.slice(start, end), start === 0, ids, most);
      if (ids.length > most) return;
      yield;
    }
  }

  /** Of a long text between two added tokens, parted where words begin. */
  *#appendLong(text: string, isFirst: boolean, ids: number[], most: number): Generator<void, void, undefined> {
    if (!this.#cutsAtBlanks) return yield* this.#appendWhole(text, isFirst, ids, most);
    let start = 0;
    for (let looked = STEP_UNITS; start < text.length; looked += STEP_UNITS) {
      const end = looked < text.length ? blankIn(text, looked, looked + STEP_UNITS) : text.length;
      yield;
      if (end < 0) continue;
      const piece = text.slice(start, end);
      if (piece.length <= 2 * STEP_UNITS) this.#appendPiece(piece, isFirst && start === 0, ids, most);
      else yield* this.#appendWhole(piece, isFirst && start === 0, ids, most);
      if (ids.length > most) return;
      start = looked = end;
    }
  }

  *#appendWhole(text: string, isFirst: boolean, ids: number[], most: number): Generator<void, void, undefined> {
    const normal = yield* this.#normalizeSteps(text);
    for (const { start, end, id } of this.#normalizedAdded.pieces(normal)) {
      if (id !== undefined) ids.push(id);
      else yield* this.#text.steps(normal.slice(start, end), isFirst && start === 0, ids, most);
      if (ids.length > most) return;
    }
  }

  /** Slice by slice where no step looks from one into the next; else in one go. */
  *#normalizeSteps(text: string): Generator<void, string, undefined> {
    const steps = this.#steps;
    const composes = isComposed(steps);
    if (steps.length === 0 || !(composes || steps.every(isCharacterwise))) return this.#normalize(text);
    const slices: string[] = [];
    for (let start = 0; start < text.length;) {
      const whole = wholeCharacters(text, start + STEP_UNITS);
      const end = composes ? nextRun(text, whole) : whole;
      const slice = text.slice(start, end);
      slices.push(composes ? nfc(slice) : normalized(steps, slice, { isStart: start === 0, isEnd: false }));
      start = end;
      yield;
    }
    return slices.join('');
  }
}

/** The first place at or behind `at` across which nothing is composed. */
function nextRun(text: string, at: number): number {
  let place = at;
  while (place < text.length && !beginsRun(text, place)) place = wholeCharacters(text, place + 1);
  return place;
}

/** Where in text[from, to) a blank stands behind what is none; -1 where none does. */
function blankIn(text: string, from: number, to: number): number {
  const last = Math.min(to, text.length);
  for (let at = from; at < last; at++) if (text.charCodeAt(at) === 0x20 && !isSpace(text.charCodeAt(at - 1))) return at;
  return last === text.length ? last : -1;
}

/** Whether all that the steps do is compose, or nothing. */
function isComposed(steps: readonly NormalizerStep[]): boolean {
  return steps.every(({ type }) => type === 'NFC');
}

/** Whether a step looks at one character alone, or at where a text begins. */
function isCharacterwise(step: NormalizerStep): boolean {
  if (step.type === 'Prepend') return true;
  return step.type === 'Replace' && typeof step.pattern === 'string' && [...step.pattern].length === 1;
}

function normalizerOf(steps: readonly NormalizerStep[]): (text: string) => string {
  if (steps.length === 0) return (text) => text;
  return isComposed(steps) ? nfc : (text) => normalized(steps, text);
}
