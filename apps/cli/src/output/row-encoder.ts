// Rows into the bytes of one form of file. An encoder may hold rows back (Arrow writes them in batches), so what it
// gives says how many rows it holds and how much of the input is done with behind it. Knows nothing of files, shards
// and resuming.

import type { TextRecord } from '../input/record.ts';
import { jsonlRow } from './jsonl.ts';
import { npyHeader, npyRows } from './npy.ts';
import type { OutputFormat } from './target.ts';

/** Consecutive rows: `vectors` is rows × dims, row-major, one vector for each record. */
export interface Block {
  readonly records: readonly Pick<TextRecord, 'id' | 'index' | 'text'>[];
  readonly dims: number;
  readonly vectors: Float32Array;
  /** Good records of the input that are done with after this block. */
  readonly position: number;
}

export interface EncodedRows {
  readonly bytes: Buffer;
  readonly rows: number;
  readonly position: number;
}

export interface RowEncoder {
  /** The first bytes of a file with so many rows; always the same size. */
  head(rows: number): Buffer;
  /** What these rows complete. */
  encode(block: Block): readonly EncodedRows[];
  /** The rows held back, when no more come. */
  flush(): readonly EncodedRows[];
  /** The last bytes of a file. */
  tail(): Buffer;
}

/** What a file is made of, beyond the rows themselves. */
export interface RowForm {
  readonly format: OutputFormat;
  readonly dims: number;
  /** Rows are called by their ids; without, by their index. Arrow has one column or the other. */
  readonly hasIds: boolean;
  readonly withText: boolean;
}

/** Bytes of a file that is gone on with. Called once for each part that a form asks for. */
export type ReadAt = (position: number, length: number) => Promise<Buffer>;

/** `written`: a file of this form that is gone on with, and how much of it counts. */
export async function openEncoder(
  form: RowForm,
  written?: { readonly read: ReadAt; readonly bytes: number },
): Promise<RowEncoder> {
  if (form.format === 'npy') return npyEncoder(form.dims);
  if (form.format === 'jsonl') return jsonlEncoder(form.withText);
  const { ArrowEncoder } = await import('./arrow.ts'); // 0.1 s that nobody else should wait for
  return ArrowEncoder.open(form, written);
}

function npyEncoder(dims: number): RowEncoder {
  return {
    head: (rows) => npyHeader(rows, dims),
    encode: ({ records, vectors, position }) => [{ bytes: npyRows(vectors), rows: records.length, position }],
    flush: () => [],
    tail: () => Buffer.alloc(0),
  };
}

function jsonlEncoder(withText: boolean): RowEncoder {
  return {
    head: () => Buffer.alloc(0),
    encode: ({ records, dims, vectors, position }) => {
      const lines = records.map((record, row) =>
        jsonlRow(
          withText ? record : { id: record.id, index: record.index },
          vectors.subarray(row * dims, (row + 1) * dims),
        ),
      );
      return [{ bytes: Buffer.from(lines.join('')), rows: records.length, position }];
    },
    flush: () => [],
    tail: () => Buffer.alloc(0),
  };
}
