// A bucket of S3, or of what speaks its protocol: the only importer of AWS's SDK, which is loaded when a bucket is opened.
// Credentials and region come from where all of AWS's tools have them. Whatever fails is an S3Failure that says whether to
// wait, whether somebody else was first, or whether nothing is there; what that means is the caller's business.

import type { Readable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import type { LifecycleRule, S3Client } from '@aws-sdk/client-s3';
import { ShoalError } from '@shoal/contract';

type Sdk = typeof import('@aws-sdk/client-s3');

/** An object of a bucket. */
export interface S3Place {
  /** s3://BUCKET/KEY */
  readonly name: string;
  readonly bucket: string;
  readonly key: string;
}

/** The object that an address names; undefined where it is none of S3's. A TypeError for one that is not whole. */
export function s3Place(address: string): S3Place | undefined {
  if (!address.startsWith('s3://')) return undefined;
  const [, bucket, key] = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])\/(.*[^/])$/s.exec(address) ?? [];
  if (bucket === undefined || key === undefined) throw new TypeError('must be s3://BUCKET/KEY');
  if (Buffer.byteLength(key) > 1_024) throw new TypeError('has a key of more than the 1,024 bytes that S3 takes');
  return { name: address, bucket, key };
}

export interface S3Facts {
  /** Its ETag. */
  readonly version: string;
  readonly bytes: number;
  readonly modifiedMs: number;
  /** What was noted beside it (x-amz-meta-…). */
  readonly notes: Readonly<Record<string, string>>;
}

export interface S3Bytes {
  readonly version: string;
  /** How many are to come. */
  readonly bytes: number;
  readonly pieces: AsyncIterable<Uint8Array>;
}

/** All of some pieces. */
export async function gathered(pieces: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all);
}

/** A rule of the bucket by which it deletes objects itself. */
export interface S3Expiry {
  /** Of the keys that it is about; empty: all. */
  readonly prefix: string;
  /** How old objects become, and versions that were replaced or deleted; undefined: the rule leaves these. */
  readonly days: number | undefined;
  readonly replacedDays: number | undefined;
}

/** A write that happens only where the object has this version, or is not there (undefined). */
export interface S3Condition {
  readonly version: string | undefined;
}

/**
 * `away`: no answer, or one that asks for patience. `changed`: a condition does not hold. `missing`: no such object.
 * `refused`: everything else, `code` says what.
 */
export type S3FailureKind = 'away' | 'changed' | 'missing' | 'refused';

export class S3Failure extends Error {
  readonly kind: S3FailureKind;
  /** As the store has it: NoSuchBucket, AccessDenied, CredentialsProviderError… */
  readonly code: string;

  constructor(error: unknown) {
    const [code, status] = [codeOf(error), statusOf(error)];
    const message = wordsOf(error, status);
    super(
      ['Error', 'UnknownError', 'Unknown'].includes(code) || message.includes(code) ? message : `${code}: ${message}`,
      {
        cause: error,
      },
    );
    this.name = 'S3Failure';
    this.code = code;
    this.kind = kindOf(status, code);
  }
}

export interface S3Patience {
  readonly signal?: AbortSignal | undefined;
  /** Told each time the store is away. */
  readonly onAway: (failure: S3Failure, waitMs: number) => void;
  /** Before each further attempt. */
  readonly patienceMs?: readonly number[] | undefined;
}

/** A minute in all. */
const PATIENCE_MS: readonly number[] = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];

/** What `act` comes to, which is done again while the store is away. */
export async function patiently<Done>(
  { signal, onAway, patienceMs = PATIENCE_MS }: S3Patience,
  act: () => Promise<Done>,
): Promise<Done> {
  for (let round = 0; ; round++) {
    signal?.throwIfAborted();
    try {
      return await act();
    } catch (error) {
      const waitMs = patienceMs[round];
      if (!(error instanceof S3Failure) || error.kind !== 'away' || waitMs === undefined) throw error;
      onAway(error, waitMs);
      await wait(waitMs, undefined, { signal });
    }
  }
}

const silent = (): void => undefined;
/** The SDK writes on the terminal that a stream cannot be sent twice; whoever asks hears of every failure. */
const SILENT = { trace: silent, debug: silent, info: silent, warn: silent, error: silent };

/** Everything rejects with an S3Failure. */
export class S3Bucket {
  /** Where it is asked for, in words: "http://minio:9000, region us-east-1 (AWS_REGION)", without a password. */
  readonly where: string;
  private readonly sdk: Sdk;
  private readonly client: S3Client;
  private readonly bucket: string;

  private constructor(sdk: Sdk, client: S3Client, bucket: string, where: string) {
    this.sdk = sdk;
    this.client = client;
    this.bucket = bucket;
    this.where = where;
  }

  /**
   * Asks nothing yet. `endpoint`: of what is not AWS; default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS. CONFIG_INVALID
   * where AWS's SDK is not installed, which the published client leaves to those who want it, and where nothing says in
   * which region of AWS the bucket is. `idleMs`: a request on which nothing moves for so long has failed (`away`); default:
   * it is waited for.
   */
  static async open(
    bucket: string,
    { endpoint = ownEndpoint(), idleMs }: { readonly endpoint?: string | undefined; readonly idleMs?: number } = {},
  ) {
    const sdk = await loaded(bucket);
    const { region, saidBy } = await regionOf(sdk, bucket, endpoint);
    const client = new sdk.S3Client({
      region,
      ...(endpoint !== undefined && { endpoint, forcePathStyle: true }),
      ...(idleMs !== undefined && { requestHandler: { connectionTimeout: idleMs, socketTimeout: idleMs } }),
      logger: SILENT,
      // servers other than AWS know no checksums in trailers
      requestChecksumCalculation: 'WHEN_REQUIRED',
      responseChecksumValidation: 'WHEN_REQUIRED',
    });
    const store = endpoint === undefined ? '' : `${hidden(endpoint)}, `;
    return new S3Bucket(sdk, client, bucket, `${store}region ${region} (${saidBy})`);
  }

  close(): void {
    this.client.destroy();
  }

  /** Undefined where there is no such object; also where there is no bucket, which HEAD does not tell apart. */
  async head(key: string): Promise<S3Facts | undefined> {
    const asked = new this.sdk.HeadObjectCommand(this.named(key));
    const found = await orNothing(attempt(() => this.client.send(asked))).catch((error: unknown) =>
      this.inWords(key, error),
    );
    if (found === undefined) return undefined;
    const { ETag = '', ContentLength = 0, LastModified, Metadata = {} } = found;
    return { version: ETag, bytes: ContentLength, modifiedMs: LastModified?.getTime() ?? 0, notes: Metadata };
  }

  /**
   * The bytes from `from` on, up to `end` (exclusive), as they come; none where the object ends before. Undefined where
   * there is no such object. With `version` a failure `changed` where it is another one.
   */
  async get(
    key: string,
    {
      from = 0,
      end,
      version,
      signal,
    }: {
      readonly from?: number;
      readonly end?: number;
      readonly version?: string;
      readonly signal?: AbortSignal;
    } = {},
  ): Promise<S3Bytes | undefined> {
    const range = from > 0 || end !== undefined;
    const asked = new this.sdk.GetObjectCommand({
      ...this.named(key),
      ...(range && { Range: `bytes=${from}-${end === undefined ? '' : end - 1}` }),
      ...(version !== undefined && { IfMatch: version }),
    });
    const found = await orNothing(
      attempt(() => this.client.send(asked, endedBy(signal))).catch((error: unknown) => {
        if (error instanceof S3Failure && statusOf(error.cause) === 416)
          return { Body: undefined, ETag: version, ContentLength: 0 };
        throw error;
      }),
    );
    if (found === undefined) return undefined;
    const body = found.Body as AsyncIterable<Uint8Array> | undefined;
    const pieces = body === undefined ? nothing() : failing(body);
    return { version: found.ETag ?? '', bytes: found.ContentLength ?? 0, pieces };
  }

  /**
   * The new version. `bytes` become the object; with a condition, a failure `changed` where it does not hold. `notes` are
   * kept beside it (x-amz-meta-…).
   */
  async put(
    key: string,
    bytes: Uint8Array,
    condition?: S3Condition,
    { signal, notes }: { readonly signal?: AbortSignal; readonly notes?: Record<string, string> } = {},
  ): Promise<string> {
    const asked = {
      ...this.named(key),
      Body: bytes,
      ...(notes !== undefined && { Metadata: notes }),
      ...conditionOf(condition),
    };
    const { ETag = '' } = await attempt(() => this.client.send(new this.sdk.PutObjectCommand(asked), endedBy(signal)));
    return ETag;
  }

  /**
   * What a file holds becomes the object, in one request and without being held: 5 GB at most. `open`: from its beginning.
   * `bytes`: how many there are; `sha256`: in hex, and the store compares.
   */
  async putFile(
    key: string,
    open: () => Readable,
    bytes: number,
    {
      signal,
      notes,
      sha256,
    }: { readonly signal?: AbortSignal; readonly notes?: Record<string, string>; readonly sha256?: string } = {},
  ): Promise<void> {
    const body = open();
    const asked = {
      ...this.named(key),
      Body: body,
      ContentLength: bytes,
      ...(notes !== undefined && { Metadata: notes }),
      ...(sha256 !== undefined && { ChecksumSHA256: Buffer.from(sha256, 'hex').toString('base64') }),
    };
    try {
      await attempt(() => this.client.send(new this.sdk.PutObjectCommand(asked), endedBy(signal)));
    } finally {
      body.destroy();
    }
  }

  /** With its notes, to another key of the bucket. False where there is no such object. 5 GB at most. */
  async copy(key: string, to: string, { signal }: { readonly signal?: AbortSignal } = {}): Promise<boolean> {
    const source = `${this.bucket}/${key.split('/').map(encodeURIComponent).join('/')}`;
    const asked = new this.sdk.CopyObjectCommand({ ...this.named(to), CopySource: source });
    return (await orNothing(attempt(() => this.client.send(asked, endedBy(signal))))) !== undefined;
  }

  /** Nothing where there is none. */
  async remove(key: string, { signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    const asked = new this.sdk.DeleteObjectCommand(this.named(key));
    await attempt(() => this.client.send(asked, endedBy(signal)));
  }

  /** The rules in force by which the bucket deletes objects of any kind and size. */
  async expiries({ signal }: { readonly signal?: AbortSignal } = {}): Promise<readonly S3Expiry[]> {
    const asked = new this.sdk.GetBucketLifecycleConfigurationCommand({ Bucket: this.bucket });
    const found = await orNothing(attempt(() => this.client.send(asked, endedBy(signal))));
    return (found?.Rules ?? []).flatMap(expiryOf);
  }

  /** Whether what is deleted or replaced stays there as an older version. */
  async keepsVersions({ signal }: { readonly signal?: AbortSignal } = {}): Promise<boolean> {
    const asked = new this.sdk.GetBucketVersioningCommand({ Bucket: this.bucket });
    return (await attempt(() => this.client.send(asked, endedBy(signal)))).Status === 'Enabled';
  }

  /**
   * Keys directly below a prefix, without it, that come after `after`; in the order of their bytes. `isDeep`: all that begin
   * with it.
   */
  async *names(
    prefix: string,
    after?: string,
    { isDeep = false }: { readonly isDeep?: boolean } = {},
  ): AsyncGenerator<string, void, undefined> {
    let token: string | undefined;
    do {
      const asked = new this.sdk.ListObjectsV2Command({
        Bucket: this.bucket,
        Prefix: prefix,
        ...(!isDeep && { Delimiter: '/' }),
        ...(token !== undefined && { ContinuationToken: token }),
        ...(token === undefined && after !== undefined && { StartAfter: prefix + after }),
      });
      const page = await attempt(() => this.client.send(asked));
      for (const { Key } of page.Contents ?? []) if (Key !== undefined) yield Key.slice(prefix.length);
      token = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    } while (token !== undefined);
  }

  /** Begins an upload in parts, of 5 MiB at least but for the last, and 10,000 at most. Its id. */
  async begin(key: string): Promise<string> {
    const asked = new this.sdk.CreateMultipartUploadCommand(this.named(key));
    return (await attempt(() => this.client.send(asked))).UploadId ?? '';
  }

  /** The ETag of a part, by its number from 1. */
  async part(key: string, id: string, number: number, bytes: Uint8Array): Promise<string> {
    const asked = { ...this.named(key), UploadId: id, PartNumber: number, Body: bytes };
    return (await attempt(() => this.client.send(new this.sdk.UploadPartCommand(asked)))).ETag ?? '';
  }

  /** Parts that have arrived, by number; undefined where the store has forgotten the upload. */
  async parts(key: string, id: string): Promise<Map<number, string> | undefined> {
    const found = new Map<number, string>();
    let marker: string | undefined;
    do {
      const asked = { ...this.named(key), UploadId: id, ...(marker !== undefined && { PartNumberMarker: marker }) };
      const page = await orNothing(attempt(() => this.client.send(new this.sdk.ListPartsCommand(asked))));
      if (page === undefined) return undefined;
      for (const { PartNumber, ETag } of page.Parts ?? [])
        if (PartNumber !== undefined && ETag !== undefined) found.set(PartNumber, ETag);
      marker = page.IsTruncated === true ? page.NextPartNumberMarker : undefined;
    } while (marker !== undefined);
    return found;
  }

  /** The parts become the object, `etags` in their order. Servers other than AWS ignore the condition here. */
  async complete(key: string, id: string, etags: readonly string[], condition?: S3Condition): Promise<void> {
    const asked = {
      ...this.named(key),
      UploadId: id,
      MultipartUpload: { Parts: etags.map((ETag, at) => ({ PartNumber: at + 1, ETag })) },
      ...conditionOf(condition),
    };
    await attempt(() => this.client.send(new this.sdk.CompleteMultipartUploadCommand(asked)));
  }

  async abort(key: string, id: string): Promise<void> {
    const asked = { ...this.named(key), UploadId: id };
    await attempt(() => this.client.send(new this.sdk.AbortMultipartUploadCommand(asked)));
  }

  /** What is wrong with a request (its region, a token that is over) is said only where an answer has a body. */
  private async inWords(key: string, error: unknown): Promise<never> {
    if (error instanceof S3Failure && statusOf(error.cause) === 400) await this.get(key, { end: 1 });
    throw error;
  }

  private named(key: string): { readonly Bucket: string; readonly Key: string } {
    return { Bucket: this.bucket, Key: key };
  }
}

function endedBy(signal: AbortSignal | undefined): { readonly abortSignal?: AbortSignal } {
  return signal === undefined ? {} : { abortSignal: signal };
}

async function loaded(bucket: string): Promise<Sdk> {
  try {
    return await import('@aws-sdk/client-s3');
  } catch (error) {
    throw new ShoalError(
      'CONFIG_INVALID',
      `the bucket ${bucket} cannot be opened: AWS’s S3 client cannot be loaded ` +
        `(${error instanceof Error ? error.message : String(error)}); install it beside this program: ` +
        'npm install @aws-sdk/client-s3@3',
      {},
      error,
    );
  }
}

/** None of a rule that is off, or that asks for tags or sizes. */
function expiryOf({ Status, Filter, Prefix, Expiration, NoncurrentVersionExpiration }: LifecycleRule): S3Expiry[] {
  if (Status !== 'Enabled') return [];
  const { Tag, ObjectSizeGreaterThan, ObjectSizeLessThan, And } = Filter ?? {};
  if ([Tag, ObjectSizeGreaterThan, ObjectSizeLessThan, And].some((condition) => condition !== undefined)) return [];
  const [days, replacedDays] = [Expiration?.Days, NoncurrentVersionExpiration?.NoncurrentDays];
  if (days === undefined && replacedDays === undefined) return [];
  return [{ prefix: Filter?.Prefix ?? Prefix ?? '', days, replacedDays }];
}

/** Throws CONFIG_INVALID for what AWS's client would call an "Invalid URL" at the first request. */
function ownEndpoint(): string | undefined {
  const name = variable('AWS_ENDPOINT_URL_S3') === undefined ? 'AWS_ENDPOINT_URL' : 'AWS_ENDPOINT_URL_S3';
  const endpoint = variable(name);
  if (endpoint === undefined || (/^https?:\/\//.test(endpoint) && URL.canParse(endpoint))) return endpoint;
  throw new ShoalError(
    'CONFIG_INVALID',
    `${name} is ${JSON.stringify(hidden(endpoint))}, which is no address of a store: ` +
      'write https://HOST or http://HOST:PORT, or leave it out for AWS',
  );
}

/** Without a name and password. */
function hidden(endpoint: string): string {
  return endpoint.replace(/\/\/.*@/, '//***@');
}

/** What most stores other than AWS go by, and what they take where they have no regions. */
const REGION_OF_OTHERS = 'us-east-1';

/** Where AWS's tools look for it: two variables, then the profile. Throws CONFIG_INVALID where AWS's is said nowhere. */
async function regionOf(
  sdk: Sdk,
  bucket: string,
  endpoint: string | undefined,
): Promise<{ readonly region: string; readonly saidBy: string }> {
  for (const name of ['AWS_REGION', 'AWS_DEFAULT_REGION']) {
    const region = variable(name);
    if (region !== undefined) return { region, saidBy: name };
  }
  const profile = variable('AWS_PROFILE') ?? 'default';
  const client = new sdk.S3Client({});
  try {
    return { region: await client.config.region(), saidBy: `the profile ${profile}` };
  } catch (error) {
    if (endpoint !== undefined) return { region: REGION_OF_OTHERS, saidBy: 'set nowhere' };
    throw new ShoalError(
      'CONFIG_INVALID',
      `the region of the bucket ${bucket} is set nowhere: set AWS_REGION, or \`region\` of the profile ${profile} in ` +
        '~/.aws/config; of a store that is not AWS set AWS_ENDPOINT_URL_S3',
      {},
      error,
    );
  } finally {
    client.destroy();
  }
}

/** An empty one is none: containers are given those that nobody has set. */
function variable(name: string): string | undefined {
  const value = process.env[name];
  return value === '' ? undefined : value;
}

function conditionOf(condition: S3Condition | undefined): { readonly IfMatch?: string; readonly IfNoneMatch?: '*' } {
  if (condition === undefined) return {};
  return condition.version === undefined ? { IfNoneMatch: '*' } : { IfMatch: condition.version };
}

async function attempt<Done>(act: () => Promise<Done>): Promise<Done> {
  try {
    return await act();
  } catch (error) {
    throw new S3Failure(error);
  }
}

async function orNothing<Done>(found: Promise<Done>): Promise<Done | undefined> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof S3Failure && error.kind === 'missing') return undefined;
    throw error;
  }
}

async function* nothing(): AsyncGenerator<Uint8Array, void, undefined> {
  // an object that ends before the bytes that were asked for
}

/** A connection that breaks half-way is a failure of the store as well. */
async function* failing(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const pieces = body[Symbol.asyncIterator]();
  try {
    for (;;) {
      const next = await attempt(() => pieces.next());
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    await pieces.return?.();
  }
}

/** HEAD has no body, and so no code. */
function kindOf(status: number | undefined, code: string): S3FailureKind {
  if (code === 'CredentialsProviderError') return 'refused';
  if (status === undefined || status >= 500 || status === 429 || status === 408) return 'away';
  if (status === 412 || status === 409) return 'changed';
  return status === 404 && code !== 'NoSuchBucket' ? 'missing' : 'refused';
}

function statusOf(error: unknown): number | undefined {
  const metadata: unknown = typeof error === 'object' && error !== null ? Reflect.get(error, '$metadata') : undefined;
  const status: unknown =
    typeof metadata === 'object' && metadata !== null ? Reflect.get(metadata, 'httpStatusCode') : undefined;
  return typeof status === 'number' ? status : undefined;
}

/** The answer to a HEAD has no body that would say more; one that comes from another region names it. */
function wordsOf(error: unknown, status: number | undefined): string {
  const said = error instanceof Error ? error.message : String(error);
  const region = regionToldBy(error);
  if (region !== undefined) return `the bucket is in the region ${region}: set AWS_REGION=${region}`;
  return said === 'UnknownError' && status !== undefined ? `HTTP ${status}` : said;
}

/** In the body, or beside a redirection; undefined where the region was not what is wrong. */
function regionToldBy(error: unknown): string | undefined {
  const status = statusOf(error);
  const isElsewhere = status === 301 || status === 307 || codeOf(error) === 'AuthorizationHeaderMalformed';
  if (!isElsewhere || typeof error !== 'object' || error === null) return undefined;
  const response = Reflect.get(error, '$response') as
    | { readonly headers?: Readonly<Record<string, string>> }
    | undefined;
  const inWords = error instanceof Error ? / expecting '([\w-]+)'/.exec(error.message)?.[1] : undefined;
  const told: unknown = Reflect.get(error, 'Region') ?? response?.headers?.['x-amz-bucket-region'] ?? inWords;
  return typeof told === 'string' && /^[\w-]+$/.test(told) ? told : undefined;
}

function codeOf(error: unknown): string {
  const name: unknown = typeof error === 'object' && error !== null ? Reflect.get(error, 'name') : undefined;
  return typeof name === 'string' ? name : 'Error';
}
