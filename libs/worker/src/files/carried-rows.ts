// The rows of Parquet files with a column of vectors more. The other columns are copied as bytes, not decoded and encoded
// again: types, encodings and compression stay what they were, also those that nobody here knows. Row groups keep their
// rows; a row whose text got no vector has null. In the file a row group begins with its vectors, page by page as they
// come, and ends with the copies, so that neither vectors nor columns are held in memory and a run that was interrupted
// goes on behind its last page. Scales of i8 lie between the two, and come with the vectors: those of a row group are held
// (4 bytes a row) and kept in a file beside for a run that goes on.

import { invariant } from '@shoal/contract';
import { MODEL_KEY } from '@shoal/similarity/model-key';
import { ARROW_SCHEMA, withVectorColumn } from './arrow-schema.ts';
import { MAGIC, readAt, refused } from './footer.ts';
import {
  bytesOf,
  chunkStruct,
  flatColumn,
  footerBytes,
  optionalFloats,
  vectorColumn,
  vectorPage,
  type OwnChunk,
  type OwnColumn,
} from './pages.ts';
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
} from './thrift.ts';
import { carriedGroups } from './carried-columns.ts';
import { damagedParquet, keyValue, ownPageAt } from './parquet-rows.ts';
import type {
  Block,
  CarriedFile,
  CarriedGroup,
  EncodedRows,
  ReadAt,
  RowEncoder,
  RowForm,
  Written,
} from './row-form.ts';
import { ScaleSpool } from './scale-spool.ts';
import { encodeVectors, scaleColumn } from './vector-form.ts';

/** Of a page of vectors. */
const PAGE_ROWS = 1_024;
/** What is held of a column that is copied. */
const COPY_BYTES = 4 * 1024 * 1024;

/** A row group of the input, and what of it is in the output. */
interface Group extends CarriedGroup {
  /** Where its vectors begin. */
  readonly at: number;
  /** Rows whose vectors are written. */
  written: number;
  /** Of the column of vectors. */
  bytes: number;
  rawBytes: number;
  values: number;
  /** Behind the vectors, of i8. */
  scales: OwnChunk | undefined;
  /** Bytes of the other columns that are written. */
  copied: number;
}

export class CarriedEncoder implements RowEncoder {
  readonly #form: RowForm;
  readonly #column: OwnColumn;
  readonly #scaleColumn: OwnColumn | undefined;
  readonly #scales: ScaleSpool | undefined;
  readonly #files: readonly CarriedFile[];
  readonly #inputs: readonly CarriedGroup[];
  /** Which row of the input is the first of this file. */
  readonly #firstRow: number;
  /** All that were begun; the last one may be incomplete. */
  readonly #groups: Group[] = [];
  #bytes = MAGIC.length;
  /** Rows that are written, in all groups. */
  #written = 0;
  /** The page that is being filled: which rows have no vector, and the vectors of the others. */
  #nulls: boolean[] = [];
  readonly #vectors: Float32Array<ArrayBuffer>;
  #there = 0;
  #position: number;

  private constructor(form: RowForm, files: readonly CarriedFile[], position: number) {
    this.#form = form;
    this.#vectors = new Float32Array(PAGE_ROWS * form.dims);
    this.#files = files;
    const { vectorField = 'embedding', dtype = 'f32', shard } = form;
    this.#column = vectorColumn(vectorField, dtype);
    this.#scaleColumn = dtype === 'i8' ? flatColumn(scaleColumn(vectorField), 'float', 'optional') : undefined;
    this.#scales = dtype === 'i8' ? new ScaleSpool(form.scalesPath) : undefined;
    this.#inputs = shard?.groups ?? carriedGroups(files);
    this.#firstRow = shard?.firstRow ?? 0;
    this.#position = position;
  }

  /**
   * Pages and copies of `written` are kept; the caller has cut the file behind the last of them. `position`: good
   * records that are done with before a new file.
   */
  static async open(
    form: RowForm,
    files: readonly CarriedFile[],
    written: Written | undefined,
    position: number,
  ): Promise<CarriedEncoder> {
    const encoder = new CarriedEncoder(form, files, written?.position ?? position);
    if (written !== undefined) await encoder.#walk(written.read, written.bytes);
    return encoder;
  }

  head(): Buffer {
    return MAGIC;
  }

  async *encode({ records, dims, vectors, position }: Block): AsyncGenerator<EncodedRows> {
    for (const [row, { index }] of records.entries()) {
      // rows in between were skipped, or their job failed
      yield* this.#fill(index - this.#firstRow);
      this.#vectors.set(vectors.subarray(row * dims, (row + 1) * dims), this.#there++ * dims);
      this.#nulls.push(false);
      this.#position = position - records.length + row + 1;
      yield* this.#close();
    }
  }

  /** The rows behind the last one that has a vector. */
  async *flush(): AsyncGenerator<EncodedRows> {
    // a run may have ended in the middle of a copy
    yield* this.#copy();
    yield* this.#fill(this.#total);
  }

  tail(): Buffer {
    const [first] = this.#files;
    invariant(first !== undefined, 'columns come from a file');
    const { footer } = first.parquet;
    const [root, ...elements] = structsIn(footer, 2) ?? [];
    const columns = numberIn(root!, 5) ?? 0;
    const orders = listIn(footer, 7);
    const own = this.#scaleColumn === undefined ? [this.#column] : [this.#column, this.#scaleColumn];
    const schema = [
      new Map([...root!, [5, i32(columns + own.length)] as const]),
      ...elements,
      ...own.flatMap((column) => column.elements),
    ];
    return footerBytes(
      new Map([
        ...footer,
        [2, list(TYPE.struct, schema)],
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
        ...(orders === undefined
          ? []
          : ([[7, list(TYPE.struct, [...orders, ...own.map(() => new Map([[1, struct([])]]))])]] as const)),
      ]),
    );
  }

  async *#fill(index: number): AsyncGenerator<EncodedRows> {
    while (this.#written + this.#nulls.length < index) {
      this.#nulls.push(true);
      yield* this.#close();
    }
  }

  /** The page where it is full or the last of its row group; behind that the other columns of the group. */
  async *#close(): AsyncGenerator<EncodedRows> {
    yield* this.#copy();
    const group = this.#current();
    const nulls = this.#nulls;
    if (nulls.length < Math.min(PAGE_ROWS, group.rows - group.written)) return;
    const { dims, dtype = 'f32' } = this.#form;
    const there = this.#there;
    const encoded = encodeVectors(this.#vectors.subarray(0, there * dims), there, dims, dtype);
    const page = vectorPage(encoded, nulls, dtype);
    const bytes = bytesOf([page]);
    if (encoded.scales !== undefined) await this.#scales?.add(this.#written, encoded.scales, nulls);
    this.#count(group, page, nulls.length);
    [this.#nulls, this.#there] = [[], 0];
    yield { bytes, rows: there, position: this.#position };
    yield* this.#copy();
  }

  #current(): Group {
    const last = this.#groups.at(-1);
    if (last !== undefined && last.written < last.rows) return last;
    const input = this.#inputs[this.#groups.length];
    invariant(input !== undefined, 'no more rows come than the files have');
    const group = {
      ...input,
      at: this.#bytes,
      written: 0,
      bytes: 0,
      rawBytes: 0,
      values: 0,
      scales: undefined,
      copied: 0,
    };
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

  /** What is missing of scales and of the other columns, where all vectors of the row group are written. */
  async *#copy(): AsyncGenerator<EncodedRows> {
    const group = this.#groups.at(-1);
    if (group === undefined || group.written < group.rows) return;
    if (this.#scales !== undefined && group.scales === undefined)
      yield { bytes: this.#endScales(group, this.#scales), rows: 0, position: this.#position };
    if (group.copied === copyBytes(group)) return;
    const file = await group.file.open();
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

  /** The scales of a row group, whose vectors are the last that were written. */
  #endScales(group: Group, scales: ScaleSpool): Buffer {
    const pages = [...scales.take(PAGE_ROWS)].map(({ values, isNull }) => optionalFloats(values, isNull));
    const bytes = bytesOf(pages);
    const rawBytes = pages.reduce((sum, page) => sum + page.rawBytes, 0);
    group.scales = { at: this.#bytes, bytes: bytes.length, rawBytes, values: group.rows };
    this.#bytes += bytes.length;
    return bytes;
  }

  /** From page to page: a footer would know them, and a file that is not finished has none. */
  async #walk(read: ReadAt, bytes: number): Promise<void> {
    while (this.#bytes < bytes) {
      if (this.#groups.length === this.#inputs.length && this.#written === this.#total)
        throw damagedParquet(this.#bytes);
      const group = this.#current();
      while (group.written < group.rows && this.#bytes < bytes)
        this.#count(group, await ownPageAt(read, this.#bytes, bytes), Math.min(PAGE_ROWS, group.rows - group.written));
      if (this.#scales !== undefined) await this.#walkScales(this.#scales, group, read, bytes);
      if (group.written < group.rows || this.#bytes === bytes) break;
      group.copied = Math.min(copyBytes(group), bytes - this.#bytes);
      this.#bytes += group.copied;
    }
  }

  /** Those that are not in the file yet are beside it. */
  async #walkScales(scales: ScaleSpool, group: Group, read: ReadAt, end: number): Promise<void> {
    if (this.#bytes === end) return scales.reload(this.#written - group.written, group.written);
    const chunk = { at: this.#bytes, bytes: 0, rawBytes: 0, values: group.rows };
    for (let row = 0; row < group.rows; row += PAGE_ROWS) {
      const page = await ownPageAt(read, this.#bytes, end);
      chunk.bytes += page.bytes;
      chunk.rawBytes += page.rawBytes;
      this.#bytes += page.bytes;
    }
    group.scales = chunk;
  }

  get #total(): number {
    return this.#inputs.reduce((sum, { rows }) => sum + rows, 0);
  }

  #groupStruct(group: Group, at: number): Struct {
    const old = structsIn(group.file.parquet.footer, 4)![group.number]!;
    const { scales } = group;
    let offset = group.at + group.bytes + (scales?.bytes ?? 0);
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
    const own = [
      chunkStruct(this.#column, { at: group.at, bytes, rawBytes, values }),
      ...(scales === undefined ? [] : [chunkStruct(this.#scaleColumn!, scales)]),
    ];
    const whole: Struct = new Map([
      ...old,
      [1, list(TYPE.struct, [...columns, ...own])],
      ...more(2, rawBytes + (scales?.rawBytes ?? 0)),
      ...more(6, bytes + (scales?.bytes ?? 0)),
      ...(old.has(7) && at < 0x7fff ? ([[7, { type: TYPE.i16, value: BigInt(at) }]] as const) : []),
    ]);
    // where the row group began in the input
    whole.delete(5);
    return whole;
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
