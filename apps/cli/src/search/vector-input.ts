// Which files of a build hold vectors and which texts, and the vectors of those that do.

import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { readVectors, vectorFileCure, vectorFormat, type RowBatch } from '@shoal/similarity';
import type { BuildFlags } from '../commands/collections.ts';
import { readLines } from '../input/lines.ts';
import { hasParquetVectors, parquetVectors } from '../input/parquet-vectors.ts';
import { decodeLine } from '../input/utf8.ts';

/** The rows of all files, one after the other. */
export async function* vectorRows(
  files: readonly string[],
  { column, idField }: Pick<BuildFlags, 'column' | 'idField'>,
  signal: AbortSignal,
): AsyncGenerator<RowBatch> {
  for (const file of files) {
    if (isParquet(file)) yield* parquetVectors(file, { column, idField });
    else yield* readVectors(file, { signal, ...(column === undefined ? {} : { column }) });
  }
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
  return hasParquetVectors(file).catch(() => false);
}

/**
 * A file that cannot be read, or whose first record cannot, counts as one of texts: it is reported with all others, by
 * file and line.
 */
async function holdsVectors(path: string): Promise<boolean> {
  try {
    if (!(await stat(path)).isFile()) return false; // what a look takes out of a pipe is gone
    const record: unknown = JSON.parse(await firstRecord(path));
    if (typeof record !== 'object' || record === null || Array.isArray(record)) return Array.isArray(record);
    return ['embedding', 'vector'].some((field) => Array.isArray(Reflect.get(record, field)));
  } catch {
    return false;
  }
}

/** The first line with something in it; empty when there is none, or it is longer than a line may be. */
async function firstRecord(path: string): Promise<string> {
  for await (const lines of readLines(createReadStream(path))) {
    for (const { bytes, ...place } of lines) {
      const text = bytes === undefined ? '' : decodeLine({ ...place, bytes }).text;
      if (bytes === undefined || text.trim() !== '') return text;
    }
  }
  return '';
}
