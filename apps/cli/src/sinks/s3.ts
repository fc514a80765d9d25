// A file into a bucket of S3, or of what speaks its protocol: in parts where it is large, and so that it takes the place
// of an object only while that is the one that was there when the command began (If-Match, If-None-Match, which S3 has
// since 2024). Parts that arrived are found again by a later command, so nothing is sent twice. The SDK is loaded when a
// bucket is named, and takes credentials, region and endpoint from where all of AWS's tools have them.

import { createHash } from 'node:crypto';
import { open, type FileHandle } from 'node:fs/promises';
import { setTimeout as wait } from 'node:timers/promises';
import type { CompletedPart, S3Client } from '@aws-sdk/client-s3';
import { ShoalError } from '@shoal/contract';

type Sdk = typeof import('@aws-sdk/client-s3');

/** An object, before anybody connects. */
export interface S3Place {
  /** s3://BUCKET/KEY */
  readonly name: string;
  readonly bucket: string;
  readonly key: string;
}

/** An upload in parts that has begun. */
export interface BegunUpload {
  readonly id: string;
  readonly partBytes: number;
  /** Of the file. */
  readonly bytes: number;
}

export interface UploadTerms {
  readonly signal: AbortSignal;
  /** What an earlier command began; parts that have arrived and are those of the file are not sent again. */
  readonly begun: BegunUpload | undefined;
  /** Told before the first part of an upload is sent. */
  readonly onBegun: (upload: BegunUpload) => Promise<void>;
  readonly onProgress: (bytes: number) => void;
  /** Told each time the store is away. */
  readonly onAway: (problem: string, waitMs: number) => void;
  readonly patienceMs?: readonly number[];
  /** Smaller files go in one piece. For tests. */
  readonly partBytes?: number;
}

/** S3 takes no smaller parts of an object but for the last, and 10,000 of them. */
const PART_BYTES = 16 << 20;
const MOST_PARTS = 9_000;
/** Before each further attempt at a store that is away. */
const PATIENCE_MS: readonly number[] = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];

/** The object that an address names; undefined where it is none of S3's. USAGE for one that is not whole. */
export function s3Place(address: string): S3Place | undefined {
  if (!address.startsWith('s3://')) return undefined;
  const [, bucket, key] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\/(.*[^/])$/s.exec(address) ?? [];
  if (bucket === undefined || key === undefined)
    throw new ShoalError(
      'USAGE',
      `the output ${address} must be s3://BUCKET/KEY, for example s3://bucket/vectors.parquet`,
    );
  if (Buffer.byteLength(key) > 1_024)
    throw new ShoalError('USAGE', `the key of the output ${address} has more than the 1,024 bytes that S3 takes`);
  return { name: address, bucket, key };
}

export class S3Object {
  readonly place: S3Place;
  private readonly sdk: Sdk;
  private readonly client: S3Client;
  /** Of the object as it was when this was opened; undefined: there was none. */
  private readonly version: string | undefined;

  private constructor(sdk: Sdk, client: S3Client, place: S3Place, version: string | undefined) {
    this.sdk = sdk;
    this.client = client;
    this.place = place;
    this.version = version;
  }

  /** Looks what is there and whether it may be written; FILE_UNWRITABLE with what the store says where it may not. */
  static async open(place: S3Place): Promise<S3Object> {
    const sdk = await import('@aws-sdk/client-s3');
    const endpoint = process.env['AWS_ENDPOINT_URL_S3'] ?? process.env['AWS_ENDPOINT_URL'];
    const client = new sdk.S3Client({
      region: process.env['AWS_REGION'] ?? process.env['AWS_DEFAULT_REGION'] ?? 'us-east-1',
      ...(endpoint !== undefined && { endpoint, forcePathStyle: true }),
      // servers other than AWS know no checksums in trailers
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
    });
    const named = { Bucket: place.bucket, Key: place.key };
    try {
      const version = await versionOf(sdk, client, named);
      const { UploadId } = await client.send(new sdk.CreateMultipartUploadCommand(named));
      await client.send(new sdk.AbortMultipartUploadCommand({ ...named, UploadId }));
      return new S3Object(sdk, client, place, version);
    } catch (error) {
      client.destroy();
      throw unwritable(place, error);
    }
  }

  close(): void {
    this.client.destroy();
  }

  /**
   * The file at `path` becomes the object, or one beside it: `suffix` goes behind its key, and nothing is asked of what
   * was there. FILE_UNWRITABLE where the object is not the one any more that was there, or the store stays away.
   */
  async upload(path: string, suffix: string, terms: UploadTerms): Promise<void> {
    const file = await open(path, 'r');
    try {
      const { size: bytes } = await file.stat();
      const { partBytes = PART_BYTES } = terms;
      const condition = suffix === '' ? this.condition() : {};
      const named = { Bucket: this.place.bucket, Key: this.place.key + suffix };
      if (bytes <= partBytes) await this.whole(file, bytes, { ...named, ...condition }, terms);
      else await this.inParts(file, bytes, named, condition, terms);
    } finally {
      await file.close();
    }
  }

  private condition(): { readonly IfMatch: string } | { readonly IfNoneMatch: '*' } {
    return this.version === undefined ? { IfNoneMatch: '*' } : { IfMatch: this.version };
  }

  private async whole(
    file: FileHandle,
    bytes: number,
    named: { readonly Bucket: string; readonly Key: string },
    terms: UploadTerms,
  ): Promise<void> {
    const Body = await piece(file, 0, bytes);
    await this.patiently(terms, () => this.client.send(new this.sdk.PutObjectCommand({ ...named, Body })));
    terms.onProgress(bytes);
  }

  private async inParts(
    file: FileHandle,
    bytes: number,
    named: { readonly Bucket: string; readonly Key: string },
    condition: object,
    terms: UploadTerms,
  ): Promise<void> {
    const { id, partBytes, arrived } = await this.begun(named, bytes, terms);
    const parts: CompletedPart[] = [];
    for (let from = 0; from < bytes; from += partBytes) {
      const PartNumber = parts.length + 1;
      const Body = await piece(file, from, Math.min(partBytes, bytes - from));
      const known = arrived.get(PartNumber);
      const ETag =
        known === `"${createHash('md5').update(Body).digest('hex')}"`
          ? known
          : await this.patiently(terms, async () => {
              const part = { ...named, UploadId: id, PartNumber, Body };
              return (await this.client.send(new this.sdk.UploadPartCommand(part))).ETag;
            });
      parts.push({ PartNumber, ETag });
      terms.onProgress(from + Body.length);
    }
    const whole = { ...named, UploadId: id, MultipartUpload: { Parts: parts }, ...condition };
    if (Object.keys(condition).length > 0) await this.refuseChanged(named, terms);
    await this.patiently(terms, () => this.client.send(new this.sdk.CompleteMultipartUploadCommand(whole)));
  }

  /** Servers other than AWS ignore conditions at the end of an upload in parts, so somebody looks as well. */
  private async refuseChanged(
    named: { readonly Bucket: string; readonly Key: string },
    terms: UploadTerms,
  ): Promise<void> {
    const now = await this.patiently(terms, () => versionOf(this.sdk, this.client, named));
    if (now !== this.version) throw changed(this.place, undefined);
  }

  /** The upload of an earlier command with its parts by their ETags, or a new one. */
  private async begun(
    named: { readonly Bucket: string; readonly Key: string },
    bytes: number,
    terms: UploadTerms,
  ): Promise<BegunUpload & { readonly arrived: ReadonlyMap<number, string> }> {
    const earlier = terms.begun;
    if (earlier !== undefined && earlier.bytes === bytes) {
      const arrived = await this.patiently(terms, () => this.arrived(named, earlier.id));
      if (arrived !== undefined) return { ...earlier, arrived };
    }
    const { partBytes: asked = PART_BYTES } = terms;
    const partBytes = Math.max(asked, Math.ceil(bytes / MOST_PARTS));
    const { UploadId } = await this.patiently(terms, () =>
      this.client.send(new this.sdk.CreateMultipartUploadCommand(named)),
    );
    const upload = { id: UploadId ?? '', partBytes, bytes };
    await terms.onBegun(upload);
    return { ...upload, arrived: new Map() };
  }

  /** Undefined: the store has forgotten the upload, as buckets are often told to after some days. */
  private async arrived(
    named: { readonly Bucket: string; readonly Key: string },
    UploadId: string,
  ): Promise<Map<number, string> | undefined> {
    const found = new Map<number, string>();
    let PartNumberMarker: string | undefined;
    try {
      do {
        const asked = { ...named, UploadId, ...(PartNumberMarker !== undefined && { PartNumberMarker }) };
        const page = await this.client.send(new this.sdk.ListPartsCommand(asked));
        for (const { PartNumber, ETag } of page.Parts ?? [])
          if (PartNumber !== undefined && ETag !== undefined) found.set(PartNumber, ETag);
        PartNumberMarker = page.IsTruncated === true ? page.NextPartNumberMarker : undefined;
      } while (PartNumberMarker !== undefined);
      return found;
    } catch (error) {
      if (statusOf(error) === 404) return undefined;
      throw error;
    }
  }

  /** A store that is away is waited for, for a minute in all. */
  private async patiently<Done>({ signal, onAway, patienceMs = PATIENCE_MS }: UploadTerms, act: () => Promise<Done>) {
    for (let attempt = 0; ; attempt++) {
      signal.throwIfAborted();
      try {
        return await act();
      } catch (error) {
        const waitMs = patienceMs[attempt];
        if (isConflict(error)) throw changed(this.place, error);
        if (!isAway(error) || waitMs === undefined) throw unwritable(this.place, error);
        onAway(`${this.place.name} cannot be written (${messageOf(error)})`, waitMs);
        await wait(waitMs, undefined, { signal });
      }
    }
  }
}

/** Undefined where there is no object, or no bucket. */
async function versionOf(
  sdk: Sdk,
  client: S3Client,
  named: { readonly Bucket: string; readonly Key: string },
): Promise<string | undefined> {
  try {
    return (await client.send(new sdk.HeadObjectCommand(named))).ETag;
  } catch (error) {
    if (statusOf(error) === 404) return undefined;
    throw error;
  }
}

async function piece(file: FileHandle, from: number, bytes: number): Promise<Buffer> {
  const buffer = Buffer.allocUnsafe(bytes);
  for (let at = 0; at < bytes;) {
    const { bytesRead } = await file.read(buffer, at, bytes - at, from + at);
    if (bytesRead === 0) throw new ShoalError('FILE_UNREADABLE', 'the file became shorter while it was uploaded');
    at += bytesRead;
  }
  return buffer;
}

function isConflict(error: unknown): boolean {
  return statusOf(error) === 412 || (statusOf(error) === 409 && codeOf(error) === 'ConditionalRequestConflict');
}

/** No answer, or one that asks for patience. */
function isAway(error: unknown): boolean {
  const status = statusOf(error);
  return status === undefined || status >= 500 || status === 429 || status === 408;
}

function changed({ name }: S3Place, error: unknown): ShoalError<'FILE_UNWRITABLE'> {
  return new ShoalError(
    'FILE_UNWRITABLE',
    `${name} was written by somebody else since this command began, and stays as it is; the same command writes over it, ` +
      'another name leaves both',
    { file: name },
    error,
  );
}

function unwritable({ name, bucket }: S3Place, error: unknown): ShoalError<'FILE_UNWRITABLE'> {
  const code = codeOf(error);
  const cure =
    code === 'NoSuchBucket'
      ? `there is no bucket ${bucket}`
      : code === 'CredentialsProviderError'
        ? 'no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE'
        : messageOf(error);
  return new ShoalError('FILE_UNWRITABLE', `cannot write ${name}: ${cure}`, { file: name }, error);
}

function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  const code = codeOf(error);
  return typeof code === 'string' && code !== 'Error' && !message.includes(code) ? `${code}: ${message}` : message;
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
