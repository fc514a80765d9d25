// Vectors into a target. The three writers differ in what a failure leaves: a file target appears whole or not at all
// (or, in shards, one whole file after the other), a pipe has what it was given, and .npy into a pipe is spooled,
// because its header counts the rows.

import { createReadStream } from 'node:fs';
import { mkdtemp, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { RowLists, SkippedList, hiddenLists, idsPath, scalesPath } from './beside.ts';
import { PartialFile, removeLeftovers } from './partial-file.ts';
import { openEncoder } from './row-encoder.ts';
import { carriedShards } from '@shoal/worker/files/carried-columns';
import type { Block, CarriedShard, RowEncoder, RowForm } from '@shoal/worker/files/row-form';
import type { RunState } from './run-state.ts';
import { writeFailure } from '@shoal/worker/files/write-failure';
import { existingShards, extensionOf, indexPath, shardTarget, type FileTarget } from './target.ts';

export interface RowWriter {
  /** Resolves when the rows are taken; a slow target slows the run down. */
  write(block: Block): Promise<void>;
  finish(): Promise<void>;
  /** Ends without a result, and says what became of the rows. */
  abandon(): Promise<Abandoned>;
}

/** What an interrupted run leaves. */
export type Abandoned =
  /** Nothing that anybody would miss. */
  | { readonly kind: 'nothing' }
  /** A later run goes on with these rows. `file`: where they are. */
  | { readonly kind: 'kept'; readonly rows: number; readonly file: string }
  /** The input cannot be read again, so that the rows are a whole file under a name of their own. */
  | { readonly kind: 'ended'; readonly rows: number; readonly file: string }
  /** Rows that waited for the end of a .npy in a pipe. */
  | { readonly kind: 'lost'; readonly rows: number };

export interface FileWriterOptions {
  readonly target: FileTarget;
  readonly form: RowForm;
  /** Rows of each output file, of carried columns the most that one has; undefined: one file has them all. */
  readonly shardRows: number | undefined;
  /** Whether a later run can go on: its input can be read again. Default true. */
  readonly isRepeatable?: boolean;
  /** Records without a row, which the run collects. */
  readonly skipped?: SkippedList;
}

/**
 * One file, or one after the other. A file that is being written is *open*; none is between the last of them and the
 * end.
 */
interface OpenFile {
  readonly partial: PartialFile;
  readonly encoder: RowEncoder;
  /** Rows that this file was given, held back ones included. */
  rows: number;
}

export class FileWriter implements RowWriter {
  readonly #options: FileWriterOptions;
  /** As of the last whole file, or as it was found; the open file knows better. */
  #state: RunState;
  #open: OpenFile | undefined;
  /** Only where the form has no place for ids. */
  readonly #lists: RowLists | undefined;
  /** Where columns go along, which row groups each file has. */
  readonly #carried: readonly CarriedShard[] | undefined;

  private constructor(
    options: FileWriterOptions,
    state: RunState,
    file: OpenFile | undefined,
    lists: RowLists | undefined,
  ) {
    this.#options = options;
    this.#state = state;
    this.#open = file;
    this.#lists = lists;
    this.#carried = carriedIn(options);
  }

  /** Begins: the first file is there, empty. */
  static async create(options: FileWriterOptions, state: RunState): Promise<FileWriter> {
    const writer = new FileWriter(options, state, undefined, await listsOf(options, { rows: 0, idBytes: 0 }));
    await writer.#begin(state);
    await options.skipped?.begin(options.target, false);
    return writer;
  }

  /** Goes on behind the rows that `state` vouches for; undefined when they are not there any more. */
  static async reopen(options: FileWriterOptions, state: RunState): Promise<FileWriter | undefined> {
    const { target, form, shardRows } = options;
    const isDone = shardRows !== undefined && (await existingShards(target)).includes(state.shard);
    const lists = await listsOf(options, { rows: state.rows, idBytes: state.idBytes ?? 0 });
    if (lists === undefined && form.format === 'npy') return undefined;
    await options.skipped?.begin(target, true);
    // it died between this file's name and the next file
    if (isDone) return new FileWriter(options, state, undefined, lists);
    const partial = await PartialFile.reopen(fileOf(options, state.shard), state, lists);
    if (partial === undefined) return undefined;
    try {
      const encoder = await openEncoder(formOf(options, carriedIn(options)?.[state.shard]), {
        read: (at, length) => partial.read(at, length),
        bytes: state.bytes,
        position: state.position,
      });
      const rows = form.carried === undefined ? state.rows - state.shard * (shardRows ?? 0) : state.rows;
      return new FileWriter(options, state, { partial, encoder, rows }, lists);
    } catch (error) {
      await partial.keep();
      throw error;
    }
  }

  get state(): RunState {
    return this.#open?.partial.state ?? this.#state;
  }

  async write(block: Block): Promise<void> {
    for (let from = 0; from < block.records.length;) {
      if (this.#open === undefined) await this.#begin({ ...this.#state, shard: this.#state.shard + 1 });
      const file = this.#open!;
      const { to, isFull } = this.#room(file, block, from);
      if (to > from) {
        const part = partOf(block, from, to);
        await this.#lists?.append(part);
        await append(file.partial, file.encoder.encode(part));
        file.rows += to - from;
      }
      from = to;
      if (isFull) await this.#end(file);
    }
  }

  /** Up to where the records of a block go into the open file, and whether nothing goes into it behind them. */
  #room(file: OpenFile, { records }: Block, from: number): { readonly to: number; readonly isFull: boolean } {
    const shard = this.#carried?.[this.state.shard];
    if (shard === undefined) {
      const limit = this.#options.shardRows ?? Infinity;
      const to = Math.min(records.length, from + limit - file.rows);
      return { to, isFull: file.rows + to - from === limit };
    }
    const end = shard.firstRow + shard.rows;
    const next = records.findIndex(({ index }, at) => at >= from && index >= end);
    const to = next === -1 ? records.length : next;
    return { to, isFull: next !== -1 || records.at(-1)!.index === end - 1 };
  }

  async finish(): Promise<void> {
    if (this.#open !== undefined) await this.#end(this.#open);
    // row groups behind the last one with a vector
    while (this.#carried !== undefined && this.#state.shard < this.#carried.length - 1) {
      await this.#begin({ ...this.#state, shard: this.#state.shard + 1 });
      await this.#end(this.#open!);
    }
    const { target, shardRows } = this.#options;
    if (shardRows !== undefined) await writeIndex(this.#options, shardRows, this.#state);
    await this.#publishBeside(target);
    await removeLeftovers(target);
  }

  /** Where ids are; undefined where no row has one, or the form holds them itself. */
  get idsFile(): string | undefined {
    return this.#lists === undefined || this.#lists.bytes === 0
      ? undefined
      : idsPath({ path: this.#options.target.name });
  }

  /** Where the scales of bytes are; undefined where the form holds them itself, or there are none. */
  get scalesFile(): string | undefined {
    return this.#lists?.hasScales === true ? scalesPath({ path: this.#options.target.name }) : undefined;
  }

  async abandon(): Promise<Abandoned> {
    const { target, isRepeatable = true, skipped } = this.#options;
    const { rows } = this.state;
    const file = this.#open;
    if (isRepeatable && rows > 0) {
      await file?.partial.keep();
      await this.#lists?.close();
      await skipped?.settled();
      return { kind: 'kept', rows: this.state.rows, file: besideName(target, fileOf(this.#options, this.state.shard)) };
    }
    if (file === undefined) return { kind: 'nothing' };
    return isRepeatable ? this.#discard(file) : this.#endApart(file);
  }

  async #discard(file: OpenFile): Promise<Abandoned> {
    await file.partial.discard();
    await this.#lists?.close();
    await removeLeftovers(this.#options.target);
    return { kind: 'nothing' };
  }

  /** A whole file of the rows so far, under a name that nobody uses yet. */
  async #endApart({ partial, encoder, rows: given }: OpenFile): Promise<Abandoned> {
    const { target } = this.#options;
    await append(partial, encoder.flush());
    if (given === 0) return this.#discard({ partial, encoder, rows: 0 });
    const name = await freeName(fileOf(this.#options, this.state.shard).name);
    await partial.finish({ head: encoder.head(given), tail: encoder.tail(), path: resolve(name) });
    await this.#publishBeside({ path: resolve(name) });
    await removeLeftovers(target);
    return { kind: 'ended', rows: given, file: name };
  }

  async #publishBeside(output: Pick<FileTarget, 'path'>): Promise<void> {
    try {
      await this.#lists?.publish(output);
      await this.#options.skipped?.publish(output);
    } catch (error) {
      throw writeFailure(this.#options.target.name, error);
    }
  }

  async #begin(state: RunState): Promise<void> {
    const form = formOf(this.#options, this.#carried?.[state.shard]);
    const encoder = await openEncoder(form, undefined, state.position);
    const partial = await PartialFile.create(fileOf(this.#options, state.shard), state, encoder.head(0), this.#lists);
    this.#open = { partial, encoder, rows: 0 };
  }

  /** Gives the file its name. The state of the run stays, until the next file or the end replaces it. */
  async #end({ partial, encoder, rows }: OpenFile): Promise<void> {
    await append(partial, encoder.flush());
    await partial.finish({ head: encoder.head(rows), tail: encoder.tail() });
    this.#state = partial.state;
    this.#open = undefined;
  }
}

function carriedIn({ form, shardRows }: FileWriterOptions): readonly CarriedShard[] | undefined {
  return form.carried === undefined || shardRows === undefined ? undefined : carriedShards(form.carried, shardRows);
}

/** What one of the files is made of. */
function formOf({ form, target }: FileWriterOptions, shard: CarriedShard | undefined): RowForm {
  return form.carried === undefined ? form : { ...form, shard, scalesPath: hiddenLists(target).scales };
}

async function listsOf(
  { target, form }: FileWriterOptions,
  sizes: { readonly rows: number; readonly idBytes: number },
): Promise<RowLists | undefined> {
  return form.format === 'npy' ? RowLists.open(target, form, sizes) : undefined;
}

/** How a hidden file beside the output is called: in the words that the caller used. */
function besideName({ name }: FileTarget, { partial }: FileTarget): string {
  return join(dirname(name), basename(partial));
}

/** big.npy → big.partial.npy, or big.partial-2.npy … */
async function freeName(name: string): Promise<string> {
  const extension = extensionOf(name);
  const stem = name.slice(0, name.length - extension.length);
  for (let number = 1; ; number++) {
    const free = `${stem}.partial${number === 1 ? '' : `-${number}`}${extension}`;
    if ((await stat(free).catch(() => undefined)) === undefined) return free;
  }
}

function fileOf({ target, shardRows }: FileWriterOptions, shard: number): FileTarget {
  return shardRows === undefined ? target : shardTarget(target, shard);
}

function partOf(block: Block, from: number, to: number): Block {
  if (from === 0 && to === block.records.length) return block;
  return {
    records: block.records.slice(from, to),
    dims: block.dims,
    vectors: block.vectors.subarray(from * block.dims, to * block.dims),
    position: block.position - (block.records.length - to),
  };
}

async function append(partial: PartialFile, encoded: ReturnType<RowEncoder['encode']>): Promise<void> {
  for await (const { bytes, rows, position } of encoded) await partial.append(bytes, rows, position);
}

/** Shards appear one by one; this file, which names them all, says that there are no more to come. */
async function writeIndex(options: FileWriterOptions, shardRows: number, state: RunState): Promise<void> {
  const { target, form } = options;
  const { request } = state;
  const sizes =
    carriedIn(options)?.map((shard) => shard.rows) ??
    Array.from({ length: Math.max(1, Math.ceil(state.rows / shardRows)) }, (_, at) =>
      Math.min(shardRows, state.rows - at * shardRows),
    );
  const shards = sizes.map((own, at) => ({ file: basename(shardTarget(target, at).path), rows: own }));
  const rows = sizes.reduce((sum, own) => sum + own, 0);
  const path = indexPath(target);
  try {
    await writeFile(
      `${path}.new`,
      `${JSON.stringify({ model: request.model, rows, dims: form.dims, format: form.format, shards }, null, 1)}\n`,
      { flush: true },
    );
    await rename(`${path}.new`, path);
  } catch (error) {
    await rm(`${path}.new`, { force: true });
    throw writeFailure(path, error);
  }
}

/** Where bytes go that cannot be taken back. */
export interface ByteSink {
  write(bytes: Buffer): Promise<void>;
  close(): Promise<void>;
}

/** JSONL or Arrow into a pipe, a terminal or a device: both are written from the first byte to the last. */
export class StreamWriter implements RowWriter {
  readonly #encoder: RowEncoder;
  readonly #sink: ByteSink;
  #isBegun = false;

  constructor(encoder: RowEncoder, sink: ByteSink) {
    this.#encoder = encoder;
    this.#sink = sink;
  }

  async write(block: Block): Promise<void> {
    await this.#begin();
    for await (const { bytes } of this.#encoder.encode(block)) await this.#sink.write(bytes);
  }

  async finish(): Promise<void> {
    await this.#begin();
    for await (const { bytes } of this.#encoder.flush()) await this.#sink.write(bytes);
    await this.#give(this.#encoder.tail());
    await this.#sink.close();
  }

  async abandon(): Promise<Abandoned> {
    await this.#sink.close();
    return { kind: 'nothing' };
  }

  async #begin(): Promise<void> {
    if (this.#isBegun) return;
    this.#isBegun = true;
    await this.#give(this.#encoder.head(0));
  }

  async #give(bytes: Buffer): Promise<void> {
    if (bytes.length > 0) await this.#sink.write(bytes);
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

  static async create(form: RowForm, sink: ByteSink): Promise<SpooledWriter> {
    const folder = await mkdtemp(join(tmpdir(), 'shoal-spool-')).catch((error: unknown) => {
      throw writeFailure(`a temporary file in ${tmpdir()}`, error);
    });
    const path = join(folder, 'rows.npy');
    const target = { kind: 'file', name: path, path, partial: `${path}.partial`, state: `${path}.state` } as const;
    const state = {
      v: 1,
      runId: '',
      request: { inputs: [], model: '', options: {} },
      rows: 0,
      position: 0,
      shard: 0,
      bytes: 0,
    } as const;
    return new SpooledWriter(folder, await FileWriter.create({ target, form, shardRows: undefined }, state), sink);
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

  async abandon(): Promise<Abandoned> {
    const { rows } = this.#file.state;
    await this.#file.abandon();
    await this.#end();
    return rows === 0 ? { kind: 'nothing' } : { kind: 'lost', rows };
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
