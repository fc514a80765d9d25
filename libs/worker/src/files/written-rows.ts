// The rows of a Parquet file as ParquetEncoder writes them with `withTokens` and float32, a row group at a time: for whoever
// makes something else of the object of a part. Reads that one form, a page a column, without going through each value;
// any other file is refused.

import { readAt, readFooter, refused, type Chunk, type ParquetFile, type ReadableAt } from './footer.ts';
import { HEADER_BYTES, pageAt } from './pages.ts';
import { readStruct } from './thrift.ts';

/** Rows of one group, in order. */
export interface WrittenRows {
  /** Which row of its source each is, from 0. */
  readonly indexes: BigInt64Array;
  readonly tokens: Int32Array;
  isTruncated(row: number): boolean;
  /** rows × dims. */
  readonly vectors: Float32Array;
}

const COLUMNS = ['index', 'tokens', 'truncated', 'embedding.list.element'];

/** FILE_UNREADABLE says what is wrong with the file. */
export async function* writtenRows(file: ReadableAt, name: string, dims: number): AsyncGenerator<WrittenRows> {
  const parquet = await readFooter(file, name);
  const found = parquet.leaves.map(({ path }) => path.join('.'));
  if (found.join() !== COLUMNS.join())
    throw refused(name, `it has the columns ${found.join(', ')}: it is no object of a batch`);
  for (const { rows, chunks } of parquet.groups) {
    const [indexes, tokens, truncated, vectors] = await Promise.all(
      chunks.map((chunk, column) => bodyOf(file, parquet, chunk, { column, bytes: bytesOf(column, rows, dims) })),
    );
    yield {
      indexes: new BigInt64Array(indexes!),
      tokens: new Int32Array(tokens!),
      isTruncated: (row) => (new Uint8Array(truncated!)[row >> 3]! & (1 << (row & 7))) !== 0,
      vectors: new Float32Array(vectors!),
    };
  }
}

function bytesOf(column: number, rows: number, dims: number): number {
  return [8 * rows, 4 * rows, Math.ceil(rows / 8), 4 * rows * dims][column]!;
}

/** The values of the only page of a chunk: the last so many bytes of it, behind its header and its levels. */
async function bodyOf(
  file: ReadableAt,
  { name }: ParquetFile,
  { at, bytes }: Chunk,
  wanted: { readonly column: number; readonly bytes: number },
): Promise<ArrayBuffer> {
  const whole = await readAt(file, at, bytes);
  const head = whole.subarray(0, HEADER_BYTES);
  const isOnePage =
    whole.length === bytes && pageAt(head).bytes === bytes && readStruct(head).end + wanted.bytes <= bytes;
  if (!isOnePage) throw refused(name, `its column ${COLUMNS[wanted.column]} is not in one page a row group`);
  const values = whole.subarray(bytes - wanted.bytes);
  return values.buffer.slice(values.byteOffset, values.byteOffset + values.length) as ArrayBuffer;
}
