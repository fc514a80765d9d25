// Numbers from a seed: the same case again from its seed, its script and its number.

export class Random {
  #state: number;

  constructor(seed: number, text: string, index: number) {
    let hash = seed ^ 0x9e3779b9;
    for (const char of `${text}#${index}`) hash = Math.imul(hash ^ char.charCodeAt(0), 0x01000193);
    this.#state = hash >>> 0;
  }

  /** In [0, 1): mulberry32. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** 0 to `count` - 1. */
  below(count: number): number {
    return Math.floor(this.next() * count);
  }

  is(share: number): boolean {
    return this.next() < share;
  }

  of<T>(choices: readonly T[]): T {
    return choices[this.below(choices.length)]!;
  }
}
