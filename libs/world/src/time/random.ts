// Chance that follows from a seed alone: sfc32 (Chris Doty-Humphrey, PractRand), seeded by the text of what it decides
// on. Each concern has a stream of its own, so that one more draw for one of them moves no other.

import { invariant } from '@shoal/contract';

export class Random {
  private readonly name: string;
  private a: number;
  private b: number;
  private c: number;
  private count: number;

  /** `name`: the seed, and what is decided by it. */
  constructor(name: string) {
    this.name = name;
    [this.a, this.b, this.c, this.count] = hash128(name);
    for (let i = 0; i < 12; i++) this.bits();
  }

  /** Another stream of the same seed. */
  fork(concern: string): Random {
    return new Random(`${this.name}/${concern}`);
  }

  /** 32 bits, 0 to 2³² − 1. */
  bits(): number {
    const sum = (this.a + this.b + this.count) | 0;
    this.count = (this.count + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (((this.c << 21) | (this.c >>> 11)) + sum) | 0;
    return sum >>> 0;
  }

  /** 0 ≤ value < 1, as Math.random. */
  next(): number {
    return ((this.bits() >>> 5) * 0x400_0000 + (this.bits() >>> 6)) / 0x20_0000_0000_0000;
  }

  /** A whole number, `from` ≤ value < `to`. */
  whole(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from));
  }

  between(from: number, to: number): number {
    return from + this.next() * (to - from);
  }

  /** True in `share` of all cases. */
  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<T>(values: readonly T[]): T {
    invariant(values.length > 0, 'there is something to pick from');
    return values[this.whole(0, values.length)]!;
  }

  /** Short in most cases and long in some: what latencies and pauses look like. */
  longTailed(mean: number): number {
    return -Math.log(1 - this.next()) * mean;
  }

  fill(bytes: Uint8Array): void {
    for (let i = 0; i < bytes.length; i++) bytes[i] = this.bits() >>> 24;
  }
}

/** MurmurHash3's mixing over a text, four lanes. */
function hash128(text: string): [number, number, number, number] {
  let [a, b, c, d] = [0x9e37_79b9, 0x243f_6a88, 0xb7e1_5162, 0xdead_beef];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    a = b ^ Math.imul(a ^ code, 597_399_067);
    b = c ^ Math.imul(b ^ code, 2_869_860_233);
    c = d ^ Math.imul(c ^ code, 951_274_213);
    d = a ^ Math.imul(d ^ code, 2_716_044_179);
  }
  return [mixed(a), mixed(b), mixed(c), mixed(d)];
}

function mixed(value: number): number {
  let bits = Math.imul(value ^ (value >>> 16), 0x85eb_ca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2_ae35);
  return bits ^ (bits >>> 16);
}
