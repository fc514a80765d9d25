// Rows into the bytes of one form of file. An encoder may hold rows back (Arrow writes them in batches), so what it
// gives says how many rows it holds and how much of the input is done with behind it. Knows nothing of files, shards
// and resuming.

import { jsonlRow } from './jsonl.ts';
import { npyHeader, npyRows } from './npy.ts';
import type { ReadAt, RowEncoder, RowForm } from './row-form.ts';

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
