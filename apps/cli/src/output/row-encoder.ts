// Rows into the bytes of one form of file. An encoder may hold rows back (Arrow writes them in batches), so what it
// gives says how many rows it holds and how much of the input is done with behind it. Knows nothing of files, shards
// and resuming.

import { lineEncoder } from './line-encoder.ts';
import { npyHeader, npyRows } from '@shoal/worker/files/npy';
import type { RowEncoder, RowForm, Written } from '@shoal/worker/files/row-form';
import { encodeVectors, widthOf } from '@shoal/worker/files/vector-form';

/** `written`: a file of this form that is gone on with; `position`: good records that are done with before a new one. */
export async function openEncoder(form: RowForm, written?: Written, position = 0): Promise<RowEncoder> {
  switch (form.format) {
    case 'npy':
      return npyEncoder(form);
    case 'jsonl':
    case 'csv':
      return lineEncoder(form);
    case 'arrow': {
      const { ArrowEncoder } = await import('./arrow.ts'); // 0.1 s that nobody else should wait for
      return ArrowEncoder.open(form, written);
    }
    case 'parquet': {
      if (form.carried !== undefined)
        return (await import('@shoal/worker/files/carried-rows')).CarriedEncoder.open(
          form,
          form.carried,
          written,
          position,
        );
      return (await import('@shoal/worker/files/parquet-rows')).ParquetEncoder.open(form, written);
    }
  }
}

function npyEncoder({ dims, dtype = 'f32' }: RowForm): RowEncoder {
  return {
    head: (rows) => npyHeader(rows, widthOf(dims, dtype), dtype),
    encode: ({ records, vectors, position }) => [
      { bytes: npyRows(encodeVectors(vectors, records.length, dims, dtype).values), rows: records.length, position },
    ],
    flush: () => [],
    tail: () => Buffer.alloc(0),
  };
}
