// Vectors out of files, as rows for a collection: .npy (rows × dims), Arrow IPC (a list of floats of fixed size, and
// `id` where there is one), JSONL ("embedding" or "vector", and "id"). What `shoal embed` writes comes back as it was.

import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { extname } from 'node:path';
import { createInterface } from 'node:readline';
import { ShoalError } from '@shoal/contract';
import type { RowBatch } from './collections.ts';
import { readNpy } from './npy-file.ts';
import { unreadable, wrongFile } from './vector-file-errors.ts';

export const VECTOR_FORMATS = ['npy', 'arrow', 'jsonl'] as const;
export type VectorFormat = (typeof VECTOR_FORMATS)[number];

const FORMAT_OF: Readonly<Record<string, VectorFormat>> = {
  '.npy': 'npy',
  '.arrow': 'arrow',
  '.feather': 'arrow',
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
};

/** By the extension; undefined for what holds no vectors. */
export function vectorFormat(path: string): VectorFormat | undefined {
  return FORMAT_OF[extname(path).toLowerCase()];
}

/** Rows in the order of the file. FILE_UNREADABLE or INPUT_INVALID say what is wrong and where. */
export function readVectors(
  path: string,
  format: VectorFormat | undefined = vectorFormat(path),
): AsyncIterable<RowBatch> {
  switch (format) {
    case 'npy':
      return readNpyRows(path);
    case 'arrow':
      return readArrowRows(path);
    case 'jsonl':
      return readJsonlRows(path);
    case undefined:
      throw new ShoalError(
        'USAGE',
        `${path} is no file of vectors that can be read: ${Object.keys(FORMAT_OF).join(', ')}`,
        { file: path },
      );
  }
}

async function* readNpyRows(path: string): AsyncGenerator<RowBatch> {
  for await (const { file, values } of readNpy(path)) {
    if (!file.type.startsWith('f')) throw wrongFile(path, `it holds integers (${file.type}); vectors are floats`);
    if (file.columns < 1) throw wrongFile(path, 'its rows have no values');
    if (file.rows > 0)
      yield { dims: file.columns, vectors: values instanceof Float32Array ? values : Float32Array.from(values) };
  }
}

const ROWS_PER_BATCH = 1_024;

async function* readJsonlRows(path: string): AsyncGenerator<RowBatch> {
  const input = createReadStream(path, { highWaterMark: 1 << 20 });
  const failure = new Promise<never>((_, reject) => input.once('error', (error) => reject(unreadable(path, error))));
  failure.catch(() => undefined);
  await Promise.race([failure, new Promise<void>((resolve) => input.once('open', () => resolve()))]);
  let dims = 0;
  let batch: { vectors: number[][]; names: string[] } = { vectors: [], names: [] };
  const take = (): RowBatch => {
    const { vectors, names } = batch;
    batch = { vectors: [], names: [] };
    return {
      dims,
      vectors: Float32Array.from(vectors.flat()),
      ...(names.every((name) => name === '') ? {} : { names }),
    };
  };
  let line = 0;
  for await (const text of createInterface({ input, crlfDelay: Infinity })) {
    line++;
    if (text.trim() === '') continue;
    const { vector, name } = parseLine(path, line, text);
    dims ||= vector.length;
    if (vector.length !== dims)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `${path}, line ${line}: the vector has ${vector.length} dimensions and those before it ${dims}`,
        { file: path, line },
      );
    batch.vectors.push(vector);
    batch.names.push(name);
    if (batch.vectors.length === ROWS_PER_BATCH) yield take();
  }
  if (batch.vectors.length > 0) yield take();
}

function parseLine(path: string, line: number, text: string): { vector: number[]; name: string } {
  let record: unknown;
  try {
    record = JSON.parse(text);
  } catch {
    throw wrongFile(path, 'not valid JSON', line);
  }
  const isObject = typeof record === 'object' && record !== null;
  const vector: unknown = Array.isArray(record)
    ? record
    : isObject
      ? (Reflect.get(record as object, 'embedding') ?? Reflect.get(record as object, 'vector'))
      : undefined;
  if (!Array.isArray(vector) || vector.length === 0 || !vector.every((value) => typeof value === 'number'))
    throw wrongFile(path, 'there is no "embedding" (or "vector") that is a list of numbers', line);
  const id: unknown = isObject && !Array.isArray(record) ? Reflect.get(record as object, 'id') : undefined;
  return { vector: vector as number[], name: typeof id === 'string' || typeof id === 'number' ? String(id) : '' };
}

async function* readArrowRows(path: string): AsyncGenerator<RowBatch> {
  const { RecordBatchReader, Type } = await import('apache-arrow');
  const handle = await open(path, 'r').catch((error: unknown) => {
    throw unreadable(path, error);
  });
  try {
    const reader = await RecordBatchReader.from(handle);
    for await (const records of reader) {
      const column = records.schema.fields.findIndex(({ type }) => type.typeId === Type.FixedSizeList);
      const vectors = column === -1 ? null : records.getChildAt(column);
      if (vectors === null) throw wrongFile(path, 'none of its columns is a list of floats of fixed size');
      const dims = (vectors.type as unknown as { readonly listSize: number }).listSize;
      const values = new Float32Array(records.numRows * dims);
      for (let row = 0; row < records.numRows; row++) {
        const vector: { toArray(): ArrayLike<number> } | null = vectors.get(row);
        if (vector === null) throw wrongFile(path, `row ${row} of a batch has no vector`);
        values.set(vector.toArray(), row * dims);
      }
      const ids = records.getChild('id');
      yield {
        dims,
        vectors: values,
        ...(ids === null
          ? {}
          : { names: Array.from({ length: records.numRows }, (_, row) => String(ids.get(row) ?? '')) }),
      };
    }
  } catch (error) {
    throw error instanceof ShoalError
      ? error
      : wrongFile(path, `it is no whole Arrow IPC file (${error instanceof Error ? error.message : String(error)})`);
  } finally {
    await handle.close().catch(() => undefined); // the reader may have closed it
  }
}
