// What files, batches and jobs lie in: named objects on disk or in a bucket. Small records are replaced only by who has
// seen their last version, which is how several processes agree; large contents are written whole or not at all.

import type { PartOutput, PartSource } from '@shoal/contract';
import type { ReadableAt } from '@shoal/worker/files/footer';

export interface StoredObject {
  readonly bytes: Buffer;
  /** Of these bytes: another one once they are replaced by others. */
  readonly version: string;
}

/**
 * Keys are `/`-separated names of letters, digits, ".", "_", "~" and "-", none of which begins with a dot; anything else
 * throws a TypeError. Everything rejects with a StorageFailure where the storage does not do it.
 */
export interface Storage {
  /** Undefined where there is no such object. */
  read(key: string): Promise<StoredObject | undefined>;
  /**
   * Writes `bytes` if the object still has `version`; undefined means that there is none yet. The new version, or
   * undefined where somebody else was first, and then nothing was written.
   */
  replace(key: string, bytes: Uint8Array, version: string | undefined): Promise<string | undefined>;
  /**
   * Writes an object of any size, whatever was there; it appears when all of it is there. Rejects with what `pieces`
   * throws, and then nothing was written. Returns its bytes.
   */
  write(key: string, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<number>;
  /** The bytes from `from` on, as they are read; undefined where there is no such object. */
  open(key: string, from?: number): Promise<AsyncIterable<Uint8Array> | undefined>;
  /** Names of the objects directly in a folder that come after `after`, in the order of their code units. */
  names(folder: string, after?: string): AsyncIterable<string>;
  /** Nothing where there is none. */
  remove(key: string): Promise<void>;
  /** Where it is, for a log: no secret. */
  readonly place: string;
  /** What workers can read and write of it by themselves. Undefined: nothing. */
  readonly forWorkers?: WorkerAccess | undefined;
}

/** A stored object as the source of parts, and a folder in which workers write what becomes of them (docs/decisions/parts.md). */
export interface WorkerAccess {
  /** Undefined where there is no such object. */
  source(key: string): Promise<PartSource | undefined>;
  /** Makes the folder where it is missing. */
  output(folder: string): Promise<OutputPlace>;
  /** What a worker wrote there; undefined where it is not there. The caller closes it. */
  object(folder: string, name: string): Promise<ReadableAt | undefined>;
  /** Removes the folder with all that workers wrote there. Nothing where there is none. */
  clear(folder: string): Promise<void>;
}

export type OutputPlace =
  | Pick<Extract<PartOutput, { kind: 'folder' }>, 'kind' | 'folder'>
  | Pick<Extract<PartOutput, { kind: 's3' }>, 'kind' | 'bucket' | 'prefix'>;

/** The disk or the bucket did not do what was asked. Its message is for the log: it may name paths. */
export class StorageFailure extends Error {
  /** Why nothing can be written, where the operating system says it. */
  readonly reason: 'full' | 'read-only' | undefined;

  constructor(message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'StorageFailure';
    this.reason = reasonOf(cause);
  }
}

/** What the operating system said may lie below words of ours, those of a lock. */
function reasonOf(error: unknown): StorageFailure['reason'] {
  if (!(error instanceof Error)) return undefined;
  const code: unknown = Reflect.get(error, 'code');
  if (code === 'ENOSPC' || code === 'EDQUOT') return 'full';
  return code === 'EROFS' ? 'read-only' : reasonOf(error.cause);
}

const NAME = /^[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}$/;

/** The names of a key. Throws a TypeError for one that cannot be a key, so that no key leads out of the storage. */
export function namesIn(key: string): readonly string[] {
  const names = key.split('/');
  if (names.every((name) => NAME.test(name))) return names;
  throw new TypeError(`${JSON.stringify(key)} is no key of the storage`);
}
