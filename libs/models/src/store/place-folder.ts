// A folder that is whole or absent: filled beside its place, synced, renamed. Callers hold the lock of the place, so
// whatever unfinished folder lies there was left by a process that was killed, and is removed.

import { mkdir, open, readdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { randomUUID } from 'node:crypto';

/** Calls `fill` with an empty folder and gives it the name `destination`; what was there before is replaced. */
export async function placeFolder(destination: string, fill: (temporary: string) => Promise<void>): Promise<void> {
  const [parent, name] = [dirname(destination), basename(destination)];
  await mkdir(parent, { recursive: true });
  await removeUnfinished(parent);
  const temporary = join(parent, `.${name}.${randomUUID().slice(0, 8)}.part`);
  const replaced = `${temporary}.replaced.part`;
  try {
    await mkdir(temporary);
    await fill(temporary);
    await sync(temporary);
    await rename(destination, replaced).catch(() => undefined); // absent, most of the time
    await rename(temporary, destination);
    await syncOne(parent);
  } finally {
    await rm(temporary, { recursive: true, force: true });
    await rm(replaced, { recursive: true, force: true });
  }
}

async function removeUnfinished(parent: string): Promise<void> {
  for (const entry of await readdir(parent)) if (entry.startsWith('.') && entry.endsWith('.part')) await rm(join(parent, entry), { recursive: true, force: true });
}

async function sync(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { recursive: true })) await syncOne(join(folder, entry));
  await syncOne(folder);
}

async function syncOne(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
