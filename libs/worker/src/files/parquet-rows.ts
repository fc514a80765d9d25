// Rows as a Parquet file of their own: id or index, text where asked for, embedding. Row groups are cut by rows and bytes
// alone, and hold one page a column, so that a file that was interrupted can be read through and gone on with.

import { ShoalError } from '@shoal/contract';
import { MODEL_KEY } from '@shoal/similarity/model-key';
import { MAGIC } from './footer.ts';
import {
  HEADER_BYTES,
  bytesOf,
  chunkStruct,
  flatColumn,
  footerBytes,
  pageAt,
  plainStrings,
  requiredPage,
  vectorColumn,
  vectorPage,
  type OwnChunk,
  type OwnColumn,
  type Page,
} from './pages.ts';
import { TYPE, ThriftProblem, i32, i64, list, text, type Struct } from './thrift.ts';
import type { Block, EncodedRows, ReadAt, RowEncoder, RowForm, Written } from './row-form.ts';
import { encodeVectors, scaleColumn } from './vector-form.ts';

/** 2,048 rows of 384 dimensions are 3 MB: large enough to be read in one go, small enough that a killed run loses seconds. */
const GROUP_ROWS = 2_048;
const GROUP_TEXT_BYTES = 16 * 1024 * 1024;

interface Row {
  readonly name: string | number;
  readonly text: Buffer;
  /** Negative where the text was cut. */
  readonly tokens: number;
  readonly position: number;
}

interface Group {
  readonly rows: number;
  readonly chunks: readonly OwnChunk[];
}

export class ParquetEncoder implements RowEncoder {
  readonly #form: RowForm;
  readonly #columns: readonly OwnColumn[];
  readonly #groups: Group[] = [];
  #bytes = MAGIC.length;
  #rows: Row[] = [];
  /** Of these rows. */
  readonly #vectors: Float32Array<ArrayBuffer>;
  #textBytes = 0;

  private constructor(form: RowForm) {
    this.#form = form;
    this.#vectors = new Float32Array(GROUP_ROWS * form.dims);
    const { hasIds, withText, withTokens = false, dtype = 'f32', vectorField = 'embedding' } = form;
    this.#columns = [
      hasIds ? flatColumn('id', 'string') : flatColumn('index', 'int64'),
      ...(withText ? [flatColumn('text', 'string')] : []),
      ...(withTokens ? [flatColumn('tokens', 'int32'), flatColumn('truncated', 'boolean')] : []),
      vectorColumn(vectorField, dtype),
      ...(dtype === 'i8' ? [flatColumn(scaleColumn(vectorField), 'float')] : []),
    ];
  }

  /** Whole row groups of `written` are kept; the caller has cut the file behind the last of them. */
  static async open(form: RowForm, written?: Written): Promise<ParquetEncoder> {
    const encoder = new ParquetEncoder(form);
    if (written !== undefined) await encoder.#walk(written.read, written.bytes);
    return encoder;
  }

  head(): Buffer {
    return MAGIC;
  }

  encode({ records, dims, vectors, rowTokens, position }: Block): readonly EncodedRows[] {
    const done: EncodedRows[] = [];
    for (const [row, record] of records.entries()) {
      const own = this.#form.withText ? Buffer.from(record.text) : NO_TEXT;
      if (this.#rows.length > 0 && this.#textBytes + own.length > GROUP_TEXT_BYTES) done.push(...this.flush());
      this.#vectors.set(vectors.subarray(row * dims, (row + 1) * dims), this.#rows.length * dims);
      this.#rows.push({
        name: this.#form.hasIds ? String(record.id) : record.index,
        text: own,
        tokens: rowTokens?.[row] ?? 0,
        position: position - records.length + row + 1,
      });
      this.#textBytes += own.length;
      if (this.#rows.length === GROUP_ROWS) done.push(...this.flush());
    }
    return done;
  }

  flush(): readonly EncodedRows[] {
    const rows = this.#rows;
    if (rows.length === 0) return [];
    [this.#rows, this.#textBytes] = [[], 0];
    const pages = this.#pagesOf(rows);
    this.#keep(
      rows.length,
      pages.map(({ bytes, rawBytes, values }) => ({ bytes, rawBytes, values })),
    );
    return [{ bytes: bytesOf(pages), rows: rows.length, position: rows.at(-1)!.position }];
  }

  tail(): Buffer {
    const groups = this.#groups.map(({ rows, chunks }, at) => this.#groupStruct(rows, chunks, at));
    const rows = this.#groups.reduce((sum, group) => sum + group.rows, 0);
    const { model } = this.#form;
    const root: Struct = new Map([
      [4, text('schema')],
      [5, i32(this.#columns.length)],
    ]);
    const footer: Struct = new Map([
      [1, i32(2)],
      [2, list(TYPE.struct, [root, ...this.#columns.flatMap(({ elements }) => elements)])],
      [3, i64(rows)],
      [4, list(TYPE.struct, groups)],
      ...(model === undefined ? [] : ([[5, list(TYPE.struct, [keyValue(MODEL_KEY, model)])]] as const)),
      [6, text('shoal')],
    ]);
    return footerBytes(footer);
  }

  #groupStruct(rows: number, chunks: readonly OwnChunk[], at: number): Struct {
    const sum = (of: (chunk: OwnChunk) => number): number => chunks.reduce((all, chunk) => all + of(chunk), 0);
    return new Map([
      [
        1,
        list(
          TYPE.struct,
          chunks.map((chunk, column) => chunkStruct(this.#columns[column]!, chunk)),
        ),
      ],
      [2, i64(sum(({ rawBytes }) => rawBytes))],
      [3, i64(rows)],
      [6, i64(sum(({ bytes }) => bytes))],
      ...(at < 0x7fff ? ([[7, { type: TYPE.i16, value: BigInt(at) }]] as const) : []),
    ]);
  }

  #pagesOf(rows: readonly Row[]): readonly Page[] {
    const { dims, hasIds, withText, withTokens = false, dtype = 'f32' } = this.#form;
    const vectors = this.#vectors.subarray(0, rows.length * dims);
    const encoded = encodeVectors(vectors, rows.length, dims, dtype);
    const strings = (of: (row: Row) => Buffer): Page =>
      requiredPage(plainStrings(rows.map(of)), rows.length, flatColumn('', 'string').codec);
    return [
      hasIds
        ? strings(({ name }) => Buffer.from(String(name)))
        : requiredPage(int64s(rows.map(({ name }) => Number(name))), rows.length),
      ...(withText ? [strings((row) => row.text)] : []),
      ...(withTokens ? tokenPages(rows.map(({ tokens }) => tokens)) : []),
      vectorPage(
        encoded,
        rows.map(() => false),
        dtype,
      ),
      ...(encoded.scales === undefined ? [] : [requiredPage(Buffer.from(encoded.scales.buffer), rows.length)]),
    ];
  }

  #keep(rows: number, pages: readonly Omit<OwnChunk, 'at'>[]): void {
    const chunks = pages.map((page) => {
      const chunk = { ...page, at: this.#bytes };
      this.#bytes += page.bytes;
      return chunk;
    });
    this.#groups.push({ rows, chunks });
  }

  /** From page to page: a footer would know them, and a file that is not finished has none. */
  async #walk(read: ReadAt, bytes: number): Promise<void> {
    while (this.#bytes < bytes) {
      const pages = [];
      for (let at = this.#bytes; pages.length < this.#columns.length;) {
        const found = await ownPageAt(read, at, bytes);
        pages.push(found);
        at += found.bytes;
      }
      this.#keep(pages[0]!.values, pages);
    }
    if (this.#bytes !== bytes) throw damagedParquet(bytes);
  }
}

const NO_TEXT = Buffer.alloc(0);

/** The page that begins there, which has to end before `end`. */
export async function ownPageAt(read: ReadAt, at: number, end: number): Promise<Omit<OwnChunk, 'at'>> {
  try {
    const found = pageAt(await read(at, Math.min(HEADER_BYTES, end - at)));
    if (found.bytes > 0 && at + found.bytes <= end && found.values >= 0) return found;
  } catch (error) {
    if (!(error instanceof ThriftProblem)) throw error;
  }
  throw damagedParquet(at);
}

export function damagedParquet(at: number): ShoalError<'FILE_UNREADABLE'> {
  return new ShoalError(
    'FILE_UNREADABLE',
    `the unfinished Parquet file is damaged at byte ${at} and cannot be gone on with; --fresh begins again`,
  );
}

export function keyValue(key: string, value: string): Struct {
  return new Map([
    [1, text(key)],
    [2, text(value)],
  ]);
}

function int64s(values: readonly number[]): Buffer {
  return Buffer.from(BigInt64Array.from(values, (value) => BigInt(value)).buffer);
}

/** How many each row has, and a bit for each that says whether it was cut. */
function tokenPages(tokens: readonly number[]): readonly Page[] {
  const counts = Int32Array.from(tokens, Math.abs);
  const bits = Buffer.alloc(Math.ceil(tokens.length / 8));
  for (const [row, count] of tokens.entries()) if (count < 0) bits[row >> 3]! |= 1 << (row & 7);
  return [requiredPage(Buffer.from(counts.buffer), tokens.length), requiredPage(bits, tokens.length)];
}
