// Where the objects of a run go, as the command sees it: a folder that it shares with the workers, or a bucket below a
// prefix. It looks what is there, reads it, and writes the manifest; objects are written by workers.

import { createReadStream } from 'node:fs';
import { mkdir, readFile, readdir, rename, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { ShoalError, partCheckpoint, type Part, type PartOutput } from '@shoal/contract';
import { codeOf } from '@shoal/core/base';
import { S3Bucket, S3Failure, gathered, patiently } from '@shoal/fetch/s3';
import { storeReason } from '@shoal/worker/files/object-place';
import { ObjectSource, type OnAway } from '@shoal/worker/files/object-source';
import { putManifest } from '@shoal/worker/files/run-manifest';
import { writeFailure } from '@shoal/worker/files/write-failure';
import { unreadable } from '../input/files.ts';

export interface RunPlace {
  /** As it is called in messages and found by workers, without "/" at its end. */
  readonly name: string;
  /** As parts have it. */
  readonly output:
    | Pick<Extract<PartOutput, { kind: 'folder' }>, 'kind' | 'folder'>
    | Pick<Extract<PartOutput, { kind: 's3' }>, 'kind' | 'bucket' | 'prefix'>;
  /** Makes it where it is missing, as far as that can be. FILE_UNWRITABLE. */
  make(): Promise<void>;
  /** Undefined where there is none. */
  read(name: string): Promise<string | undefined>;
  names(): Promise<readonly string[]>;
  /** Bytes of an object; undefined where there is none. */
  size(name: string): Promise<number | undefined>;
  /** All of an object; undefined where there is none. */
  chunks(name: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array> | undefined>;
  /** Bytes that are free; undefined where there is no end. */
  room(): Promise<number | undefined>;
  /** Rows of these parts that lie behind checkpoints, as far as these are seen from here. */
  checkpointRows(open: readonly Part[]): Promise<ReadonlyMap<Part, number>>;
  /** Whole or not at all. FILE_UNWRITABLE where that of another run lies there. */
  writeManifest(name: string, run: string, text: string): Promise<void>;
  close(): void;
}

/** `output`: as somebody named it, with "/" at its end. USAGE for an address that is not whole. */
export async function openRunPlace(
  output: string,
  terms: { readonly signal: AbortSignal; readonly onAway: OnAway },
): Promise<RunPlace> {
  if (!output.startsWith('s3://')) return new RunFolder(resolve(output));
  const [, bucket, prefix] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\/(|.*\/)$/s.exec(output) ?? [];
  const isPlain = prefix
    ?.split('/')
    .every((one, at, all) => !['.', '..'].includes(one) && (one !== '' || at === all.length - 1));
  if (bucket === undefined || prefix === undefined || isPlain !== true || Buffer.byteLength(prefix) > 900)
    throw new ShoalError(
      'USAGE',
      `the output ${output} must be s3://BUCKET/PREFIX/, for example s3://bucket/vectors/; the prefix has 900 bytes at most, and ` +
        'no part of it is empty, "." or ".."',
    );
  return new RunPrefix(await S3Bucket.open(bucket, { idleMs: IDLE_MS }), bucket, prefix, terms);
}

const IDLE_MS = 120_000;
const READ_BYTES = 1024 * 1024;

class RunFolder implements RunPlace {
  readonly name: string;

  constructor(folder: string) {
    this.name = folder;
  }

  get output() {
    return { kind: 'folder', folder: this.name } as const;
  }

  /** In one that is there. */
  async make(): Promise<void> {
    const folder = this.name;
    await mkdir(folder).catch((error: unknown) => {
      if (codeOf(error) === 'EEXIST') return;
      throw codeOf(error) === 'ENOENT'
        ? new ShoalError(
            'FILE_UNWRITABLE',
            `cannot write ${folder}/: the folder in which it would lie is not there; make it`,
          )
        : writeFailure(folder, error);
    });
    if (!(await stat(folder)).isDirectory())
      throw new ShoalError(
        'FILE_UNWRITABLE',
        `cannot write ${folder}/: it is a file, and objects of parts go into a folder`,
      );
  }

  async read(name: string): Promise<string | undefined> {
    const path = join(this.name, name);
    return readFile(path, 'utf8').catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT') return undefined;
      throw unreadable(path, error);
    });
  }

  names(): Promise<readonly string[]> {
    return readdir(this.name);
  }

  async size(name: string): Promise<number | undefined> {
    return (await stat(join(this.name, name)).catch(() => undefined))?.size;
  }

  async chunks(name: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array> | undefined> {
    if ((await this.size(name)) === undefined) return undefined;
    return createReadStream(join(this.name, name), { highWaterMark: READ_BYTES, signal });
  }

  async room(): Promise<number> {
    const { bavail, bsize } = await statfs(this.name);
    return bavail * bsize;
  }

  async checkpointRows(open: readonly Part[]): Promise<ReadonlyMap<Part, number>> {
    const there = new Set(await readdir(this.name).catch(() => []));
    const begun = open.filter((part) => there.has(partCheckpoint(part)));
    return new Map(
      await Promise.all(
        begun.map(async (part) => {
          const text = await readFile(join(this.name, partCheckpoint(part)), 'utf8').catch(() => '');
          const [, rows = '0'] = /"rows":(\d{1,9})\b/.exec(text) ?? [];
          return [part, Number(rows)] as const;
        }),
      ),
    );
  }

  async writeManifest(name: string, _run: string, text: string): Promise<void> {
    const path = join(this.name, name);
    const beside = `${path}.${process.pid}`;
    try {
      await writeFile(beside, text, { flush: true });
      await rename(beside, path);
    } catch (error) {
      await rm(beside, { force: true });
      throw writeFailure(path, error);
    }
  }

  close(): void {
    // nothing is open
  }
}

class RunPrefix implements RunPlace {
  readonly name: string;
  readonly output;
  readonly #bucket: S3Bucket;
  readonly #terms: { readonly signal: AbortSignal; readonly onAway: OnAway };

  constructor(
    bucket: S3Bucket,
    name: string,
    prefix: string,
    terms: { readonly signal: AbortSignal; readonly onAway: OnAway },
  ) {
    this.name = `s3://${name}/${prefix}`.replace(/\/$/, '');
    this.output = { kind: 's3', bucket: name, prefix } as const;
    this.#bucket = bucket;
    this.#terms = terms;
  }

  /** A prefix is there once something lies below it; whether the bucket is, and may be written, is tried by an upload that ends at once. */
  async make(): Promise<void> {
    const key = this.#key('_temporary/trial');
    await this.#ask(async () => this.#bucket.abort(key, await this.#bucket.begin(key)));
  }

  async read(name: string): Promise<string | undefined> {
    return this.#ask(async () => {
      const found = await this.#bucket.get(this.#key(name));
      return found && String(await gathered(found.pieces));
    });
  }

  names(): Promise<readonly string[]> {
    return this.#ask(async () => {
      const names: string[] = [];
      for await (const name of this.#bucket.names(this.output.prefix)) names.push(name);
      return names;
    });
  }

  async size(name: string): Promise<number | undefined> {
    return (await this.#ask(() => this.#bucket.head(this.#key(name))))?.bytes;
  }

  async chunks(name: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array> | undefined> {
    const key = this.#key(name);
    const facts = await this.#ask(() => this.#bucket.head(key));
    if (facts === undefined) return undefined;
    const place = { name: `s3://${this.output.bucket}/${key}`, bucket: this.output.bucket, key };
    const object = new ObjectSource({
      place,
      bucket: this.#bucket,
      facts,
      changed: () => new ShoalError('FILE_UNREADABLE', `${place.name} was written anew while it was read`),
    });
    signal.addEventListener('abort', () => object.stop(), { once: true });
    return object.chunks(this.#terms.onAway);
  }

  async room(): Promise<undefined> {
    return undefined;
  }

  /** Checkpoints lie with the workers. */
  async checkpointRows(): Promise<ReadonlyMap<Part, number>> {
    return new Map();
  }

  async writeManifest(name: string, run: string, text: string): Promise<void> {
    const key = this.#key(name);
    const place = { bucket: this.#bucket, key, name: `${this.name}/${name}`, ask: this.#ask };
    await putManifest(place, run, text);
  }

  close(): void {
    this.#bucket.close();
  }

  #key(name: string): string {
    return this.output.prefix + name;
  }

  readonly #ask = async <Done>(act: () => Promise<Done>): Promise<Done> => {
    const { signal, onAway } = this.#terms;
    try {
      return await patiently(
        { signal, onAway: ({ message }, waitMs) => onAway(`${this.name}/ cannot be reached (${message})`, waitMs) },
        act,
      );
    } catch (error) {
      if (!(error instanceof S3Failure)) throw error;
      const reason =
        error.kind === 'changed'
          ? 'somebody else writes there at the same time; run one of the two again'
          : storeReason({ bucket: this.output.bucket, key: '', name: this.name }, error);
      throw new ShoalError('FILE_UNWRITABLE', `cannot use ${this.name}/: ${reason}`, { file: this.name }, error);
    }
  };
}
