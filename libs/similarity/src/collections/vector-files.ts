// Vectors out of files, as rows for a collection: .npy (rows × dims, or one row), Arrow IPC (a column of lists of
// floats, and `id` where there is one), JSONL ("embedding" or "vector", and "id"). What `shoal embed` writes comes back
// as it was. Every row is looked at: what cannot be compared is refused by file and row.

import { extname } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { readArrowInThread } from '../arrow/arrow-thread.ts';
import type { RowBatch } from './collections.ts';
import { readJsonlRows } from './jsonl-rows.ts';
import { readNpy } from './npy-file.ts';
import { soundRows } from './sound-rows.ts';
import { wrongFile } from './vector-file-errors.ts';

export const VECTOR_FORMATS = ['npy', 'arrow', 'jsonl'] as const;
export type VectorFormat = (typeof VECTOR_FORMATS)[number];

const FORMAT_OF: Readonly<Record<string, VectorFormat>> = {
  '.npy': 'npy',
  '.arrow': 'arrow',
  '.arrows': 'arrow',
  '.ipc': 'arrow',
  '.feather': 'arrow',
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
};

/** Files of vectors that others write and nobody reads here, and how to come from them to one that is read. */
const CURE_OF: Readonly<Record<string, string>> = {
  '.npz': 'a .npz archive holds several arrays: save one with numpy.save("x.npy", archive["name"])',
  '.parquet':
    'shoal index build and shoal similarity read it; here write it as Arrow: pyarrow.feather.write_feather(pyarrow.parquet.read_table(path), "x.arrow")',
  '.safetensors': 'save the tensor with numpy.save("x.npy", tensor.numpy())',
  '.pt': 'save the tensor with numpy.save("x.npy", tensor.numpy())',
  '.pth': 'save the tensor with numpy.save("x.npy", tensor.numpy())',
  '.pkl': 'save the array with numpy.save("x.npy", array)',
  '.h5': 'save the array with numpy.save("x.npy", array)',
  '.hdf5': 'save the array with numpy.save("x.npy", array)',
  '.fvecs': 'save the array with numpy.save("x.npy", array)',
};

export interface VectorFileOptions {
  /** Default: by the extension. */
  readonly format?: VectorFormat;
  /** Of Arrow: the column of the vectors. */
  readonly column?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Where a copy of the file lies, which is read in its place; messages name the file. */
  readonly copy?: string;
}

/** By the extension; undefined for what holds no vectors that can be read. */
export function vectorFormat(path: string): VectorFormat | undefined {
  return FORMAT_OF[extname(path).toLowerCase()];
}

/** How to make a file that can be read of one that cannot, by its extension; undefined where none is known. */
export function vectorFileCure(path: string): string | undefined {
  return CURE_OF[extname(path).toLowerCase()];
}

/**
 * Rows in the order of the file. FILE_UNREADABLE, INPUT_INVALID, DIMENSIONS_MISMATCH or VECTOR_INVALID say what is
 * wrong and where.
 */
export function readVectors(path: string, options: VectorFileOptions = {}): AsyncIterable<RowBatch> {
  const { format = vectorFormat(path), column, signal, copy = path } = options;
  if (column !== undefined && format !== 'arrow')
    throw new ShoalError('USAGE', `--column names a column of an Arrow file, and ${path} is none`, { file: path });
  switch (format) {
    case 'npy':
      return readNpyRows(path, copy);
    case 'arrow':
      return readArrowInThread(path, { column, signal, copy });
    case 'jsonl':
      return readJsonlRows(path, signal, copy);
    case undefined:
      throw new ShoalError(
        'USAGE',
        `${path} is no file of vectors that can be read (${Object.keys(FORMAT_OF).join(', ')})` +
          (vectorFileCure(path) === undefined ? '' : `: ${vectorFileCure(path)}`),
        { file: path },
      );
  }
}

async function* readNpyRows(path: string, copy: string): AsyncGenerator<RowBatch> {
  let first = 0;
  const parts: (Float32Array | Float64Array)[] = [];
  for await (const { file, values } of readNpy(path, 'floats', copy)) {
    if (file.dimensions === 1) {
      parts.push(values.slice());
      continue;
    }
    if (file.columns < 1) throw wrongFile(path, 'its rows have no values');
    if (file.rows > 0) yield { dims: file.columns, vectors: soundRows(path, values, file.columns, first) };
    first += values.length / file.columns;
  }
  if (parts.length > 0) yield oneRow(path, parts);
}

/** An array of one dimension is one vector, as NumPy's users save one. */
function oneRow(path: string, parts: readonly (Float32Array | Float64Array)[]): RowBatch {
  const values = Float64Array.from(parts.flatMap((part) => [...part]));
  const dims = values.length;
  if (dims === 0) throw wrongFile(path, 'its one row has no values');
  if (dims > MOST_DIMS_OF_A_ROW)
    throw wrongFile(
      path,
      `it has one dimension of ${dims} values, which counts as one vector, and that is too long for one: save rows × ` +
        'columns (x.reshape(rows, columns))',
    );
  return { dims, vectors: soundRows(path, values, dims, 0) };
}

/** As many dimensions as a job of the queue may have. */
const MOST_DIMS_OF_A_ROW = 65_536;
