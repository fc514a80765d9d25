// What the disk says when the cache cannot be written, in words for people. Other errors pass through.

import { ShoalError } from '@shoal/contract';

const CURES: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full: free some space',
  EDQUOT: 'the quota is used up: free some space',
  EROFS: 'the disk is read-only',
  EACCES: 'this user may not write there',
  EPERM: 'this user may not write there',
  ENOTDIR: 'a part of the path is a file',
  EEXIST: 'a part of the path is a file',
};

/** Runs `work`, which writes under `cacheDir`. */
export async function storing<T>(cacheDir: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : '';
    const cure = CURES[code];
    if (cure === undefined) throw error;
    throw new ShoalError(
      'FILE_UNWRITABLE',
      `nothing can be stored in ${cacheDir} (${code}): ${cure}, or choose another folder with SHOAL_CACHE_DIR`,
      { cacheDir },
      error,
    );
  }
}
