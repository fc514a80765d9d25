// Unigram: a word into the pieces whose scores have the largest sum (Viterbi; Kudo 2018, arXiv:1804.10959), as the
// official package adds and compares them: in f64 from the left, the first found of two equal ones. A character that is
// no piece is unknown, at the least score of all minus 10; unknown ones side by side are one. Knows nothing of texts.

import { PieceTrie, ROOT } from './piece-trie.ts';
import type { UnigramOptions } from './unigram-facts.ts';

const UNKNOWN_PENALTY = 10;

export class Unigram {
  readonly #trie: PieceTrie;
  readonly #scores: Float64Array;
  readonly #unknownId: number;
  readonly #unknownScore: number;
  /** Ids of <0x00> to <0xFF>; -1 for those that are no pieces. */
  readonly #byteIds: readonly number[] | undefined;
  // by place in the word: the best sum of what ends there, where its last piece begins, and that piece
  #best = new Float64Array(256);
  #begins = new Int32Array(256);
  #ids = new Int32Array(256);

  constructor(options: UnigramOptions) {
    this.#trie = new PieceTrie(options.pieces);
    this.#scores = options.scores;
    this.#unknownId = options.unknownId;
    this.#unknownScore = options.scores.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
    this.#byteIds = options.hasByteFallback ? this.#allBytes() : undefined;
  }

  /** Appends the ids of a word, which must be well-formed. */
  append(word: string, ids: number[]): void {
    this.#findBest(word);
    const [begins, pieces, unknown] = [this.#begins, this.#ids, this.#unknownId];
    const from = ids.length;
    let unknownEnd = -1; // of the unknown ones side by side that are being passed
    for (let end = word.length; end > 0;) {
      const [begin, id] = [begins[end]!, pieces[end]!];
      if (id === unknown) {
        if (unknownEnd < 0) unknownEnd = end;
      } else {
        if (unknownEnd >= 0) this.#appendUnknown(word.slice(end, unknownEnd), ids);
        unknownEnd = -1;
        ids.push(id);
      }
      end = begin;
    }
    if (unknownEnd >= 0) this.#appendUnknown(word.slice(0, unknownEnd), ids);
    reverseFrom(ids, from);
  }

  #findBest(word: string): void {
    const { length } = word;
    if (length >= this.#best.length) this.#makeRoom(length + 1);
    const [trie, scores, best, begins, ids] = [this.#trie, this.#scores, this.#best, this.#begins, this.#ids];
    begins.fill(-1, 0, length + 1);
    best[0] = 0;
    for (let at = 0; at < length;) {
      const size = (word.charCodeAt(at) & 0xfc00) === 0xd800 ? 2 : 1;
      const before = best[at]!;
      let isPiece = false; // the character alone
      let node = ROOT;
      for (let end = at; end < length;) {
        node = trie.step(node, word.charCodeAt(end++));
        if (node === 0) break;
        const id = trie.idAt(node);
        if (id < 0) continue;
        if (end - at === size) isPiece = true;
        const score = scores[id]! + before;
        if (begins[end]! < 0 || score > best[end]!) {
          best[end] = score;
          begins[end] = at;
          ids[end] = id;
        }
      }
      if (!isPiece) {
        const end = at + size;
        const score = this.#unknownScore + before;
        if (begins[end]! < 0 || score > best[end]!) {
          best[end] = score;
          begins[end] = at;
          ids[end] = this.#unknownId;
        }
      }
      at += size;
    }
  }

  /** Backwards, as all of the word is appended. Unknown characters may be a piece together. */
  #appendUnknown(text: string, ids: number[]): void {
    const piece = this.#trie.idOf(text);
    if (piece !== undefined) {
      ids.push(piece);
      return;
    }
    if (this.#byteIds !== undefined) {
      const bytes = [...Buffer.from(text)].map((byte) => this.#byteIds![byte]!);
      if (!bytes.includes(-1)) {
        for (const id of bytes.toReversed()) ids.push(id);
        return;
      }
    }
    ids.push(this.#unknownId);
  }

  #allBytes(): readonly number[] {
    return Array.from({ length: 256 }, (_, byte) => this.#trie.idOf(bytePiece(byte)) ?? -1);
  }

  #makeRoom(length: number): void {
    const room = 2 ** Math.ceil(Math.log2(length));
    this.#best = new Float64Array(room);
    this.#begins = new Int32Array(room);
    this.#ids = new Int32Array(room);
  }
}

function bytePiece(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

function reverseFrom(ids: number[], from: number): void {
  for (let left = from, right = ids.length - 1; left < right; left++, right--) {
    const id = ids[left]!;
    ids[left] = ids[right]!;
    ids[right] = id;
  }
}
