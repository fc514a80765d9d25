// Where parts of files may lie: in the folders that this worker was given, whatever symbolic links say, and nowhere else.
// A source is one version of a file: another size or time of change is another file, and fails the part by name.

import { createReadStream, type Stats } from 'node:fs';
import { open, realpath, stat, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { ShoalError, type PartOutput, type PartSource } from '@shoal/contract';
import { codeOf } from '@shoal/core/base';
import { writeFailure } from '../files/write-failure.ts';

export class PartPlaces {
  readonly #folders: readonly string[];

  /** `folders`: absolute paths. */
  constructor(folders: readonly string[]) {
    this.#folders = folders;
  }

  /** Throws FILE_UNREADABLE for what may not be read, or is not there, and SOURCE_CHANGED. */
  async source(source: PartSource): Promise<SourceFile> {
    if (source.kind !== 'file')
      throw new ShoalError(
        'FILE_UNREADABLE',
        `s3://${source.bucket}/${source.key} cannot be read: workers of this version read parts of files alone`,
      );
    const path = await realpath(source.path).catch((error: unknown) => {
      throw unreadable(source.path, error);
    });
    await this.#checkInside('FILE_UNREADABLE', source.path, path);
    const file = new SourceFile(path, source);
    await file.check();
    return file;
  }

  /** The folder itself, links resolved. Throws FILE_UNWRITABLE. */
  async target(output: PartOutput): Promise<string> {
    if (output.kind !== 'folder')
      throw new ShoalError(
        'FILE_UNWRITABLE',
        `s3://${output.bucket}/${output.prefix} cannot be written: workers of this version write parts into folders alone`,
      );
    const folder = await realpath(output.folder).catch((error: unknown) => {
      throw codeOf(error) === 'ENOENT'
        ? new ShoalError('FILE_UNWRITABLE', `cannot write ${output.folder}: there is no such folder; make it`)
        : writeFailure(output.folder, error);
    });
    await this.#checkInside('FILE_UNWRITABLE', output.folder, folder);
    return folder;
  }

  async #checkInside(code: 'FILE_UNREADABLE' | 'FILE_UNWRITABLE', asked: string, found: string): Promise<void> {
    for (const folder of this.#folders) {
      const inside = relative(await realpath(folder).catch(() => folder), found);
      if (inside !== '..' && !inside.startsWith('../')) return;
    }
    const where = asked === found ? asked : `${asked} (${found})`;
    throw new ShoalError(
      code,
      `${where} lies outside of the folders in which this worker takes parts: ${this.#folders.join(', ')} ` +
        '(partFolders, SHOAL_PART_FOLDERS)',
      { file: asked },
    );
  }
}

/** One version of a file. */
export class SourceFile {
  /** As it is called in messages. */
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

  /** Throws SOURCE_CHANGED where the file is another one by now. */
  async check(): Promise<void> {
    this.#compare(
      await stat(this.#path).catch((error: unknown) => {
        throw unreadable(this.#source.path, error);
      }),
    );
  }

  /** To be read at places; the caller closes it. */
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

  /** Its bytes from one place to another. */
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
