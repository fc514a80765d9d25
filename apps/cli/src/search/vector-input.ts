// Which files and objects hold vectors and which texts, and the vectors of those that do. Parquet of a store is read at
// places; of other objects a copy lies in the temporary folder for as long as it is read, since they are read at places too,
// or in a thread.

import { createReadStream, createWriteStream } from 'node:fs';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { ShoalError } from '@shoal/contract';
import { readVectors, vectorFileCure, vectorFormat, type RowBatch, type VectorFileOptions } from '@shoal/similarity';
import type { BuildFlags } from '../commands/collections.ts';
import { readLines } from '@shoal/worker/files/lines';
import { isObjectAddress } from '../input/object-address.ts';
import { ObjectSource } from '@shoal/worker/files/object-source';
import { hasParquetVectors, parquetVectors, type VectorColumns } from '../input/parquet-vectors.ts';
import { decodeLine } from '@shoal/worker/files/utf8';
import { sayAway, type Terminal } from '../terminal.ts';

/** The rows of all files, one after the other. */
export async function* vectorRows(
  files: readonly string[],
  { column, idField }: Pick<BuildFlags, 'column' | 'idField'>,
  terminal: Terminal,
): AsyncGenerator<RowBatch> {
  for (const file of files) yield* vectorsIn(file, { column, idField }, terminal);
}

/** The rows of one file or object; the signal breaks off what is read of an object. */
export async function* vectorsIn(
  file: string,
  columns: VectorColumns,
  terminal: Pick<Terminal, 'signal' | 'stderr'>,
): AsyncGenerator<RowBatch> {
  const { signal } = terminal;
  const options = { signal, column: columns.column };
  if (!isObjectAddress(file))
    return yield* isParquet(file) ? parquetVectors(file, columns) : readVectors(file, options);
  const onAway = sayAway(terminal);
  const object = await ObjectSource.open(file);
  const close = (): void => object.close();
  signal.addEventListener('abort', close, { once: true });
  try {
    signal.throwIfAborted();
    if (isParquet(file)) yield* parquetVectors(file, columns, async () => object.openAt(onAway));
    else yield* copiedVectors(file, object.chunks(onAway), options);
  } finally {
    signal.removeEventListener('abort', close);
    object.close();
  }
}

async function* copiedVectors(
  file: string,
  chunks: AsyncIterable<Buffer>,
  options: VectorFileOptions,
): AsyncGenerator<RowBatch> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-vectors-'));
  try {
    const copy = join(folder, 'copy');
    await pipeline(chunks, createWriteStream(copy));
    yield* readVectors(file, { ...options, copy });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** By the extension. */
export function isVectorFile(file: string): boolean {
  return isParquet(file) || vectorFormat(file) !== undefined;
}

export function isParquet(file: string): boolean {
  return /\.(parquet|pq)$/i.test(file);
}

/**
 * Whether the files hold vectors: by extension; JSONL does when its first record has one, Parquet when a column has, or
 * --column names one. USAGE where some do and some do not.
 */
export async function areVectors(
  files: readonly string[],
  { format, column, textField }: Pick<BuildFlags, 'format' | 'column' | 'textField'>,
): Promise<boolean> {
  if (files.length === 0)
    throw new ShoalError(
      'USAGE',
      'name files to make the collection of: texts (.md, .txt, .csv, .jsonl, .parquet) or vectors (.npy, .arrow, .jsonl, ' +
        '.parquet)',
    );
  if (format !== undefined) return false;
  // Says how to come by one that can be read.
  for (const file of files) if (!isParquet(file) && vectorFileCure(file) !== undefined) readVectors(file);
  const kinds = await Promise.all(
    files.map(async (file) => {
      if (isParquet(file)) return textField === undefined && (column !== undefined || (await hasVectors(file)));
      const found = vectorFormat(file);
      return found === 'jsonl' ? holdsVectors(file) : found !== undefined;
    }),
  );
  if (kinds.some((isVectors) => isVectors !== kinds[0]))
    throw new ShoalError(
      'USAGE',
      'some of the files hold vectors and some texts: build from one kind, and append the other',
    );
  return kinds[0]!;
}

/** One that cannot be read is told of with the others, as texts are. */
async function hasVectors(file: string): Promise<boolean> {
  const found = isObjectAddress(file)
    ? withObject(file, (object) => hasParquetVectors(file, async () => object.openAt()))
    : hasParquetVectors(file);
  return found.catch(() => false);
}

/**
 * A file that cannot be read, or whose first record cannot, counts as one of texts: it is reported with all others, by
 * file and line.
 */
async function holdsVectors(path: string): Promise<boolean> {
  try {
    const record: unknown = JSON.parse(await firstRecord(path));
    if (typeof record !== 'object' || record === null || Array.isArray(record)) return Array.isArray(record);
    return ['embedding', 'vector'].some((field) => Array.isArray(Reflect.get(record, field)));
  } catch {
    return false;
  }
}

async function firstRecord(path: string): Promise<string> {
  if (isObjectAddress(path)) return withObject(path, (object) => firstIn(object.chunks()));
  if (!(await stat(path)).isFile()) return ''; // what a look takes out of a pipe is gone
  return firstIn(createReadStream(path));
}

async function withObject<Result>(address: string, use: (object: ObjectSource) => Promise<Result>): Promise<Result> {
  const object = await ObjectSource.open(address);
  try {
    return await use(object);
  } finally {
    object.close();
  }
}

/** The first line with something in it; empty when there is none, or it is longer than a line may be. */
async function firstIn(chunks: AsyncIterable<Buffer>): Promise<string> {
  for await (const lines of readLines(chunks)) {
    for (const { bytes, ...place } of lines) {
      const text = bytes === undefined ? '' : decodeLine({ ...place, bytes }).text;
      if (bytes === undefined || text.trim() !== '') return text;
    }
  }
  return '';
}
