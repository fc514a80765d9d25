// A folder that is whole or absent: filled beside its place, synced, renamed. Callers hold the lock of the place, so
// whatever unfinished folder lies there was left by a process that was killed, and is removed.

import { mkdir, open, readdir, rename, rm, rmdir, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { randomUUID } from 'node:crypto';
import { makeOpenFolder } from '@shoal/fetch';

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
  await makeOpenFolder(parent);
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

/** Whoever may read the folder may read all in it, whatever the files were copied from. */
async function sync(folder: string): Promise<void> {
  const { mode } = await stat(folder); // what the umask left of 755
  for (const entry of await readdir(folder, { recursive: true })) await syncOne(join(folder, entry), mode & 0o555);
  await syncOne(folder);
}

/** `toRead`: the bits of a folder that lets in whom the umask lets in. What others may write is not what was checked. */
async function syncOne(path: string, toRead = 0): Promise<void> {
  const handle = await open(path, 'r');
  try {
    const found = await handle.stat();
    const needed = found.isDirectory() ? toRead : toRead & 0o444;
    if ((found.mode & 0o022) !== 0 || (found.mode & needed) !== needed)
      await handle.chmod((found.mode & 0o755) | needed);
    await handle.sync();
  } finally {
    await handle.close();
  }
}
