// Pairs of whole numbers ≥ 0 and a number each, in a hash table with open addressing. A Map keyed by products above 2^31
// would hash objects, at five times the time.

const EMPTY = -1;

export class PairTable {
  /** The answer for a pair that was not set. */
  static readonly NONE = 0x7fffffff;
  readonly #lefts: Int32Array;
  readonly #rights: Int32Array;
  readonly #values: Int32Array;
  readonly #mask: number;

  /** `most` pairs have room. */
  constructor(most: number) {
    const size = 2 ** Math.ceil(Math.log2(2 * most + 2));
    this.#mask = size - 1;
    this.#lefts = new Int32Array(size).fill(EMPTY);
    this.#rights = new Int32Array(size);
    this.#values = new Int32Array(size).fill(PairTable.NONE);
  }

  get(left: number, right: number): number {
    return this.#values[this.#place(left, right)]!;
  }

  /** The last value of a pair counts. */
  set(left: number, right: number, value: number): void {
    const place = this.#place(left, right);
    this.#lefts[place] = left;
    this.#rights[place] = right;
    this.#values[place] = value;
  }

  /** Where this pair is, or would be. */
  #place(left: number, right: number): number {
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    let place = hash & this.#mask;
    while (this.#lefts[place] !== EMPTY && (this.#lefts[place] !== left || this.#rights[place] !== right))
      place = (place + 1) & this.#mask;
    return place;
  }
}
