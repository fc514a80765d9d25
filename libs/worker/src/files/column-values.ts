// The values of one column of a row group, page by page, so that a row group may be larger than memory. How pages are
// decoded is hyparquet's business, and this file is its only importer: its page functions and not its reader, which holds
// whole columns. Doing without it would mean Parquet's eight encodings and Snappy by hand.

import zlib from 'node:zlib';
import { parquetHeader } from 'hyparquet/src/column.js';
import { decompressPage, readDataPage, readDataPageV2 } from 'hyparquet/src/datapage.js';
import { readPlain } from 'hyparquet/src/plain.js';
import { readAt, refused, type Chunk, type Leaf, type ReadableAt, type Repetition } from './footer.ts';

/** A value as the file has it; null where there is none. */
export type ColumnValue = Uint8Array | number | bigint | boolean | null;

/** Writers cut pages at 1 MiB, some at 8; a larger one is damage, or would fill the memory of this process. */
const MOST_PAGE_BYTES = 512 * 1024 * 1024;
/** Of a column of lists nothing else bounds them: levels in runs take next to nothing. */
const MOST_PAGE_VALUES = 1 << 24;
/** Statistics of a page may hold two whole texts. */
const HEADER_BYTES = [16 * 1024, 1024 * 1024, 64 * 1024 * 1024] as const;

const COMPRESSORS = {
  GZIP: (bytes: Uint8Array, length: number) => inflated(() => zlib.gunzipSync(bytes, limit(length))),
  BROTLI: (bytes: Uint8Array, length: number) => inflated(() => zlib.brotliDecompressSync(bytes, limit(length))),
  ZSTD: (bytes: Uint8Array, length: number) => {
    if (typeof zlib.zstdDecompressSync !== 'function')
      throw new Error(`Node ${process.versions.node} has no Zstandard; take Node 22.15 or later`);
    return inflated(() => zlib.zstdDecompressSync(bytes, limit(length)));
  },
  LZ4_RAW: (bytes: Uint8Array, length: number) => lz4Block(bytes, length),
};
/** Codecs that are read. LZ4 as Hadoop frames it and LZO are written by nobody any more. */
const READABLE = new Set<string | undefined>(['UNCOMPRESSED', 'SNAPPY', ...Object.keys(COMPRESSORS)]);

/** Values and levels of a page. */
export interface LeafPage {
  readonly count: number;
  /** One for each; empty where all values are there. */
  readonly definitionLevels: ArrayLike<number>;
  /** One for each, of a column that is repeated. */
  readonly repetitionLevels: ArrayLike<number>;
  /** Of the values that are there, by their number. Throws FILE_UNREADABLE for one that is not. */
  readonly valueAt: (at: number) => Exclude<ColumnValue, null>;
}

/**
 * All values of the column in their order, so many at a time as a page has; null for rows without one. The column must
 * not be repeated. Throws FILE_UNREADABLE for what cannot be decoded, naming the column.
 */
export async function* columnValues(
  file: ReadableAt,
  name: string,
  leaf: Leaf,
  chunk: Chunk,
): AsyncGenerator<readonly ColumnValue[]> {
  for await (const { count, definitionLevels, valueAt } of columnPages(file, name, leaf, chunk)) {
    let next = 0;
    yield Array.from({ length: count }, (_, at) =>
      definitionLevels.length === 0 || definitionLevels[at] === leaf.optional ? valueAt(next++) : null,
    );
  }
}

/** The pages of any column, one at a time. Throws FILE_UNREADABLE for what cannot be decoded, naming the column. */
export async function* columnPages(file: ReadableAt, name: string, leaf: Leaf, chunk: Chunk): AsyncGenerator<LeafPage> {
  const column = leaf.path.join('.');
  if (!READABLE.has(chunk.codec))
    throw refused(
      name,
      `the column "${column}" is compressed by ${chunk.codec ?? 'a codec that is not known'}, which is not read`,
    );
  const decoder = decoderOf(leaf, chunk);
  let dictionary: ArrayLike<ColumnValue> | undefined;
  let at = chunk.at;
  let given = 0;
  while (given < chunk.values) {
    if (at >= chunk.at + chunk.bytes)
      throw refused(name, `the column "${column}" is damaged: it has ${given} values and should have ${chunk.values}`);
    const { header, bytes } = await headerAt(file, at, chunk, name, column);
    const [compressed, raw] = [header.compressed_page_size, header.uncompressed_page_size];
    const room = chunk.at + chunk.bytes - at - bytes;
    if (!isCount(compressed) || !isCount(raw) || raw > MOST_PAGE_BYTES || compressed > room)
      throw refused(name, `the column "${column}" is damaged: a page at byte ${at} would have ${raw} bytes`);
    const place = at + bytes;
    const body = await readAt(file, place, compressed);
    at = place + compressed;
    const damaged = (error: unknown): Error =>
      refused(name, `the column "${column}" is damaged at byte ${place}: ${reasonOf(error)}`, error);
    try {
      if (header.type === 'DICTIONARY_PAGE') {
        const count = header.dictionary_page_header?.num_values ?? 0;
        refuseCount(count, raw);
        const page = decompressPage(body, raw, decoder.codec, decoder.compressors);
        dictionary = readPlain(readerOf(page), leaf.physical, count, leaf.typeLength);
      } else if (header.type === 'DATA_PAGE' || header.type === 'DATA_PAGE_V2') {
        const page = decodedPage(header, body, decoder, { dictionary, most: chunk.values - given, damaged });
        given += page.count;
        yield page;
      }
    } catch (error) {
      throw damaged(error);
    }
  }
}

type Decoder = Parameters<typeof readDataPage>[2];
type Header = ReturnType<typeof parquetHeader>;

/** As hyparquet has a column: with its physical type alone, so that values come as the file has them. */
function decoderOf({ physical, typeLength, repetitions }: Leaf, { codec }: Chunk): Decoder {
  const element = (repetition: Repetition) =>
    ({
      type: physical,
      type_length: typeLength,
      repetition_type: HYPARQUET_NAMES[repetition],
      name: 'c',
    }) as const;
  return {
    pathInSchema: ['c'],
    type: physical,
    element: element(repetitions.at(-1)!),
    schemaPath: (['required', ...repetitions] as const).map((repetition) => ({
      count: 1,
      children: [],
      path: [],
      element: element(repetition),
    })),
    codec: codec ?? 'UNCOMPRESSED',
    compressors: COMPRESSORS,
    parsers: PARSERS,
  };
}

const HYPARQUET_NAMES = { required: 'REQUIRED', optional: 'OPTIONAL', repeated: 'REPEATED' } as const;

/** Values are never made richer than they are. */
const own = (value: unknown): unknown => value;
const PARSERS = {
  timestampFromMilliseconds: own,
  timestampFromMicroseconds: own,
  timestampFromNanoseconds: own,
  dateFromDays: own,
  stringFromBytes: own,
  jsonFromBytes: own,
  geometryFromBytes: own,
  geographyFromBytes: own,
  uuidFromBytes: own,
};

function decodedPage(
  header: Header,
  body: Buffer,
  decoder: Decoder,
  {
    dictionary,
    most,
    damaged,
  }: {
    readonly dictionary: ArrayLike<ColumnValue> | undefined;
    readonly most: number;
    /** What to throw by those who read the page later. */
    readonly damaged: (error: unknown) => Error;
  },
): LeafPage {
  const one = header.data_page_header;
  const two = header.data_page_header_v2;
  const count = one?.num_values ?? two?.num_values ?? 0;
  // a page of nulls takes nothing for its values, and levels in runs next to nothing
  if (!isCount(count) || count > most || count > MOST_PAGE_VALUES)
    throw new Error(`it would have ${count} values in a page`);
  if (
    two !== undefined &&
    ![two.num_nulls, two.definition_levels_byte_length, two.repetition_levels_byte_length].every(isCount)
  )
    throw new Error('its header is damaged');
  if (two !== undefined && two.num_nulls > count) throw new Error('it has more nulls than values');
  const page =
    one === undefined
      ? readDataPageV2(body, header, decoder)
      : readDataPage(
          decompressPage(body, header.uncompressed_page_size, decoder.codec, decoder.compressors),
          one,
          decoder,
        );
  const encoding = one?.encoding ?? two?.encoding;
  const { definitionLevels = [], repetitionLevels = [] } = page;
  const packed: ArrayLike<unknown> = page.dataPage;
  const isByDictionary = encoding === 'PLAIN_DICTIONARY' || encoding === 'RLE_DICTIONARY';
  const valueAt = (at: number): Exclude<ColumnValue, null> => {
    const value: unknown = packed[at];
    const found: unknown = isByDictionary && typeof value === 'number' ? dictionary?.[value] : value;
    if (!isValue(found)) throw damaged(new Error('a value is not there'));
    return found;
  };
  return { count, definitionLevels, repetitionLevels, valueAt };
}

/** hyparquet gives a number of 64 bits where the file has one in the place of a number of 32. */
function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
}

function isValue(value: unknown): value is Exclude<ColumnValue, null> {
  return value instanceof Uint8Array || ['number', 'bigint', 'boolean'].includes(typeof value);
}

/** Each value of a dictionary takes a byte at least. */
function refuseCount(count: number, bytes: number): void {
  if (!isCount(count) || count > bytes) throw new Error(`its dictionary would have ${count} values in ${bytes} bytes`);
}

async function headerAt(
  file: ReadableAt,
  at: number,
  chunk: Chunk,
  name: string,
  column: string,
): Promise<{ header: Header; bytes: number }> {
  let reason: unknown;
  for (const most of HEADER_BYTES) {
    const length = Math.min(most, chunk.at + chunk.bytes - at);
    const bytes = await readAt(file, at, length);
    const reader = readerOf(bytes);
    try {
      return { header: parquetHeader(reader), bytes: reader.offset };
    } catch (error) {
      reason = error;
      if (bytes.length < most) break;
    }
  }
  throw refused(name, `the column "${column}" is damaged: no page begins at byte ${at} (${reasonOf(reason)})`);
}

function readerOf(bytes: Uint8Array): { view: DataView; offset: number } {
  return { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), offset: 0 };
}

function limit(length: number): { readonly maxOutputLength: number } {
  return { maxOutputLength: Math.max(1, length) };
}

/** A view of a pool of Node's would be kept alive by every text of it. */
function inflated(inflate: () => Buffer): Uint8Array {
  return inflate();
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** One block of LZ4: sequences of literals and copies. https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md */
function lz4Block(from: Uint8Array, length: number): Uint8Array {
  const to = new Uint8Array(length);
  let [at, out] = [0, 0];
  const lengthOf = (nibble: number): number => {
    let sum = nibble;
    if (nibble === 15) for (let more = 255; more === 255;) sum += more = from[at++] ?? 0;
    return sum;
  };
  while (at < from.length) {
    const token = from[at++]!;
    const literals = lengthOf(token >> 4);
    if (at + literals > from.length || out + literals > length) throw new Error('LZ4: literals end too late');
    to.set(from.subarray(at, at + literals), out);
    [at, out] = [at + literals, out + literals];
    if (at >= from.length) break;
    const back = from[at]! | ((from[at + 1] ?? 0) << 8);
    at += 2;
    const copied = lengthOf(token & 15) + 4;
    if (back === 0 || back > out || out + copied > length) throw new Error('LZ4: a copy lies outside');
    for (let left = copied; left > 0; left--, out++) to[out] = to[out - back]!;
  }
  return to.subarray(0, out);
}
