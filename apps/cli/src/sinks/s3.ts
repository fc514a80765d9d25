// A file into a bucket of S3, or of what speaks its protocol: in parts where it is large, and so that it takes the place
// of an object only while that is the one that was there when the command began (If-Match, If-None-Match, which S3 has
// since 2024). Parts that arrived are found again by a later command, so nothing is sent twice.

import { createHash } from 'node:crypto';
import { open, type FileHandle } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { S3Bucket, S3Failure, patiently, type S3Condition, type S3Place } from '@shoal/fetch/s3';
import { storeReason } from '@shoal/worker/files/object-place';

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

export class S3Object {
  readonly place: S3Place;
  private readonly bucket: S3Bucket;
  /** Of the object as it was when this was opened; undefined: there was none. */
  private readonly version: string | undefined;

  private constructor(bucket: S3Bucket, place: S3Place, version: string | undefined) {
    this.bucket = bucket;
    this.place = place;
    this.version = version;
  }

  /** Looks what is there and whether it may be written; FILE_UNWRITABLE with what the store says where it may not. */
  static async open(place: S3Place): Promise<S3Object> {
    const bucket = await S3Bucket.open(place.bucket);
    try {
      const before = await bucket.head(place.key);
      await bucket.abort(place.key, await bucket.begin(place.key));
      return new S3Object(bucket, place, before?.version);
    } catch (error) {
      bucket.close();
      throw unwritable(place, error);
    }
  }

  close(): void {
    this.bucket.close();
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
      const condition = suffix === '' ? { version: this.version } : undefined;
      const key = this.place.key + suffix;
      if (bytes <= partBytes) await this.whole(file, bytes, key, condition, terms);
      else await this.inParts(file, bytes, key, condition, terms);
    } finally {
      await file.close();
    }
  }

  private async whole(
    file: FileHandle,
    bytes: number,
    key: string,
    condition: S3Condition | undefined,
    terms: UploadTerms,
  ): Promise<void> {
    const content = await piece(file, 0, bytes);
    await this.patiently(terms, () => this.bucket.put(key, content, condition));
    terms.onProgress(bytes);
  }

  private async inParts(
    file: FileHandle,
    bytes: number,
    key: string,
    condition: S3Condition | undefined,
    terms: UploadTerms,
  ): Promise<void> {
    const { id, partBytes, arrived } = await this.begun(key, bytes, terms);
    const etags: string[] = [];
    for (let from = 0; from < bytes; from += partBytes) {
      const number = etags.length + 1;
      const content = await piece(file, from, Math.min(partBytes, bytes - from));
      const known = arrived.get(number);
      etags.push(
        known === `"${createHash('md5').update(content).digest('hex')}"`
          ? known
          : await this.patiently(terms, () => this.bucket.part(key, id, number, content)),
      );
      terms.onProgress(from + content.length);
    }
    if (condition !== undefined) await this.refuseChanged(key, terms);
    await this.patiently(terms, () => this.bucket.complete(key, id, etags, condition));
  }

  /** Servers other than AWS ignore conditions at the end of an upload in parts, so somebody looks as well. */
  private async refuseChanged(key: string, terms: UploadTerms): Promise<void> {
    const now = await this.patiently(terms, () => this.bucket.head(key));
    if (now?.version !== this.version) throw changed(this.place, undefined);
  }

  /** The upload of an earlier command with its parts by their ETags, or a new one. */
  private async begun(
    key: string,
    bytes: number,
    terms: UploadTerms,
  ): Promise<BegunUpload & { readonly arrived: ReadonlyMap<number, string> }> {
    const earlier = terms.begun;
    if (earlier !== undefined && earlier.bytes === bytes) {
      const arrived = await this.patiently(terms, () => this.bucket.parts(key, earlier.id));
      // buckets are often told to forget uploads after some days
      if (arrived !== undefined) return { ...earlier, arrived };
    }
    const { partBytes: asked = PART_BYTES } = terms;
    const partBytes = Math.max(asked, Math.ceil(bytes / MOST_PARTS));
    const upload = { id: await this.patiently(terms, () => this.bucket.begin(key)), partBytes, bytes };
    await terms.onBegun(upload);
    return { ...upload, arrived: new Map() };
  }

  /** A store that is away is waited for, for a minute in all. */
  private async patiently<Done>({ signal, onAway, patienceMs }: UploadTerms, act: () => Promise<Done>): Promise<Done> {
    const told = (failure: S3Failure, waitMs: number): void =>
      onAway(`${this.place.name} cannot be written (${failure.message})`, waitMs);
    try {
      return await patiently({ signal, onAway: told, patienceMs }, act);
    } catch (error) {
      if (!(error instanceof S3Failure)) throw error;
      throw error.kind === 'changed' ? changed(this.place, error) : unwritable(this.place, error);
    }
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

function changed({ name }: S3Place, error: unknown): ShoalError<'FILE_UNWRITABLE'> {
  return new ShoalError(
    'FILE_UNWRITABLE',
    `${name} was written by somebody else since this command began, and stays as it is; the same command writes over it, ` +
      'another name leaves both',
    { file: name },
    error,
  );
}

function unwritable(place: S3Place, error: unknown): ShoalError<'FILE_UNWRITABLE'> {
  return new ShoalError(
    'FILE_UNWRITABLE',
    `cannot write ${place.name}: ${storeReason(place, error)}`,
    { file: place.name },
    error,
  );
}
