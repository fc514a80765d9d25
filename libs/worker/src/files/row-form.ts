// What goes into an encoder of rows, what comes out, and what a file of rows is made of.

import type { OutputDtype } from '@shoal/contract';
import type { Compression } from './compression.ts';
import type { TextRecord } from './record.ts';
import type { ParquetFile, ReadableAt } from './footer.ts';

export const OUTPUT_FORMATS = ['jsonl', 'csv', 'npy', 'arrow', 'parquet'] as const;
export type OutputFormat = (typeof OUTPUT_FORMATS)[number];

/** Consecutive rows: `vectors` is rows × dims, row-major, one vector for each record. */
export interface Block {
  readonly records: readonly Pick<TextRecord, 'id' | 'index' | 'text'>[];
  readonly dims: number;
  readonly vectors: Float32Array;
  /** Of each row, negative where it was cut; of a file with `withTokens`. */
  readonly rowTokens?: Int32Array | undefined;
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
  /** What these rows complete. To be gone through to its end. */
  encode(block: Block): Iterable<EncodedRows> | AsyncIterable<EncodedRows>;
  /** The rows held back, when no more come. */
  flush(): Iterable<EncodedRows> | AsyncIterable<EncodedRows>;
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
  /** Of Parquet: columns that say how many tokens each text has, and whether it was cut. */
  readonly withTokens?: boolean | undefined;
  /** What a value is stored as. Default f32. */
  readonly dtype?: OutputDtype;
  /** Of lines. */
  readonly compression?: Compression | undefined;
  /** Of Parquet: the column of the vectors. Default "embedding". */
  readonly vectorField?: string | undefined;
  /** Of Parquet: the files whose columns go along. */
  readonly carried?: readonly CarriedFile[] | undefined;
  /** Of them those that this file holds; absent: all. */
  readonly shard?: CarriedShard | undefined;
  /** Where scales that come before their place in the file are kept for a later run; absent: no run goes on. */
  readonly scalesPath?: string;
  /** What made the vectors, name@revision; Arrow carries it. */
  readonly model?: string;
}

/** A Parquet file whose columns go along. */
export interface CarriedFile {
  readonly open: () => Promise<ReadableAt>;
  readonly parquet: ParquetFile;
}

/** A row group of such a file. */
export interface CarriedGroup {
  readonly file: CarriedFile;
  readonly number: number;
  readonly rows: number;
}

/** Consecutive row groups that become a file of their own. */
export interface CarriedShard {
  readonly groups: readonly CarriedGroup[];
  /** Which row of all files is its first, and how many it has. */
  readonly firstRow: number;
  readonly rows: number;
}

/** A file that is gone on with: how much of it counts, and how many good records of the input that covers. */
export interface Written {
  readonly read: ReadAt;
  readonly bytes: number;
  readonly position: number;
}

/** Bytes of a file that is gone on with. Called once for each part that a form asks for. */
export type ReadAt = (position: number, length: number) => Promise<Buffer>;
