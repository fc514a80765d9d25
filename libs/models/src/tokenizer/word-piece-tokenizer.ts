// Texts into token ids as the model takes them: exactly those of the official `tokenizers` package, truncated where
// sentence-transformers truncates. One pass over the raw text cuts it into stretches; a cache knows the ids of most,
// and only new ones are normalized, split and looked up. Stops as soon as a row is full, so a 20 MB line of words costs
// what its beginning costs. What never fills a row (20 MB of spaces, of marks, of one word) is read to its end, in steps
// between which others may work, and in pieces, so that no copy of it is made. Refuses nothing: every string has ids.

import type { Encoded } from '@shoal/core';
import { AddedTokens, standsAlone, type AddedToken } from './added-tokens.ts';
import { BertWords, ROLE } from './bert-words.ts';
import type { TextTokenizer } from './text-tokenizer.ts';
import type { Ends } from './ends.ts';
import { endedRow, roomBefore } from './row-options.ts';
import { STEP_UNITS, lastOf } from './steps.ts';
import { isSpace } from './unicode-sets.ts';
import { WordCache, type CachedIds } from './word-cache.ts';
import type { WordPieceFacts } from './word-piece-facts.ts';
import { WordPiece } from './word-piece.ts';

/** Around a piece, so that what it begins and ends with is seen. An ASCII letter stays what it is. */
const FRAME = 'x';

/** Where a text has been read to. */
interface Cursor {
  /** Of the stretch being scanned. */
  start: number;
  at: number;
  /** No added token begins before this: one was found that does not stand alone. */
  passed: number;
}

/** Where the text begins. */
const begin = (): Cursor => ({ start: 0, at: 0, passed: 0 });

type Stretch = readonly [start: number, end: number];

export class WordPieceTokenizer implements TextTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #ends: Ends;
  readonly #words: BertWords;
  readonly #wordPiece: WordPiece;
  readonly #cache = new WordCache();
  readonly #roles: Uint8Array;
  readonly #added: AddedTokensByRole;
  /** Looked for in normalized text. */
  readonly #normalized: AddedTokens;
  readonly #pieceUnits: number;

  constructor(facts: WordPieceFacts, options: { readonly hash: string; readonly maxTokens: number }) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#ends = facts.ends;
    this.#words = new BertWords(facts.normalizer);
    this.#wordPiece = new WordPiece(facts.model);
    this.#roles = this.#words.roles();
    const normalized = facts.addedTokens.filter(({ isNormalized }) => isNormalized);
    const patterns = normalized.map((token) => [this.#words.normalize(token.content), token] as const);
    this.#normalized = new AddedTokens(patterns);
    if (!this.#normalized.isEmpty) widenStretches(this.#roles, patterns);
    this.#added = new AddedTokensByRole(
      facts.addedTokens.filter(({ isNormalized }) => !isNormalized),
      this.#roles,
    );
    this.#pieceUnits = Math.max(STEP_UNITS, facts.model.maxWordChars + 1);
  }

  encode(text: string): Encoded {
    if (text.length > STEP_UNITS) return lastOf(this.encodeSteps(text));
    const ids = [...this.#ends.before];
    this.#scan(text.toWellFormed(), begin(), text.length, ids, this.#most);
    return endedRow(ids, this.#ends, this.#most);
  }

  /** The same in steps of a few milliseconds at most. */
  *encodeSteps(given: string): Generator<void, Encoded, undefined> {
    const ids = [...this.#ends.before];
    yield* this.#appendSteps(given.toWellFormed(), ids, this.#most);
    return endedRow(ids, this.#ends, this.#most);
  }

  appendText(text: string, ids: number[], most: number): void {
    lastOf(this.#appendSteps(text, ids, most));
  }

  *#appendSteps(text: string, ids: number[], most: number): Generator<void, void, undefined> {
    const cursor = begin();
    while (cursor.at < text.length && ids.length <= most) {
      const long = this.#scan(text, cursor, Math.min(text.length, cursor.at + STEP_UNITS), ids, most);
      if (long !== undefined) yield* this.#appendLong(text, long, ids, most);
      yield;
    }
  }

  /** The last places belong to the tokens behind the text. */
  get #most(): number {
    return roomBefore(this.#ends, this.maxTokens);
  }

  /**
   * Appends the ids of `text` until it is read to `stop`, or there are more than `most`, or a stretch has ended that is
   * to be read in pieces: that one is given back.
   */
  #scan(text: string, cursor: Cursor, stop: number, ids: number[], most: number): Stretch | undefined {
    const roles = this.#roles;
    let { start, at, passed } = cursor;
    while (at < stop && ids.length <= most) {
      const unit = text.charCodeAt(at);
      const isPair = (unit & 0xfc00) === 0xd800;
      let role = roles[isPair ? text.codePointAt(at)! : unit]!;
      if (role === ROLE.PLAIN) {
        at += 1;
        continue;
      }
      const size = isPair ? 2 : 1;
      if (role === ROLE.ODD) {
        at += size;
        continue;
      }
      let found: FoundToken | undefined;
      if (role === ROLE.ADDED) {
        if (at >= passed) found = this.#added.at(text, at);
        if (found?.isSingleWord === true && !standsAlone(text, at, at + found.length)) {
          passed = at + found.length;
          found = undefined;
        }
        if (found === undefined) role = this.#added.otherRole(text.codePointAt(at)!);
        if (role === ROLE.PLAIN || role === ROLE.ODD) {
          at += size;
          continue;
        }
      }
      if (this.#isLong(at - start)) break;
      this.#append(text, start, at, ids);
      if (found !== undefined) {
        ids.push(found.id);
        at += found.length;
      } else {
        if (role === ROLE.ALONE) this.#append(text, at, at + size, ids);
        at += size;
      }
      start = at;
    }
    cursor.at = at;
    cursor.start = start;
    cursor.passed = passed;
    const hasEnded = at >= text.length || at < stop;
    if (ids.length > most || !hasEnded) return undefined;
    cursor.start = at;
    if (this.#isLong(at - start)) return [start, at];
    this.#append(text, start, at, ids);
    return undefined;
  }

  /** Whether a stretch is to be read in pieces. Where added tokens are looked for in normalized text none is. */
  #isLong(units: number): boolean {
    return units > STEP_UNITS && this.#normalized.isEmpty;
  }

  /** Appends the ids of a long stretch, until there are more than `most`. */
  *#appendLong(text: string, [start, end]: Stretch, ids: number[], most: number): Generator<void, void, undefined> {
    let word = ''; // goes on in the next piece
    for (const piece of this.#words.pieces(text, start, end, this.#pieceUnits)) {
      yield;
      if (piece === '') continue;
      const words = this.#words.split(FRAME + piece + FRAME);
      for (const [at, framed] of words.entries()) {
        const isLast = at === words.length - 1;
        if (at > 0 && word !== '') {
          for (const id of this.#wordPiece.pieces(word)) ids.push(id);
          word = '';
        }
        // a word that is too long already stays so
        if (!this.#wordPiece.isTooLong(word)) word += framed.slice(at === 0 ? 1 : 0, isLast ? -1 : undefined);
      }
      if (ids.length > most) return;
    }
    if (word !== '') for (const id of this.#wordPiece.pieces(word)) ids.push(id);
  }

  #append(text: string, start: number, end: number, ids: number[]): void {
    if (start === end) return;
    const stretch = text.slice(start, end);
    const known = this.#cache.get(stretch) ?? this.#learn(stretch);
    if (typeof known === 'number') ids.push(known);
    else for (const id of known) ids.push(id);
  }

  #learn(stretch: string): CachedIds {
    const ids: number[] = [];
    if (this.#normalized.isEmpty) this.#appendWords(this.#words.split(stretch), ids);
    else this.#appendNormalized(this.#words.normalize(stretch), ids);
    const known = ids.length === 1 ? ids[0]! : ids;
    this.#cache.add(stretch, known);
    return known;
  }

  #appendWords(words: readonly string[], ids: number[]): void {
    for (const word of words) for (const id of this.#wordPiece.pieces(word)) ids.push(id);
  }

  #appendNormalized(normal: string, ids: number[]): void {
    for (const { start, end, id } of this.#normalized.pieces(normal)) {
      if (id !== undefined) ids.push(id);
      else this.#appendWords(this.#words.cut(normal.slice(start, end)), ids);
    }
  }
}

/** Tokens in normalized text may hold what ends a stretch: then it does not. */
function widenStretches(roles: Uint8Array, patterns: readonly (readonly [string, AddedToken])[]): void {
  const holdSpaces = patterns.some(([pattern]) => [...pattern].some((char) => isSpace(char.codePointAt(0)!)));
  for (let point = 0; point < roles.length; point++)
    if (roles[point] === ROLE.ALONE || (holdSpaces && roles[point] === ROLE.SPACE)) roles[point] = ROLE.ODD;
}

interface FoundToken {
  readonly id: number;
  readonly length: number;
  readonly isSingleWord: boolean;
}

/**
 * Added tokens for the scan by roles. Blanks that a token takes from beside it are no words here, so that `stripsLeft`
 * and `stripsRight` change nothing.
 */
class AddedTokensByRole {
  readonly #byFirst = new Map<number, (FoundToken & { readonly content: string })[]>();
  readonly #otherRoles = new Map<number, number>();

  /** Marks the first characters of the tokens in `roles`. */
  constructor(tokens: readonly AddedToken[], roles: Uint8Array) {
    for (const { content, id, isSingleWord } of tokens.toSorted((a, b) => b.content.length - a.content.length)) {
      const first = content.codePointAt(0)!;
      const token = { content, length: content.length, id, isSingleWord };
      const others = this.#byFirst.get(first);
      if (others !== undefined) others.push(token);
      else {
        this.#byFirst.set(first, [token]);
        this.#otherRoles.set(first, roles[first]!);
        roles[first] = ROLE.ADDED;
      }
    }
  }

  /** The longest of those that begin here. */
  at(text: string, at: number): FoundToken | undefined {
    for (const token of this.#byFirst.get(text.codePointAt(at)!) ?? [])
      if (text.startsWith(token.content, at)) return token;
    return undefined;
  }

  otherRole(first: number): number {
    return this.#otherRoles.get(first) ?? ROLE.ODD;
  }
}
