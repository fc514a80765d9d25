// A folder that is whole or absent: filled beside its place, synced, renamed. Callers hold the lock of the place, so
// whatever unfinished folder lies there was left by a process that was killed, and is removed.

import { mkdir, open, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { randomUUID } from 'node:crypto';

/** Calls `fill` with an empty folder and gives it the name `destination`; what was there before is replaced. */
export async function placeFolder(destination: string, fill: (temporary: string) => Promise<void>): Promise<void> {
  await placeFolderIn(dirname(destination), async (temporary) => {
    await fill(temporary);
    return basename(destination);
  });
}

/**
 * As `placeFolder`, for a name that follows from the content: `fill` returns it. Leaves no empty `parent` when it
 * throws.
 */
export async function placeFolderIn(parent: string, fill: (temporary: string) => Promise<string>): Promise<string> {
  await mkdir(parent, { recursive: true, mode: 0o700 });
  await removeUnfinished(parent);
  const temporary = join(parent, `.${randomUUID().slice(0, 8)}.part`);
  const replaced = `${temporary}.replaced.part`;
  try {
    await mkdir(temporary, { mode: 0o755 });
    const destination = join(parent, await fill(temporary));
    await sync(temporary);
    await rename(destination, replaced).catch(() => undefined); // absent, most of the time
    await rename(temporary, destination);
    await syncOne(parent);
    return destination;
  } finally {
    await rm(temporary, { recursive: true, force: true });
    await rm(replaced, { recursive: true, force: true });
    await rmdir(parent).catch(() => undefined); // only when nothing is in it
  }
}

async function removeUnfinished(parent: string): Promise<void> {
  for (const entry of await readdir(parent))
    if (entry.startsWith('.') && entry.endsWith('.part'))
      await rm(join(parent, entry), { recursive: true, force: true });
}

async function sync(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { recursive: true })) await syncOne(join(folder, entry));
  await syncOne(folder);
}

async function syncOne(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    const { mode } = await handle.stat();
    if ((mode & 0o022) !== 0) await handle.chmod(mode & 0o755); // what others may write is not what was checked
    await handle.sync();
  } finally {
    await handle.close();
  }
}
