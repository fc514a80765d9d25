// Whether the columns of some Parquet files can go along into one file, or into several, asked before anything is started.

import { ShoalError, type OutputDtype } from '@shoal/contract';
import type { ParquetFile } from './footer.ts';
import { writeStruct } from './thrift.ts';
import type { CarriedFile, CarriedGroup, CarriedShard } from './row-form.ts';
import { scaleColumn } from './vector-form.ts';

/** USAGE where the columns of the files cannot lie in one file beside vectors under this name. */
export function refuseUncarriable(files: readonly CarriedFile[], field: string, dtype: OutputDtype = 'f32'): void {
  const [first, ...others] = files;
  if (first === undefined) return;
  const own = dtype === 'i8' ? [field, scaleColumn(field)] : [field];
  const taken = first.parquet.leaves.find(({ path }) => own.includes(path[0]!));
  if (taken !== undefined)
    throw new ShoalError(
      'USAGE',
      `${first.parquet.name} has a column "${taken.path[0]}" already, which stays as it is; name the column of the ` +
        'vectors otherwise: --vector-field NAME',
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

/** Row groups that have rows, in their order. */
export function carriedGroups(files: readonly CarriedFile[]): readonly CarriedGroup[] {
  return files.flatMap((file) =>
    file.parquet.groups.flatMap(({ rows }, number) => (rows === 0 ? [] : [{ file, number, rows }])),
  );
}

/**
 * Row groups into files of up to so many rows: row groups are copied and never cut. One at least, which has none where
 * there are none. USAGE where a row group is larger than a file may be.
 */
export function carriedShards(files: readonly CarriedFile[], shardRows: number): readonly CarriedShard[] {
  const shards: CarriedShard[] = [{ groups: [], firstRow: 0, rows: 0 }];
  for (const group of carriedGroups(files)) {
    if (group.rows > shardRows) throw tooLarge(group, shardRows);
    const last = shards.at(-1)!;
    if (last.rows + group.rows <= shardRows)
      shards[shards.length - 1] = { ...last, groups: [...last.groups, group], rows: last.rows + group.rows };
    else shards.push({ groups: [group], firstRow: last.firstRow + last.rows, rows: group.rows });
  }
  return shards;
}

function tooLarge({ file, number, rows }: CarriedGroup, shardRows: number): ShoalError<'USAGE'> {
  const most = Math.max(...file.parquet.groups.map((group) => group.rows));
  return new ShoalError(
    'USAGE',
    `--shard-rows ${shardRows}: row group ${number + 1} of ${file.parquet.name} has ${rows} rows, and row groups are ` +
      `copied whole; take --shard-rows ${most} or more, or write the file with smaller row groups`,
  );
}
