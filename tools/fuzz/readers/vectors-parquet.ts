// Vectors of Parquet, of the files that pyarrow and Polars wrote for the tests of apps/cli. No second reader of damaged ones
// is at hand that shares no code with ours, so that of these clock, memory and kind of error count.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import zlib from 'node:zlib';
import { parquetReadObjects } from 'hyparquet';
import { parquetVectors } from '../../../apps/cli/src/input/parquet-vectors.ts';
import type { FuzzedReader } from '../fuzzed-reader.ts';

const FIXTURES = join(import.meta.dirname, '../../../apps/cli/fixtures/parquet-vectors');

export const parquetVectorsReader: FuzzedReader = {
  name: 'vectors.parquet',
  kind: 'binary',
  extension: '.parquet',
  codes: ['FILE_UNREADABLE', 'INPUT_INVALID', 'DIMENSIONS_MISMATCH', 'VECTOR_INVALID'],
  mostUndecided: 1,
  seeds: async () =>
    ['list', 'fixed', 'double', 'half', 'required', 'pages', 'polars'].map((name) =>
      readFileSync(join(FIXTURES, `${name}.parquet`)),
    ),
  read: async (_bytes, path) => {
    const values: number[] = [];
    for await (const { vectors } of parquetVectors(path)) values.push(...vectors);
    return values;
  },
  readAgain: async (bytes) => {
    if (!(await parquetVectorsReader.seeds()).some((seed) => seed.equals(bytes))) return 'unknown';
    const compressors = { ZSTD: (page: Uint8Array) => zlib.zstdDecompressSync(page) };
    const file = Uint8Array.from(bytes).buffer;
    const rows = await parquetReadObjects({ file, columns: ['embedding'], compressors });
    return rows.flatMap(({ embedding }) => embedding as number[]);
  },
};
