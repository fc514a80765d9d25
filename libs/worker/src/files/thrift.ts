// Thrift's compact protocol, as far as Parquet's footers and page headers use it: read into fields by number with their
// types, and written again, so that what this version does not know of is kept as it was. Knows no meaning of a field.
// https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

/** Types of the protocol. TRUE and FALSE are two types of a field, and values of BYTES.bool in a list. */
export const TYPE = {
  true: 1,
  false: 2,
  byte: 3,
  i16: 4,
  i32: 5,
  i64: 6,
  double: 7,
  binary: 8,
  list: 9,
  struct: 12,
} as const;

/** A struct: fields by number. */
export type Struct = Map<number, Field>;
export interface List {
  readonly of: number;
  readonly values: readonly Value[];
}
export type Value = boolean | bigint | number | Buffer | List | Struct;
export interface Field {
  readonly type: number;
  readonly value: Value;
}

/** What is not of the protocol, or ends too early. */
export class ThriftProblem extends Error {}

/** Structs in one another; Parquet's have six. */
const MOST_DEPTH = 32;

/** The struct that begins at `at`, and where it ends. Throws ThriftProblem. */
export function readStruct(bytes: Buffer, at = 0): { readonly struct: Struct; readonly end: number } {
  const reader = new Reader(bytes, at);
  const struct = reader.struct(0);
  return { struct, end: reader.at };
}

class Reader {
  readonly #bytes: Buffer;
  at: number;

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.at = at;
  }

  struct(depth: number): Struct {
    if (depth > MOST_DEPTH) throw new ThriftProblem('it has structs in one another without end');
    const fields: Struct = new Map();
    for (let number = 0; ;) {
      const head = this.#byte();
      if (head === 0) return fields;
      const type = head & 15;
      number = head >> 4 === 0 ? Number(this.#zigzag()) : number + (head >> 4);
      fields.set(number, { type, value: this.#value(type, depth) });
    }
  }

  #value(type: number, depth: number): Value {
    switch (type) {
      case TYPE.true:
        return true;
      case TYPE.false:
        return false;
      case TYPE.byte:
        return this.#byte();
      case TYPE.i16:
      case TYPE.i32:
      case TYPE.i64:
        return this.#zigzag();
      case TYPE.double:
        return this.#take(8).readDoubleLE();
      case TYPE.binary:
        return this.#take(Number(this.#varint()));
      case TYPE.list:
      case 10: // a set is written as a list is
        return this.#list(depth);
      case TYPE.struct:
        return this.struct(depth + 1);
      default:
        throw new ThriftProblem(`it has a field of type ${type}, which there is none of`);
    }
  }

  #list(depth: number): List {
    const head = this.#byte();
    const size = head >> 4 === 15 ? Number(this.#varint()) : head >> 4;
    // each value takes a byte at least
    if (size > this.#bytes.length - this.at) throw new ThriftProblem('a list is longer than what holds it');
    const of = head & 15;
    const isBoolean = of === TYPE.true || of === TYPE.false;
    const values: Value[] = [];
    for (let left = size; left > 0; left--) values.push(isBoolean ? this.#byte() === 1 : this.#value(of, depth));
    return { of, values };
  }

  #take(bytes: number): Buffer {
    if (!(bytes <= this.#bytes.length - this.at)) throw new ThriftProblem('a value ends behind what holds it');
    this.at += bytes;
    return this.#bytes.subarray(this.at - bytes, this.at);
  }

  #byte(): number {
    if (this.at >= this.#bytes.length) throw new ThriftProblem('it ends in the middle');
    return this.#bytes[this.at++]!;
  }

  #varint(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.#byte();
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw new ThriftProblem('a number is longer than 64 bits');
  }

  #zigzag(): bigint {
    const value = this.#varint();
    return (value >> 1n) ^ -(value & 1n);
  }
}

/** The bytes of a struct. */
export function writeStruct(struct: Struct): Buffer {
  const out: Buffer[] = [];
  putStruct(out, struct);
  return Buffer.concat(out);
}

function putStruct(out: Buffer[], struct: Struct): void {
  let last = 0;
  for (const [number, { type, value }] of [...struct].sort(([a], [b]) => a - b)) {
    const step = number - last;
    last = number;
    const written = type === TYPE.true || type === TYPE.false ? (value === true ? TYPE.true : TYPE.false) : type;
    out.push(
      step >= 1 && step <= 15
        ? Buffer.of((step << 4) | written)
        : Buffer.concat([Buffer.of(written), zigzag(BigInt(number))]),
    );
    if (typeof value !== 'boolean') putValue(out, type, value);
  }
  out.push(Buffer.of(0));
}

function putValue(out: Buffer[], type: number, value: Value): void {
  if (Buffer.isBuffer(value)) out.push(varint(BigInt(value.length)), value);
  else if (value instanceof Map) putStruct(out, value);
  else if (typeof value === 'bigint') out.push(zigzag(value));
  else if (typeof value === 'boolean') out.push(Buffer.of(value ? 1 : 2));
  else if (typeof value === 'number') out.push(type === TYPE.double ? doubleBytes(value) : Buffer.of(value));
  else {
    const { of, values } = value;
    out.push(
      values.length < 15
        ? Buffer.of((values.length << 4) | of)
        : Buffer.concat([Buffer.of(0xf0 | of), varint(BigInt(values.length))]),
    );
    for (const one of values) putValue(out, of, one);
  }
}

function doubleBytes(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(value);
  return bytes;
}

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

function zigzag(value: bigint): Buffer {
  return varint(BigInt.asUintN(64, (value << 1n) ^ (value >> 63n)));
}

/** Shorthands for building structs. */
export const i32 = (value: number): Field => ({ type: TYPE.i32, value: BigInt(value) });
export const i64 = (value: number | bigint): Field => ({ type: TYPE.i64, value: BigInt(value) });
export const text = (value: string): Field => ({ type: TYPE.binary, value: Buffer.from(value) });
export const bool = (value: boolean): Field => ({ type: TYPE.true, value });
export const byte = (value: number): Field => ({ type: TYPE.byte, value });
export const list = (of: number, values: readonly Value[]): Field => ({ type: TYPE.list, value: { of, values } });
export const struct = (fields: readonly (readonly [number, Field])[]): Field => ({
  type: TYPE.struct,
  value: new Map(fields),
});

/** A field's value where it has the type that is meant; undefined where it is not there or is another. */
export function numberIn(from: Struct, field: number): number | undefined {
  const value = from.get(field)?.value;
  return typeof value === 'bigint' &&
    value >= BigInt(Number.MIN_SAFE_INTEGER) &&
    value <= BigInt(Number.MAX_SAFE_INTEGER)
    ? Number(value)
    : undefined;
}

export function bytesIn(from: Struct, field: number): Buffer | undefined {
  const value = from.get(field)?.value;
  return Buffer.isBuffer(value) ? value : undefined;
}

export function textIn(from: Struct, field: number): string | undefined {
  return bytesIn(from, field)?.toString();
}

export function structIn(from: Struct, field: number): Struct | undefined {
  const value = from.get(field)?.value;
  return value instanceof Map ? value : undefined;
}

export function listIn(from: Struct, field: number): readonly Value[] | undefined {
  const value = from.get(field)?.value;
  return typeof value === 'object' && 'values' in value && Array.isArray(value.values) ? value.values : undefined;
}

export function structsIn(from: Struct, field: number): readonly Struct[] | undefined {
  const values = listIn(from, field);
  return values?.every((one) => one instanceof Map) === true ? values : undefined;
}
