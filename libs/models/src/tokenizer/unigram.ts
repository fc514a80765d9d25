// Unigram: a word into the pieces whose scores have the largest sum (Viterbi; Kudo 2018, arXiv:1804.10959), as the
// official package adds and compares them: in f64 from the left, the first found of two equal ones. A character that is
// no piece is unknown, at the least score of all minus 10; unknown ones side by side are one. Knows nothing of texts.

import { PieceTrie, ROOT } from './piece-trie.ts';
import { lastOf } from './steps.ts';
import type { UnigramOptions } from './unigram-facts.ts';

const UNKNOWN_PENALTY = 10;
/** A longer word is asked every so many characters whether its beginning is settled and fills a row. */
const BLOCK_CHARS = 4_096;
/** Room that is kept from word to word. */
const KEPT_ROOM = 2 * BLOCK_CHARS;

export class Unigram {
  readonly #options: UnigramOptions;
  readonly #trie: PieceTrie;
  readonly #scores: Float64Array;
  readonly #unknownId: number;
  readonly #unknownScore: number;
  /** Ids of <0x00> to <0xFF>; -1 for those that are no pieces. */
  readonly #byteIds: readonly number[] | undefined;
  /** By place in the word: the best sum of what ends there, where its last piece begins (or -1), and that piece. */
  #best = new Float64Array(KEPT_ROOM);
  #begins = new Int32Array(KEPT_ROOM);
  #ids = new Int32Array(KEPT_ROOM);
  /** Places of these that are of this word. */
  #filled = 0;
  readonly #longestPiece: number;

  constructor(options: UnigramOptions, trie = new PieceTrie(options.pieces)) {
    this.#options = options;
    this.#trie = trie;
    this.#scores = options.scores;
    this.#longestPiece = options.pieces.reduce((most, { length }) => Math.max(most, length), 2);
    this.#unknownId = options.unknownId;
    this.#unknownScore = options.scores.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
    this.#byteIds = options.hasByteFallback ? this.#allBytes() : undefined;
  }

  /**
   * Appends the ids of a word, which must be well-formed; of one that has more than `enough`, perhaps only the first
   * ones, and more than `enough`.
   */
  append(word: string, ids: number[], enough: number): void {
    const { length } = word;
    if (length > BLOCK_CHARS) return lastOf(this.appendSteps(word, ids, enough));
    this.#findBest(word, 0, length);
    this.#appendBest(word, length, ids);
  }

  /** The same, of a long word in steps. No other word may be read in between: `beside` is for those. */
  *appendSteps(word: string, ids: number[], enough: number): Generator<void, void, undefined> {
    if (word.length <= BLOCK_CHARS) return this.append(word, ids, enough);
    const end = yield* this.#findBestOfLong(word, enough);
    this.#appendBest(word, end, ids);
    if (this.#best.length > KEPT_ROOM) this.#setRoom(KEPT_ROOM);
  }

  /** Another one with the same pieces. */
  beside(): Unigram {
    return new Unigram(this.#options, this.#trie);
  }

  /** The pieces of word[0, end), whose best way is known. */
  #appendBest(word: string, end: number, ids: number[]): void {
    const [begins, pieces, unknown] = [this.#begins, this.#ids, this.#unknownId];
    const from = ids.length;
    let unknownEnd = -1; // of the unknown ones side by side that are being passed
    while (end > 0) {
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

  /**
   * How far the word's best way is known and wanted. Asked after 4,096 characters and after twice as many each time, so
   * that a word whose ways never meet, such as a million times "<", costs no more than twice its length.
   */
  *#findBestOfLong(word: string, enough: number): Generator<void, number, undefined> {
    let settled = 0; // the best way of the whole word goes through here
    let pieces = 0; // up to there; unknown ones side by side are counted as one
    for (let at = 0, target = BLOCK_CHARS, times = 1; target < word.length; target *= 2, times += 1) {
      at = yield* this.#findBestSteps(word, at, target);
      const next = this.#settledBefore(at, word.length);
      for (let end = next, wasUnknown = false; end > settled; end = this.#begins[end]!) {
        const isUnknown = this.#ids[end] === this.#unknownId;
        if (!isUnknown || !wasUnknown) pieces += 1;
        wasUnknown = isUnknown;
      }
      settled = next;
      // the first and the last piece counted at a time may be of one row of unknown ones
      if (pieces - 2 * times > enough) return settled;
      if (2 * target >= word.length) yield* this.#findBestSteps(word, at, word.length);
    }
    return word.length;
  }

  /** The last place that every way to `at` and beyond goes through: all of them are followed back until they meet. */
  #settledBefore(at: number, length: number): number {
    if (this.#longestPiece > BLOCK_CHARS) return 0;
    const open = new Set([at]);
    const last = Math.min(length, at + this.#longestPiece);
    for (let end = at + 1; end <= last; end++) if (this.#begins[end]! >= 0) open.add(this.#begins[end]!);
    while (open.size > 1) {
      let latest = 0;
      for (const place of open) if (place > latest) latest = place;
      open.delete(latest);
      open.add(this.#begins[latest]!);
    }
    const [place = 0] = open;
    return place;
  }

  *#findBestSteps(word: string, at: number, target: number): Generator<void, number, undefined> {
    for (; at < target; yield) at = this.#findBest(word, at, Math.min(target, at + BLOCK_CHARS));
    return at;
  }

  /** Goes on from `at` with all pieces that begin before `target`; returns the first character not looked at. */
  #findBest(word: string, at: number, target: number): number {
    const { length } = word;
    if (at === 0) this.#filled = 0;
    // a character of two units may begin just before `target`
    const room = Math.min(length, target + this.#longestPiece + 1) + 1;
    if (room > this.#best.length) this.#setRoom(2 ** Math.ceil(Math.log2(room)));
    const [trie, scores, best, begins, ids] = [this.#trie, this.#scores, this.#best, this.#begins, this.#ids];
    begins.fill(-1, this.#filled, room);
    this.#filled = room;
    if (at === 0) best[0] = 0;
    while (at < target) {
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
    return at;
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

  /** Keeps what is known. */
  #setRoom(room: number): void {
    const [best, begins, ids] = [this.#best, this.#begins, this.#ids];
    this.#best = new Float64Array(room);
    this.#begins = new Int32Array(room);
    this.#ids = new Int32Array(room);
    this.#best.set(best.subarray(0, Math.min(room, this.#filled)));
    this.#begins.set(begins.subarray(0, Math.min(room, this.#filled)));
    this.#ids.set(ids.subarray(0, Math.min(room, this.#filled)));
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
