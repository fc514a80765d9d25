// The storage in a bucket of S3 or of what speaks its protocol. A record is replaced by a conditional PUT (If-Match,
// If-None-Match), which S3 has since 2024 and which is tried when the storage is opened: without it two processes would
// run one batch. The SDK is loaded when a
// bucket is opened, which most servers never do.

import { randomUUID } from 'node:crypto';
import type { CompletedPart, S3Client } from '@aws-sdk/client-s3';
import { StorageFailure, namesIn, type Storage, type StoredObject } from './storage.ts';

export interface S3Place {
  readonly bucket: string;
  /** Goes before every key; without a slash at its end. */
  readonly folder: string;
  /** Undefined: AWS. */
  readonly endpoint: string | undefined;
}

type Sdk = typeof import('@aws-sdk/client-s3');

/** S3 takes no smaller parts of an object but for the last, and 10,000 of them. */
const PART_BYTES = 8 << 20;
const LARGER_AFTER = 1_000;

/** `s3://bucket/folder` and, for what is not AWS, its endpoint. Throws a TypeError for anything else. */
export function parseS3(url: string, endpoint: string | undefined): S3Place {
  const [, bucket, folder = ''] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*?))?\/?$/.exec(url) ?? [];
  if (bucket === undefined) throw new TypeError(`${JSON.stringify(url)} must be s3://BUCKET or s3://BUCKET/FOLDER`);
  if (folder !== '') namesIn(folder);
  return { bucket, folder, endpoint };
}

export class S3Storage implements Storage {
  readonly place: string;
  private readonly sdk: Sdk;
  private readonly client: S3Client;
  private readonly bucket: string;
  private readonly folder: string;

  private constructor(sdk: Sdk, { bucket, folder, endpoint }: S3Place) {
    this.sdk = sdk;
    this.place = `s3://${bucket}${folder === '' ? '' : `/${folder}`}`;
    this.bucket = bucket;
    this.folder = folder;
    this.client = new sdk.S3Client({
      region: process.env['AWS_REGION'] ?? process.env['AWS_DEFAULT_REGION'] ?? 'us-east-1',
      ...(endpoint !== undefined && { endpoint, forcePathStyle: true }),
      // servers other than AWS know no checksums in trailers
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
    });
  }

  /**
   * Credentials come from where the AWS SDK looks for them. Throws a StorageFailure where the bucket cannot be written,
   * or takes no conditional PUT.
   */
  static async open(place: S3Place): Promise<S3Storage> {
    const storage = new S3Storage(await import('@aws-sdk/client-s3'), place);
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
    const found = await this.attempt(`${key} cannot be read`, () => this.get(key));
    if (found === undefined) return undefined;
    const pieces: Uint8Array[] = [];
    for await (const piece of found.pieces) pieces.push(piece);
    return { bytes: Buffer.concat(pieces), version: found.version };
  }

  async replace(key: string, bytes: Uint8Array, version: string | undefined): Promise<string | undefined> {
    return this.attempt(`${key} cannot be written`, async () => {
      try {
        const condition = version === undefined ? { IfNoneMatch: '*' } : { IfMatch: version };
        const { ETag } = await this.client.send(
          new this.sdk.PutObjectCommand({ ...this.named(key), Body: bytes, ...condition }),
        );
        return ETag;
      } catch (error) {
        // another version, another PUT at the same moment, nothing there to match
        if ([412, 409, 404].includes(statusOf(error) ?? 0) && codeOf(error) !== 'NoSuchBucket') return undefined;
        throw error;
      }
    });
  }

  async write(key: string, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<number> {
    const upload = new Upload(this.sdk, this.client, this.named(key));
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
    return (await this.attempt(`${key} cannot be read`, () => this.get(key, from)))?.pieces;
  }

  async *names(folder: string, after?: string): AsyncGenerator<string, void, undefined> {
    namesIn(folder);
    const prefix = `${this.keyOf(folder)}/`;
    let token: string | undefined;
    do {
      const page = await this.attempt(`${folder} cannot be listed`, () =>
        this.client.send(
          new this.sdk.ListObjectsV2Command({
            Bucket: this.bucket,
            Prefix: prefix,
            Delimiter: '/',
            ...(token !== undefined && { ContinuationToken: token }),
            ...(token === undefined && after !== undefined && { StartAfter: prefix + after }),
          }),
        ),
      );
      for (const { Key } of page.Contents ?? []) if (Key !== undefined) yield Key.slice(prefix.length);
      token = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    } while (token !== undefined);
  }

  async remove(key: string): Promise<void> {
    await this.attempt(`${key} cannot be removed`, () =>
      this.client.send(new this.sdk.DeleteObjectCommand(this.named(key))),
    );
  }

  private async get(
    key: string,
    from = 0,
  ): Promise<{ readonly pieces: AsyncIterable<Uint8Array>; readonly version: string } | undefined> {
    try {
      const { Body, ETag = '' } = await this.client.send(
        new this.sdk.GetObjectCommand({ ...this.named(key), ...(from > 0 && { Range: `bytes=${from}-` }) }),
      );
      return { pieces: this.failing(key, Body as AsyncIterable<Uint8Array>), version: ETag };
    } catch (error) {
      if (statusOf(error) === 416) return { pieces: (async function* () {})(), version: '' }; // begins at its end
      if (statusOf(error) === 404 && codeOf(error) !== 'NoSuchBucket') return undefined;
      throw error;
    }
  }

  /** A connection that breaks half-way is a failure of the storage as well. */
  private async *failing(key: string, body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const pieces = body[Symbol.asyncIterator]();
    for (;;) {
      const next = await this.attempt(`${key} cannot be read`, () => pieces.next());
      if (next.done === true) return;
      yield next.value;
    }
  }

  private keyOf(key: string): string {
    return this.folder === '' ? key : `${this.folder}/${key}`;
  }

  private named(key: string): { readonly Bucket: string; readonly Key: string } {
    namesIn(key);
    return { Bucket: this.bucket, Key: this.keyOf(key) };
  }

  private async attempt<Done>(what: string, act: () => Promise<Done>): Promise<Done> {
    try {
      return await act();
    } catch (error) {
      if (error instanceof StorageFailure || error instanceof TypeError) throw error;
      const why = `${String(codeOf(error) ?? 'error')}: ${error instanceof Error ? error.message : String(error)}`;
      throw new StorageFailure(`${this.place}: ${what} (${why})`, error);
    }
  }
}

/** One object in parts; in one piece where it is small. */
class Upload {
  private readonly sdk: Sdk;
  private readonly client: S3Client;
  private readonly named: { readonly Bucket: string; readonly Key: string };
  private readonly parts: CompletedPart[] = [];
  private id: string | undefined;

  constructor(sdk: Sdk, client: S3Client, named: { readonly Bucket: string; readonly Key: string }) {
    this.sdk = sdk;
    this.client = client;
    this.named = named;
  }

  /** How large the next part is to be: an object of any size stays below 10,000 of them. */
  get partBytes(): number {
    return PART_BYTES * 2 ** Math.floor(this.parts.length / LARGER_AFTER);
  }

  async part(bytes: Uint8Array): Promise<void> {
    this.id ??= (await this.client.send(new this.sdk.CreateMultipartUploadCommand(this.named))).UploadId;
    const PartNumber = this.parts.length + 1;
    const { ETag } = await this.client.send(
      new this.sdk.UploadPartCommand({ ...this.named, UploadId: this.id, PartNumber, Body: bytes }),
    );
    this.parts.push({ PartNumber, ETag });
  }

  async end(last: Uint8Array): Promise<void> {
    if (this.id === undefined)
      return void (await this.client.send(new this.sdk.PutObjectCommand({ ...this.named, Body: last })));
    if (last.length > 0) await this.part(last);
    await this.client.send(
      new this.sdk.CompleteMultipartUploadCommand({
        ...this.named,
        UploadId: this.id,
        MultipartUpload: { Parts: this.parts },
      }),
    );
    this.id = undefined;
  }

  async abort(): Promise<void> {
    if (this.id === undefined) return;
    const aborting = new this.sdk.AbortMultipartUploadCommand({ ...this.named, UploadId: this.id });
    await this.client.send(aborting).catch(() => undefined); // what began to fail may fail again; buckets expire these
  }
}

function statusOf(error: unknown): number | undefined {
  const metadata: unknown = typeof error === 'object' && error !== null ? Reflect.get(error, '$metadata') : undefined;
  const status: unknown =
    typeof metadata === 'object' && metadata !== null ? Reflect.get(metadata, 'httpStatusCode') : undefined;
  return typeof status === 'number' ? status : undefined;
}

function codeOf(error: unknown): unknown {
  return typeof error === 'object' && error !== null ? Reflect.get(error, 'name') : undefined;
}
