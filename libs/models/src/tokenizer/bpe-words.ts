// A word into the ids that a byte pair encoding makes of it, with a cache. Words are cut where no merge joins their
// characters, and the parts merged one by one: a word of a megabyte costs what its beginning costs, unless one part has
// the megabyte. What the symbols of a word are, bytes or characters, is said by whoever makes one.

import type { BpeJoins } from './bpe-joins.ts';
import type { BpeMerges } from './bpe-merges.ts';
import { STEP_UNITS, wholeCharacters } from './steps.ts';
import { WordCache, type CachedIds } from './word-cache.ts';

export interface WordOptions {
  readonly merges: BpeMerges;
  /** Where words may be cut; nowhere, if undefined. */
  readonly joins: BpeJoins | undefined;
  /** Writes the symbols of a word, or of its parts in order. */
  readonly spell: (word: string, symbols: SymbolList) => void;
  /** The token that a word is without any merge; undefined where the model does not ask for that. */
  readonly wholeId: ((word: string) => number | undefined) | undefined;
}

/** Longer words hardly repeat; their parts may. */
const MAX_CACHED_WORD = 48;

export class BpeWords {
  readonly #options: WordOptions;
  readonly #words = new WordCache();
  /** Parts of words; where a whole word may be a token without merges, a part is not the same as that word. */
  readonly #parts: WordCache;
  readonly #symbols = new SymbolList();

  constructor(options: WordOptions) {
    this.#options = options;
    this.#parts = options.wholeId === undefined ? this.#words : new WordCache();
  }

  /** Appends the ids of a word, which is not empty, until there are more than `most`. */
  append(word: string, ids: number[], most: number): void {
    if (word.length > MAX_CACHED_WORD) this.#appendNew(word, ids, most);
    else push(ids, this.#words.get(word) ?? this.#learn(word));
  }

  /** The same in steps, for a word that may be very long. */
  *appendSteps(word: string, ids: number[], most: number): Generator<void, void, undefined> {
    const { joins, wholeId } = this.#options;
    const whole = wholeId?.(word);
    if (whole !== undefined) {
      ids.push(whole);
      return;
    }
    let paused = 0; // where the last step ended
    for (let start = 0; start < word.length && ids.length <= most;) {
      let end = joins === undefined ? word.length : joins.end(word, start, start + STEP_UNITS);
      for (; end < 0; end = joins!.end(word, ~end, ~end + STEP_UNITS)) yield;
      const part = word.slice(start, end);
      if (part.length > STEP_UNITS) yield* this.#mergeSteps(part, ids, most);
      else push(ids, this.#parts.get(part) ?? this.#learnPart(part));
      start = end;
      if (end - paused < STEP_UNITS) continue;
      paused = end;
      yield;
    }
  }

  #learn(word: string): CachedIds {
    const ids: number[] = [];
    this.#appendNew(word, ids, Number.POSITIVE_INFINITY);
    const known = ids.length === 1 ? ids[0]! : ids;
    this.#words.add(word, known);
    return known;
  }

  #appendNew(word: string, ids: number[], most: number): void {
    const { joins, wholeId } = this.#options;
    const whole = wholeId?.(word);
    if (whole !== undefined) {
      ids.push(whole);
      return;
    }
    for (let start = 0; start < word.length && ids.length <= most;) {
      const end = joins === undefined ? word.length : joins.end(word, start);
      const part = word.slice(start, end);
      if (part.length === word.length && word.length <= MAX_CACHED_WORD) this.#merge(part, ids);
      else push(ids, this.#parts.get(part) ?? this.#learnPart(part));
      start = end;
    }
  }

  #learnPart(part: string): CachedIds {
    const ids: number[] = [];
    this.#merge(part, ids);
    const known = ids.length === 1 ? ids[0]! : ids;
    this.#parts.add(part, known);
    return known;
  }

  #merge(part: string, ids: number[]): void {
    const symbols = this.#symbols;
    symbols.clear();
    this.#options.spell(part, symbols);
    symbols.addOpen();
    const count = this.#options.merges.apply(symbols.ids, symbols.count);
    for (let at = 0; at < count; at++) ids.push(symbols.ids[at]!);
  }

  /** Of a long part, until there are more than `most`. */
  *#mergeSteps(part: string, ids: number[], most: number): Generator<void, void, undefined> {
    const symbols = new SymbolList();
    for (let start = 0; start < part.length;) {
      const end = wholeCharacters(part, Math.min(part.length, start + STEP_UNITS));
      this.#options.spell(part.slice(start, end), symbols);
      start = end;
      yield;
    }
    symbols.addOpen();
    const count = yield* this.#options.merges.applySteps(symbols.ids, symbols.count);
    for (let at = 0; at < count && ids.length <= most; at++) ids.push(symbols.ids[at]!);
  }
}

const KEPT_SYMBOLS = 4096;

/** The ids of the symbols of one word, before anything is merged. */
export class SymbolList {
  ids = new Int32Array(256);
  count = 0;
  /** An unknown token that is written when a known symbol or the end follows. */
  open: number | undefined;

  clear(): void {
    this.count = 0;
    this.open = undefined;
    if (this.ids.length > KEPT_SYMBOLS) this.ids = new Int32Array(256);
  }

  addOpen(): void {
    if (this.open !== undefined) this.add(this.open);
    this.open = undefined;
  }

  add(id: number): void {
    if (this.count === this.ids.length) {
      const larger = new Int32Array(2 * this.count);
      larger.set(this.ids);
      this.ids = larger;
    }
    this.ids[this.count++] = id;
  }
}

function push(ids: number[], known: CachedIds): void {
  if (typeof known === 'number') ids.push(known);
  else for (const id of known) ids.push(id);
}
