// A disk that takes nothing more, in words that say what to do: the file, what is left there, and the cure. Everything
// that Shoal writes for itself (locks, caches, models, graphs) passes through here; outputs of commands have sentences
// of their own. What is not about the disk is left as it came.

import { accessSync, constants, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import { isShoalError, ShoalError } from '@shoal/contract';

const FOUND: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full',
  EDQUOT: 'the quota of this user on this disk is used up',
  EROFS: 'the file system is read-only',
  EACCES: 'this user may not write there',
  EPERM: 'this user may not write there',
};

export const NO_MORE_FILES = 'the disk has space, and as many files as it can hold (df -i)';

/**
 * FILE_UNWRITABLE for an error of the file system that says that nothing can be written, undefined for any other.
 * `path`: what was to be written; left out, what the error itself names.
 */
export function diskFailure(error: unknown, path?: string): ShoalError<'FILE_UNWRITABLE'> | undefined {
  if (!(error instanceof Error) || isShoalError(error)) return undefined;
  const code = codeOf(error);
  const found = FOUND[code];
  if (found === undefined) return undefined;
  const named: unknown = path ?? Reflect.get(error, 'path');
  const file = typeof named === 'string' ? named : undefined;
  const isFull = code === 'ENOSPC' || code === 'EDQUOT';
  const isOutOfFiles = code === 'ENOSPC' && file !== undefined && takesNoMoreFiles(file);
  return new ShoalError(
    'FILE_UNWRITABLE',
    `${file ?? 'a file'} cannot be written: ${isOutOfFiles ? NO_MORE_FILES : found} (${code}${file === undefined ? '' : spaceLeft(file)}). ` +
      (isOutOfFiles
        ? 'Remove files there'
        : isFull
          ? 'Free some space there'
          : `Make it writable for user ${process.getuid?.() ?? 'that runs this'}`) +
      ', or choose another folder: --cache-dir (SHOAL_CACHE_DIR) for models and the private queue server, --out for ' +
      'results, TMPDIR for what is temporary',
    { path: file, reason: code },
    error,
  );
}

/** Runs `write` and translates what it throws when the disk is why; everything else passes. */
export async function onDisk<T>(path: string, write: () => Promise<T>): Promise<T> {
  try {
    return await write();
  } catch (error) {
    throw diskFailure(error, path) ?? error;
  }
}

/**
 * Node says ENOENT when it cannot make a folder and those above it on a file system that is read-only: then the nearest
 * folder that exists is asked.
 */
function codeOf(error: Error): string {
  const { code, syscall, path } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' && syscall === 'mkdir' && path !== undefined ? accessCode(path) : String(code);
}

function accessCode(path: string): string {
  try {
    accessSync(path, constants.W_OK);
    return 'ENOENT';
  } catch (error) {
    const code = String(Reflect.get(error as Error, 'code'));
    return code === 'ENOENT' && dirname(path) !== path ? accessCode(dirname(path)) : code;
  }
}

/** Whether the disk of a file that it did not take has space for its bytes, and no inode for it: ENOSPC says both. */
export function takesNoMoreFiles(path: string): boolean {
  try {
    const { bavail, bsize, files, ffree } = statfsSync(path);
    return files > 0 && ffree === 0 && bavail * bsize > SOME_BYTES; // some file systems count no files
  } catch {
    return dirname(path) !== path && takesNoMoreFiles(dirname(path));
  }
}

const SOME_BYTES = 65_536;

/** The free bytes of the file system that the file, or the nearest folder that exists above it, is on. */
function spaceLeft(path: string): string {
  try {
    const { bavail, bsize } = statfsSync(path);
    return `, ${inMegabytes(bavail * bsize)} left`;
  } catch {
    return dirname(path) === path ? '' : spaceLeft(dirname(path));
  }
}

function inMegabytes(bytes: number): string {
  return bytes < 1e6 ? `${Math.floor(bytes / 1e3)} kB` : `${Math.floor(bytes / 1e6)} MB`;
}
