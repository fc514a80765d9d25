// The pages of columns that Shoal adds to a Parquet file: vectors as lists, and flat columns of ids, texts and scales. One
// encoding (PLAIN) and one form of page (v1), which every reader has. Column chunks are these pages one after the other.
// https://github.com/apache/parquet-format

import zlib from 'node:zlib';
import { npyRows } from './npy.ts';
import type { VectorValues } from './vector-form.ts';
import type { OutputDtype } from '@shoal/contract';
import { REPETITION, PHYSICAL, type Physical } from './footer.ts';
import {
  TYPE,
  bool,
  byte,
  i32,
  i64,
  list,
  numberIn,
  readStruct,
  struct,
  structIn,
  text,
  writeStruct,
  type Field,
  type Struct,
} from './thrift.ts';

const PLAIN = 0;
const RLE = 3;
const DATA_PAGE = 0;
export const CODEC = { none: 0, gzip: 2 } as const;

/** A page with its header, in pieces that are views of what it was made of. */
export interface Page {
  readonly pieces: readonly Buffer[];
  readonly bytes: number;
  readonly values: number;
  /** What it would be without compression, header included. */
  readonly rawBytes: number;
}

/** Rows of vectors; `isNull` says which rows have none, and `vectors` holds only those of the others. */
export function vectorPage(
  { values, width }: Pick<VectorValues, 'values' | 'width'>,
  isNull: readonly boolean[],
  dtype: OutputDtype,
): Page {
  const repetition = new Runs();
  const definition = new Runs();
  for (const none of isNull) {
    repetition.add(0, 1);
    if (!none) repetition.add(1, width - 1);
    definition.add(none ? 0 : LIST_LEVELS, none ? 1 : width);
  }
  const count = isNull.reduce((sum, none) => sum + (none ? 1 : width), 0);
  return page([levels(repetition.end()), levels(definition.end()), plain(values, dtype)], count, codecOf(dtype));
}

/** A vector that is there and has a value: an optional list of required values. */
const LIST_LEVELS = 2;

/** Whole numbers have no type of 8 bits, and would take four times their size. */
export function codecOf(dtype: OutputDtype): number {
  return dtype === 'i8' || dtype === 'binary' ? CODEC.gzip : CODEC.none;
}

function plain(values: VectorValues['values'], dtype: OutputDtype): Buffer {
  return dtype === 'i8' || dtype === 'binary' ? npyBytes(Int32Array.from(values)) : npyRows(values);
}

function npyBytes(values: Int32Array): Buffer {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}

/** A float for each row that has one; `isNull` says which have none, and `floats` holds only those of the others. */
export function optionalFloats(floats: Float32Array, isNull: readonly boolean[]): Page {
  const definition = new Runs();
  for (const none of isNull) definition.add(none ? 0 : 1, 1);
  return page([levels(definition.end()), npyRows(floats)], isNull.length, CODEC.none);
}

/** Values that are all there. */
export function requiredPage(values: Buffer, count: number, codec: number = CODEC.none): Page {
  return page([values], count, codec);
}

/** Strings as PLAIN has them: the length, then the bytes. */
export function plainStrings(strings: readonly Buffer[]): Buffer {
  return Buffer.concat(strings.flatMap((one) => [u32(one.length), one]));
}

function page(parts: readonly Buffer[], count: number, codec: number): Page {
  const raw = lengthOf(parts);
  const body = codec === CODEC.gzip ? [zlib.gzipSync(Buffer.concat(parts), { level: 1 })] : parts;
  const header = writeStruct(
    new Map([
      [1, i32(DATA_PAGE)],
      [2, i32(raw)],
      [3, i32(lengthOf(body))],
      [
        5,
        struct([
          [1, i32(count)],
          [2, i32(PLAIN)],
          [3, i32(RLE)],
          [4, i32(RLE)],
        ]),
      ],
    ]),
  );
  const pieces = [header, ...body];
  return { pieces, bytes: lengthOf(pieces), values: count, rawBytes: header.length + raw };
}

function lengthOf(parts: readonly Buffer[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

/** Pages one after the other. */
export function bytesOf(pages: readonly Page[]): Buffer {
  return Buffer.concat(pages.flatMap(({ pieces }) => pieces));
}

/** The most that a header of ours has. */
export const HEADER_BYTES = 64;

/** A page of ours by its first bytes: how long it is and what is in it. Throws ThriftProblem. */
export function pageAt(head: Buffer): { readonly bytes: number; readonly rawBytes: number; readonly values: number } {
  const { struct: header, end } = readStruct(head);
  const data = structIn(header, 5);
  const [raw, body, values] = [
    numberIn(header, 2),
    numberIn(header, 3),
    data === undefined ? undefined : numberIn(data, 1),
  ];
  return { bytes: end + (body ?? NaN), rawBytes: end + (raw ?? NaN), values: values ?? NaN };
}

/** Levels in runs: how often, then which. */
class Runs {
  readonly #bytes: number[] = [];
  #level = 0;
  #count = 0;

  add(level: number, count: number): void {
    if (count === 0) return;
    if (level !== this.#level) this.#close();
    this.#level = level;
    this.#count += count;
  }

  end(): Buffer {
    this.#close();
    return Buffer.from(this.#bytes);
  }

  #close(): void {
    if (this.#count === 0) return;
    let rest = this.#count * 2;
    for (; rest > 127; rest = Math.floor(rest / 128)) this.#bytes.push((rest & 127) | 128);
    this.#bytes.push(rest, this.#level);
    this.#count = 0;
  }
}

function levels(runs: Buffer): Buffer {
  return Buffer.concat([u32(runs.length), runs]);
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

/** A chunk of a column of ours. */
export interface OwnChunk {
  readonly at: number;
  readonly bytes: number;
  readonly rawBytes: number;
  readonly values: number;
}

/** A column of ours: what the schema says of it, and where a value of it lies below that. */
export interface OwnColumn {
  readonly elements: readonly Struct[];
  readonly path: readonly string[];
  readonly physical: Physical;
  readonly codec: number;
}

const FLAT = { string: 'BYTE_ARRAY', int64: 'INT64', int32: 'INT32', boolean: 'BOOLEAN', float: 'FLOAT' } as const;

export function flatColumn(
  name: string,
  kind: keyof typeof FLAT,
  repetition: 'required' | 'optional' = 'required',
): OwnColumn {
  const physical = FLAT[kind];
  const meaning =
    kind === 'string'
      ? ([
          [6, i32(0)],
          [10, struct([[1, struct([])]])],
        ] as const)
      : [];
  const element: Struct = new Map([
    [1, i32(PHYSICAL.indexOf(physical))],
    [3, i32(REPETITION[repetition])],
    [4, text(name)],
    ...meaning,
  ]);
  return { elements: [element], path: [name], physical, codec: kind === 'string' ? CODEC.gzip : CODEC.none };
}

/** Of 8 bits. */
const integer = (isSigned: boolean): Field =>
  struct([
    [
      10,
      struct([
        [1, byte(8)],
        [2, bool(isSigned)],
      ]),
    ],
  ]);

/** An optional list of required values, as the format says lists are written. */
export function vectorColumn(name: string, dtype: OutputDtype): OwnColumn {
  const physical = dtype === 'f32' ? 'FLOAT' : dtype === 'f16' ? 'FIXED_LEN_BYTE_ARRAY' : 'INT32';
  const meaning: Struct =
    dtype === 'f16'
      ? new Map([
          [2, i32(2)],
          [10, struct([[15, struct([])]])],
        ])
      : dtype === 'f32'
        ? new Map()
        : new Map([
            [6, i32(dtype === 'i8' ? 15 : 11)],
            [10, integer(dtype === 'i8')],
          ]);
  const elements: readonly Struct[] = [
    new Map([
      [3, i32(REPETITION.optional)],
      [4, text(name)],
      [5, i32(1)],
      [6, i32(3)],
      [10, struct([[3, struct([])]])],
    ]),
    new Map([
      [3, i32(REPETITION.repeated)],
      [4, text('list')],
      [5, i32(1)],
    ]),
    new Map([[1, i32(PHYSICAL.indexOf(physical))], [3, i32(REPETITION.required)], [4, text('element')], ...meaning]),
  ];
  return { elements, path: [name, 'list', 'element'], physical, codec: codecOf(dtype) };
}

/** What a row group says of a chunk of ours. */
export function chunkStruct({ path, physical, codec }: OwnColumn, { at, bytes, rawBytes, values }: OwnChunk): Struct {
  return new Map([
    [2, i64(0)],
    [
      3,
      struct([
        [1, i32(PHYSICAL.indexOf(physical))],
        [2, list(TYPE.i32, [BigInt(PLAIN), BigInt(RLE)])],
        [
          3,
          list(
            TYPE.binary,
            path.map((name) => Buffer.from(name)),
          ),
        ],
        [4, i32(codec)],
        [5, i64(values)],
        [6, i64(rawBytes)],
        [7, i64(bytes)],
        [9, i64(at)],
      ]),
    ],
  ]);
}

/** The end of a file: the footer, its length and the magic. */
export function footerBytes(footer: Struct): Buffer {
  const bytes = writeStruct(footer);
  return Buffer.concat([bytes, u32(bytes.length), Buffer.from('PAR1')]);
}
