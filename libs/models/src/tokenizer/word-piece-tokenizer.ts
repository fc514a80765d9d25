// Texts into token ids as the model takes them: exactly those of the official `tokenizers` package, truncated where
// sentence-transformers truncates. One pass over the raw text cuts it into stretches; a cache knows the ids of most,
// and only new ones are normalized, split and looked up. Stops as soon as a row is full, so a 20 MB line costs what its
// beginning costs. Refuses nothing: every string has ids.

import type { Encoded, Tokenizer } from '@shoal/core';
import { AddedTokens, standsAlone, type AddedToken } from './added-tokens.ts';
import { BertWords, ROLE } from './bert-words.ts';
import { isSpace } from './unicode-sets.ts';
import { WordCache, type CachedIds } from './word-cache.ts';
import type { WordPieceFacts } from './word-piece-facts.ts';
import { WordPiece } from './word-piece.ts';

export class WordPieceTokenizer implements Tokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #before: readonly number[];
  readonly #behind: readonly number[];
  readonly #words: BertWords;
  readonly #wordPiece: WordPiece;
  readonly #cache = new WordCache();
  readonly #roles: Uint8Array;
  readonly #added: AddedTokensByRole;
  /** Looked for in normalized text. */
  readonly #normalized: AddedTokens;

  constructor(facts: WordPieceFacts, options: { readonly hash: string; readonly maxTokens: number }) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#before = facts.ends.before;
    this.#behind = facts.ends.behind;
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
  }

  encode(text: string): Encoded {
    const ids = [...this.#before];
    const most = this.maxTokens - this.#behind.length; // the last places belong to the tokens behind the text
    this.#scan(text.toWellFormed(), ids, most);
    const isTruncated = ids.length > most;
    if (isTruncated) ids.length = most;
    for (const id of this.#behind) ids.push(id);
    return { ids, isTruncated };
  }

  /** Appends the ids of `text` until there are more than `most`. */
  #scan(text: string, ids: number[], most: number): void {
    const roles = this.#roles;
    let start = 0; // of the stretch being scanned
    let passed = 0; // no added token begins before this: one was found that does not stand alone
    let at = 0;
    while (at < text.length) {
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
      if (role === ROLE.ADDED) {
        const found = at < passed ? undefined : this.#added.at(text, at);
        if (found !== undefined && found.isSingleWord && !standsAlone(text, at, at + found.length)) {
          passed = at + found.length;
        } else if (found !== undefined) {
          this.#append(text, start, at, ids);
          ids.push(found.id);
          at += found.length;
          start = at;
          if (ids.length > most) return;
          continue;
        }
        role = this.#added.otherRole(text.codePointAt(at)!);
        if (role === ROLE.PLAIN || role === ROLE.ODD) {
          at += size;
          continue;
        }
      }
      this.#append(text, start, at, ids);
      if (role === ROLE.ALONE) this.#append(text, at, at + size, ids);
      at += size;
      start = at;
      if (ids.length > most) return;
    }
    this.#append(text, start, at, ids);
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
    this.#normalized.split(normal, (start, end, id) => {
      if (id !== undefined) ids.push(id);
      else this.#appendWords(this.#words.cut(normal.slice(start, end)), ids);
      return true;
    });
  }
}

/** Tokens in normalized text may hold what ends a stretch: then it does not. */
function widenStretches(roles: Uint8Array, patterns: readonly (readonly [string, AddedToken])[]): void {
  const holdSpaces = patterns.some(([pattern]) => [...pattern].some((char) => isSpace(char.codePointAt(0)!)));
  for (let point = 0; point < roles.length; point++)
    if (roles[point] === ROLE.ALONE || (holdSpaces && roles[point] === ROLE.SPACE)) roles[point] = ROLE.ODD;
}

/**
 * Added tokens for the scan by roles. Blanks that a token takes from beside it are no words here, so that `stripsLeft`
 * and `stripsRight` change nothing.
 */
class AddedTokensByRole {
  readonly #byFirst = new Map<
    number,
    { readonly content: string; readonly length: number; readonly id: number; readonly isSingleWord: boolean }[]
  >();
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
  at(
    text: string,
    at: number,
  ): { readonly id: number; readonly length: number; readonly isSingleWord: boolean } | undefined {
    for (const token of this.#byFirst.get(text.codePointAt(at)!) ?? [])
      if (text.startsWith(token.content, at)) return token;
    return undefined;
  }

  otherRole(first: number): number {
    return this.#otherRoles.get(first) ?? ROLE.ODD;
  }
}
