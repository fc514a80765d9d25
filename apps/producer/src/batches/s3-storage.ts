// The storage in a bucket of S3 or of what speaks its protocol (libs/fetch). A record is replaced by a conditional PUT
// (If-Match, If-None-Match), which S3 has since 2024 and which is tried when the storage is opened: without it two
// processes would run one batch.

import { randomUUID } from 'node:crypto';
import type { PartSource } from '@shoal/contract';
import { S3Bucket, S3Failure, gathered } from '@shoal/fetch/s3';
import type { ReadableAt } from '@shoal/worker/files/footer';
import { StorageFailure, namesIn, type Storage, type StoredObject, type WorkerAccess } from './storage.ts';

export interface S3Folder {
  readonly bucket: string;
  /** Goes before every key; without a slash at its end. */
  readonly folder: string;
  /** Undefined: AWS. */
  readonly endpoint: string | undefined;
}

/** S3 takes no smaller parts of an object but for the last, and 10,000 of them. */
const PART_BYTES = 8 << 20;
const LARGER_AFTER = 1_000;

/** `s3://bucket/folder` and, for what is not AWS, its endpoint. Throws a TypeError for anything else. */
export function parseS3(url: string, endpoint: string | undefined): S3Folder {
  const [, bucket, folder = ''] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*?))?\/?$/.exec(url) ?? [];
  if (bucket === undefined) throw new TypeError(`${JSON.stringify(url)} must be s3://BUCKET or s3://BUCKET/FOLDER`);
  if (folder !== '') namesIn(folder);
  return { bucket, folder, endpoint };
}

export class S3Storage implements Storage {
  readonly place: string;
  readonly forWorkers: WorkerAccess;
  private readonly bucket: S3Bucket;
  private readonly bucketName: string;
  private readonly folder: string;

  private constructor(bucket: S3Bucket, place: S3Folder) {
    const { folder } = place;
    this.bucket = bucket;
    this.bucketName = place.bucket;
    this.folder = folder;
    this.place = `s3://${place.bucket}${folder === '' ? '' : `/${folder}`}`;
    this.forWorkers = {
      source: (key) => this.source(key),
      output: async (to) => ({ kind: 's3', bucket: this.bucketName, prefix: `${this.keyOf(to)}/` }),
      object: (from, name) => this.object(`${from}/${name}`),
      clear: (from) => this.clear(from),
    };
  }

  /**
   * Credentials come from where the AWS SDK looks for them. Throws a StorageFailure where the bucket cannot be written,
   * or takes no conditional PUT.
   */
  static async open(place: S3Folder): Promise<S3Storage> {
    const { bucket, endpoint } = place;
    const storage = new S3Storage(await S3Bucket.open(bucket, { endpoint }), place);
    const key = `probe-${randomUUID()}`;
    try {
      const first = await storage.replace(key, Buffer.from('1'), undefined);
      const again = await storage.replace(key, Buffer.from('2'), undefined);
      const next = await storage.replace(key, Buffer.from('3'), first);
      const old = await storage.replace(key, Buffer.from('4'), first);
      if (first === undefined || again !== undefined || next === undefined || old !== undefined)
        throw new StorageFailure(
          `${storage.place} ignores the conditions of a PUT (If-Match, If-None-Match): two servers would run one batch. ` +
            'Use a server that knows them, or a folder (batchDir)',
        );
    } finally {
      await storage.remove(key).catch(() => undefined);
    }
    return storage;
  }

  async read(key: string): Promise<StoredObject | undefined> {
    return this.attempt(`${key} cannot be read`, async () => {
      const found = await this.bucket.get(this.keyOf(key));
      if (found === undefined) return undefined;
      return { bytes: await gathered(found.pieces), version: found.version };
    });
  }

  async replace(key: string, bytes: Uint8Array, version: string | undefined): Promise<string | undefined> {
    return this.attempt(`${key} cannot be written`, async () => {
      try {
        return await this.bucket.put(this.keyOf(key), bytes, { version });
      } catch (error) {
        // another version, another PUT at the same moment, nothing there to match
        if (error instanceof S3Failure && (error.kind === 'changed' || error.kind === 'missing')) return undefined;
        throw error;
      }
    });
  }

  async write(key: string, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<number> {
    const upload = new Upload(this.bucket, this.keyOf(key));
    try {
      let buffered: Uint8Array[] = [];
      let length = 0;
      let bytes = 0;
      for await (const piece of pieces) {
        buffered.push(piece);
        length += piece.length;
        bytes += piece.length;
        if (length < upload.partBytes) continue;
        const part = Buffer.concat(buffered);
        [buffered, length] = [[], 0];
        await this.attempt(`${key} cannot be written`, () => upload.part(part));
      }
      await this.attempt(`${key} cannot be written`, () => upload.end(Buffer.concat(buffered)));
      return bytes;
    } catch (error) {
      await upload.abort();
      throw error;
    }
  }

  async open(key: string, from = 0): Promise<AsyncIterable<Uint8Array> | undefined> {
    const found = await this.attempt(`${key} cannot be read`, () => this.bucket.get(this.keyOf(key), { from }));
    return found && this.failing(`${key} cannot be read`, found.pieces);
  }

  async *names(folder: string, after?: string): AsyncGenerator<string, void, undefined> {
    yield* this.failing(`${folder} cannot be listed`, this.bucket.names(`${this.keyOf(folder)}/`, after));
  }

  async remove(key: string): Promise<void> {
    await this.attempt(`${key} cannot be removed`, () => this.bucket.remove(this.keyOf(key)));
  }

  // ---- for workers: the bucket as this process sees it, so at an endpoint that they ask as well ----------------------

  private async source(key: string): Promise<PartSource | undefined> {
    const whole = this.keyOf(key);
    const facts = await this.attempt(`${key} cannot be read`, () => this.bucket.head(whole));
    return (
      facts && { kind: 's3', bucket: this.bucketName, key: whole, etag: unquoted(facts.version), bytes: facts.bytes }
    );
  }

  /** Read by ranges, all of one version. */
  private async object(key: string): Promise<ReadableAt | undefined> {
    const whole = this.keyOf(key);
    const what = `${key} cannot be read`;
    const facts = await this.attempt(what, () => this.bucket.head(whole));
    if (facts === undefined) return undefined;
    const { bytes: size, version } = facts;
    return {
      stat: async () => ({ size }),
      read: (into, offset, length, from) =>
        this.attempt(what, async () => {
          const end = Math.min(from + length, size);
          if (from >= end) return { bytesRead: 0 };
          const found = await this.bucket.get(whole, { from, end, version });
          const bytes = found === undefined ? Buffer.alloc(0) : await gathered(found.pieces);
          into.set(bytes, offset);
          return { bytesRead: bytes.length };
        }),
      close: async () => undefined,
    };
  }

  /** With what workers had not committed. */
  private async clear(folder: string): Promise<void> {
    for (const below of [folder, `${folder}/_temporary`])
      for await (const name of this.names(below)) await this.remove(`${below}/${name}`);
  }

  private async *failing<Item>(what: string, items: AsyncIterable<Item>): AsyncGenerator<Item, void, undefined> {
    const iterator = items[Symbol.asyncIterator]();
    try {
      for (;;) {
        const next = await this.attempt(what, () => iterator.next());
        if (next.done === true) return;
        yield next.value;
      }
    } finally {
      await iterator.return?.();
    }
  }

  private keyOf(key: string): string {
    namesIn(key);
    return this.folder === '' ? key : `${this.folder}/${key}`;
  }

  private async attempt<Done>(what: string, act: () => Promise<Done>): Promise<Done> {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof S3Failure)) throw error;
      throw new StorageFailure(`${this.place}: ${what} (${error.message})`, error);
    }
  }
}

function unquoted(etag: string): string {
  return etag.replaceAll('"', '');
}

/** One object in parts; in one piece where it is small. */
class Upload {
  private readonly bucket: S3Bucket;
  private readonly key: string;
  private readonly etags: string[] = [];
  private id: string | undefined;

  constructor(bucket: S3Bucket, key: string) {
    this.bucket = bucket;
    this.key = key;
  }

  /** How large the next part is to be: an object of any size stays below 10,000 of them. */
  get partBytes(): number {
    return PART_BYTES * 2 ** Math.floor(this.etags.length / LARGER_AFTER);
  }

  async part(bytes: Uint8Array): Promise<void> {
    this.id ??= await this.bucket.begin(this.key);
    this.etags.push(await this.bucket.part(this.key, this.id, this.etags.length + 1, bytes));
  }

  async end(last: Uint8Array): Promise<void> {
    if (this.id === undefined) return void (await this.bucket.put(this.key, last));
    if (last.length > 0) await this.part(last);
    await this.bucket.complete(this.key, this.id, this.etags);
    this.id = undefined;
  }

  async abort(): Promise<void> {
    // what began to fail may fail again; buckets expire these
    if (this.id !== undefined) await this.bucket.abort(this.key, this.id).catch(() => undefined);
  }
}
