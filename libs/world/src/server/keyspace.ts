// The keys: their values, when each ends by the wall clock, and who must hear of a change (WATCH, blocking commands). A
// key whose time is over is removed when it is looked at, as real servers do beside their cycle; nobody can tell the
// difference but by counting.

import { wrongType } from './replies.ts';
import { SortedSet } from './sorted-set.ts';
import type { Stream } from './stream.ts';

export interface Values {
  string: string;
  hash: Map<string, string>;
  list: string[];
  set: Set<string>;
  zset: SortedSet;
  stream: Stream;
}

export type Type = keyof Values;

export type Entry = { [T in Type]: { readonly type: T; value: Values[T]; expireAt: number | undefined } }[Type];

export class Keyspace {
  readonly #now: () => number;
  #entries = new Map<string, Entry>();
  /** Hears the name of each key that changed. */
  onChange: ((key: string) => void) | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  /** The entry of a key that is there now. */
  find(key: string): Entry | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined || entry.expireAt === undefined || this.#now() <= entry.expireAt) return entry;
    this.#entries.delete(key);
    this.onChange?.(key);
    return undefined;
  }

  /** The value of a key. Throws WRONGTYPE for one of another type. */
  get<T extends Type>(key: string, type: T): Values[T] | undefined {
    const entry = this.find(key);
    if (entry === undefined) return undefined;
    if (entry.type !== type) throw wrongType();
    return entry.value as Values[T];
  }

  /** The same, made where it is not there. The caller says `changed`. */
  open<T extends Exclude<Type, 'string'>>(key: string, type: T, make: () => Values[T]): Values[T] {
    const found = this.get(key, type);
    if (found !== undefined) return found;
    const value = make();
    this.#entries.set(key, { type, value, expireAt: undefined } as Entry);
    return value;
  }

  /** Puts a value in place of whatever is there. */
  put(key: string, entry: Entry): void {
    this.#entries.set(key, entry);
    this.onChange?.(key);
  }

  /** After a change of a value in place: one that is empty is none. */
  changed(key: string): void {
    const entry = this.#entries.get(key);
    if (entry !== undefined && isEmpty(entry)) this.#entries.delete(key);
    this.onChange?.(key);
  }

  /** Whether it was there. */
  delete(key: string): boolean {
    if (this.find(key) === undefined) return false;
    this.#entries.delete(key);
    this.onChange?.(key);
    return true;
  }

  clear(): void {
    const keys = [...this.#entries.keys()];
    this.#entries.clear();
    for (const key of keys) this.onChange?.(key);
  }

  /** Names of keys that are there now, in the order in which they were made. */
  keys(): string[] {
    return [...this.#entries.keys()].filter((key) => this.find(key) !== undefined);
  }

  get size(): number {
    return this.keys().length;
  }

  snapshot(): Map<string, Entry> {
    return cloned(this.#entries);
  }

  restore(entries: ReadonlyMap<string, Entry>): void {
    this.#entries = cloned(entries);
  }
}

function isEmpty(entry: Entry): boolean {
  switch (entry.type) {
    case 'string':
    case 'stream':
      return false;
    case 'list':
      return entry.value.length === 0;
    default:
      return entry.value.size === 0;
  }
}

function cloned(entries: ReadonlyMap<string, Entry>): Map<string, Entry> {
  return new Map([...entries].map(([key, entry]) => [key, cloneEntry(entry)]));
}

export function cloneEntry(entry: Entry): Entry {
  switch (entry.type) {
    case 'string':
      return { ...entry };
    case 'hash':
      return { ...entry, value: new Map(entry.value) };
    case 'list':
      return { ...entry, value: [...entry.value] };
    case 'set':
      return { ...entry, value: new Set(entry.value) };
    case 'zset':
      return { ...entry, value: entry.value.clone() };
    case 'stream':
      return { ...entry, value: entry.value.clone() };
  }
}
