// WordPiece: a normalized word into the longest pieces of the vocabulary, from the left. A word with no way through, or
// with more characters than the model takes, is one unknown token. Knows nothing of texts, spaces or caches.

import type { WordPieceOptions } from './word-piece-facts.ts';

export class WordPiece {
  readonly #first: ReadonlyMap<string, number>;
  readonly #continued = new Map<string, number>();
  readonly #longestPiece: number;
  readonly #unknown: readonly number[];
  readonly #maxWordChars: number;

  constructor(options: WordPieceOptions) {
    const { vocabulary, continuationPrefix, unknownId, maxWordChars } = options;
    let longest = 0;
    for (const [piece, id] of vocabulary) {
      longest = Math.max(longest, piece.length);
      if (piece.startsWith(continuationPrefix)) this.#continued.set(piece.slice(continuationPrefix.length), id);
    }
    this.#first = vocabulary;
    this.#longestPiece = longest;
    this.#unknown = [unknownId];
    this.#maxWordChars = maxWordChars;
  }

  /** Ids of one word. Cutting between the halves of a surrogate pair does no harm: no piece has half a character. */
  pieces(word: string): readonly number[] {
    if (this.isTooLong(word)) return this.#unknown;
    const ids: number[] = [];
    for (let start = 0; start < word.length;) {
      const known = start === 0 ? this.#first : this.#continued;
      let end = Math.min(word.length, start + this.#longestPiece);
      let id = known.get(word.slice(start, end));
      while (id === undefined && end > start + 1) id = known.get(word.slice(start, --end));
      if (id === undefined) return this.#unknown;
      ids.push(id);
      start = end;
    }
    return ids;
  }

  isTooLong(word: string): boolean {
    if (word.length <= this.#maxWordChars) return false;
    return word.length > 2 * this.#maxWordChars || countChars(word) > this.#maxWordChars;
  }
}

function countChars(word: string): number {
  let chars = 0;
  for (let at = 0; at < word.length; at++) if ((word.charCodeAt(at) & 0xfc00) !== 0xdc00) chars++;
  return chars;
}
