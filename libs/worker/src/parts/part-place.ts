// Where parts of files may lie: in the folders and below the prefixes of buckets that this worker was given, whatever
// symbolic links say, and nowhere else. A source is one version of a file or of an object: another size or time of change,
// or another ETag, is another file, and fails the part by name. Where objects go is told by `PartTarget`: a folder
// (part-folder.ts), or a bucket (part-bucket.ts).

import { createReadStream, type Stats } from 'node:fs';
import { open, realpath, stat, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import {
  ShoalError,
  isWithin,
  partRows,
  type Part,
  type PartOutput,
  type PartResult,
  type PartSource,
} from '@shoal/contract';
import { codeOf } from '@shoal/core/base';
import { S3Bucket } from '@shoal/fetch/s3';
import type { ParquetFile, ReadableAt } from '../files/footer.ts';
import { objectBytes } from '../files/object-bytes.ts';
import type { OnAway } from '../files/object-source.ts';
import { writeFailure } from '../files/write-failure.ts';
import { BucketFile, BucketTarget, type BucketTerms } from './part-bucket.ts';
import { FolderTarget } from './part-folder.ts';
import type { Written } from './part-object.ts';

/** One version of a file or of an object, as it is read. */
export interface PartFile {
  /** As it is called in messages. */
  readonly name: string;
  readonly bytes: number;
  /** Throws SOURCE_CHANGED where it is another one by now. */
  check(): Promise<void>;
  /** To be read at places; the caller closes it. */
  open(): Promise<ReadableAt>;
  /** Its bytes from one place to another. */
  chunks(from: number, to: number): AsyncGenerator<Buffer>;
  /** Breaks off what is read, where it may wait for somebody. */
  stop(): void;
}

/** Where the objects of a run go. Everything may be done again, by whoever has the part. */
export interface PartTarget {
  /** In which the object is written, links resolved. */
  readonly folder: string;
  /** Throws FILE_UNWRITABLE where an object of so many bytes, about, has no place. */
  checkRoom(bytes: number): Promise<void>;
  /** What is whole in the folder may be committed from now on, whatever becomes of this worker. */
  put(written: Written): Promise<void>;
  /** What was put by this name, and was not chosen, as far as that can be done at once. */
  remove(written: string): Promise<void>;
  /**
   * The chosen object gets its last name, and what others wrote of the part goes. False where it lies under neither name.
   * Throws FILE_UNWRITABLE where another object has that name, which this part never had.
   */
  name(result: Pick<PartResult, 'name' | 'written' | 'sha256' | 'bytes'>, terms: NamingTerms): Promise<boolean>;
  /** Whole or not at all. */
  writeManifest(name: string, text: string): Promise<void>;
  /** As what lies there is called in messages. */
  pathOf(name: string): string;
  /** Breaks off what waits for somebody. */
  stop(): void;
}

export interface NamingTerms {
  /** Told while the object has both names. */
  readonly onCopied: () => void;
  /** Whether the part was done before: what lies under its last name is its own, and is written anew. */
  readonly wasDone: () => Promise<boolean>;
}

export interface PartPlacesOptions {
  /** Told each time a store that has files, or gets objects, is away. */
  readonly onAway?: OnAway | undefined;
  /** Before each further attempt. For tests. */
  readonly patienceMs?: readonly number[] | undefined;
}

/** A request on which nothing moves. A store copies 5 GB in less. */
const IDLE_MS = 120_000;

export class PartPlaces {
  readonly #folders: readonly string[];
  readonly #options: PartPlacesOptions;
  readonly #buckets = new Map<string, Promise<S3Bucket>>();

  /** `folders`: absolute paths, and addresses s3://BUCKET/PREFIX. */
  constructor(folders: readonly string[], options: PartPlacesOptions = {}) {
    this.#folders = folders;
    this.#options = options;
  }

  /** Asks none of them anything. Throws CONFIG_INVALID where one of its buckets cannot be opened here, ever. */
  async openBuckets(): Promise<void> {
    const buckets = this.#folders.flatMap((folder) => /^s3:\/\/([^/]+)/.exec(folder)?.[1] ?? []);
    await Promise.all(buckets.map((bucket) => this.#terms(bucket)));
  }

  /** Throws FILE_UNREADABLE for what may not be read, or is not there, and SOURCE_CHANGED. `signal` stops it. */
  async source(source: PartSource, signal?: AbortSignal): Promise<PartFile> {
    const file = source.kind === 'file' ? await this.#file(source) : await this.#object(source);
    stopWith(signal, file);
    await file.check();
    return file;
  }

  async #file(source: Extract<PartSource, { kind: 'file' }>): Promise<PartFile> {
    const path = await realpath(source.path).catch((error: unknown) => {
      throw unreadable(source.path, error);
    });
    await this.#checkInside('FILE_UNREADABLE', source.path, path);
    return new SourceFile(path, source);
  }

  async #object(source: Extract<PartSource, { kind: 's3' }>): Promise<PartFile> {
    this.#checkWithin('FILE_UNREADABLE', `s3://${source.bucket}/${source.key}`);
    return new BucketFile(source, await this.#terms(source.bucket));
  }

  /** Throws FILE_UNWRITABLE. `signal` stops it. */
  async target({ output, run }: Pick<Part, 'output' | 'run'>, signal?: AbortSignal): Promise<PartTarget> {
    if (output.kind === 'folder') return new FolderTarget(await this.#folder(output), { stem: output.stem, run });
    this.#checkWithin('FILE_UNWRITABLE', `s3://${output.bucket}/${output.prefix}`);
    const target = await BucketTarget.open(output, run, await this.#terms(output.bucket));
    stopWith(signal, target);
    return target;
  }

  /** The folder itself, links resolved. */
  async #folder(output: Extract<PartOutput, { kind: 'folder' }>): Promise<string> {
    const folder = await realpath(output.folder).catch((error: unknown) => {
      throw codeOf(error) === 'ENOENT'
        ? new ShoalError('FILE_UNWRITABLE', `cannot write ${output.folder}: there is no such folder; make it`)
        : writeFailure(output.folder, error);
    });
    await this.#checkInside('FILE_UNWRITABLE', output.folder, folder);
    return folder;
  }

  async #terms(bucket: string): Promise<BucketTerms> {
    const opened = this.#buckets.get(bucket) ?? S3Bucket.open(bucket, { idleMs: IDLE_MS });
    this.#buckets.set(bucket, opened);
    opened.catch(() => this.#buckets.delete(bucket));
    return { bucket: await opened, ...this.#options };
  }

  async #checkInside(code: 'FILE_UNREADABLE' | 'FILE_UNWRITABLE', asked: string, found: string): Promise<void> {
    for (const folder of this.#folders.filter((one) => one.startsWith('/'))) {
      const inside = relative(await realpath(folder).catch(() => folder), found);
      if (inside !== '..' && !inside.startsWith('../')) return;
    }
    throw this.#outside(code, asked, asked === found ? asked : `${asked} (${found})`);
  }

  /** Of addresses. Stores that keep objects as files may understand "." and "..". */
  #checkWithin(code: 'FILE_UNREADABLE' | 'FILE_UNWRITABLE', address: string): void {
    const isPlain = !address.split('/').some((one) => one === '.' || one === '..');
    if (!isPlain || !isWithin(address, this.#folders)) throw this.#outside(code, address, address);
  }

  #outside(code: 'FILE_UNREADABLE' | 'FILE_UNWRITABLE', file: string, where: string): ShoalError {
    return new ShoalError(
      code,
      `${where} lies outside of the folders in which this worker takes parts: ${this.#folders.join(', ')} ` +
        '(partFolders, SHOAL_PART_FOLDERS)',
      { file },
    );
  }
}

function stopWith(signal: AbortSignal | undefined, waiting: { stop(): void }): void {
  if (signal?.aborted === true) waiting.stop();
  else signal?.addEventListener('abort', () => waiting.stop(), { once: true });
}

/** About how many bytes the object of a part will have; `parquet`: its source, where columns of that go along. */
export function expectedBytes(part: Part, dims: number, parquet: ParquetFile | undefined): number {
  const { output, range } = part;
  const carried =
    output.carries === true && parquet !== undefined
      ? parquet.groups.slice(range.from, range.to).reduce((sum, group) => sum + groupBytes(group), 0)
      : output.withText === true && range.kind === 'bytes'
        ? range.to - range.from
        : 0;
  return objectBytes({ rows: partRows(part), dims, dtype: output.dtype, carried });
}

function groupBytes({ chunks }: ParquetFile['groups'][number]): number {
  return chunks.reduce((sum, { bytes }) => sum + bytes, 0);
}

class SourceFile implements PartFile {
  readonly name: string;
  readonly #path: string;
  readonly #source: Extract<PartSource, { kind: 'file' }>;

  constructor(path: string, source: Extract<PartSource, { kind: 'file' }>) {
    this.#path = path;
    this.#source = source;
    this.name = basename(source.path);
  }

  get bytes(): number {
    return this.#source.bytes;
  }

  async check(): Promise<void> {
    this.#compare(
      await stat(this.#path).catch((error: unknown) => {
        throw unreadable(this.#source.path, error);
      }),
    );
  }

  async open(): Promise<FileHandle> {
    const file = await open(this.#path, 'r').catch((error: unknown) => {
      throw unreadable(this.#source.path, error);
    });
    try {
      this.#compare(await file.stat());
      return file;
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  async *chunks(from: number, to: number): AsyncGenerator<Buffer> {
    if (to <= from) return;
    const file = await this.open();
    try {
      const stream = createReadStream('', {
        fd: file,
        start: from,
        end: to - 1,
        autoClose: false,
        highWaterMark: READ_BYTES,
      });
      for await (const chunk of stream) yield chunk as Buffer;
    } finally {
      await file.close();
    }
  }

  stop(): void {
    // a disk is not waited for
  }

  #compare({ size, mtimeMs }: Stats): void {
    const { path, bytes, modifiedMs } = this.#source;
    if (size === bytes && mtimeMs === modifiedMs) return;
    throw new ShoalError(
      'SOURCE_CHANGED',
      `${path} is another file than the one that was cut into parts: it had ${bytes} bytes of ` +
        `${new Date(modifiedMs).toISOString()}, and has ${size} of ${new Date(mtimeMs).toISOString()}; run the command ` +
        'again, which cuts it anew',
      { file: path },
    );
  }
}

const READ_BYTES = 256 * 1024;

function unreadable(path: string, error: unknown): ShoalError<'FILE_UNREADABLE'> {
  const code = codeOf(error);
  const reason =
    code === 'ENOENT' || code === 'ENOTDIR'
      ? `there is no such file; does this worker see ${join(dirname(path), '/')} under this path?`
      : code === 'EACCES' || code === 'EPERM'
        ? 'the user of this worker may not read it'
        : error instanceof Error
          ? error.message
          : String(error);
  return new ShoalError('FILE_UNREADABLE', `cannot read ${path}: ${reason}`, { file: path }, error);
}
