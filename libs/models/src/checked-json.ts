// JSON files of a model, read field by field: a field that is missing or of another kind is MODEL_CORRUPT and named
// with its file. Refuses nothing else: what a value may be is decided by who reads it.

import { ShoalError } from '@shoal/contract';

/** Named in a message. */
const MOST_NAMES = 5;
const MOST_CHARS = 80;

export class CheckedJson {
  readonly where: string;
  readonly #fields: Readonly<Record<string, unknown>>;

  private constructor(fields: Readonly<Record<string, unknown>>, where: string) {
    this.#fields = fields;
    this.where = where;
  }

  /** `where` names the file in messages. */
  static parse(text: string, where: string): CheckedJson {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (cause) {
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${where} is not JSON: ${cause instanceof Error ? cause.message : String(cause)}`,
        { where },
        cause,
      );
    }
    return CheckedJson.of(value, where);
  }

  static of(value: unknown, where: string): CheckedJson {
    if (!isRecord(value))
      throw new ShoalError('MODEL_CORRUPT', `${where}: expected an object, found ${describe(value)}`, { where });
    return new CheckedJson(value, where);
  }

  has(key: string): boolean {
    const value = this.#value(key);
    return value !== undefined && value !== null;
  }

  /** The value as it is in the file; undefined when it is not there. */
  raw(key: string): unknown {
    return this.#value(key);
  }

  /** Throws for a field that is none of these: whoever wrote it meant something by it. */
  expectKeys(known: readonly string[], what: string): void {
    const unknown = this.keys().filter((key) => !known.includes(key));
    if (unknown.length === 0) return;
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${this.where}: ${unknown.slice(0, MOST_NAMES).map(quoted).join(', ')} is not known here, and ${what}`,
      { where: this.where, unknown: unknown.slice(0, MOST_NAMES) },
    );
  }

  keys(): readonly string[] {
    return Object.keys(this.#fields);
  }

  /**
   * All fields, each a whole number ≥ 0. For a vocabulary of 30,000 pieces: keys() costs half of what Object.entries()
   * does.
   */
  integerEntries(): Map<string, number> {
    const entries = new Map<string, number>();
    for (const key of this.keys()) {
      const value = this.#fields[key];
      if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0)
        this.#refuse(key, 'a whole number ≥ 0');
      else entries.set(key, value);
    }
    return entries;
  }

  string(key: string): string {
    const value = this.#value(key);
    return typeof value === 'string' ? value : this.#refuse(key, 'a string');
  }

  boolean(key: string): boolean {
    const value = this.#value(key);
    return typeof value === 'boolean' ? value : this.#refuse(key, 'true or false');
  }

  /** A whole number of at least `least`. */
  integer(key: string, least = 0): number {
    const value = this.#value(key);
    return typeof value === 'number' && Number.isSafeInteger(value) && value >= least
      ? value
      : this.#refuse(key, `a whole number ≥ ${least}`);
  }

  positive(key: string): number {
    const value = this.#value(key);
    return typeof value === 'number' && value > 0 && Number.isFinite(value)
      ? value
      : this.#refuse(key, 'a number above 0');
  }

  /** A number from 0 to 1. */
  share(key: string): number {
    const value = this.#value(key);
    return typeof value === 'number' && value >= 0 && value <= 1 ? value : this.#refuse(key, 'a number from 0 to 1');
  }

  integers(key: string): readonly number[] {
    return this.list(key).map((item) =>
      typeof item === 'number' && Number.isSafeInteger(item) && item >= 0
        ? item
        : this.#refuse(key, 'a list of whole numbers'),
    );
  }

  list(key: string): readonly unknown[] {
    const value = this.#value(key);
    return Array.isArray(value) ? value : this.#refuse(key, 'a list');
  }

  object(key: string): CheckedJson {
    const value = this.#value(key);
    return isRecord(value)
      ? new CheckedJson(value, `${this.where}: ${key.slice(0, MOST_CHARS)}`)
      : this.#refuse(key, 'an object');
  }

  #value(key: string): unknown {
    return Object.hasOwn(this.#fields, key) ? this.#fields[key] : undefined;
  }

  #refuse(key: string, expected: string): never {
    const found = describe(this.#value(key));
    throw new ShoalError('MODEL_CORRUPT', `${this.where}: ${quoted(key)} should be ${expected}, found ${found}`, {
      where: this.where,
      key,
    });
  }
}

/** A text of a file in a message, whatever its length. */
export function quoted(text: string): string {
  return JSON.stringify(text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Lists and objects by their kind alone: spelling them out would recurse as deep as a file likes to nest. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'an object';
  return (JSON.stringify(value) ?? String(value)).slice(0, 80);
}
