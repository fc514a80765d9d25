// Vectors into a target, in one of two forms. The three writers differ in what a failure leaves: a file target appears
// whole or not at all, a pipe has what it was given, and .npy into a pipe is spooled, because its header counts the rows.

import { createReadStream } from 'node:fs';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TextRecord } from '../input/records.ts';
import { jsonlRow } from './jsonl.ts';
import { npyHeader, npyRows } from './npy.ts';
import { PartialFile } from './partial-file.ts';
import { writeFailure, type OutputFormat } from './target.ts';

/** Consecutive rows: `vectors` is rows × dims, row-major, one vector for each record. */
export interface Block {
  readonly records: readonly Pick<TextRecord, 'id' | 'index'>[];
  readonly dims: number;
  readonly vectors: Float32Array;
  /** Good records of the input that are done with after this block. */
  readonly position: number;
}

export interface RowWriter {
  /** Resolves when the rows are taken; a slow target slows the run down. */
  write(block: Block): Promise<void>;
  finish(): Promise<void>;
  /** Ends without a result. `isKept`: a later run may go on from here, where the target allows it. */
  abandon(isKept: boolean): Promise<void>;
}

/** The first bytes of a file with so many rows. JSONL has none. */
export function headOf(format: OutputFormat, rows: number, dims: number): Buffer {
  return format === 'npy' ? npyHeader(rows, dims) : Buffer.alloc(0);
}

export function encodeBlock(format: OutputFormat, { records, dims, vectors }: Block): Buffer {
  if (format === 'npy') return npyRows(vectors);
  return Buffer.from(records.map((record, row) => jsonlRow(record, vectors.subarray(row * dims, (row + 1) * dims))).join(''));
}

export class FileWriter implements RowWriter {
  readonly #partial: PartialFile;
  readonly #format: OutputFormat;
  readonly #dims: number;

  constructor(partial: PartialFile, format: OutputFormat, dims: number) {
    this.#partial = partial;
    this.#format = format;
    this.#dims = dims;
  }

  write(block: Block): Promise<void> {
    return this.#partial.append(encodeBlock(this.#format, block), block.records.length, block.position);
  }

  finish(): Promise<void> {
    return this.#partial.finish(headOf(this.#format, this.#partial.state.rows, this.#dims));
  }

  abandon(isKept: boolean): Promise<void> {
    return isKept ? this.#partial.keep() : this.#partial.discard();
  }
}

/** Where bytes go that cannot be taken back. */
export interface ByteSink {
  write(bytes: Buffer): Promise<void>;
  close(): Promise<void>;
}

/** JSONL into a pipe, a terminal or a device. */
export class StreamWriter implements RowWriter {
  readonly #sink: ByteSink;

  constructor(sink: ByteSink) {
    this.#sink = sink;
  }

  write(block: Block): Promise<void> {
    return this.#sink.write(encodeBlock('jsonl', block));
  }

  finish(): Promise<void> {
    return this.#sink.close();
  }

  abandon(): Promise<void> {
    return this.#sink.close();
  }
}

/** .npy into a pipe: rows wait in a temporary file until their number is known. */
export class SpooledWriter implements RowWriter {
  readonly #folder: string;
  readonly #file: FileWriter;
  readonly #sink: ByteSink;

  private constructor(folder: string, file: FileWriter, sink: ByteSink) {
    this.#folder = folder;
    this.#file = file;
    this.#sink = sink;
  }

  static async create(dims: number, sink: ByteSink): Promise<SpooledWriter> {
    const folder = await mkdtemp(join(tmpdir(), 'shoal-spool-')).catch((error: unknown) => {
      throw writeFailure(`a temporary file in ${tmpdir()}`, error);
    });
    const path = join(folder, 'rows.npy');
    const target = { kind: 'file', name: path, path, partial: `${path}.partial`, state: `${path}.state` } as const;
    const state = { v: 1, pid: process.pid, runId: '', request: { inputs: [], model: '', options: {} }, rows: 0, position: 0, bytes: 0 } as const;
    return new SpooledWriter(folder, new FileWriter(await PartialFile.create(target, state, npyHeader(0, dims)), 'npy', dims), sink);
  }

  write(block: Block): Promise<void> {
    return this.#file.write(block);
  }

  async finish(): Promise<void> {
    try {
      await this.#file.finish();
      for await (const chunk of createReadStream(join(this.#folder, 'rows.npy'), { highWaterMark: 1 << 20 })) {
        if (Buffer.isBuffer(chunk)) await this.#sink.write(chunk);
      }
    } finally {
      await this.#end();
    }
  }

  async abandon(): Promise<void> {
    await this.#file.abandon(false);
    await this.#end();
  }

  async #end(): Promise<void> {
    await rm(this.#folder, { recursive: true, force: true });
    await this.#sink.close();
  }
}

/** A device or a named pipe, as it stands. */
export async function deviceSink(path: string): Promise<ByteSink> {
  const translated = (error: unknown): never => {
    throw writeFailure(path, error);
  };
  const file = await open(path, 'w').catch(translated);
  return {
    write: (bytes) => file.writeFile(bytes).catch(translated),
    close: () => file.close(),
  };
}
