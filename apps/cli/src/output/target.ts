// Where the rows go. Everything that would make the last step fail is looked for first: a missing folder, a folder in
// the place of the file, an output that is also an input, a folder that cannot be written. Creates nothing.

import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { access, readdir, realpath, stat } from 'node:fs/promises';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { ShoalError } from '@shoal/contract';
import {
  compressionOf,
  refuseMissingCodec,
  withoutCompression,
  type Compression,
} from '@shoal/worker/files/compression';
import type { Input } from '../input/files.ts';
import { isObjectAddress } from '../input/object-address.ts';
import type { S3Place } from '@shoal/fetch/s3';
import type { OutputFormat } from '@shoal/worker/files/row-form';
import { writeFailure } from '@shoal/worker/files/write-failure';
import type { SinkPlace } from '../sinks/sink.ts';

export type Target =
  | { readonly kind: 'stdout' }
  /** A device or a pipe: it cannot be renamed over, rows go into it as they come. */
  | { readonly kind: 'device'; readonly path: string }
  | FileTarget;

export interface FileTarget {
  readonly kind: 'file';
  /** As the caller named it. */
  readonly name: string;
  readonly path: string;
  /** Hidden siblings: the rows so far, and what is needed to go on with them. */
  readonly partial: string;
  readonly state: string;
  /** The rows become those of a table; the files are about the run alone, in the working folder. */
  readonly sink?: SinkPlace;
  /** The file is uploaded once it is whole, and then goes; it lies in a hidden folder of its own. */
  readonly upload?: S3Place;
}

/** The target of `--to`. */
export function sinkTarget(sink: SinkPlace): FileTarget {
  const path = resolve(sink.table);
  const hidden = join(dirname(path), `.${basename(path)}.shoal-to`);
  return { kind: 'file', name: sink.name, path, partial: hidden, state: `${hidden}.json`, sink };
}

/** The target of `-o s3://BUCKET/KEY`, or FILE_UNWRITABLE. The hidden folder is made by whoever writes into it. */
export async function uploadTarget(upload: S3Place): Promise<FileTarget> {
  await checkFolder(resolve(), upload.name);
  const digest = createHash('sha256').update(upload.name).digest('hex').slice(0, 8);
  const name = join(`.shoal-s3-${digest}`, basename(upload.key));
  const path = resolve(name);
  const hidden = join(dirname(path), `.${basename(path)}.shoal-partial`);
  return { kind: 'file', name, path, partial: hidden, state: `${hidden}.json`, upload };
}

/** How a file beside the output is called: in the words that the caller used, or by the name of the table. */
export function besideOf({ name, sink, upload }: FileTarget): Pick<FileTarget, 'path'> {
  return { path: sink?.table ?? upload?.name ?? name };
}

const FORMAT_OF: Readonly<Record<string, OutputFormat>> = {
  '.jsonl': 'jsonl',
  '.ndjson': 'jsonl',
  '.csv': 'csv',
  '.npy': 'npy',
  '.arrow': 'arrow',
  '.feather': 'arrow',
  '.parquet': 'parquet',
  '.pq': 'parquet',
};

/** The form of the output: what was asked for, else what the file's extension says, else JSONL on stdout. */
export function outputFormat(output: string | undefined, asked: OutputFormat | undefined): OutputFormat {
  if (asked !== undefined) return asked;
  if (output === undefined || isStdout(output)) return 'jsonl';
  const extension = extname(withoutCompression(output)).toLowerCase();
  const format = FORMAT_OF[extension];
  if (format !== undefined) return format;
  const found = extension === '' ? 'has no extension' : `has the extension ${extension}`;
  throw new ShoalError(
    'USAGE',
    `the output ${output} ${found}; Shoal writes .jsonl and .csv, both also .gz and .zst, .npy, .arrow and .parquet. Say which of them it is with --output-format`,
  );
}

/** How lines of the output are compressed, by its name; USAGE for a form that is not lines. */
export function outputCompression(output: string | undefined, format: OutputFormat): Compression | undefined {
  const compression = output === undefined ? undefined : compressionOf(output);
  if (output === undefined || compression === undefined) return undefined;
  if (format !== 'jsonl' && format !== 'csv')
    throw new ShoalError(
      'USAGE',
      `the output ${output} would be a .${format} that is compressed, which no reader opens; write ` +
        `${withoutCompression(output)}${format === 'parquet' ? ', which is compressed within' : ''}`,
    );
  refuseMissingCodec(compression, output);
  return compression;
}

/** The target of `-o`, or FILE_UNWRITABLE or USAGE saying why it cannot be one. */
export async function checkTarget(output: string | undefined, inputs: readonly Input[]): Promise<Target> {
  if (output === undefined || isStdout(output)) return { kind: 'stdout' };
  if (isObjectAddress(output))
    throw new ShoalError(
      'USAGE',
      `the output ${output} is an object of S3, which shoal embed alone writes; name a file`,
    );
  const path = await followLink(resolve(output));
  const facts = await factsOf(path, output);
  if (facts?.isDirectory() === true)
    throw unwritable(output, `it is a folder; name a file in it, for example ${join(output, 'vectors.jsonl')}`);
  if (facts !== undefined && !facts.isFile()) return { kind: 'device', path };
  if (facts !== undefined) refuseInput(output, `${facts.dev}:${facts.ino}`, inputs);
  await checkFolder(dirname(path), output);
  const hidden = join(dirname(path), `.${basename(path)}.shoal-partial`);
  return { kind: 'file', name: output, path, partial: hidden, state: `${hidden}.json` };
}

const SHARD_DIGITS = 5;

/** The file of one shard: OUT.npy → OUT-00000.npy. The state of the run is one for all of them. */
export function shardTarget({ path, name, state }: FileTarget, shard: number): FileTarget {
  const numbered = (file: string): string =>
    `${withoutExtension(file)}-${String(shard).padStart(SHARD_DIGITS, '0')}${extensionOf(file)}`;
  const own = numbered(path);
  return {
    kind: 'file',
    name: numbered(name),
    path: own,
    partial: join(dirname(own), `.${basename(own)}.shoal-partial`),
    state,
  };
}

/** Names all shards, once they are all there: OUT.npy → OUT.index.json. */
export function indexPath({ path }: FileTarget): string {
  return `${withoutExtension(path)}.index.json`;
}

/** Numbers of the shards that are there, whoever wrote them. */
export async function existingShards({ path, name }: FileTarget): Promise<readonly number[]> {
  const before = `${basename(withoutExtension(path))}-`;
  const files = await readdir(dirname(path)).catch((error: unknown) => {
    throw writeFailure(name, error);
  });
  return files.flatMap((file) => {
    const digits =
      file.startsWith(before) && file.endsWith(extensionOf(path))
        ? file.slice(before.length, file.length - extensionOf(path).length)
        : '';
    return digits.length >= SHARD_DIGITS && /^\d+$/.test(digits) ? [Number(digits)] : [];
  });
}

/** With that of a compression: .jsonl.gz. */
export function extensionOf(path: string): string {
  const inner = withoutCompression(path);
  return extname(inner) + path.slice(inner.length);
}

function withoutExtension(path: string): string {
  return path.slice(0, path.length - extensionOf(path).length);
}

function isStdout(output: string): boolean {
  return output === '-' || output === '/dev/stdout';
}

/** The file behind a symbolic link: renaming onto the link would replace the link. */
async function followLink(path: string): Promise<string> {
  return realpath(path).catch(() => path);
}

async function factsOf(path: string, output: string) {
  try {
    return await stat(path);
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw writeFailure(output, error);
  }
}

function refuseInput(output: string, inode: string, inputs: readonly Input[]): void {
  const same = inputs.find((input) => input.inode === inode);
  if (same !== undefined)
    throw new ShoalError(
      'USAGE',
      `the output ${output} is also an input (${same.name}); choose another file, the input would be lost`,
    );
}

async function checkFolder(folder: string, output: string): Promise<void> {
  const facts = await factsOf(folder, output);
  if (facts === undefined)
    throw unwritable(output, `there is no folder ${folder}; create it first: mkdir -p ${folder}`);
  if (!facts.isDirectory()) throw unwritable(output, `${folder} is not a folder`);
  await access(folder, constants.W_OK | constants.X_OK).catch((error: unknown) => {
    throw writeFailure(output, error);
  });
}

function unwritable(output: string, reason: string): ShoalError<'FILE_UNWRITABLE'> {
  return new ShoalError('FILE_UNWRITABLE', `cannot write ${output}: ${reason}`, { file: output });
}
