// Choices that are the same for the same seed: a case of a fuzzer is its reader, its seed and its number, and nothing
// else.

import { seededRandom } from '@shoal/core/base';

export class Dice {
  readonly #random: () => number;

  /** `parts` may be any numbers; each combination throws in its own way. */
  constructor(...parts: readonly number[]) {
    let seed = 0x811c_9dc5;
    for (const part of parts) seed = Math.imul(seed ^ (part >>> 0), 0x0100_0193) ^ (seed >>> 15);
    this.#random = seededRandom(seed);
  }

  /** A whole number from 0 to `limit` − 1. */
  below(limit: number): number {
    return Math.floor(this.#random() * limit);
  }

  /** From `least` to `most`, both among them. */
  between(least: number, most: number): number {
    return least + this.below(most - least + 1);
  }

  isLucky(probability: number): boolean {
    return this.#random() < probability;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!;
  }
}
