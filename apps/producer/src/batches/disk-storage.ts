// The storage in a folder: one file an object, modes for its owner alone. What is written lies in "tmp" until it is whole
// and synced, and then takes its name. A record is replaced under a lock between processes (libs/fetch), a new one by a
// link, which only one can make. All processes that share it must see one file system.

import { createHash, randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, mkdir, open, readFile, readdir, rename, rm, stat, type FileHandle } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import type { PartSource } from '@shoal/contract';
import { withLock } from '@shoal/fetch';
import {
  StorageFailure,
  namesIn,
  type OutputPlace,
  type Storage,
  type StoredObject,
  type WorkerAccess,
} from './storage.ts';

const OWNER_ALONE = { folder: 0o700, file: 0o600 };
/** Nobody writes one object for that long: a killed process left it. */
const ABANDONED_MS = 24 * 3_600_000;
const LOCK = { pollMs: 5, timeoutMs: 30_000 };

export class DiskStorage implements Storage {
  readonly place: string;
  readonly forWorkers: WorkerAccess;
  private readonly root: string;

  private constructor(root: string) {
    this.root = root;
    this.place = root;
    this.forWorkers = {
      source: (key) => this.source(key),
      output: (folder) => this.output(folder),
      object: (folder, name) => this.object(folder, name),
      clear: (folder) => this.clear(folder),
    };
  }

  /** Makes the folder where it is missing. Throws a StorageFailure where it cannot be written. */
  static async open(root: string): Promise<DiskStorage> {
    const storage = new DiskStorage(root);
    await attempt(`the folder ${root} cannot be used`, async () => {
      await makeFolder(join(root, 'tmp'));
      await storage.sweep();
      await storage.remove(await storage.probe());
    });
    return storage;
  }

  async read(key: string): Promise<StoredObject | undefined> {
    const path = this.pathOf(key);
    return attempt(`${path} cannot be read`, async () => {
      const bytes = await unlessMissing(readFile(path));
      return bytes === undefined ? undefined : { bytes, version: versionOf(bytes) };
    });
  }

  async replace(key: string, bytes: Uint8Array, version: string | undefined): Promise<string | undefined> {
    const path = this.pathOf(key);
    return attempt(`${path} cannot be written`, async () => {
      const part = await this.writePart([bytes]);
      try {
        const isPlaced =
          version === undefined
            ? await linked(part.path, path)
            : await withLock(this.lockOf(key), () => this.renamedIf(version, key, part.path), LOCK);
        return isPlaced ? versionOf(bytes) : undefined;
      } finally {
        await rm(part.path, { force: true });
      }
    });
  }

  async write(key: string, pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<number> {
    const path = this.pathOf(key);
    const { path: part, bytes } = await this.writePart(pieces);
    await attempt(`${path} cannot be written`, () => placed(part, path)).finally(() => rm(part, { force: true }));
    return bytes;
  }

  async open(key: string, from = 0): Promise<AsyncIterable<Uint8Array> | undefined> {
    const path = this.pathOf(key);
    const handle = await attempt(`${path} cannot be read`, () => unlessMissing(open(path, 'r')));
    if (handle === undefined) return undefined;
    return createReadStream(path, { fd: handle, start: from, highWaterMark: 1 << 18 });
  }

  async *names(folder: string, after = ''): AsyncGenerator<string, void, undefined> {
    const path = join(this.root, ...namesIn(folder));
    const entries = await attempt(`${path} cannot be listed`, () =>
      unlessMissing(readdir(path, { withFileTypes: true })),
    );
    const names = (entries ?? []).flatMap((entry) => (entry.isFile() && entry.name > after ? [entry.name] : []));
    yield* names.sort();
  }

  async remove(key: string): Promise<void> {
    const path = this.pathOf(key);
    await attempt(`${path} cannot be removed`, () => rm(path, { force: true }));
  }

  // ---- for workers: paths as this process sees them, so on a file system that they share with it -------------------

  private async source(key: string): Promise<PartSource | undefined> {
    const path = resolve(this.pathOf(key));
    const found = await attempt(`${path} cannot be read`, () => unlessMissing(stat(path)));
    return found && { kind: 'file', path, bytes: found.size, modifiedMs: found.mtimeMs };
  }

  private async output(folder: string): Promise<OutputPlace> {
    const path = resolve(this.pathOf(folder));
    await attempt(`${path} cannot be made`, () => makeFolder(path));
    return { kind: 'folder', folder: path };
  }

  private async object(folder: string, name: string): Promise<FileHandle | undefined> {
    const path = join(this.pathOf(folder), ...namesIn(name));
    return attempt(`${path} cannot be read`, () => unlessMissing(open(path, 'r')));
  }

  private async clear(folder: string): Promise<void> {
    const path = this.pathOf(folder);
    await attempt(`${path} cannot be removed`, () => rm(path, { recursive: true, force: true }));
  }

  private pathOf(key: string): string {
    return join(this.root, ...namesIn(key));
  }

  private lockOf(key: string): string {
    return join(this.root, 'locks', `${createHash('sha256').update(key).digest('hex').slice(0, 32)}.lock`);
  }

  /** Whether `part` has taken the place of an object that had this version. To be called under its lock. */
  private async renamedIf(version: string, key: string, part: string): Promise<boolean> {
    const found = await this.read(key);
    if (found?.version !== version) return false;
    await placed(part, this.pathOf(key));
    return true;
  }

  /** Throws what `pieces` throws as it is. */
  private async writePart(
    pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  ): Promise<{ readonly path: string; readonly bytes: number }> {
    const path = join(this.root, 'tmp', randomUUID());
    const handle = await attempt(`${path} cannot be made`, () => open(path, 'wx', OWNER_ALONE.file));
    let bytes = 0;
    try {
      for await (const piece of pieces) {
        await attempt(`${path} cannot be written`, () => writeAll(handle, piece));
        bytes += piece.length;
      }
      await attempt(`${path} cannot be written`, () => handle.sync());
      return { path, bytes };
    } catch (error) {
      await rm(path, { force: true });
      throw error;
    } finally {
      await handle.close();
    }
  }

  private async probe(): Promise<string> {
    const key = `probe-${randomUUID()}`;
    await this.write(key, [Buffer.from('shoal')]);
    return key;
  }

  private async sweep(): Promise<void> {
    const folder = join(this.root, 'tmp');
    for (const name of await readdir(folder)) {
      const path = join(folder, name);
      const found = await unlessMissing(stat(path));
      if (found !== undefined && Date.now() - found.mtimeMs > ABANDONED_MS) await rm(path, { force: true });
    }
  }
}

function versionOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex').slice(0, 32);
}

async function writeAll(handle: FileHandle, piece: Uint8Array): Promise<void> {
  for (let written = 0; written < piece.length;)
    written += (await handle.write(piece, written, piece.length - written)).bytesWritten;
}

async function makeFolder(path: string): Promise<void> {
  await mkdir(path, { recursive: true, mode: OWNER_ALONE.folder });
}

async function placed(part: string, path: string): Promise<void> {
  await makeFolder(dirname(path));
  await rename(part, path);
  await syncFolder(dirname(path));
}

/** False where something has that name already. */
async function linked(part: string, path: string): Promise<boolean> {
  await makeFolder(dirname(path));
  try {
    await link(part, path);
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false;
    throw error;
  }
  await syncFolder(dirname(path));
  return true;
}

async function syncFolder(path: string): Promise<void> {
  const handle = await open(path, 'r');
  await handle.sync().finally(() => handle.close());
}

async function unlessMissing<Found>(found: Promise<Found>): Promise<Found | undefined> {
  try {
    return await found;
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function attempt<Done>(what: string, act: () => Promise<Done>): Promise<Done> {
  try {
    return await act();
  } catch (error) {
    if (error instanceof StorageFailure) throw error;
    throw new StorageFailure(`${what}: ${error instanceof Error ? error.message : String(error)}`, error);
  }
}

function codeOf(error: unknown): unknown {
  return typeof error === 'object' && error !== null ? Reflect.get(error, 'code') : undefined;
}
