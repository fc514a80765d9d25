// config.json of an encoder, read key by key. Each value that was asked for is remembered; at the end a key that nobody
// asked for and that is not known to leave vectors alone is refused with its value, because whoever wrote it meant
// something by it.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import { isNeutral } from './neutral-keys.ts';

/** The deepest known encoder has 80. */
const MOST_LAYERS = 1000;

/** Keys that say the same, the usual one first. */
type Key = string | readonly string[];

export class ConfigReader {
  readonly json: CheckedJson;
  readonly #read = new Set<string>();

  constructor(json: CheckedJson) {
    this.json = json;
  }

  /** Whether the key is there and not null; it counts as read. */
  has(key: Key): boolean {
    return this.#find(key) !== undefined;
  }

  /** A whole number of at least 1. */
  size(key: Key, otherwise: number): number {
    const found = this.#find(key);
    return found === undefined ? otherwise : this.json.integer(found, 1);
  }

  /** A number of layers: as many facts are made of each, so one that no model has is refused before. */
  layers(key: Key, otherwise: number): number {
    const found = this.size(key, otherwise);
    if (found <= MOST_LAYERS) return found;
    return this.refuse(this.#find(key)!, `models have ${MOST_LAYERS} layers at most`);
  }

  /** A whole number of at least 0. */
  count(key: Key, otherwise: number): number {
    const found = this.#find(key);
    return found === undefined ? otherwise : this.json.integer(found);
  }

  positive(key: Key, otherwise: number): number {
    const found = this.#find(key);
    return found === undefined ? otherwise : this.json.positive(found);
  }

  boolean(key: Key, otherwise: boolean): boolean {
    const found = this.#find(key);
    return found === undefined ? otherwise : this.json.boolean(found);
  }

  text(key: Key, otherwise: string): string {
    const found = this.#find(key);
    return found === undefined ? otherwise : this.json.string(found);
  }

  object(key: Key): CheckedJson | undefined {
    const found = this.#find(key);
    return found === undefined ? undefined : this.json.object(found);
  }

  list(key: Key): readonly unknown[] | undefined {
    const found = this.#find(key);
    return found === undefined ? undefined : this.json.list(found);
  }

  /** Refuses the key unless it is absent, null or one of these values. `why`: what another value would mean. */
  expect(key: string, values: readonly (string | number | boolean)[], why: string): void {
    this.#read.add(key);
    if (!this.json.has(key) || values.includes(this.json.raw(key) as never)) return;
    this.refuse(key, why);
  }

  /** Refuses the key unless it is absent, null, false or empty. */
  expectNothing(key: string, why: string): void {
    this.#read.add(key);
    const value = this.json.raw(key);
    const isNothing =
      value === undefined ||
      value === null ||
      value === false ||
      value === '' ||
      (typeof value === 'object' && Object.keys(value).length === 0);
    if (!isNothing) this.refuse(key, why);
  }

  /** Keys of this family whose values leave vectors alone. */
  ignore(...keys: readonly string[]): void {
    for (const key of keys) this.#read.add(key);
  }

  /** MODEL_CORRUPT for a key that nobody asked for and that is not known to leave vectors alone. */
  expectAllRead(): void {
    const unknown = this.json.keys().find((key) => !this.#read.has(key) && !isNeutral(key, this.json.raw(key)));
    if (unknown !== undefined)
      this.refuse(unknown, `it is not known here for the model_type ${this.json.string('model_type')}`);
  }

  refuse(key: string, why: string): never {
    throw new ShoalError('MODEL_CORRUPT', `${this.json.where}: "${key}" is ${shown(this.json.raw(key))}: ${why}`, {
      where: this.json.where,
      key,
    });
  }

  /** The first of them that has a value; all that have one say the same. All count as read. */
  #find(key: Key): string | undefined {
    const keys = typeof key === 'string' ? [key] : key;
    for (const each of keys) this.#read.add(each);
    const [first, ...others] = keys.filter((each) => this.json.has(each));
    for (const other of others)
      if (shown(this.json.raw(other)) !== shown(this.json.raw(first!)))
        this.refuse(other, `"${first}" says the same of the model, and is ${shown(this.json.raw(first!))}`);
    return first;
  }
}

/** As it stands in the file, cut where it is long. */
function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? 'not there';
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
}
