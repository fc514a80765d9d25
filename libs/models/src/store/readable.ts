// What is there and may not be read must not pass for what is not there: a model that root put where a service looks for
// it. Says which folder or file, which user, and what opens it.

import { statSync } from 'node:fs';
import { userInfo } from 'node:os';
import { dirname } from 'node:path';
import { ShoalError } from '@shoal/contract';

/** What `look` found at `path`, or undefined where there is nothing; FILE_UNREADABLE where this user may not look. */
export async function whereReadable<T>(path: string, look: (path: string) => Promise<T>): Promise<T | undefined> {
  try {
    return await look(path);
  } catch (error) {
    expectOpen(path, error);
    return undefined;
  }
}

/** FILE_UNREADABLE where `error` is of a path that this user may not read. */
export function expectOpen(path: string, error: unknown): void {
  const code = (error as NodeJS.ErrnoException).code;
  if (code !== 'EACCES' && code !== 'EPERM') return;
  const closed = foldersAbove(path).find((folder) => !mayEnter(folder)) ?? path;
  throw new ShoalError(
    'FILE_UNREADABLE',
    `${path} belongs to a model and cannot be read by ${userName()} (${code}): ${closed} is closed to this user. Its ` +
      'owner opens the folder of a model with chmod -R a+rX, or keeps models where this user may read them (modelsDir, ' +
      'SHOAL_MODELS_DIR)',
    { path, closed },
    error,
  );
}

/** The uppermost first. */
function foldersAbove(path: string): string[] {
  const above = dirname(path);
  return above === path ? [] : [...foldersAbove(above), above];
}

function mayEnter(folder: string): boolean {
  try {
    statSync(`${folder}/.`);
    return true;
  } catch {
    return false;
  }
}

/** A container may run under a number that no user has. */
function userName(): string {
  try {
    return `user ${userInfo().username}`;
  } catch {
    return `uid ${process.getuid?.() ?? '?'}`;
  }
}
