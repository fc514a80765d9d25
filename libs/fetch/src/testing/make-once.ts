// For tests: what takes minutes to make (virtual environments, packages of others, a tree of an older version) is kept
// below the cache folder. Test files run side by side and want the same folder at the same time.

import { existsSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { withLock } from '../lock.ts';

/** Whether `makeOnce` has made it, as a whole. */
export function isMade(folder: string): boolean {
  return existsSync(join(folder, '.whole'));
}

/**
 * Lets `make` fill the folder, in its place because a virtual environment cannot be moved, unless that was done before.
 * One process does it at a time, the others wait; what a killed or failed one left is taken away first. Throws what
 * `make` threw.
 */
export async function makeOnce(folder: string, make: () => void | Promise<void>): Promise<void> {
  if (isMade(folder)) return;
  await withLock(join(dirname(folder), `.${basename(folder)}.lock`), async () => {
    if (isMade(folder)) return;
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true });
    await make();
    await mkdir(join(folder, '.whole'));
  });
}
