// An object of S3, or of what speaks its protocol, as an input: read from one byte to another, or at places where it is
// Parquet. All that is read of it is of one version, the one that was there when it was opened, or that whoever reads it
// was told of: an object that was replaced meanwhile is refused, whenever that shows. A connection that breaks is taken up
// again behind the last byte that came.

import { ShoalError, type PartSource } from '@shoal/contract';
import { S3Bucket, S3Failure, gathered, patiently, type S3Facts, type S3Place } from '@shoal/fetch/s3';
import { objectPlace, storeReason } from './object-place.ts';
import type { ReadableAt } from './footer.ts';
import type { InputIdentity } from './record.ts';

/** Told each time the store is away: what is said of it, and how long it is waited for. */
export type OnAway = (problem: string, waitMs: number) => void;

/** What is asked for at a time where an object is read at places. */
const WINDOW_BYTES = 4 << 20;
/** Columns are read side by side, each at a place of its own. */
const WINDOWS = 4;

/** What is known of the version that is read. */
type Version = Pick<S3Facts, 'version' | 'bytes' | 'modifiedMs'>;

export interface ObjectSourceOptions {
  readonly place: S3Place;
  readonly bucket: S3Bucket;
  readonly facts: Version;
  /** What to say where another version is there by now. */
  readonly changed: (error: S3Failure) => ShoalError;
}

export class ObjectSource {
  readonly #place: S3Place;
  readonly #bucket: S3Bucket;
  readonly #facts: Version;
  readonly #changed: ObjectSourceOptions['changed'];
  readonly #closing = new AbortController();
  #giveBack: (() => void) | undefined;

  /** Asks nothing yet. The bucket stays the caller's, who does not `close` this but `stop`s it. */
  constructor({ place, bucket, facts, changed }: ObjectSourceOptions) {
    this.#place = place;
    this.#bucket = bucket;
    this.#facts = facts;
    this.#changed = changed;
  }

  /** Looks whether it is there. USAGE for an address that is not whole, FILE_UNREADABLE with what the store says. */
  static async open(address: string): Promise<ObjectSource> {
    const place = objectPlace(address, 'input')!;
    const shared = SharedBucket.of(place.bucket);
    try {
      const bucket = await shared.bucket;
      const facts = await bucket.head(place.key);
      if (facts === undefined) throw unreadable(place, 'there is no such object, or no such bucket');
      const source = new ObjectSource({ place, bucket, facts, changed: replacedMeanwhile(place) });
      source.#giveBack = () => shared.giveBack();
      return source;
    } catch (error) {
      shared.giveBack();
      throw error instanceof S3Failure ? unreadable(place, storeReason(place, error), error) : error;
    }
  }

  /** Breaks off what is being read and waits for no store any more; also a second time. */
  stop(): void {
    this.#closing.abort();
  }

  /** Also a second time. */
  close(): void {
    this.stop();
    this.#giveBack?.();
    this.#giveBack = undefined;
  }

  get bytes(): number {
    return this.#facts.bytes;
  }

  /** As a part has it. */
  get source(): Extract<PartSource, { kind: 's3' }> {
    const { bucket, key } = this.#place;
    return { kind: 's3', bucket, key, etag: this.#facts.version.replaceAll('"', ''), bytes: this.bytes };
  }

  get identity(): InputIdentity {
    const { version: head, bytes, modifiedMs } = this.#facts;
    return { path: this.#place.name, bytes, modifiedMs, head };
  }

  /** All of it, or what lies between two places, in pieces as they come. */
  async *chunks(
    onAway: OnAway = () => undefined,
    patienceMs?: readonly number[],
    { from: first = 0, to = this.bytes }: { readonly from?: number; readonly to?: number } = {},
  ): AsyncGenerator<Buffer> {
    const end = to < this.bytes ? to : undefined;
    for (let at = first; at < to;) {
      const from = at;
      const pieces = await this.#attempt(onAway, patienceMs, async () => {
        const begun = (await this.#get(from, end))[Symbol.asyncIterator]();
        // the first piece belongs to the attempt: a store that breaks off each answer is away
        return { first: await begun.next(), rest: begun };
      });
      if (pieces.first.done === true) throw unreadable(this.#place, `it ends at byte ${at} of ${this.bytes}`);
      try {
        for (let next: IteratorResult<Uint8Array> = pieces.first; next.done !== true; next = await pieces.rest.next()) {
          at += next.value.length;
          yield Buffer.from(next.value.buffer, next.value.byteOffset, next.value.length);
        }
      } catch (error) {
        if (!(error instanceof S3Failure) || error.kind !== 'away') throw this.#refusal(error);
      } finally {
        await pieces.rest.return?.();
      }
    }
  }

  /** To be read at places; what was asked for last is kept. */
  openAt(onAway: OnAway = () => undefined, patienceMs?: readonly number[]): ReadableAt {
    let windows: { readonly from: number; readonly bytes: Buffer }[] = [];
    return {
      stat: async () => ({ size: this.bytes }),
      read: async (into, offset, length, position) => {
        if (position >= this.bytes || length === 0) return { bytesRead: 0 };
        const holds = ({ from, bytes }: (typeof windows)[number]): boolean =>
          from <= position && position < from + bytes.length;
        let window = windows.find(holds);
        if (window === undefined) {
          const end = Math.min(this.bytes, position + WINDOW_BYTES);
          const bytes = await this.#attempt(onAway, patienceMs, async () => gathered(await this.#get(position, end)));
          if (bytes.length === 0) return { bytesRead: 0 };
          window = { from: position, bytes };
        }
        windows = [window, ...windows.filter((one) => one !== window)].slice(0, WINDOWS);
        const from = position - window.from;
        const bytesRead = Math.min(length, window.bytes.length - from);
        into.set(window.bytes.subarray(from, from + bytesRead), offset);
        return { bytesRead };
      },
      close: async () => undefined,
    };
  }

  async #get(from: number, end?: number): Promise<AsyncIterable<Uint8Array>> {
    const { version } = this.#facts;
    const found = await this.#bucket.get(this.#place.key, { from, version, ...(end !== undefined && { end }) });
    if (found === undefined) throw unreadable(this.#place, 'the object was removed while it was read');
    return found.pieces;
  }

  async #attempt<Done>(
    onAway: OnAway,
    patienceMs: readonly number[] | undefined,
    act: () => Promise<Done>,
  ): Promise<Done> {
    const told = ({ message }: S3Failure, waitMs: number): void =>
      onAway(`${this.#place.name} cannot be read (${message})`, waitMs);
    try {
      return await patiently({ onAway: told, patienceMs, signal: this.#closing.signal }, act);
    } catch (error) {
      throw this.#refusal(error);
    }
  }

  #refusal(error: unknown): unknown {
    if (!(error instanceof S3Failure)) return error;
    return error.kind === 'changed'
      ? this.#changed(error)
      : unreadable(this.#place, storeReason(this.#place, error), error);
  }
}

/** Of all objects of a bucket that are open: connections are not opened by the thousand. */
class SharedBucket {
  static readonly #open = new Map<string, SharedBucket>();
  readonly bucket: Promise<S3Bucket>;
  readonly #name: string;
  #users = 0;

  private constructor(name: string) {
    this.#name = name;
    this.bucket = S3Bucket.open(name);
    this.bucket.catch(() => undefined); // whoever waits for it hears
  }

  static of(name: string): SharedBucket {
    const found = SharedBucket.#open.get(name) ?? new SharedBucket(name);
    SharedBucket.#open.set(name, found);
    found.#users++;
    return found;
  }

  giveBack(): void {
    if (--this.#users > 0) return;
    SharedBucket.#open.delete(this.#name);
    this.bucket.then(
      (bucket) => bucket.close(),
      () => undefined,
    );
  }
}

function replacedMeanwhile(place: S3Place): ObjectSourceOptions['changed'] {
  return (error) =>
    unreadable(
      place,
      'the object was replaced while it was read, and rows of two versions would be mixed; run the command again ' +
        'with --fresh',
      error,
    );
}

function unreadable({ name }: S3Place, reason: string, cause?: unknown): ShoalError<'FILE_UNREADABLE'> {
  return new ShoalError('FILE_UNREADABLE', `cannot read ${name}: ${reason}`, { file: name }, cause);
}
