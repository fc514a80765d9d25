// What goes into an encoder of rows, what comes out, and what a file of rows is made of.

import type { TextRecord } from '../input/record.ts';
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
  /** What made the vectors, name@revision; Arrow carries it. */
  readonly model?: string;
}

/** Bytes of a file that is gone on with. Called once for each part that a form asks for. */
export type ReadAt = (position: number, length: number) => Promise<Buffer>;
