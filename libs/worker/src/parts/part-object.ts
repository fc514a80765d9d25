// The object that a part becomes, while one claim writes it: under a name with the claim's token, with checkpoints from
// which whoever has the part next goes on. What a dead worker had written is copied up to its last checkpoint. Under its
// last name the object comes only after it was committed.
//
// A checkpoint is a small file beside, `<name>.checkpoint`, written anew each time: which file it is about, so many of its
// bytes, and how much of the part they hold. It is written behind a sync of these bytes, while more are written behind
// them. A claim that lost its lease may write one, too: what it says is as true as any other.

import { createHash, type Hash } from 'node:crypto';
import { open, readFile, rename, rm, stat, writeFile, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { isShoalError, partCheckpoint, partName, partTemporary, type Part } from '@shoal/contract';
import type { Clock } from '@shoal/core';
import { codeOf, type FaultPoints } from '@shoal/core/base';
import { writeAt } from '@shoal/fetch';
import { CarriedEncoder } from '../files/carried-rows.ts';
import { ParquetEncoder } from '../files/parquet-rows.ts';
import type { Block, EncodedRows, RowEncoder, RowForm } from '../files/row-form.ts';
import { writeFailure } from '../files/write-failure.ts';

/** What a row costs besides its place in the object. */
export interface Spent {
  readonly rows: number;
  readonly tokens: number;
  readonly truncated: number;
}

interface Checkpoint extends Spent {
  readonly fingerprint: string;
  /** The file beside that it is about. */
  readonly written: string;
  readonly bytes: number;
  /** Good records of the part that these bytes hold. */
  readonly position: number;
}
/** How far an object has come. */
type Reached = Omit<Checkpoint, 'fingerprint' | 'written'>;
const BEGINNING: Reached = { bytes: 0, position: 0, rows: 0, tokens: 0, truncated: 0 };

/** What a worker that dies has done in vain is bounded by either. */
const CHECKPOINT_BYTES = 64 * 1024 * 1024;
const CHECKPOINT_MS = 5_000;
const COPY_BYTES = 1024 * 1024;

export interface PartObjectOptions {
  readonly part: Part;
  readonly fingerprint: string;
  readonly token: string;
  /** Links resolved. */
  readonly folder: string;
  readonly form: RowForm;
  readonly clock: Clock;
  /** For tests and benches. */
  readonly checkpointMs?: number | undefined;
  readonly faults?: FaultPoints | undefined;
}

export interface Written {
  readonly name: string;
  readonly written: string;
  readonly bytes: number;
  readonly sha256: string;
}

export class PartObject {
  readonly #options: PartObjectOptions;
  readonly #file: FileHandle;
  readonly #encoder: RowEncoder;
  readonly #hash: Hash;
  #bytes: number;
  #spent: Spent;
  /** Good records of the part that are in the object. */
  readonly position: number;
  #isWhole = false;
  #synced: { readonly bytes: number; readonly atMs: number };
  /** Where nothing was held back in the encoder last. */
  #even: Reached;
  /** The checkpoint that is being written; what it failed with is thrown by who waits for it. */
  #checkpointing: Promise<void> | undefined;
  #hasFailed = false;
  /** Another claim's, which this one goes on behind; nobody needs it once a checkpoint is of this one. */
  #goneOnFrom: string | undefined;

  private constructor(
    options: PartObjectOptions,
    opened: { readonly file: FileHandle; readonly encoder: RowEncoder; readonly hash: Hash },
    from: Reached & { readonly written?: string },
  ) {
    this.#options = options;
    this.#goneOnFrom = from.written;
    this.#file = opened.file;
    this.#encoder = opened.encoder;
    this.#hash = opened.hash;
    this.#bytes = from.bytes;
    this.position = from.position;
    this.#spent = { rows: from.rows, tokens: from.tokens, truncated: from.truncated };
    this.#synced = { bytes: from.bytes, atMs: options.clock.nowMs() };
    this.#even = from;
  }

  /** Behind the last checkpoint of whoever had the part before, else from its beginning. */
  static async open(options: PartObjectOptions): Promise<PartObject> {
    const { folder, part, form, token } = options;
    const own = join(folder, partTemporary(part, token));
    return writing(own, async () => {
      const hash = createHash('sha256');
      const found = goesOn(form) ? await readCheckpoint(options) : undefined;
      const goneOn = found === undefined ? undefined : await copied(folder, found, own, hash);
      if (found !== undefined && goneOn !== undefined) {
        const encoder = await goingOn(form, goneOn, found);
        if (encoder !== undefined) return new PartObject(options, { file: goneOn, encoder, hash }, found);
        await goneOn.close();
      }
      return PartObject.#begun(options, own);
    });
  }

  static async #begun(options: PartObjectOptions, own: string): Promise<PartObject> {
    const file = await open(own, 'w+');
    try {
      const encoder = await openEncoder(options.form);
      const object = new PartObject(options, { file, encoder, hash: createHash('sha256') }, BEGINNING);
      await object.#append(encoder.head(0));
      return object;
    } catch (error) {
      await file.close();
      await rm(own, { force: true });
      throw error;
    }
  }

  get spent(): Spent {
    return this.#spent;
  }

  /** Consecutive rows, in order; `spent` of all of them. */
  async write(block: Block, spent: Omit<Spent, 'rows'>): Promise<void> {
    const position = await this.#appendAll(this.#encoder.encode(block));
    this.#spent = {
      rows: this.#spent.rows + block.records.length,
      tokens: this.#spent.tokens + spent.tokens,
      truncated: this.#spent.truncated + spent.truncated,
    };
    if (position !== block.position) return; // rows are held back in the encoder
    this.#even = { bytes: this.#bytes, position, ...this.#spent };
    const { clock, checkpointMs = CHECKPOINT_MS } = this.#options;
    const isDue =
      this.#bytes - this.#synced.bytes >= CHECKPOINT_BYTES || clock.nowMs() - this.#synced.atMs >= checkpointMs;
    if (this.#hasFailed) await this.#checkpointing;
    if (isDue) this.#checkpointing ??= this.#beginCheckpoint();
  }

  #beginCheckpoint(): Promise<void> {
    const written = this.#checkpoint().then(
      () => {
        this.#checkpointing = undefined;
      },
      (error: unknown) => {
        this.#hasFailed = true;
        throw error;
      },
    );
    written.catch(() => undefined); // thrown by the next write, or by the end
    return written;
  }

  /** Whole, and synced to the disk; not committed. */
  async finish(): Promise<Written> {
    const { part, token } = this.#options;
    await this.#appendAll(this.#encoder.flush());
    await this.#append(this.#encoder.tail());
    await this.#checkpointing;
    await writing(this.#path, () => this.#file.sync());
    await this.#file.close();
    this.#isWhole = true;
    return {
      name: partName(part),
      written: partTemporary(part, token),
      bytes: this.#bytes,
      sha256: this.#hash.digest('hex'),
    };
  }

  /** What failed leaves only what somebody can go on with: a disk that is full would fill again with every attempt. */
  async giveUp(): Promise<void> {
    await this.close();
    const checkpoint = await readCheckpoint(this.#options);
    if (checkpoint?.written !== partTemporary(this.#options.part, this.#options.token)) await this.remove();
    else await rm(`${this.#path}.checkpoint`, { force: true });
  }

  /** Leaves it to whoever goes on. */
  async leave(): Promise<void> {
    try {
      await this.#checkpointing;
      if (!this.#isWhole && this.#even.bytes > this.#synced.bytes) await this.#checkpoint();
    } finally {
      await this.#file.close();
    }
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    await this.#checkpointing?.catch(() => undefined);
    await this.#file.close().catch(() => undefined);
  }

  /** Nobody needs it. */
  async remove(): Promise<void> {
    await this.close();
    await rm(this.#path, { force: true });
  }

  get #path(): string {
    const { folder, part, token } = this.#options;
    return join(folder, partTemporary(part, token));
  }

  async #appendAll(encoded: Iterable<EncodedRows> | AsyncIterable<EncodedRows>): Promise<number | undefined> {
    let last: number | undefined;
    for await (const { bytes, position } of encoded) {
      await this.#append(bytes);
      last = position;
    }
    return last;
  }

  async #append(bytes: Buffer): Promise<void> {
    await writing(this.#path, () => writeAt(this.#file, bytes, this.#bytes));
    this.#hash.update(bytes);
    this.#bytes += bytes.length;
  }

  async #checkpoint(): Promise<void> {
    const { clock, form, folder, part, fingerprint, token } = this.#options;
    if (!goesOn(form)) return;
    const even = this.#even;
    const found: Checkpoint = { fingerprint, written: partTemporary(part, token), ...even };
    await writing(this.#path, async () => {
      await this.#file.datasync();
      await writeFile(`${this.#path}.checkpoint`, JSON.stringify(found));
      await rename(`${this.#path}.checkpoint`, join(folder, partCheckpoint(part)));
    });
    this.#synced = { bytes: even.bytes, atMs: clock.nowMs() };
    this.#options.faults?.reach('part-checkpoint');
    const before = this.#goneOnFrom;
    this.#goneOnFrom = undefined;
    if (before !== undefined && before !== found.written) await rm(join(folder, before), { force: true });
  }
}

/** Scales of i8 that go behind the vectors of a row group are held in memory until then, and nobody could go on with them. */
function goesOn({ carried, dtype }: RowForm): boolean {
  return carried === undefined || dtype !== 'i8';
}

async function openEncoder(form: RowForm, written?: Parameters<typeof ParquetEncoder.open>[1]): Promise<RowEncoder> {
  return form.carried === undefined
    ? ParquetEncoder.open(form, written)
    : CarriedEncoder.open(form, form.carried, written, 0);
}

/** Undefined where the bytes are not what was written: the machine itself may have ended. */
async function goingOn(form: RowForm, file: FileHandle, { bytes, position }: Reached): Promise<RowEncoder | undefined> {
  try {
    return await openEncoder(form, { read: (at, length) => readPiece(file, at, length), bytes, position });
  } catch (error) {
    if (isShoalError(error, 'FILE_UNREADABLE')) return undefined;
    throw error;
  }
}

async function readCheckpoint({ folder, part, fingerprint }: PartObjectOptions): Promise<Checkpoint | undefined> {
  const text = await readFile(join(folder, partCheckpoint(part)), 'utf8').catch(() => undefined);
  try {
    const found: unknown = JSON.parse(text ?? 'null');
    const isOfThis = isCheckpoint(found) && found.fingerprint === fingerprint;
    return isOfThis && found.written.startsWith(`${partName(part)}.`) && !found.written.includes('/')
      ? found
      : undefined;
  } catch {
    return undefined; // the machine ended while it was written
  }
}

function isCheckpoint(found: unknown): found is Checkpoint {
  if (typeof found !== 'object' || found === null) return false;
  const { fingerprint, written, ...numbers } = found as Record<string, unknown>;
  const { bytes, position, rows, tokens, truncated } = numbers;
  return (
    typeof fingerprint === 'string' &&
    typeof written === 'string' &&
    [bytes, position, rows, tokens, truncated].every((one) => Number.isSafeInteger(one) && Number(one) >= 0)
  );
}

/** A file of our own with what the checkpoint is about; undefined where that is gone. */
async function copied(
  folder: string,
  { written, bytes }: Checkpoint,
  own: string,
  hash: Hash,
): Promise<FileHandle | undefined> {
  const source = join(folder, written);
  const facts = await stat(source).catch(() => undefined);
  if (facts === undefined || facts.size < bytes) return undefined;
  const isOwn = source === own;
  const file = await open(own, isOwn ? 'r+' : 'w+');
  let from = file;
  try {
    if (!isOwn) from = await openedToRead(source);
    for (let at = 0; at < bytes;) {
      const piece = await readPiece(from, at, Math.min(COPY_BYTES, bytes - at));
      if (piece.length === 0) throw new Cut();
      hash.update(piece);
      if (!isOwn) await writeAt(file, piece, at);
      at += piece.length;
    }
    await file.truncate(bytes);
    return file;
  } catch (error) {
    await file.close();
    if (error instanceof Cut) return undefined;
    if (!isOwn) await rm(own, { force: true });
    throw error;
  } finally {
    if (from !== file) await from.close();
  }
}

async function openedToRead(path: string): Promise<FileHandle> {
  return open(path, 'r').catch((error: unknown) => {
    throw codeOf(error) === 'ENOENT' ? new Cut() : error;
  });
}

/** Somebody made the file shorter, or removed it, while it was copied. */
class Cut extends Error {}

async function readPiece(file: FileHandle, at: number, length: number): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, at);
  return buffer.subarray(0, bytesRead);
}

/** Failures of the file system by name. */
export async function writing<Result>(path: string, work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    throw error instanceof Error && 'syscall' in error ? writeFailure(path, error) : error;
  }
}
