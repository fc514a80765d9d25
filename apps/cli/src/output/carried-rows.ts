// The rows of Parquet files with a column of vectors more. The other columns are copied as bytes, not decoded and encoded
// again: types, encodings and compression stay what they were, also those that nobody here knows. Row groups keep their
// rows; a row whose text got no vector has null. In the file a row group begins with its vectors, page by page as they
// come, and ends with the copies, so that neither vectors nor columns are held in memory and a run that was interrupted
// goes on behind its last page.

import { open } from 'node:fs/promises';
import { invariant } from '@shoal/contract';
import { MODEL_KEY } from '@shoal/similarity/model-key';
import { ARROW_SCHEMA, withVectorColumn } from '../parquet/arrow-schema.ts';
import { MAGIC, readAt, refused } from '../parquet/footer.ts';
import { chunkStruct, footerBytes, vectorColumn, vectorPage, type OwnChunk, type OwnColumn } from '../parquet/pages.ts';
import {
  TYPE,
  i32,
  i64,
  list,
  listIn,
  numberIn,
  struct,
  structIn,
  structsIn,
  textIn,
  type Field,
  type Struct,
} from '../parquet/thrift.ts';
import { damagedParquet, keyValue, ownPageAt } from './parquet-rows.ts';
import type { Block, CarriedFile, EncodedRows, ReadAt, RowEncoder, RowForm, Written } from './row-form.ts';
import { encodeVectors } from './vector-form.ts';

/** Of a page of vectors. */
const PAGE_ROWS = 1_024;
/** What is held of a column that is copied. */
const COPY_BYTES = 4 * 1024 * 1024;

/** A row group of the input, and what of it is in the output. */
interface Group {
  readonly file: CarriedFile;
  readonly number: number;
  readonly rows: number;
  /** Where its vectors begin. */
  readonly at: number;
  /** Rows whose vectors are written. */
  written: number;
  /** Of the column of vectors. */
  bytes: number;
  rawBytes: number;
  values: number;
  /** Bytes of the other columns that are written. */
  copied: number;
}

export class CarriedEncoder implements RowEncoder {
  readonly #form: RowForm;
  readonly #column: OwnColumn;
  readonly #files: readonly CarriedFile[];
  readonly #inputs: readonly Pick<Group, 'file' | 'number' | 'rows'>[];
  /** All that were begun; the last one may be incomplete. */
  readonly #groups: Group[] = [];
  #bytes = MAGIC.length;
  /** Rows that are written, in all groups. */
  #written = 0;
  /** The page that is being filled: undefined for a row without a vector. */
  #page: (Float32Array | undefined)[] = [];
  #position: number;

  private constructor(form: RowForm, files: readonly CarriedFile[], position: number) {
    this.#form = form;
    this.#files = files;
    this.#column = vectorColumn(form.vectorField ?? 'embedding', form.dtype ?? 'f32');
    this.#inputs = files.flatMap((file) =>
      file.parquet.groups.flatMap(({ rows }, number) => (rows === 0 ? [] : [{ file, number, rows }])),
    );
    this.#position = position;
  }

  /** Pages and copies of `written` are kept; the caller has cut the file behind the last of them. */
  static async open(form: RowForm, files: readonly CarriedFile[], written?: Written): Promise<CarriedEncoder> {
    const encoder = new CarriedEncoder(form, files, written?.position ?? 0);
    if (written !== undefined) await encoder.#walk(written.read, written.bytes);
    return encoder;
  }

  head(): Buffer {
    return MAGIC;
  }

  async *encode({ records, dims, vectors, position }: Block): AsyncGenerator<EncodedRows> {
    for (const [row, { index }] of records.entries()) {
      // rows in between were skipped, or their job failed
      yield* this.#fill(index);
      this.#page.push(vectors.subarray(row * dims, (row + 1) * dims));
      this.#position = position - records.length + row + 1;
      yield* this.#close();
    }
  }

  /** The rows behind the last one that has a vector. */
  async *flush(): AsyncGenerator<EncodedRows> {
    // a run may have ended in the middle of a copy
    yield* this.#copy();
    yield* this.#fill(this.#inputs.reduce((sum, { rows }) => sum + rows, 0));
  }

  tail(): Buffer {
    const [first] = this.#files;
    invariant(first !== undefined, 'columns come from a file');
    const { footer } = first.parquet;
    const [root, ...elements] = structsIn(footer, 2) ?? [];
    const columns = numberIn(root!, 5) ?? 0;
    const orders = listIn(footer, 7);
    return footerBytes(
      new Map([
        ...footer,
        [2, list(TYPE.struct, [new Map([...root!, [5, i32(columns + 1)]]), ...elements, ...this.#column.elements])],
        [3, i64(this.#groups.reduce((sum, { rows }) => sum + rows, 0))],
        [
          4,
          list(
            TYPE.struct,
            this.#groups.map((group, at) => this.#groupStruct(group, at)),
          ),
        ],
        [5, list(TYPE.struct, this.#notes(structsIn(footer, 5) ?? []))],
        // the order of each leaf: that of its type
        ...(orders === undefined ? [] : ([[7, list(TYPE.struct, [...orders, new Map([[1, struct([])]])])]] as const)),
      ]),
    );
  }

  async *#fill(index: number): AsyncGenerator<EncodedRows> {
    while (this.#written + this.#page.length < index) {
      this.#page.push(undefined);
      yield* this.#close();
    }
  }

  /** The page where it is full or the last of its row group; behind that the other columns of the group. */
  async *#close(): AsyncGenerator<EncodedRows> {
    yield* this.#copy();
    const group = this.#current();
    if (this.#page.length < Math.min(PAGE_ROWS, group.rows - group.written)) return;
    const { dtype = 'f32' } = this.#form;
    const there = this.#page.filter((vector) => vector !== undefined);
    const all = new Float32Array(there.length * this.#form.dims);
    for (const [at, vector] of there.entries()) all.set(vector, at * this.#form.dims);
    const nulls = this.#page.map((vector) => vector === undefined);
    const { bytes, ...facts } = vectorPage(encodeVectors(all, there.length, this.#form.dims, dtype), nulls, dtype);
    this.#count(group, { ...facts, bytes: bytes.length }, this.#page.length);
    this.#page = [];
    yield { bytes, rows: there.length, position: this.#position };
    yield* this.#copy();
  }

  #current(): Group {
    const last = this.#groups.at(-1);
    if (last !== undefined && last.written < last.rows) return last;
    const input = this.#inputs[this.#groups.length];
    invariant(input !== undefined, 'no more rows come than the files have');
    const group = { ...input, at: this.#bytes, written: 0, bytes: 0, rawBytes: 0, values: 0, copied: 0 };
    this.#groups.push(group);
    return group;
  }

  #count(group: Group, { bytes, rawBytes, values }: Omit<OwnChunk, 'at'>, rows: number): void {
    group.bytes += bytes;
    group.rawBytes += rawBytes;
    group.values += values;
    group.written += rows;
    this.#bytes += bytes;
    this.#written += rows;
  }

  /** What is missing of the other columns, where all vectors of the row group are written. */
  async *#copy(): AsyncGenerator<EncodedRows> {
    const group = this.#groups.at(-1);
    if (group === undefined || group.written < group.rows || group.copied === copyBytes(group)) return;
    const file = await open(group.file.path, 'r');
    try {
      let before = 0;
      for (const { at, bytes } of chunksOf(group)) {
        for (let from = Math.max(0, group.copied - before); from < bytes; from = group.copied - before) {
          const part = await readAt(file, at + from, Math.min(COPY_BYTES, bytes - from));
          if (part.length === 0)
            throw refused(group.file.parquet.name, 'the file has become shorter while it was read');
          group.copied += part.length;
          this.#bytes += part.length;
          yield { bytes: part, rows: 0, position: this.#position };
        }
        before += bytes;
      }
    } finally {
      await file.close();
    }
  }

  /** From page to page: a footer would know them, and a file that is not finished has none. */
  async #walk(read: ReadAt, bytes: number): Promise<void> {
    while (this.#bytes < bytes) {
      if (this.#groups.length === this.#inputs.length && this.#written === this.#total)
        throw damagedParquet(this.#bytes);
      const group = this.#current();
      while (group.written < group.rows && this.#bytes < bytes)
        this.#count(group, await ownPageAt(read, this.#bytes, bytes), Math.min(PAGE_ROWS, group.rows - group.written));
      if (group.written < group.rows) break;
      group.copied = Math.min(copyBytes(group), bytes - this.#bytes);
      this.#bytes += group.copied;
    }
  }

  get #total(): number {
    return this.#inputs.reduce((sum, { rows }) => sum + rows, 0);
  }

  #groupStruct(group: Group, at: number): Struct {
    const old = structsIn(group.file.parquet.footer, 4)![group.number]!;
    let offset = group.at + group.bytes;
    const columns = structsIn(old, 1)!.map((column, leaf) => {
      const chunk = chunksOf(group)[leaf]!;
      const moved = movedColumn(column, offset - chunk.at);
      offset += chunk.bytes;
      return moved;
    });
    const { bytes, rawBytes, values } = group;
    const more = (field: number, by: number) => {
      const before = numberIn(old, field);
      return before === undefined ? [] : ([[field, i64(before + by)]] as const);
    };
    const own: Struct = new Map([
      ...old,
      [1, list(TYPE.struct, [...columns, chunkStruct(this.#column, { at: group.at, bytes, rawBytes, values })])],
      ...more(2, rawBytes),
      ...more(6, bytes),
      ...(old.has(7) && at < 0x7fff ? ([[7, { type: TYPE.i16, value: BigInt(at) }]] as const) : []),
    ]);
    // where the row group began in the input
    own.delete(5);
    return own;
  }

  /** What the file says of itself: Arrow's schema with a column more, and which model made the vectors. */
  #notes(old: readonly Struct[]): readonly Struct[] {
    const { model, dtype = 'f32', vectorField = 'embedding' } = this.#form;
    const kept = old.flatMap((note) => {
      if (textIn(note, 1) === MODEL_KEY) return [];
      if (textIn(note, 1) !== ARROW_SCHEMA) return [note];
      const schema = withVectorColumn(textIn(note, 2) ?? '', vectorField, dtype);
      return schema === undefined ? [] : [keyValue(ARROW_SCHEMA, schema)];
    });
    return model === undefined ? kept : [...kept, keyValue(MODEL_KEY, model)];
  }
}

function chunksOf({ file, number }: Group) {
  return file.parquet.groups[number]!.chunks;
}

function copyBytes(group: Group): number {
  return chunksOf(group).reduce((sum, { bytes }) => sum + bytes, 0);
}

/** Indexes of pages and Bloom filters lie elsewhere in the input and are left out; readers do without. */
const INDEXES = [4, 5, 6, 7];
const BLOOM_FILTERS = [14, 15];
/** Of data, index and dictionary pages. */
const OFFSETS = [9, 10, 11];

/** What a row group says of a column, `by` bytes further on. */
function movedColumn(column: Struct, by: number): Struct {
  const facts = new Map(structIn(column, 3));
  for (const field of BLOOM_FILTERS) facts.delete(field);
  for (const field of OFFSETS) {
    const offset = numberIn(facts, field);
    if (offset !== undefined && offset > 0) facts.set(field, i64(offset + by));
  }
  const moved = new Map([
    ...column,
    [2, i64(0)],
    [3, { type: TYPE.struct, value: facts }],
  ] as const satisfies readonly (readonly [number, Field])[]);
  for (const field of INDEXES) moved.delete(field);
  return moved;
}
