// Parts out of buckets and into them. A source is read by ranges, of one version by its ETag. An object is written into the
// temporary folder of this machine, where checkpoints lie beside it, and put whole below `_temporary/` of the prefix, under
// a name with the claim's token; behind the commit the store copies it to its last name, and the other one is deleted. So
// under last names lies only what was committed, and whoever reads a prefix (Spark, Arrow, DuckDB with a pattern) does not
// see the rest, which a lifecycle rule for `_temporary/` ends where nobody was left to delete it.

import { createReadStream } from 'node:fs';
import { lstat, mkdir, readdir, rm, stat, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { ShoalError, type PartOutput, type PartResult, type PartSource } from '@shoal/contract';
import { S3Failure, patiently, type S3Bucket, type S3Place } from '@shoal/fetch/s3';
import type { ReadableAt } from '../files/footer.ts';
import { storeReason } from '../files/object-place.ts';
import { ObjectSource, type OnAway } from '../files/object-source.ts';
import { putManifest, takenName } from '../files/run-manifest.ts';
import { removeBeside } from './part-folder.ts';
import { writing, type Written } from './part-object.ts';
import type { NamingTerms, PartFile, PartTarget } from './part-place.ts';

export interface BucketTerms {
  readonly bucket: S3Bucket;
  readonly onAway?: OnAway | undefined;
  readonly patienceMs?: readonly number[] | undefined;
}

/** Ten minutes in all: behind a worker whose part fails stands a person who has to ask for it again. */
const PATIENCE_MS: readonly number[] = [
  500,
  1_000,
  2_000,
  4_000,
  8_000,
  15_000,
  ...Array.from({ length: 19 }, () => 30_000),
];

/** A hundred workers that were told to slow down do not come back at once. */
function patience({ patienceMs }: BucketTerms): readonly number[] {
  return patienceMs ?? PATIENCE_MS.map((ms) => Math.round(ms * (0.75 + Math.random() / 2)));
}

/** One version of an object. */
export class BucketFile implements PartFile {
  readonly name: string;
  readonly #source: Extract<PartSource, { kind: 's3' }>;
  readonly #terms: BucketTerms;
  readonly #place: S3Place;
  readonly #object: ObjectSource;
  readonly #stopping = new AbortController();

  constructor(source: Extract<PartSource, { kind: 's3' }>, terms: BucketTerms) {
    const { bucket, key, etag, bytes } = source;
    this.name = basename(key);
    this.#source = source;
    this.#terms = terms;
    this.#place = { name: `s3://${bucket}/${key}`, bucket, key };
    this.#object = new ObjectSource({
      place: this.#place,
      bucket: terms.bucket,
      facts: { version: `"${etag}"`, bytes, modifiedMs: 0 },
      changed: () => this.#changed(),
    });
  }

  get bytes(): number {
    return this.#source.bytes;
  }

  async check(): Promise<void> {
    const { bucket, onAway = () => undefined } = this.#terms;
    const { name, key } = this.#place;
    const facts = await asked(
      () =>
        patiently(
          {
            signal: this.#stopping.signal,
            onAway: ({ message }, waitMs) => onAway(`${name} cannot be read (${message})`, waitMs),
            patienceMs: patience(this.#terms),
          },
          () => bucket.head(key),
        ),
      (error) => this.#unreadable(storeReason(this.#place, error), error),
    );
    if (facts === undefined) throw this.#unreadable('there is no such object, or no such bucket');
    if (facts.version.replaceAll('"', '') !== this.#source.etag || facts.bytes !== this.bytes) throw this.#changed();
  }

  async open(): Promise<ReadableAt> {
    return this.#object.openAt(this.#terms.onAway, patience(this.#terms));
  }

  chunks(from: number, to: number): AsyncGenerator<Buffer> {
    return this.#object.chunks(this.#terms.onAway, patience(this.#terms), { from, to });
  }

  stop(): void {
    this.#stopping.abort();
    this.#object.stop();
  }

  #unreadable(reason: string, error?: unknown): ShoalError<'FILE_UNREADABLE'> {
    const { name } = this.#place;
    return new ShoalError('FILE_UNREADABLE', `cannot read ${name}: ${reason}`, { file: name }, error);
  }

  #changed(): ShoalError<'SOURCE_CHANGED'> {
    const { name } = this.#place;
    return new ShoalError(
      'SOURCE_CHANGED',
      `${name} is another object than the one that was cut into parts (ETag ${this.#source.etag}, ${this.bytes} bytes); ` +
        'run the command again, which cuts it anew',
      { file: name },
    );
  }
}

/** Below the prefix, what is not committed. Readers of whole prefixes leave out what begins with "_". */
const TEMPORARY = '_temporary/';
/** What S3 takes, and copies, in one request. */
const MOST_BYTES = 5_000_000_000;
/** Behind that nobody comes back for what was written here. */
const LEFT_MS = 24 * 3_600_000;

export class BucketTarget implements PartTarget {
  readonly folder: string;
  readonly #output: Extract<PartOutput, { kind: 's3' }>;
  readonly #run: string;
  readonly #terms: BucketTerms;
  readonly #stopping = new AbortController();

  private constructor(folder: string, output: Extract<PartOutput, { kind: 's3' }>, run: string, terms: BucketTerms) {
    this.folder = folder;
    this.#output = output;
    this.#run = run;
    this.#terms = terms;
  }

  /** Asks the store nothing yet. */
  static async open(
    output: Extract<PartOutput, { kind: 's3' }>,
    run: string,
    terms: BucketTerms,
  ): Promise<BucketTarget> {
    return new BucketTarget(await scratchFolder(run), output, run, terms);
  }

  async checkRoom(bytes: number): Promise<void> {
    const { bavail, bsize } = await statfs(this.folder);
    const shown = gigabytes(bytes);
    if (bytes > MOST_BYTES)
      throw this.#unwritable(`the part would be an object of about ${shown}, and S3 copies 5 GB: ${SMALLER}`);
    if (bytes > bavail * bsize)
      throw this.#unwritable(
        `${this.folder} on the worker has room for ${gigabytes(bavail * bsize)}, and the object of this part takes about ` +
          `${shown} there before it goes into the bucket; make room, give the worker another temporary folder (TMPDIR), or ` +
          `have smaller parts: ${SMALLER}`,
      );
  }

  async put({ name, written, bytes, sha256 }: Written): Promise<void> {
    if (bytes > MOST_BYTES) throw this.#unwritable(`${name} has ${gigabytes(bytes)}, and S3 copies 5 GB: ${SMALLER}`);
    const path = join(this.folder, written);
    await this.#ask((signal) =>
      this.#terms.bucket.putFile(this.#temporary(written), () => createReadStream(path), bytes, {
        signal,
        sha256,
        notes: { sha256 },
      }),
    );
  }

  /** Nobody waits for a store that is away: what is left goes with the end of the run, or by its lifecycle rule. */
  async remove(written: string): Promise<void> {
    await this.#terms.bucket.remove(this.#temporary(written)).catch(() => undefined);
  }

  async name(
    { name, written, sha256, bytes }: Pick<PartResult, 'name' | 'written' | 'sha256' | 'bytes'>,
    { onCopied, wasDone }: NamingTerms,
  ): Promise<boolean> {
    const { bucket } = this.#terms;
    const there = await this.#ask(() => bucket.head(this.#key(name)));
    if (there !== undefined && there.notes['sha256'] !== sha256 && !(await wasDone()))
      throw takenName(this.pathOf(name), this.#run);
    const isCopied = await this.#ask((signal) => bucket.copy(this.#temporary(written), this.#key(name), { signal }));
    if (!isCopied) {
      const facts = await this.#ask(() => bucket.head(this.#key(name)));
      if (facts?.notes['sha256'] !== sha256 || facts.bytes !== bytes) return false;
    }
    onCopied();
    await this.#removeAll(`${name}.`);
    await writing(this.folder, () => removeBeside(this.folder, name));
    return true;
  }

  async writeManifest(name: string, text: string): Promise<void> {
    await putManifest(
      {
        bucket: this.#terms.bucket,
        key: this.#key(name),
        name: this.pathOf(name),
        ask: (act) => this.#ask(act),
      },
      this.#run,
      text,
    );
    // of claims that ended behind their part; a longer stem is another run's
    await this.#removeAll(`${this.#output.stem}-`, (rest) => /^\d{5}\.\w+\./.test(rest));
  }

  pathOf(name: string): string {
    return `s3://${this.#output.bucket}/${this.#key(name)}`;
  }

  stop(): void {
    this.#stopping.abort();
  }

  async #removeAll(begin: string, isMeant: (rest: string) => boolean = () => true): Promise<void> {
    const { bucket } = this.#terms;
    const key = this.#temporary(begin);
    const names = await this.#ask(async () => {
      const found: string[] = [];
      for await (const rest of bucket.names(key)) if (isMeant(rest)) found.push(rest);
      return found;
    });
    for (const rest of names) await this.#ask((signal) => bucket.remove(key + rest, { signal }));
  }

  #key(name: string): string {
    const { prefix } = this.#output;
    return prefix === '' || prefix.endsWith('/') ? prefix + name : `${prefix}/${name}`;
  }

  #temporary(written: string): string {
    return this.#key(TEMPORARY + written);
  }

  #ask<Done>(act: (signal: AbortSignal) => Promise<Done>): Promise<Done> {
    const { onAway = () => undefined } = this.#terms;
    const { signal } = this.#stopping;
    return asked(
      () =>
        patiently(
          {
            signal,
            onAway: ({ message }, waitMs) => onAway(`${this.#where} cannot be written (${message})`, waitMs),
            patienceMs: patience(this.#terms),
          },
          () => act(signal),
        ),
      (error) => this.#unwritable(this.#reason(error), error),
    );
  }

  #reason(error: unknown): string {
    const { bucket } = this.#output;
    if (error instanceof S3Failure && error.kind === 'changed')
      return 'somebody else writes there at the same time, another run perhaps; name another place, and run one of them again';
    return storeReason({ bucket, key: '', name: this.#where }, error);
  }

  get #where(): string {
    return `s3://${this.#output.bucket}/${this.#output.prefix}`;
  }

  #unwritable(reason: string, error?: unknown): ShoalError<'FILE_UNWRITABLE'> {
    return new ShoalError('FILE_UNWRITABLE', `cannot write ${this.#where}: ${reason}`, { file: this.#where }, error);
  }
}

const SMALLER = '--part-rows N (a row group of Parquet is not cut: write the file with smaller ones)';

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

/** What a store says becomes what `said` makes of it, and so does that nobody wants to wait any more. */
async function asked<Done>(act: () => Promise<Done>, said: (error: unknown) => ShoalError): Promise<Done> {
  try {
    return await act();
  } catch (error) {
    const isOfStore = error instanceof S3Failure || (error instanceof Error && error.name === 'AbortError');
    throw isOfStore ? said(error) : error;
  }
}

/**
 * A folder for objects of this run, of this user alone. Who has a part again on this machine finds there what was written of
 * it; what nobody came back for goes after a day.
 */
async function scratchFolder(run: string): Promise<string> {
  const all = join(tmpdir(), `shoal-parts-${process.getuid?.() ?? 'user'}`);
  const folder = join(all, run);
  await writing(folder, () => mkdir(folder, { recursive: true, mode: 0o700 }));
  const facts = await lstat(all);
  if (!facts.isDirectory() || (process.getuid !== undefined && facts.uid !== process.getuid()))
    throw new ShoalError(
      'FILE_UNWRITABLE',
      `${all} on the worker is not a folder of its user: remove it, or give the worker another temporary folder (TMPDIR)`,
    );
  await writing(all, async () => {
    for (const other of await readdir(all)) {
      if (other !== run && Date.now() - (await changedMs(join(all, other))) > LEFT_MS)
        await rm(join(all, other), { recursive: true, force: true });
    }
  });
  return folder;
}

/** When something in a folder changed last. */
async function changedMs(folder: string): Promise<number> {
  const paths = [folder, ...(await readdir(folder).catch(() => [])).map((name) => join(folder, name))];
  const facts = await Promise.all(paths.map((path) => stat(path).catch(() => undefined)));
  return Math.max(...facts.map((one) => one?.mtimeMs ?? 0));
}
