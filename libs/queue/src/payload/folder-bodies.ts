// Bodies in a folder that workers and producers share, such as one of NFS: a file a body, written beside and renamed, so
// that nobody reads half of one. Nothing is synced to disk, because what is lost is computed again. The folder must be
// there: one that is made here would be a folder of this machine alone. Files get the end of their time to live as time of
// change, and every process now and then deletes what is over in one of the 256 folders that files are spread over.

import { createHash, randomUUID } from 'node:crypto';
import { access, constants, mkdir, readFile, readdir, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Bodies, Looked, Remark } from './bodies.ts';

const SWEEP_EVERY_MS = 10_000;
/** Clocks of those who share the folder may differ by so much. */
const CLOCKS_DIFFER_MS = 600_000;

export class FolderBodies implements Bodies {
  private readonly folder: string;
  private readonly sweeping: NodeJS.Timeout;

  /** `folder`: its absolute path. */
  constructor(folder: string) {
    this.folder = folder;
    this.sweeping = setInterval(() => void this.sweep(anyPart()).catch(() => undefined), SWEEP_EVERY_MS).unref();
  }

  ready(): Promise<void> {
    return Promise.resolve();
  }

  async put(key: string, value: Buffer, ttlMs: number): Promise<void> {
    const path = this.pathOf(key);
    const written = `${path}.${randomUUID()}`;
    const over = new Date(Date.now() + ttlMs);
    try {
      await this.written(written, value);
      await utimes(written, over, over);
      await rename(written, path);
    } catch (error) {
      await rm(written, { force: true }).catch(() => undefined); // or it is swept away
      throw error;
    }
  }

  async get(key: string): Promise<Buffer | undefined> {
    try {
      return await readFile(this.pathOf(key));
    } catch (error) {
      if (codeOf(error) === 'ENOENT' && (await stat(this.folder)).isDirectory()) return undefined;
      throw error;
    }
  }

  async drop(keys: readonly string[]): Promise<void> {
    await Promise.all(keys.map((key) => rm(this.pathOf(key), { force: true })));
  }

  async look(): Promise<Looked> {
    if (!(await stat(this.folder)).isDirectory()) throw new Error(`${this.folder} is no folder`);
    await access(this.folder, constants.R_OK | constants.W_OK);
    return {};
  }

  giveUp(): void {
    // a call of the file system cannot be called off
  }

  close(): Promise<void> {
    clearInterval(this.sweeping);
    return Promise.resolve();
  }

  /** Where nothing is mounted, the folder under a mount point is there as well. */
  async remarks(): Promise<readonly Remark[]> {
    const [own, above] = await Promise.all([stat(this.folder), stat(dirname(this.folder))]);
    if (own.dev === above.dev) return [];
    return [
      {
        found: `${this.folder} is a mount point: while nothing is mounted there, bodies would go to a disk that nobody shares`,
        cure: 'name a folder inside of it, which is missing then',
      },
    ];
  }

  /** Deletes what is over in one of 256 folders: 00 to ff. */
  async sweep(part: string): Promise<void> {
    const folder = join(this.folder, part);
    for (const name of await readdir(folder)) {
      const path = join(folder, name);
      const { mtimeMs } = await stat(path);
      if (mtimeMs + CLOCKS_DIFFER_MS < Date.now()) await rm(path, { force: true });
    }
  }

  private async written(path: string, value: Buffer): Promise<void> {
    try {
      await writeFile(path, value, { flag: 'wx' });
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') throw error;
      await mkdir(dirname(path)).catch(unlessThere); // not the shared folder itself
      await writeFile(path, value, { flag: 'wx' });
    }
  }

  /** By a checksum, because keys have characters that names of files may not have. */
  private pathOf(key: string): string {
    const name = createHash('sha256').update(key).digest('hex');
    return join(this.folder, name.slice(0, 2), name);
  }
}

function anyPart(): string {
  return Math.floor(Math.random() * 256)
    .toString(16)
    .padStart(2, '0');
}

function unlessThere(error: unknown): void {
  if (codeOf(error) !== 'EEXIST') throw error; // else somebody else was first
}

function codeOf(error: unknown): string | undefined {
  return (error as NodeJS.ErrnoException).code;
}
