// What `shoal embed` was asked to read. Everything that can be known of a file without reading it through is checked
// here, for all files at once and before a server, a worker or an output file exists. Refuses to guess a format.

import { createHash } from 'node:crypto';
import { constants, fstatSync, openSync } from 'node:fs';
import { open, stat, type FileHandle } from 'node:fs/promises';
import { Socket } from 'node:net';
import { extname, resolve } from 'node:path';
import { addAbortSignal, type Readable } from 'node:stream';
import { ShoalError } from '@shoal/contract';
import { compressionIn, compressionOf, withoutCompression } from '@shoal/worker/files/compression';
import { readFooter, type ParquetFile, type ReadableAt } from '@shoal/worker/files/footer';
import type { BadRecord, InputIdentity, RecordOptions, TextFormat, TextRecord } from '@shoal/worker/files/record';
import { decompressed } from './decompress.ts';
import { isObjectAddress } from './object-address.ts';
import { ObjectSource, type OnAway } from '@shoal/worker/files/object-source';
import { parquetRecords } from '@shoal/worker/files/parquet-records';
import { numbered, readRecords } from './records.ts';
import { binaryProblem, unknownFormat } from './refuse-binary.ts';

const HEAD_BYTES = 64 * 1024;

const FORMAT_OF: Readonly<Record<string, TextFormat>> = {
  '.txt': 'text',
  '.text': 'text',
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.json': 'json',
  '.csv': 'csv',
  '.tsv': 'csv',
  '.md': 'markdown',
  '.markdown': 'markdown',
  '.parquet': 'parquet',
  '.pq': 'parquet',
};

export interface Input {
  /** As it is called in messages. */
  readonly name: string;
  /** Undefined: standard input, or an object. */
  readonly path: string | undefined;
  /** An object of a store. */
  readonly object?: ObjectSource;
  readonly format: TextFormat;
  /** Device and inode, to see that an output would overwrite it. */
  readonly inode: string | undefined;
  /** Undefined for what cannot be read again: pipes, devices, standard input. */
  readonly identity: InputIdentity | undefined;
  /** Undefined for pipes and devices, whose size nobody knows. */
  readonly bytes: number | undefined;
  /** Of a Parquet file: what its footer says. */
  readonly parquet?: ParquetFile;
}

/** Runs `use` with every FILE as an input, see checkInputs; objects are closed when it has ended, in whatever way. */
export async function withInputs<Result>(
  files: readonly string[],
  format: TextFormat | undefined,
  use: (inputs: readonly Input[]) => Promise<Result>,
): Promise<Result> {
  const inputs = await checkInputs(files, format);
  try {
    return await use(inputs);
  } finally {
    closeObjects(inputs);
  }
}

/**
 * Every FILE as an input, or one error that names every problem, and then none is left open. `-` and an empty list mean
 * standard input.
 */
export async function checkInputs(files: readonly string[], format: TextFormat | undefined): Promise<readonly Input[]> {
  const names = files.length === 0 ? ['-'] : files;
  if (names.filter((name) => name === '-').length > 1)
    throw new ShoalError('USAGE', '"-" is given twice; standard input can be read once');
  if (names.includes('-') && format === 'parquet') throw new ShoalError('USAGE', noParquetStream('standard input'));
  const settled = await Promise.allSettled(
    names.map((name) =>
      name === '-'
        ? standardInput(format)
        : isObjectAddress(name)
          ? checkObject(name, format)
          : checkFile(name, format),
    ),
  );
  const checked = settled.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const inputs = checked.filter((one) => 'name' in one);
  if (inputs.length === names.length) return inputs;
  closeObjects(inputs);
  const broken = settled.find((one) => one.status === 'rejected');
  if (broken !== undefined) throw broken.reason;
  const problems = checked.filter((one) => 'code' in one);
  const code = problems.find((one) => one.code === 'FILE_UNREADABLE')?.code ?? 'USAGE';
  throw new ShoalError(code, problems.map((one) => one.message).join('\n'), { files: problems.length });
}

function closeObjects(inputs: readonly Input[]): void {
  for (const { object } of inputs) object?.close();
}

export interface FieldFlags {
  readonly textField?: string;
  readonly idField?: string;
  readonly delimiter?: string;
  /** False: --no-header. */
  readonly header: boolean;
}

const WITH_FIELDS: ReadonlySet<TextFormat> = new Set(['jsonl', 'json', 'csv', 'parquet'] as const);

/** Only a record has fields: a line of JSON that is read as plain text would be embedded with its braces and names. */
export function refuseFieldsWithoutEffect(
  inputs: readonly Input[],
  { textField, idField, delimiter, header }: FieldFlags,
): void {
  const flag = textField !== undefined ? '--text-field' : idField === undefined ? undefined : '--id-field';
  if (flag !== undefined && !inputs.some(({ format }) => WITH_FIELDS.has(format)))
    throw new ShoalError(
      'USAGE',
      `${flag} is about fields of JSONL, JSON, CSV and Parquet, and no input is any of them; say --format jsonl or --format csv ` +
        'where an extension does not',
    );
  const ofCsv = delimiter !== undefined ? '--delimiter' : header ? undefined : '--no-header';
  if (ofCsv !== undefined && !inputs.some(({ format }) => format === 'csv'))
    throw new ShoalError(
      'USAGE',
      `${ofCsv} is about CSV, and no input is that; say --format csv where an extension does not`,
    );
}

/** Bytes of all inputs, or undefined where one of them is a pipe. */
export function totalBytes(inputs: readonly Input[]): number | undefined {
  return inputs.reduce<number | undefined>(
    (total, { bytes }) => (total === undefined || bytes === undefined ? undefined : total + bytes),
    0,
  );
}

export interface ReadOptions extends Pick<
  RecordOptions,
  'textField' | 'idField' | 'delimiter' | 'hasHeader' | 'notes'
> {
  readonly stdin: Readable;
  /** Closes the file, pipe or standard input that is being read, also one that says nothing. */
  readonly signal: AbortSignal;
  /** Called with the size of each chunk that was read. */
  readonly onBytes: (bytes: number) => void;
  /** Called each time a store that has an input is away. */
  readonly onAway?: OnAway;
}

/** The records of all inputs, one file after the other. Throws FILE_UNREADABLE when one stops being readable. */
export async function* readInputs(
  inputs: readonly Input[],
  options: ReadOptions,
): AsyncGenerator<TextRecord | BadRecord> {
  let next = 0;
  for (const input of inputs) {
    const own = { ...options, format: input.format, name: input.name, firstIndex: next };
    const records =
      input.parquet !== undefined
        ? numbered(parquetFound(input, input.parquet, options), own)
        : readRecords(textsOf(input, options), own);
    for await (const record of records) {
      next = record.index + 1;
      yield record;
    }
  }
}

/** Bytes are counted in proportion, since only some columns are read. */
function parquetFound(input: Input, parquet: ParquetFile, { onBytes, ...options }: ReadOptions) {
  let counted = 0;
  return parquetRecords(
    () => openAt(input, options.onAway),
    parquet,
    options,
    (rows) => {
      const bytes = Math.round((parquet.bytes * rows) / Math.max(1, parquet.rows));
      onBytes(bytes - counted);
      counted = bytes;
    },
  );
}

/** A file or an object, to be read at places. */
export async function openAt({ path, object }: Input, onAway?: OnAway): Promise<ReadableAt> {
  return object === undefined ? open(path!, 'r') : object.openAt(onAway);
}

/** What is text at last; a compressed file is counted by its own bytes. */
async function* textsOf(input: Input, options: ReadOptions): AsyncGenerator<Buffer> {
  let isFirst = true;
  for await (const chunk of decompressed(chunksOf(input, options), input.name)) {
    if (isFirst) refuseBinary(input.name, chunk);
    isFirst = false;
    yield chunk;
  }
}

async function* chunksOf(input: Input, { stdin, signal, onBytes, onAway }: ReadOptions): AsyncGenerator<Buffer> {
  const { path, object } = input;
  try {
    const chunks =
      object !== undefined
        ? object.chunks(onAway)
        : addAbortSignal(signal, path === undefined ? stdin : await openChunks(path));
    for await (const chunk of chunks) {
      const bytes = Buffer.isBuffer(chunk) ? chunk : Buffer.from(String(chunk));
      onBytes(bytes.length);
      yield bytes;
    }
  } catch (error) {
    throw error instanceof ShoalError ? error : unreadable(input.name, error);
  }
}

/** The bytes of a file or of a pipe by its name, in pieces of `highWaterMark` bytes at most where it is a file. */
export async function openChunks(path: string, highWaterMark = HEAD_BYTES): Promise<Readable> {
  if ((await stat(path)).isFIFO()) return openPipe(path);
  return (await open(path)).createReadStream({ highWaterMark });
}

/**
 * A pipe by its name. Opened the usual way it keeps a thread in the kernel until somebody writes, and a process with
 * such a thread cannot end: Ctrl-C would do nothing. Opened without waiting, it is the event loop that waits.
 */
function openPipe(path: string): Readable {
  return new Socket({ fd: openSync(path, constants.O_RDONLY | constants.O_NONBLOCK), readable: true, writable: false });
}

type Problem = { readonly code: 'USAGE' | 'FILE_UNREADABLE'; readonly message: string };

function noParquetStream(name: string): string {
  return (
    `${name} cannot be read as Parquet: a Parquet file says at its end where its columns lie, and is compressed within. ` +
    'Name a file on a disk, not compressed around it'
  );
}

function standardInput(format: TextFormat | undefined): Input {
  return {
    name: 'standard input',
    path: undefined,
    format: format ?? 'text',
    identity: undefined,
    ...standardInputFacts(),
  };
}

function standardInputFacts(): { inode: string | undefined; bytes: number | undefined } {
  try {
    const facts = fstatSync(0);
    return facts.isFile()
      ? { inode: `${facts.dev}:${facts.ino}`, bytes: facts.size }
      : { inode: undefined, bytes: undefined };
  } catch {
    return { inode: undefined, bytes: undefined }; // closed: it reads as empty
  }
}

async function checkObject(name: string, given: TextFormat | undefined): Promise<Input | Problem> {
  const format = given ?? formatOf(name);
  if (format === undefined) return { code: 'USAGE', message: unknownFormat(name) };
  if (format === 'parquet' && compressionOf(name) !== undefined)
    return { code: 'USAGE', message: noParquetStream(name) };
  let object: ObjectSource | undefined;
  try {
    object = await ObjectSource.open(name);
    const { bytes, identity } = object;
    const own = { name, path: undefined, object, format, inode: undefined, identity, bytes };
    if (format !== 'parquet') return own;
    return { ...own, parquet: await readFooter(object.openAt(), name) };
  } catch (error) {
    object?.close();
    if (!(error instanceof ShoalError)) throw error;
    return { code: error.code === 'USAGE' ? 'USAGE' : 'FILE_UNREADABLE', message: error.message };
  }
}

function formatOf(name: string): TextFormat | undefined {
  return FORMAT_OF[extname(withoutCompression(name)).toLowerCase()];
}

async function checkFile(name: string, given: TextFormat | undefined): Promise<Input | Problem> {
  const format = given ?? formatOf(name);
  try {
    const facts = await stat(name);
    if (facts.isDirectory())
      return {
        code: 'FILE_UNREADABLE',
        message: `${name} is a folder; name the files in it, for example ${name.replace(/\/$/, '')}/*.txt`,
      };
    if (format === undefined) return { code: 'USAGE', message: unknownFormat(name) };
    const inode = `${facts.dev}:${facts.ino}`;
    if (format === 'parquet' && (!facts.isFile() || compressionOf(name) !== undefined))
      return { code: 'USAGE', message: noParquetStream(name) };
    if (!facts.isFile()) return { name, path: name, format, inode, identity: undefined, bytes: undefined };
    const file = await open(name, constants.O_RDONLY);
    try {
      const head = await readHead(file, name, format);
      const parquet = format === 'parquet' ? { parquet: await readFooter(file, name) } : {};
      return {
        name,
        path: name,
        format,
        inode,
        identity: { path: resolve(name), bytes: facts.size, modifiedMs: facts.mtimeMs, head },
        bytes: facts.size,
        ...parquet,
      };
    } finally {
      await file.close();
    }
  } catch (error) {
    return {
      code: 'FILE_UNREADABLE',
      message: error instanceof ShoalError ? error.message : unreadable(name, error).message,
    };
  }
}

async function readHead(file: FileHandle, name: string, format: TextFormat): Promise<string> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(HEAD_BYTES), 0, HEAD_BYTES, 0);
  const head = buffer.subarray(0, bytesRead);
  // the bytes of a compressed file say nothing of its texts, and a Parquet file has a head of its own
  if (format !== 'parquet' && compressionIn(head) === undefined) refuseBinary(name, head);
  return createHash('sha256').update(head).digest('hex');
}

export function refuseBinary(name: string, head: Buffer): void {
  const problem = binaryProblem(name, head);
  if (problem !== undefined) throw new ShoalError('FILE_UNREADABLE', problem);
}

export function unreadable(name: string, error: unknown): ShoalError<'FILE_UNREADABLE'> {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  const reason =
    code === 'ENOENT'
      ? 'there is no such file'
      : code === 'EACCES' || code === 'EPERM'
        ? 'this user may not read it'
        : code === 'ENOTDIR'
          ? 'a part of its path is not a folder'
          : error instanceof Error
            ? error.message
            : String(error);
  return new ShoalError('FILE_UNREADABLE', `cannot read ${name}: ${reason}`, { file: name }, error);
}
