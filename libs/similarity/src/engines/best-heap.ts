// The k best of a stream of scored rows. Rows come by rising number, and one that only equals the worst is not taken:
// so ties go to the lower number.

import type { BestRows } from './engine.ts';

export class BestHeap {
  /** The worst that is kept: a row has to be better. −∞ until k are kept. */
  limit = -Infinity;
  readonly #k: number;
  /** A binary heap, worst on top: where two are equal, the one with the higher number. */
  readonly #scores: number[] = [];
  readonly #rows: number[] = [];

  constructor(k: number) {
    this.#k = k;
  }

  /** The larger the better; NaN is never taken. */
  offer(score: number, row: number): void {
    if (this.#scores.length < this.#k) {
      if (Number.isNaN(score)) return;
      this.#scores.push(score);
      this.#rows.push(row);
      this.#rise(this.#scores.length - 1);
    } else {
      if (!(score > this.limit)) return;
      this.#scores[0] = score;
      this.#rows[0] = row;
      this.#sink();
    }
    if (this.#scores.length === this.#k) this.limit = this.#scores[0]!;
  }

  /** Best first, as answer number `query` of `best`; scores times `sign`. */
  writeTo(best: BestRows, query: number, k: number, sign: 1 | -1): void {
    const order = this.#scores
      .map((score, i) => ({ score, row: this.#rows[i]! }))
      .sort((a, b) => b.score - a.score || a.row - b.row);
    best.found[query] = order.length;
    for (const [i, { score, row }] of order.entries()) {
      best.scores[query * k + i] = sign * score + 0; // −0 is for nobody
      best.rows[query * k + i] = row;
    }
  }

  #isWorse(a: number, b: number): boolean {
    return (
      this.#scores[a]! < this.#scores[b]! || (this.#scores[a] === this.#scores[b] && this.#rows[a]! > this.#rows[b]!)
    );
  }

  #swap(a: number, b: number): void {
    [this.#scores[a], this.#scores[b]] = [this.#scores[b]!, this.#scores[a]!];
    [this.#rows[a], this.#rows[b]] = [this.#rows[b]!, this.#rows[a]!];
  }

  #rise(at: number): void {
    for (let parent = (at - 1) >> 1; at > 0 && this.#isWorse(at, parent); at = parent, parent = (at - 1) >> 1)
      this.#swap(at, parent);
  }

  #sink(): void {
    for (let at = 0; ;) {
      const left = 2 * at + 1;
      let worst = at;
      if (left < this.#scores.length && this.#isWorse(left, worst)) worst = left;
      if (left + 1 < this.#scores.length && this.#isWorse(left + 1, worst)) worst = left + 1;
      if (worst === at) return;
      this.#swap(at, worst);
      at = worst;
    }
  }
}
