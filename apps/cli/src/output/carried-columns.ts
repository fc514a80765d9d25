// Whether the columns of some Parquet files can go along into one file, asked before anything is started.

import { ShoalError } from '@shoal/contract';
import type { ParquetFile } from '../parquet/footer.ts';
import { writeStruct } from '../parquet/thrift.ts';
import type { CarriedFile } from './row-form.ts';

/** USAGE where the columns of the files cannot lie in one file beside a column of this name. */
export function refuseUncarriable(files: readonly CarriedFile[], field: string): void {
  const [first, ...others] = files;
  if (first === undefined) return;
  const taken = first.parquet.leaves.find(({ path }) => path[0] === field);
  if (taken !== undefined)
    throw new ShoalError(
      'USAGE',
      `${first.parquet.name} has a column "${field}" already, which stays as it is; name the column of the vectors ` +
        'otherwise: --vector-field NAME',
    );
  const other = others.find(({ parquet }) => !schemaBytes(parquet).equals(schemaBytes(first.parquet)));
  if (other !== undefined)
    throw new ShoalError(
      'USAGE',
      `${other.parquet.name} has other columns than ${first.parquet.name}, and both go into one Parquet file with all ` +
        'their columns; write a file for each, or .jsonl, which has id and embedding alone',
    );
}

function schemaBytes({ footer }: ParquetFile): Buffer {
  return writeStruct(new Map([[2, footer.get(2)!]]));
}
