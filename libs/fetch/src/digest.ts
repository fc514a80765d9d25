// The two digests that a hub knows of a file: sha256 of its bytes for what Git LFS keeps, and for the small ones what
// git calls them, sha1 of a header and the bytes.

import { createHash, type Hash } from 'node:crypto';
import { createReadStream } from 'node:fs';

export interface FileDigest {
  readonly algorithm: 'sha256' | 'git-sha1';
  /** Lower-case hex. */
  readonly hex: string;
}

/** A hash to feed the bytes of a file of this size to. Source of the header: git's object format, "blob <size>\0". */
export function openHash(algorithm: FileDigest['algorithm'], bytes: number): Hash {
  return algorithm === 'sha256' ? createHash('sha256') : createHash('sha1').update(`blob ${bytes}\0`);
}

/** Feeds the first `bytes` of a file into `hash`. */
export async function hashFile(path: string, bytes: number, hash: Hash): Promise<void> {
  if (bytes === 0) return;
  for await (const chunk of createReadStream(path, { end: bytes - 1, highWaterMark: 1 << 20 }))
    hash.update(chunk as Buffer);
}
