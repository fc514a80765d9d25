// Bodies as objects of a bucket of S3, or of what speaks its protocol (libs/fetch). An object is written once: no PUT
// replaces the bytes that a pointer may lead to. It says when its time to live is over, and what nobody deleted goes by a
// lifecycle rule of the bucket, because S3 has no other end of a time to live. Keys are checksums, so that they spread
// over all that a bucket is split by.

import { createHash, randomUUID } from 'node:crypto';
import { S3Bucket, S3Failure, gathered } from '@shoal/fetch/s3';
import type { Bodies, Looked, Remark } from './bodies.ts';
import { remarksOnRules } from './bucket-rules.ts';

export interface BucketPlace {
  readonly bucket: string;
  /** Goes before every key; without a slash at its end. Empty: the bucket is for bodies alone. */
  readonly prefix: string;
}

/** Later than PayloadServer, which says so; from then on the connection is free. */
const GIVEN_UP_MS = 4_000;
/** Nothing of Shoal is so large, and what is must not fill this process. */
const MOST_BYTES = 512 << 20;

export class BucketBodies implements Bodies {
  readonly where: string;
  private readonly s3: S3Bucket;
  private readonly prefix: string;
  private readonly bucket: string;
  /** Until the store says that it knows no conditional PUT. */
  private knowsConditions = true;

  private constructor(s3: S3Bucket, { bucket, prefix }: BucketPlace) {
    this.s3 = s3;
    this.where = s3.where;
    this.bucket = bucket;
    this.prefix = prefix === '' ? '' : `${prefix}/`;
  }

  /** Asks nothing yet. CONFIG_INVALID where AWS's client is not installed. */
  static async open(place: BucketPlace): Promise<BucketBodies> {
    return new BucketBodies(await S3Bucket.open(place.bucket), place);
  }

  ready(): Promise<void> {
    return Promise.resolve();
  }

  async put(key: string, value: Buffer, ttlMs: number): Promise<void> {
    const notes = { expires: new Date(Date.now() + ttlMs).toISOString() };
    try {
      await inTime((signal) => this.s3.put(this.nameOf(key), value, this.condition(), { notes, signal }));
    } catch (error) {
      if (!(error instanceof S3Failure)) throw error;
      if (error.kind === 'changed') return this.mustHave(key, value);
      if (error.code !== 'NotImplemented' || !this.knowsConditions) throw error;
      this.knowsConditions = false;
      await this.put(key, value, ttlMs);
    }
  }

  async get(key: string): Promise<Buffer | undefined> {
    return inTime(async (signal) => {
      const found = await this.s3.get(this.nameOf(key), { signal });
      if (found === undefined) return undefined;
      if (found.bytes > MOST_BYTES) throw new Error(`has ${found.bytes} bytes there, which are none of ours`);
      return gathered(found.pieces);
    });
  }

  async drop(keys: readonly string[]): Promise<void> {
    await inTime((signal) => Promise.all(keys.map((key) => this.s3.remove(this.nameOf(key), { signal }))));
  }

  /** Without the right to list, S3 calls what is not there forbidden: it has answered, and known us. */
  async look(): Promise<Looked> {
    try {
      await this.get(randomUUID());
    } catch (error) {
      if (!(error instanceof S3Failure) || error.code !== 'AccessDenied') throw error;
    }
    return {};
  }

  giveUp(): void {
    // each request ends by itself, and none waits behind another
  }

  close(): Promise<void> {
    this.s3.close();
    return Promise.resolve();
  }

  async remarks(): Promise<readonly Remark[]> {
    const leftOvers = { bucket: this.bucket, prefix: this.prefix, id: 'shoal-bodies' };
    const ofRules = await remarksOnRules(this.s3, leftOvers, AbortSignal.timeout(GIVEN_UP_MS));
    return [...(await this.ofAbsent()), ...ofRules];
  }

  /** Without the right to list, S3 calls what is not there forbidden. */
  private async ofAbsent(): Promise<readonly Remark[]> {
    try {
      await this.get(randomUUID());
      return [];
    } catch (error) {
      return [
        {
          found: `does not say of a body that it is not there (${wordsOf(error)})`,
          cure: 'allow s3:ListBucket as well, or a body that was lost looks like one that may not be read',
        },
      ];
    }
  }

  /** After a PUT that found its name taken: by an earlier attempt of its own, or by whoever put the same body before. */
  private async mustHave(key: string, value: Buffer): Promise<void> {
    const found = await this.get(key);
    if (found?.equals(value) !== true) throw new Error('has other bytes under the name of this body');
  }

  private condition(): { readonly version: undefined } | undefined {
    return this.knowsConditions ? { version: undefined } : undefined;
  }

  private nameOf(key: string): string {
    return this.prefix + createHash('sha256').update(key).digest('hex');
  }
}

/** What is asked ends by then, and says so. */
async function inTime<Value>(ask: (signal: AbortSignal) => Promise<Value>): Promise<Value> {
  const signal = AbortSignal.timeout(GIVEN_UP_MS);
  try {
    return await ask(signal);
  } catch (error) {
    throw signal.aborted ? new Error(`no answer within ${GIVEN_UP_MS / 1_000} s`, { cause: error }) : error;
  }
}

function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
