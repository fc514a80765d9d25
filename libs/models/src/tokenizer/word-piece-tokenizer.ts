// Texts into token ids as the model takes them: exactly those of the official `tokenizers` package, truncated where
// sentence-transformers truncates. One pass over the raw text cuts it into stretches; a cache knows the ids of most,
// and only new ones are normalized, split and looked up. Stops as soon as a row is full, so a 20 MB line of words costs
// what its beginning costs. What never fills a row (20 MB of spaces, of marks, of one word) is read to its end, in steps
// between which others may work, and in pieces, so that no copy of it is made. Refuses nothing: every string has ids.

import type { Encoded, Tokenizer } from '@shoal/core';
import { BertWords, ROLE } from './bert-words.ts';
import type { TokenizerFacts } from './tokenizer-json.ts';
import { WordCache, type CachedIds } from './word-cache.ts';
import { WordPiece } from './word-piece.ts';

/** Code units in a step. A longer stretch is read in pieces of about as many. */
const STEP_UNITS = 8_192;
/** Around a piece, so that what it begins and ends with is seen. An ASCII letter stays what it is. */
const FRAME = 'x';

/** Where a text has been read to. */
interface Cursor {
  /** Of the stretch being scanned. */
  start: number;
  at: number;
}

type Stretch = readonly [start: number, end: number];

export class WordPieceTokenizer implements Tokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #beginId: number;
  readonly #endId: number;
  readonly #words: BertWords;
  readonly #wordPiece: WordPiece;
  readonly #cache = new WordCache();
  readonly #roles: Uint8Array;
  readonly #added: AddedTokens;
  readonly #pieceUnits: number;

  constructor(facts: TokenizerFacts, options: { readonly hash: string; readonly maxTokens: number }) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#beginId = facts.beginId;
    this.#endId = facts.endId;
    this.#words = new BertWords(facts.normalizer);
    this.#wordPiece = new WordPiece(facts.model);
    this.#roles = this.#words.roles();
    this.#added = new AddedTokens(facts.addedTokens, this.#roles);
    this.#pieceUnits = Math.max(STEP_UNITS, facts.model.maxWordChars + 1);
  }

  encode(text: string): Encoded {
    if (text.length > STEP_UNITS) return lastOf(this.encodeSteps(text));
    const ids = [this.#beginId];
    const most = this.maxTokens - 1; // the last place belongs to the end token
    const cursor = { start: 0, at: 0 };
    this.#scan(text.toWellFormed(), cursor, text.length, ids, most);
    return this.#rowOf(ids, most);
  }

  /** The same in steps of a few milliseconds at most. */
  *encodeSteps(given: string): Generator<void, Encoded, undefined> {
    const text = given.toWellFormed();
    const ids = [this.#beginId];
    const most = this.maxTokens - 1;
    const cursor = { start: 0, at: 0 };
    while (cursor.at < text.length && ids.length <= most) {
      const long = this.#scan(text, cursor, Math.min(text.length, cursor.at + STEP_UNITS), ids, most);
      if (long !== undefined) yield* this.#appendLong(text, long, ids, most);
      yield;
    }
    return this.#rowOf(ids, most);
  }

  #rowOf(ids: number[], most: number): Encoded {
    const isTruncated = ids.length > most;
    if (isTruncated) ids.length = most;
    ids.push(this.#endId);
    return { ids, isTruncated };
  }

  /**
   * Appends the ids of `text` until it is read to `stop`, or there are more than `most`, or a stretch has ended that is
   * to be read in pieces: that one is given back.
   */
  #scan(text: string, cursor: Cursor, stop: number, ids: number[], most: number): Stretch | undefined {
    const roles = this.#roles;
    let { start, at } = cursor;
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
      if (role === ROLE.ADDED && this.#added.at(text, at) === undefined) {
        role = this.#added.otherRole(text.codePointAt(at)!);
        if (role === ROLE.PLAIN || role === ROLE.ODD) {
          at += size;
          continue;
        }
      }
      if (at - start > STEP_UNITS) break;
      this.#append(text, start, at, ids);
      if (role === ROLE.ADDED) {
        const found = this.#added.at(text, at)!;
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
    const hasEnded = at >= text.length || at < stop;
    if (ids.length > most || !hasEnded) return undefined;
    cursor.start = at;
    if (at - start > STEP_UNITS) return [start, at];
    this.#append(text, start, at, ids);
    return undefined;
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
    for (const word of this.#words.split(stretch)) for (const id of this.#wordPiece.pieces(word)) ids.push(id);
    const known = ids.length === 1 ? ids[0]! : ids;
    this.#cache.add(stretch, known);
    return known;
  }
}

function lastOf<Value>(steps: Generator<void, Value, undefined>): Value {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
  }
}

/**
 * Tokens that stand for themselves in raw text. Where several begin at one place the longest wins, as in the original.
 */
class AddedTokens {
  readonly #byFirst = new Map<number, { readonly content: string; readonly id: number }[]>();
  readonly #otherRoles = new Map<number, number>();

  /** Marks the first characters of the tokens in `roles`. */
  constructor(tokens: ReadonlyMap<string, number>, roles: Uint8Array) {
    for (const [content, id] of [...tokens].sort(([a], [b]) => b.length - a.length)) {
      const first = content.codePointAt(0)!;
      const others = this.#byFirst.get(first);
      if (others !== undefined) others.push({ content, id });
      else {
        this.#byFirst.set(first, [{ content, id }]);
        this.#otherRoles.set(first, roles[first]!);
        roles[first] = ROLE.ADDED;
      }
    }
  }

  at(text: string, at: number): { readonly id: number; readonly length: number } | undefined {
    for (const { content, id } of this.#byFirst.get(text.codePointAt(at)!) ?? []) {
      if (text.startsWith(content, at)) return { id, length: content.length };
    }
    return undefined;
  }

  otherRole(first: number): number {
    return this.#otherRoles.get(first) ?? ROLE.ODD;
  }
}
