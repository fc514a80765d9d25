// The merges of a byte pair encoding, and their application to one word: the pair of the lowest rank, the leftmost of
// those first, until none is left (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword
// Units, 2016), with the ids of `Word::merge_all` in the official `tokenizers` package. Knows nothing of characters.

import { PairTable } from './pair-table.ts';
import { lastOf } from './steps.ts';

/** Above, a heap: the short way looks through all pairs for each merge. */
const SHORT_WORD = 40;
/** A step takes a millisecond or two. */
const STEP_PAIRS = 4_096;
const NO_RANK = PairTable.NONE;
/** In place of the id of a symbol that was merged into the one before. */
const EMPTY = -1;

/** Of each merge the ids of its two tokens, and of the one that they become. Its place is its rank. */
export interface MergeIds {
  readonly lefts: Int32Array;
  readonly rights: Int32Array;
  readonly merged: Int32Array;
}

export class BpeMerges {
  readonly #merged: Int32Array;
  readonly #ranks: PairTable;
  readonly #pairRanks = new Int32Array(SHORT_WORD);

  constructor({ lefts, rights, merged }: MergeIds) {
    this.#merged = merged;
    this.#ranks = new PairTable(merged.length);
    // of a pair that is listed twice the last place counts, as in the original
    for (let rank = 0; rank < merged.length; rank++) this.#ranks.set(lefts[rank]!, rights[rank]!, rank);
  }

  /** Merges the first `count` of `ids` in place and returns how many are left. */
  apply(ids: Int32Array, count: number): number {
    if (count < 2) return count;
    return count <= SHORT_WORD ? this.#applyShort(ids, count) : lastOf(this.applySteps(ids, count));
  }

  #applyShort(ids: Int32Array, count: number): number {
    const ranks = this.#pairRanks; // of the pair that begins at each place
    for (let at = 0; at + 1 < count; at++) ranks[at] = this.#ranks.get(ids[at]!, ids[at + 1]!);
    for (;;) {
      let best = NO_RANK;
      let place = 0;
      for (let at = 0; at + 1 < count; at++) {
        if (ranks[at]! < best) {
          best = ranks[at]!;
          place = at;
        }
      }
      if (best === NO_RANK) return count;
      ids[place] = this.#merged[best]!;
      count -= 1;
      for (let at = place + 1; at < count; at++) {
        ids[at] = ids[at + 1]!;
        ranks[at] = ranks[at + 1]!;
      }
      if (place > 0) ranks[place - 1] = this.#ranks.get(ids[place - 1]!, ids[place]!);
      if (place + 1 < count) ranks[place] = this.#ranks.get(ids[place]!, ids[place + 1]!);
    }
  }

  /** The same in steps. Time n log n, and 28 bytes a symbol. */
  *applySteps(ids: Int32Array, count: number): Generator<void, number, undefined> {
    const next = new Int32Array(count);
    const previous = new Int32Array(count);
    for (let at = 0; at < count; at++) {
      next[at] = at + 1;
      previous[at] = at - 1;
    }
    const queue = new PairQueue(count);
    const add = (left: number): void => {
      const right = next[left]!;
      if (right >= count) return;
      const rank = this.#ranks.get(ids[left]!, ids[right]!);
      if (rank !== NO_RANK) queue.add(rank, left);
    };
    let done = 0; // pairs since the last step
    for (let at = 0; at + 1 < count; at++) {
      add(at);
      if (++done % STEP_PAIRS === 0) yield;
    }
    while (queue.size > 0) {
      if (++done % STEP_PAIRS === 0) yield;
      const { rank, left } = queue.take();
      if (ids[left] === EMPTY) continue; // it was merged into the one before
      const right = next[left]!;
      if (right >= count) continue;
      // the pair that begins here may be another one by now; it counts if it becomes the same token, as in the original
      const own = this.#ranks.get(ids[left]!, ids[right]!);
      if (own === NO_RANK || this.#merged[own] !== this.#merged[rank]) continue;
      ids[left] = this.#merged[rank]!;
      ids[right] = EMPTY;
      const behind = next[right]!;
      next[left] = behind;
      if (behind < count) previous[behind] = left;
      if (previous[left]! >= 0) add(previous[left]!);
      add(left);
    }
    let left = 0;
    for (let at = 0; at < count; at = next[at]!) ids[left++] = ids[at]!;
    return left;
  }
}

/** 2^22 ranks and 2^31 places fit into the 53 bits of a number. */
const PLACES = 2 ** 31;

/** Pairs by rank, then by place: a binary heap of numbers. */
class PairQueue {
  size = 0;
  #heap: Float64Array;

  constructor(capacity: number) {
    this.#heap = new Float64Array(capacity);
  }

  add(rank: number, left: number): void {
    if (this.size === this.#heap.length) {
      const larger = new Float64Array(2 * this.size);
      larger.set(this.#heap);
      this.#heap = larger;
    }
    const heap = this.#heap;
    const value = rank * PLACES + left;
    let at = this.size++;
    while (at > 0) {
      const up = (at - 1) >> 1;
      if (heap[up]! <= value) break;
      heap[at] = heap[up]!;
      at = up;
    }
    heap[at] = value;
  }

  take(): { readonly rank: number; readonly left: number } {
    const heap = this.#heap;
    const top = heap[0]!;
    const last = heap[--this.size]!;
    const size = this.size;
    let at = 0;
    for (;;) {
      let down = 2 * at + 1;
      if (down >= size) break;
      if (down + 1 < size && heap[down + 1]! < heap[down]!) down += 1;
      if (heap[down]! >= last) break;
      heap[at] = heap[down]!;
      at = down;
    }
    heap[at] = last;
    const rank = Math.floor(top / PLACES);
    return { rank, left: top - rank * PLACES };
  }
}
