// Looks at the metadata of an Arrow message or footer before apache-arrow does. That library believes every offset and
// count it finds: one wrong byte makes it loop for hours (apache/arrow-js#315). Here each table, text and list must lie
// inside the bytes that are there, so that what is decoded afterwards is bounded by their number. Knows the tables of
// Arrow's format and nothing of what they mean, except for the order of bytes, which apache-arrow does not look at.
// https://github.com/apache/arrow/tree/main/format (Message.fbs, Schema.fbs, File.fbs)

import { isUtf8 } from 'node:buffer';

/** Thrown for whatever is not as it should be; the reader of the file says whose metadata it was. */
export class DamagedMetadata extends Error {
  override readonly name = 'DamagedMetadata';
}

/** What a field of a table is: a value of so many bytes, a text, a list of values, a table, a list of tables. */
type Part =
  | { readonly is: 'value'; readonly bytes: number }
  | { readonly is: 'text' }
  | { readonly is: 'values'; readonly bytes: number }
  | { readonly is: 'table' | 'tables'; readonly of: () => Table }
  /** The table that the number in the field before this one chooses. */
  | { readonly is: 'choice'; readonly of: (kind: number) => Table | undefined };

type Table = readonly Part[];

const value = (bytes: number): Part => ({ is: 'value', bytes });
const values = (bytes: number): Part => ({ is: 'values', bytes });
const text: Part = { is: 'text' };
const table = (of: () => Table): Part => ({ is: 'table', of });
const tables = (of: () => Table): Part => ({ is: 'tables', of });

const KEY_VALUE: Table = [text, text];
const INT: Table = [value(4), value(1)];
/** By Arrow's number of the type; what has no field of its own needs none here. */
const TYPES: Readonly<Record<number, Table>> = {
  2: INT,
  3: [value(2)], // floating point
  7: [value(4), value(4), value(4)], // decimal
  8: [value(2)], // date
  9: [value(2), value(4)], // time
  10: [value(2), text], // timestamp
  11: [value(2)], // interval
  14: [value(2), values(4)], // union
  15: [value(4)], // binary of fixed size
  16: [value(4)], // list of fixed size
  17: [value(1)], // map
  18: [value(2)], // duration
};
const DICTIONARY_ENCODING: Table = [value(8), table(() => INT), value(1), value(2)];
const FIELD: Table = [
  text,
  value(1),
  value(1),
  { is: 'choice', of: (kind) => TYPES[kind] ?? [] },
  table(() => DICTIONARY_ENCODING),
  tables(() => FIELD),
  tables(() => KEY_VALUE),
];
const SCHEMA: Table = [value(2), tables(() => FIELD), tables(() => KEY_VALUE), values(8)];
const COMPRESSION: Table = [value(1), value(1)];
const RECORD_BATCH: Table = [value(8), values(16), values(16), table(() => COMPRESSION), values(8)];
const DICTIONARY_BATCH: Table = [value(8), table(() => RECORD_BATCH), value(1)];
const HEADERS: Readonly<Record<number, Table>> = { 1: SCHEMA, 2: DICTIONARY_BATCH, 3: RECORD_BATCH };
const MESSAGE: Table = [
  value(2),
  value(1),
  { is: 'choice', of: (kind) => HEADERS[kind] },
  value(8),
  tables(() => KEY_VALUE),
];
const FOOTER: Table = [value(2), table(() => SCHEMA), values(24), values(24), tables(() => KEY_VALUE)];

/** Arrow's own implementations stop at 64. */
const MOST_DEEP = 64;

/** Throws DamagedMetadata when anything in it points outside of it, or is stored in big-endian order. */
export function checkMetadata(bytes: Uint8Array, what: 'message' | 'footer'): void {
  new Check(bytes).root(what === 'message' ? MESSAGE : FOOTER);
}

class Check {
  readonly #view: DataView;
  readonly #size: number;
  /** A table takes four bytes or more; tables that are pointed at from many sides would let few bytes take hours. */
  #tablesLeft: number;

  constructor(bytes: Uint8Array) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#size = bytes.byteLength;
    this.#tablesLeft = Math.ceil(this.#size / 4);
  }

  root(shape: Table): void {
    this.#table(this.#target(0), shape, 0);
  }

  #table(at: number, shape: Table, depth: number): void {
    if (depth > MOST_DEEP) throw new DamagedMetadata('its tables lie too deep in each other');
    if (--this.#tablesLeft < 0) throw new DamagedMetadata('it points at the same tables again and again');
    this.#within(at, 4);
    const layout = at - this.#view.getInt32(at, true);
    this.#within(layout, 4);
    const [layoutBytes, tableBytes] = [this.#view.getUint16(layout, true), this.#view.getUint16(layout + 2, true)];
    if (layoutBytes < 4 || layoutBytes % 2 !== 0) throw new DamagedMetadata('a table has no layout');
    this.#within(layout, layoutBytes);
    this.#within(at, tableBytes);
    /** Where the field of this number stands, 0 when it is absent. */
    const placeOf = (field: number): number => {
      if (4 + 2 * field + 2 > layoutBytes) return 0;
      const offset = this.#view.getUint16(layout + 4 + 2 * field, true);
      return offset === 0 ? 0 : at + offset;
    };
    for (const [field, part] of shape.entries()) {
      const place = placeOf(field);
      if (place === 0) continue;
      const bytes = part.is === 'value' ? part.bytes : 4;
      if (place < at + 4 || place + bytes > at + tableBytes) throw outside();
      this.#part(part, place, depth, () => this.#byteAt(placeOf(field - 1)));
    }
    const order = shape === SCHEMA ? placeOf(0) : 0;
    if (order !== 0 && this.#view.getInt16(order, true) !== 0)
      throw new DamagedMetadata('its numbers are big-endian, and little-endian ones can be read');
  }

  #part(part: Part, place: number, depth: number, kindBefore: () => number): void {
    switch (part.is) {
      case 'value':
        return;
      case 'text':
        return this.#text(place);
      case 'values':
        return this.#list(place, part.bytes);
      case 'table':
        return this.#table(this.#target(place), part.of(), depth + 1);
      case 'choice': {
        const shape = part.of(kindBefore());
        if (shape === undefined) throw new DamagedMetadata(`it is of a kind (${kindBefore()}) that is not known`);
        return this.#table(this.#target(place), shape, depth + 1);
      }
      case 'tables': {
        this.#list(place, 4);
        const list = this.#target(place);
        const count = this.#view.getUint32(list, true);
        for (let i = 0; i < count; i++) this.#table(this.#target(list + 4 + 4 * i), part.of(), depth + 1);
      }
    }
  }

  #list(place: number, elementBytes: number): void {
    const list = this.#target(place);
    this.#within(list, 4);
    this.#within(list + 4, this.#view.getUint32(list, true) * elementBytes);
  }

  /** UTF-8 with a zero behind it. */
  #text(place: number): void {
    this.#list(place, 1);
    const list = this.#target(place);
    const end = list + 4 + this.#view.getUint32(list, true);
    this.#within(end, 1);
    if (this.#view.getUint8(end) !== 0) throw new DamagedMetadata('a name in it has no end');
    if (!isUtf8(new Uint8Array(this.#view.buffer, this.#view.byteOffset + list + 4, end - list - 4)))
      throw new DamagedMetadata('a name in it is not UTF-8');
  }

  /** Offsets point forward from where they stand. */
  #target(place: number): number {
    this.#within(place, 4);
    const offset = this.#view.getUint32(place, true);
    if (offset < 4) throw outside();
    return place + offset;
  }

  #byteAt(place: number): number {
    return place === 0 ? 0 : this.#view.getUint8(place);
  }

  #within(at: number, bytes: number): void {
    if (at < 0 || at + bytes > this.#size) throw outside();
  }
}

function outside(): DamagedMetadata {
  return new DamagedMetadata('it points outside of itself');
}
