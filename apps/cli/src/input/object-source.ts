// An object of S3, or of what speaks its protocol, as an input: read from its first byte to its last, or at places where it is
// Parquet. All that is read of it is of one version, the one that was there when it was opened: an object that was replaced
// meanwhile is refused, whenever that shows. A connection that breaks is taken up again behind the last byte that came.

import { ShoalError } from '@shoal/contract';
import { S3Bucket, S3Failure, gathered, patiently, type S3Facts, type S3Place } from '@shoal/fetch/s3';
import { objectPlace, storeReason } from '../sinks/s3.ts';
import type { ReadableAt } from '@shoal/worker/files/footer';
import type { InputIdentity } from '@shoal/worker/files/record';

/** Told each time the store is away: what is said of it, and how long it is waited for. */
export type OnAway = (problem: string, waitMs: number) => void;

/** What is asked for at a time where an object is read at places. */
const WINDOW_BYTES = 4 << 20;
/** Columns are read side by side, each at a place of its own. */
const WINDOWS = 4;

export class ObjectSource {
  readonly #place: S3Place;
  readonly #bucket: S3Bucket;
  readonly #facts: S3Facts;
  readonly #closing = new AbortController();

  private constructor(place: S3Place, bucket: S3Bucket, facts: S3Facts) {
    this.#place = place;
    this.#bucket = bucket;
    this.#facts = facts;
  }

  /** Looks whether it is there. USAGE for an address that is not whole, FILE_UNREADABLE with what the store says. */
  static async open(address: string): Promise<ObjectSource> {
    const place = objectPlace(address, 'input')!;
    const bucket = await S3Bucket.open(place.bucket);
    try {
      const facts = await bucket.head(place.key);
      if (facts !== undefined) return new ObjectSource(place, bucket, facts);
      throw unreadable(place, 'there is no such object, or no such bucket');
    } catch (error) {
      bucket.close();
      throw error instanceof S3Failure ? unreadable(place, storeReason(place, error), error) : error;
    }
  }

  /** Breaks off what is being read and waits for no store any more; also a second time. */
  close(): void {
    this.#closing.abort();
    this.#bucket.close();
  }

  get bytes(): number {
    return this.#facts.bytes;
  }

  get identity(): InputIdentity {
    const { version: head, bytes, modifiedMs } = this.#facts;
    return { path: this.#place.name, bytes, modifiedMs, head };
  }

  /** All of it, in pieces as they come. */
  async *chunks(onAway: OnAway = () => undefined, patienceMs?: readonly number[]): AsyncGenerator<Buffer> {
    for (let at = 0; at < this.bytes;) {
      const from = at;
      const pieces = await this.#attempt(onAway, patienceMs, async () => {
        const begun = (await this.#get(from))[Symbol.asyncIterator]();
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
      ? unreadable(
          this.#place,
          'the object was replaced while it was read, and rows of two versions would be mixed; run the command again ' +
            'with --fresh',
          error,
        )
      : unreadable(this.#place, storeReason(this.#place, error), error);
  }
}

function unreadable({ name }: S3Place, reason: string, cause?: unknown): ShoalError<'FILE_UNREADABLE'> {
  return new ShoalError('FILE_UNREADABLE', `cannot read ${name}: ${reason}`, { file: name }, cause);
}
