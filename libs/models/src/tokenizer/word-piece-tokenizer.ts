// Texts into token ids as the model takes them: exactly those of the official `tokenizers` package, truncated where
// sentence-transformers truncates. One pass over the raw text cuts it into stretches; a cache knows the ids of most,
// and only new ones are normalized, split and looked up. Stops as soon as a row is full, so a 20 MB line costs what its
// beginning costs. Refuses nothing: every string has ids.

import type { Encoded, Tokenizer } from '@shoal/core';
import { BertWords, ROLE } from './bert-words.ts';
import type { TokenizerFacts } from './tokenizer-json.ts';
import { WordCache, type CachedIds } from './word-cache.ts';
import { WordPiece } from './word-piece.ts';

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
  }

  encode(text: string): Encoded {
    const ids = [this.#beginId];
    const most = this.maxTokens - 1; // the last place belongs to the end token
    this.#scan(text.toWellFormed(), ids, most);
    const isTruncated = ids.length > most;
    if (isTruncated) ids.length = most;
    ids.push(this.#endId);
    return { ids, isTruncated };
  }

  /** Appends the ids of `text` until there are more than `most`. */
  #scan(text: string, ids: number[], most: number): void {
    const roles = this.#roles;
    let start = 0; // of the stretch being scanned
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
        const found = this.#added.at(text, at);
        if (found !== undefined) {
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
    for (const word of this.#words.split(stretch)) for (const id of this.#wordPiece.pieces(word)) ids.push(id);
    const known = ids.length === 1 ? ids[0]! : ids;
    this.#cache.add(stretch, known);
    return known;
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
