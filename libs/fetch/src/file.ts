// Files that are whole or absent: digests of what is there, and writing beside the destination before taking its name.
// Refuses to leave a half-written file under the final name, whatever happens in between.

import { createHash, randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { chmod, mkdir, open, readdir, rename, rm, stat, type FileHandle } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { onDisk } from './disk-failure.ts';

/** Nobody writes one file for that long: a killed process left it. */
const ABANDONED_MS = 3_600_000;

/** Lower-case hex digest of a file's bytes. */
export async function sha256File(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

/**
 * All of the bytes, at this place. A disk that becomes full takes what fits of a write and says so with its count alone;
 * only the next write fails.
 */
export async function writeAt(file: Pick<FileHandle, 'write'>, bytes: Uint8Array, position: number): Promise<void> {
  for (let written = 0; written < bytes.length;)
    written += (await file.write(bytes, written, bytes.length - written, position + written)).bytesWritten;
}

/**
 * Calls `write` with a path beside `destination`, syncs what it wrote to the disk and renames it into place. When
 * `write` throws, the temporary file is removed and `destination` stays as it was. Returns what `write` returned.
 * FILE_UNWRITABLE when the disk takes nothing. `isLocked`: nobody else writes it meanwhile, so whatever lies beside it was left by a killed process, and goes.
 */
export async function placeAtomically<T>(
  destination: string,
  write: (temporary: string) => Promise<T>,
  { isLocked = false } = {},
): Promise<T> {
  return onDisk(destination, () => place(destination, write, isLocked));
}

/**
 * Makes a folder that others may read as far as the umask says: what root fetched for a machine is used by its services.
 * Those above it, where they are missing, are made for this user alone.
 */
export async function makeOpenFolder(folder: string): Promise<void> {
  await mkdir(dirname(folder), { recursive: true, mode: 0o700 });
  await mkdir(folder, { mode: 0o755 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
}

async function place<T>(destination: string, write: (temporary: string) => Promise<T>, isLocked: boolean): Promise<T> {
  const folder = dirname(destination);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await sweepAbandoned(folder, basename(destination), isLocked);
  const temporary = join(folder, `.${basename(destination)}.${randomUUID().slice(0, 8)}.part`);
  try {
    const outcome = await write(temporary);
    await closeToOthers(temporary);
    await sync(temporary);
    await rename(temporary, destination);
    await sync(folder);
    return outcome;
  } finally {
    await rm(temporary, { force: true });
  }
}

/** Whatever the umask: what lies in a cache decides on vectors, so nobody else writes it. */
async function closeToOthers(path: string): Promise<void> {
  const { mode } = await stat(path);
  if ((mode & 0o022) !== 0) await chmod(path, mode & 0o755);
}

async function sweepAbandoned(folder: string, name: string, isLocked: boolean): Promise<void> {
  for (const entry of await readdir(folder)) {
    if (!entry.startsWith(`.${name}.`) || !entry.endsWith('.part')) continue;
    const path = join(folder, entry);
    const found = await stat(path).catch(() => undefined);
    if (found !== undefined && (isLocked || Date.now() - found.mtimeMs > ABANDONED_MS)) await rm(path, { force: true });
  }
}

async function sync(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
