// Vectors and names out of an Arrow IPC file or stream, by the types that its columns declare. apache-arrow decodes the
// metadata, after metadata-check.ts; values are read here, from places that were compared with the file, a few
// megabytes at a time whatever the size of a record batch. Nothing is taken for a number that is none: nulls are
// refused by their row. How long all this may take is decided by arrow-thread.ts.

import { open, type FileHandle } from 'node:fs/promises';
import zlib from 'node:zlib';
import { DataType, MetadataVersion, Type, type Field } from 'apache-arrow';
import { DictionaryBatch, type RecordBatch } from 'apache-arrow/ipc/metadata/message';
import { ShoalError } from '@shoal/contract';
import type { RowBatch } from '../collections/collections.ts';
import { soundRows } from '../collections/sound-rows.ts';
import { MODEL_KEY, modelText } from '../collections/vectors-model.ts';
import { unreadable, wrongFile } from '../collections/vector-file-errors.ts';
import { rowReader } from '../engines/vectors.ts';
import {
  isText,
  nameColumn,
  placesOf,
  vectorColumn,
  type NameColumn,
  type Place,
  type VectorColumn,
} from './columns.ts';
import { readLz4Frame } from './lz4-frame.ts';
import { openMessages, type Batch, type Bytes } from './messages.ts';

export interface ArrowOptions {
  /** The column of the vectors, where neither its name nor its type shows which it is. */
  readonly column?: string;
  /** Read in the place of the file, whose name messages have. */
  readonly copy?: string;
  /** Called when something was read: a reader that is alive calls it again and again. */
  readonly onRead?: () => void;
}

/** Values that are handed over at a time. */
const PIECE_BYTES = 1 << 22;
/** What one buffer may become when it is decompressed: it is in memory as a whole. */
const MOST_DECOMPRESSED_BYTES = 1 << 30;

/**
 * Rows in the order of the file. FILE_UNREADABLE, INPUT_INVALID, DIMENSIONS_MISMATCH or VECTOR_INVALID say what is
 * wrong and where.
 */
export async function* readArrowRows(path: string, options: ArrowOptions = {}): AsyncGenerator<RowBatch> {
  const handle = await open(options.copy ?? path, 'r').catch((error: unknown) => {
    throw unreadable(path, error);
  });
  try {
    yield* rowsOf(await bytesOf(path, handle, options.onRead), options.column);
  } catch (error) {
    if (error instanceof ShoalError) throw error;
    throw wrongFile(path, `it is damaged (${error instanceof Error ? error.message : String(error)})`);
  } finally {
    await handle.close();
  }
}

async function bytesOf(path: string, handle: FileHandle, onRead: () => void = () => undefined): Promise<Bytes> {
  const found = await handle.stat();
  if (found.isDirectory()) throw unreadable(path, new Error('it is a folder'));
  if (!found.isFile()) throw wrongFile(path, 'it is a pipe or a device; Arrow is read at places: write it to a file');
  return {
    path,
    size: found.size,
    async read(at, bytes) {
      const buffer = new Uint8Array(bytes);
      for (let done = 0; done < bytes;) {
        const most = Math.min(bytes - done, PIECE_BYTES);
        const { bytesRead } = await handle.read(buffer, done, most, at + done).catch((error: unknown) => {
          throw unreadable(path, error);
        });
        if (bytesRead === 0) throw wrongFile(path, `it ends at byte ${at + done}: it was cut`);
        done += bytesRead;
        onRead();
      }
      return buffer;
    },
  };
}

async function* rowsOf(file: Bytes, asked: string | undefined): AsyncGenerator<RowBatch> {
  const { path } = file;
  const { schema, batches } = await openMessages(file);
  const vectors = vectorColumn(path, schema, asked);
  const ids = nameColumn(path, schema);
  const model = modelText(schema.metadata.get(MODEL_KEY));
  const dictionary = new NameDictionary(ids);
  let [first, dims] = [0, 'dims' in vectors.shape ? vectors.shape.dims : undefined];
  if (dims !== undefined && dims < 1) throw wrongFile(path, `the lists of its column "${vectors.name}" have no values`);
  for await (const batch of batches()) {
    try {
      if (batch.header instanceof DictionaryBatch) {
        await dictionary.add(file, batch, batch.header);
        continue;
      }
      const body = new Body(file, batch, batch.header, placesOf(schema.fields, schema.metadataVersion, batch.header));
      const names = ids === undefined ? undefined : await namesOf(body, ids, dictionary);
      for await (const rows of vectorsOf(body, vectors, { first, dims })) {
        const at = rows.first - first;
        dims = rows.dims;
        yield {
          dims,
          vectors: soundRows(path, rows.values, dims, rows.first),
          ...(names === undefined ? {} : { names: await names(at, rows.values.length / dims) }),
          ...(model === undefined ? {} : { model }),
        };
      }
      first += body.rows;
    } catch (error) {
      if (error instanceof ShoalError) throw error;
      throw wrongFile(path, `${batch.what} is damaged: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}

// ---- buffers of a record batch ------------------------------------------------------------------------------------

/** A buffer that is read at places; it has at least the bytes that its reader said it needs. */
interface BufferBytes {
  read(at: number, bytes: number): Promise<Uint8Array<ArrayBuffer>>;
}

class Body {
  readonly rows: number;
  readonly #file: Bytes;
  readonly #batch: Batch;
  readonly #header: RecordBatch;
  readonly #places: readonly Place[];

  constructor(file: Bytes, batch: Batch, header: RecordBatch, places: readonly Place[]) {
    this.#file = file;
    this.#batch = batch;
    this.#header = header;
    this.#places = places;
    this.rows = header.length;
    for (const { node } of places.slice(0, -1))
      if (header.nodes[node]!.length !== header.length)
        throw new Error(`a column has ${header.nodes[node]!.length} rows of ${header.length}`);
    if (!(header.length >= 0)) throw new Error(`it claims ${header.length} rows`);
    for (const { length, nullCount } of header.nodes)
      if (length < 0 || nullCount < 0 || nullCount > length)
        throw new Error(`an array claims ${length} values and ${nullCount} nulls`);
    for (const { offset, length } of header.buffers)
      if (offset < 0 || length < 0 || offset + length > batch.bodyBytes)
        throw new Error(`a buffer claims ${length} bytes at ${offset} of the ${batch.bodyBytes} that there are`);
  }

  get path(): string {
    return this.#file.path;
  }

  placeOf(column: number): Place {
    return this.#places[column]!;
  }

  lengthOf(node: number): number {
    return this.#header.nodes[node]!.length;
  }

  viewsOf(view: number): number {
    return this.#header.variadicBufferCounts[view] ?? 0;
  }

  /** Bytes of a buffer once it is read. */
  async sizeOf(buffer: number): Promise<number> {
    const { offset, length } = this.#header.buffers[buffer]!;
    return this.#header.compression === null ? length : this.#sizeSaid(offset, length);
  }

  /** The buffer of this number, of which `needed` bytes are wanted. */
  async open(buffer: number, needed: number): Promise<BufferBytes> {
    const { offset, length } = this.#header.buffers[buffer]!;
    const { compression } = this.#header;
    const short = (bytes: number): Error => new Error(`a buffer has ${bytes} bytes where ${needed} are needed`);
    const from = this.#batch.bodyAt + offset;
    if (compression === null) {
      if (length < needed) throw short(length);
      return { read: (at, bytes) => this.#file.read(from + at, bytes) };
    }
    const said = await this.#sizeSaid(offset, length);
    if (said < needed) throw short(said);
    if (needed === 0) return { read: async () => new Uint8Array(0) };
    const content = await this.#file.read(from, length);
    const packed = content.subarray(8);
    const whole =
      new DataView(content.buffer).getBigInt64(0, true) === STORED
        ? packed.slice()
        : decompressed(this.#file.path, compression.type, packed, said);
    return { read: async (at, bytes) => whole.slice(at, at + bytes) };
  }

  /** Which values are null; undefined when none is. */
  async nulls(node: number, buffer: number): Promise<((at: number) => boolean) | undefined> {
    const { length, nullCount } = this.#header.nodes[node]!;
    const bytes = Math.ceil(length / 8);
    if ((await this.sizeOf(buffer)) === 0 && nullCount === 0) return undefined;
    const bits = await (await this.open(buffer, bytes)).read(0, bytes);
    const isNull = (at: number): boolean => (bits[at >> 3]! & (1 << (at & 7))) === 0;
    let count = 0;
    for (let at = 0; at < length; at++) if (isNull(at)) count++;
    if (count !== nullCount) throw new Error(`an array claims ${nullCount} nulls and has ${count}`);
    return count === 0 ? undefined : isNull;
  }

  /** A compressed buffer begins with the bytes that it becomes, −1 when it is stored as it is. */
  async #sizeSaid(offset: number, length: number): Promise<number> {
    if (length === 0) return 0;
    if (length < 8) throw new Error(`a compressed buffer has ${length} bytes`);
    const said = new DataView((await this.#file.read(this.#batch.bodyAt + offset, 8)).buffer).getBigInt64(0, true);
    if (said === STORED) return length - 8;
    if (said < 0n) throw new Error(`a compressed buffer claims ${said} bytes`);
    if (said > BigInt(MOST_DECOMPRESSED_BYTES))
      throw wrongFile(
        this.#file.path,
        `a compressed buffer of ${this.#batch.what} would become ${said} bytes, and ${MOST_DECOMPRESSED_BYTES} are ` +
          'the most: write it in smaller batches (max_chunksize) or without compression',
      );
    return Number(said);
  }
}

const STORED = -1n;
/** Arrow's numbers of ways to compress. */
const CODEC = { lz4: 0, zstd: 1 } as const;

function decompressed(path: string, codec: number, packed: Uint8Array, bytes: number): Uint8Array<ArrayBuffer> {
  if (codec === CODEC.lz4) return readLz4Frame(packed, bytes);
  if (codec !== CODEC.zstd) throw new Error(`it is compressed in a way (${codec}) that is not known`);
  // By its name from the module: importing what Node 22.12 has not would fail for every file.
  if (typeof zlib.zstdDecompressSync !== 'function')
    throw wrongFile(
      path,
      'it is compressed with zstd, which wants Node 22.15 or later; write it with compression="lz4"',
    );
  const whole = zlib.zstdDecompressSync(packed, { maxOutputLength: Math.max(1, bytes) });
  if (whole.length !== bytes) throw new Error(`zstd gives ${whole.length} bytes where ${bytes} were said`);
  return Uint8Array.from(whole);
}

// ---- vectors ------------------------------------------------------------------------------------------------------

interface Rows {
  /** Number of the first in the file. */
  readonly first: number;
  readonly dims: number;
  readonly values: Float32Array | Float64Array;
}

async function* vectorsOf(
  body: Body,
  { at, name, shape, valueBytes }: VectorColumn,
  before: { readonly first: number; readonly dims: number | undefined },
): AsyncGenerator<Rows> {
  const { path, rows } = body;
  const { node, buffer } = body.placeOf(at);
  if (rows === 0) return;
  const isNull = await body.nulls(node, buffer);
  if (isNull !== undefined)
    throw wrongFile(
      path,
      `row ${before.first + firstOf(rows, isNull)} has no vector (null) in its column "${name}"; leave such rows out`,
    );
  const lists =
    'dims' in shape
      ? { dims: shape.dims, begin: 0, valuesBuffer: buffer + 1 }
      : { ...(await listsOf(body, buffer + 1, shape.offsetBytes, before)), valuesBuffer: buffer + 2 };
  const { dims, begin, valuesBuffer } = lists;
  const end = begin + rows * dims;
  if (body.lengthOf(node + 1) < end)
    throw new Error(`its vectors need ${end} values and it has ${body.lengthOf(node + 1)}`);
  await refuseNullValues(body, node + 1, valuesBuffer, { name, begin, end, dims, first: before.first });
  const values = await body.open(valuesBuffer + 1, body.lengthOf(node + 1) * valueBytes);
  const rowsAtATime = Math.max(1, Math.floor(PIECE_BYTES / (dims * valueBytes)));
  for (let row = 0; row < rows; row += rowsAtATime) {
    const count = Math.min(rowsAtATime, rows - row) * dims;
    const bytes = await values.read((begin + row * dims) * valueBytes, count * valueBytes);
    yield { first: before.first + row, dims, values: numbersOf(bytes, valueBytes, count) };
  }
}

/** The one length that all lists of a batch have, and the value at which the first begins. */
async function listsOf(
  body: Body,
  buffer: number,
  offsetBytes: 4 | 8,
  before: { readonly first: number; readonly dims: number | undefined },
): Promise<{ readonly dims: number; readonly begin: number }> {
  const { path, rows } = body;
  const offsets = await offsetsOf(body, buffer, offsetBytes, rows);
  const dims = before.dims ?? offsets[1]! - offsets[0]!;
  for (let row = 0; row < rows; row++) {
    const length = offsets[row + 1]! - offsets[row]!;
    if (length === 0) throw wrongFile(path, `row ${before.first + row} has a vector of no values`);
    if (length !== dims)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `${path}, row ${before.first + row}: the vector has ${length} dimensions and those before it ${dims}`,
        { file: path, row: before.first + row },
      );
  }
  return { dims, begin: offsets[0]! };
}

/** Where each of `count` lists or texts begins, and the end of the last; they never go back. */
async function offsetsOf(body: Body, buffer: number, offsetBytes: 4 | 8, count: number): Promise<Float64Array> {
  const size = (count + 1) * offsetBytes;
  const bytes = await (await body.open(buffer, size)).read(0, size);
  const offsets =
    offsetBytes === 4
      ? Float64Array.from(new Int32Array(bytes.buffer, 0, count + 1))
      : Float64Array.from(new BigInt64Array(bytes.buffer, 0, count + 1), Number);
  for (let i = 0; i <= count; i++)
    if (offsets[i]! < (i === 0 ? 0 : offsets[i - 1]!)) throw new Error(`its offset ${i} goes back`);
  return offsets;
}

async function refuseNullValues(
  body: Body,
  node: number,
  buffer: number,
  lists: { readonly name: string; readonly begin: number; readonly end: number; dims: number; first: number },
): Promise<void> {
  const isNull = await body.nulls(node, buffer);
  if (isNull === undefined) return;
  const { name, begin, end, dims, first } = lists;
  for (let at = begin; at < end; at++)
    if (isNull(at))
      throw wrongFile(
        body.path,
        `row ${first + Math.floor((at - begin) / dims)} has no number (null) at dimension ${(at - begin) % dims} of ` +
          `its column "${name}"`,
      );
}

function numbersOf(bytes: Uint8Array<ArrayBuffer>, valueBytes: 2 | 4 | 8, count: number): Float32Array | Float64Array {
  if (valueBytes === 4) return new Float32Array(bytes.buffer, 0, count);
  if (valueBytes === 8) return new Float64Array(bytes.buffer, 0, count);
  const halves = rowReader({ dtype: 'f16', data: bytes, rows: 1, dims: count, strideBytes: 2 * count });
  return halves(0) as Float32Array;
}

function firstOf(count: number, holds: (at: number) => boolean): number {
  for (let at = 0; at < count; at++) if (holds(at)) return at;
  return count;
}

// ---- names --------------------------------------------------------------------------------------------------------

/** Names of `count` rows from row `first` of the batch on; '' where there is none. */
type NamesOf = (first: number, count: number) => Promise<readonly string[]>;

async function namesOf(body: Body, { at, type }: NameColumn, dictionary: NameDictionary): Promise<NamesOf> {
  const place = body.placeOf(at);
  const isNull = await body.nulls(place.node, place.buffer);
  const read = DataType.isDictionary(type)
    ? await dictionary.names(body, place, type.indices as DataType)
    : await plainNames(body, place, type);
  return async (first, count) => {
    const names = await read(first, count);
    return isNull === undefined ? names : names.map((name, i) => (isNull(first + i) ? '' : name));
  };
}

async function plainNames(body: Body, place: Place, type: DataType): Promise<NamesOf> {
  const { node, buffer } = place;
  const rows = body.lengthOf(node);
  if (rows === 0) return async () => [];
  if (DataType.isUtf8View(type)) return viewedTexts(body, place);
  if (isText(type)) {
    const offsets = await offsetsOf(body, buffer + 1, type.typeId === Type.LargeUtf8 ? 8 : 4, rows);
    const texts = await body.open(buffer + 2, offsets[rows]!);
    return async (first, count) => {
      const from = offsets[first]!;
      const bytes = await texts.read(from, offsets[first + count]! - from);
      return Array.from({ length: count }, (_, i) =>
        textOf(bytes.subarray(offsets[first + i]! - from, offsets[first + i + 1]! - from)),
      );
    };
  }
  const numbers = await wholeNumbers(body, buffer + 1, type, rows);
  return async (first, count) => (await numbers(first, count)).map(String);
}

async function wholeNumbers(
  body: Body,
  buffer: number,
  type: DataType,
  rows: number,
): Promise<(first: number, count: number) => Promise<readonly (number | bigint)[]>> {
  if (!DataType.isInt(type)) throw new Error(`${String(type)} are no whole numbers`);
  const size = type.bitWidth / 8;
  const values = await body.open(buffer, rows * size);
  return async (first, count) => {
    const view = new DataView((await values.read(first * size, count * size)).buffer);
    const read = type.isSigned ? SIGNED : UNSIGNED;
    return Array.from({ length: count }, (_, i) => read[size as 1 | 2 | 4 | 8](view, i * size));
  };
}

type ReadNumber = Readonly<Record<1 | 2 | 4 | 8, (view: DataView, at: number) => number | bigint>>;
const SIGNED: ReadNumber = {
  1: (view, at) => view.getInt8(at),
  2: (view, at) => view.getInt16(at, true),
  4: (view, at) => view.getInt32(at, true),
  8: (view, at) => view.getBigInt64(at, true),
};
const UNSIGNED: ReadNumber = {
  1: (view, at) => view.getUint8(at),
  2: (view, at) => view.getUint16(at, true),
  4: (view, at) => view.getUint32(at, true),
  8: (view, at) => view.getBigUint64(at, true),
};

const VIEW_BYTES = 16;
/** A text up to so many bytes stands in its view. */
const SHORT_TEXT_BYTES = 12;

async function viewedTexts(body: Body, { node, buffer, view }: Place): Promise<NamesOf> {
  const views = await body.open(buffer + 1, body.lengthOf(node) * VIEW_BYTES);
  const sizes = await Promise.all(
    Array.from({ length: body.viewsOf(view) }, async (_, i) => body.sizeOf(buffer + 2 + i)),
  );
  const texts = await Promise.all(sizes.map(async (size, i) => body.open(buffer + 2 + i, size)));
  return async (first, count) => {
    const bytes = await views.read(first * VIEW_BYTES, count * VIEW_BYTES);
    const numbers = new DataView(bytes.buffer);
    const names: string[] = [];
    for (let at = 0; at < count * VIEW_BYTES; at += VIEW_BYTES) {
      const length = numbers.getInt32(at, true);
      if (length <= SHORT_TEXT_BYTES) {
        if (length < 0) throw new Error(`a text claims ${length} bytes`);
        names.push(textOf(bytes.subarray(at + 4, at + 4 + length)));
        continue;
      }
      const [which, from] = [numbers.getInt32(at + 8, true), numbers.getInt32(at + 12, true)];
      const size = sizes[which] ?? -1;
      if (from < 0 || from + length > size) throw new Error('a text points outside of its buffers');
      names.push(textOf(await texts[which]!.read(from, length)));
    }
    return names;
  };
}

/** The texts or numbers that a column of numbers stands for, as dictionaries bring them. */
class NameDictionary {
  readonly #id: number | undefined;
  readonly #type: DataType | undefined;
  #names: string[] | undefined;

  constructor(column: NameColumn | undefined) {
    if (column === undefined || !DataType.isDictionary(column.type)) return;
    this.#id = column.type.id;
    this.#type = column.type.dictionary as DataType;
  }

  /** Those of other columns are passed over. */
  async add(file: Bytes, batch: Batch, { id, isDelta, data }: DictionaryBatch): Promise<void> {
    if (id !== this.#id || this.#type === undefined) return;
    const field = { name: '', type: this.#type } as unknown as Field;
    const body = new Body(file, batch, data, placesOf([field], MetadataVersion.V5, data));
    const place = body.placeOf(0);
    const names = await (await plainNames(body, place, this.#type))(0, body.rows);
    const isNull = await body.nulls(place.node, place.buffer);
    const given = names.map((name, at) => (isNull?.(at) === true ? '' : name));
    this.#names = isDelta ? [...(this.#names ?? []), ...given] : given;
  }

  async names(body: Body, { node, buffer }: Place, indices: DataType): Promise<NamesOf> {
    const isNull = await body.nulls(node, buffer);
    const numbers = await wholeNumbers(body, buffer + 1, indices, body.lengthOf(node));
    return async (first, count) =>
      (await numbers(first, count)).map((number, i) => {
        if (isNull?.(first + i) === true) return '';
        const name = this.#names?.[Number(number)];
        if (name === undefined) throw new Error(`a name is number ${number} of a dictionary that has no such entry`);
        return name;
      });
  }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

function textOf(bytes: Uint8Array): string {
  return UTF8.decode(bytes);
}
