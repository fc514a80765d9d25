// What the append-only file is to a real server: the writes of the last seconds, and a copy of all keys from before them.
// A restart that forgets plays back what it kept. Commands are as deterministic as their arguments, the hour and the
// numbers that they drew, so those are what an entry holds.

import type { Entry } from './keyspace.ts';
import type { Refusal } from './interface.ts';

export interface Write {
  /** By the time that only goes forward. */
  readonly at: number;
  readonly now: number;
  readonly refuse: Refusal | undefined;
  /** More than one: a transaction. */
  readonly commands: readonly (readonly string[])[];
  readonly draws: readonly number[];
}

type Copy = Map<string, Entry>;

export class Journal {
  readonly #keptMs: number;
  readonly #copy: () => Copy;
  /** Two copies, so that the older is always old enough. */
  #older: { readonly at: number; readonly keys: Copy };
  #newer: { readonly at: number; readonly keys: Copy };
  #writes: Write[] = [];

  constructor(keptMs: number, at: number, copy: () => Copy) {
    this.#keptMs = keptMs;
    this.#copy = copy;
    this.#older = this.#newer = { at, keys: copy() };
  }

  /** Before a command runs: takes a new copy when the last one is old. */
  turn(at: number): void {
    if (at - this.#newer.at < this.#keptMs) return;
    this.#older = this.#newer;
    this.#newer = { at, keys: this.#copy() };
    this.#writes = this.#writes.filter((write) => write.at >= this.#older.at);
  }

  add(write: Write): void {
    this.#writes.push(write);
  }

  /** The copy to begin from, and the writes after it that stay. Throws where more is asked for than was kept. */
  before(at: number): { readonly keys: Copy; readonly writes: readonly Write[] } {
    const start = this.#newer.at <= at ? this.#newer : this.#older;
    const writes = this.#writes.filter((write) => write.at >= start.at && write.at <= at);
    if (start.at > at) return { keys: start.keys, writes: [] };
    return { keys: start.keys, writes };
  }
}
