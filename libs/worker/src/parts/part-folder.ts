// A folder as the place of objects: they are written there, under a name with the claim's token, and renamed. What claims
// of dead workers wrote goes with the end of the part.

import { createHash, randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, open, readFile, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { PartResult } from '@shoal/contract';
import { codeOf } from '@shoal/core/base';
import { refuseOtherManifest, takenName } from '../files/run-manifest.ts';
import { writing } from './part-object.ts';
import type { NamingTerms, PartTarget } from './part-place.ts';

export class FolderTarget implements PartTarget {
  readonly folder: string;
  readonly #stem: string;
  readonly #run: string;

  /** Links resolved. */
  constructor(folder: string, { stem, run }: { readonly stem: string; readonly run: string }) {
    this.folder = folder;
    this.#stem = stem;
    this.#run = run;
  }

  async checkRoom(): Promise<void> {
    // whoever asked for the run has looked, for all of its parts
  }

  async put(): Promise<void> {
    // it lies where it is committed
  }

  async remove(): Promise<void> {
    // it went with the file that was written
  }

  async name({ name, written, sha256 }: PartResult, { wasDone }: NamingTerms): Promise<boolean> {
    const path = this.pathOf(name);
    const from = join(this.folder, written);
    return writing(path, async () => {
      if (await mayBeThere(from, path)) {
        const found = (await wasDone()) ? undefined : await sha256Of(path);
        if (found !== undefined && found !== sha256) throw takenName(path, this.#run);
      }
      const isRenamed = await rename(from, path).then(
        () => true,
        (error: unknown) => (codeOf(error) === 'ENOENT' ? false : Promise.reject(error)),
      );
      if (!isRenamed && (await sha256Of(path)) !== sha256) return false;
      await syncFolder(this.folder);
      await removeBeside(this.folder, name);
      return true;
    });
  }

  async writeManifest(name: string, text: string): Promise<void> {
    const path = this.pathOf(name);
    await writing(path, async () => {
      const found = await readFile(path, 'utf8').catch((error: unknown) =>
        codeOf(error) === 'ENOENT' ? undefined : Promise.reject(error),
      );
      if (found !== undefined) refuseOtherManifest(path, found, this.#run);
      const beside = `${path}.${randomUUID()}`;
      try {
        await writeFile(beside, text, { flush: true });
        await rename(beside, path);
      } catch (error) {
        await rm(beside, { force: true });
        throw error;
      }
      await syncFolder(this.folder);
      await this.#removeLate();
    });
  }

  pathOf(name: string): string {
    return join(this.folder, name);
  }

  stop(): void {
    // a disk is not waited for
  }

  /** Of claims that ended behind their part. A longer stem is another run's. */
  async #removeLate(): Promise<void> {
    const names = (await readdir(this.folder)).filter((name) => name.startsWith(`${this.#stem}-`));
    const late = names.filter((name) => /^\d{5}\.\w+\./.test(name.slice(this.#stem.length + 1)));
    await Promise.all(late.map((name) => rm(join(this.folder, name), { force: true })));
  }
}

/** A name that nobody has yet is taken by a link, of which one of two succeeds; where there are none, a look has to do. */
async function mayBeThere(from: string, path: string): Promise<boolean> {
  try {
    await link(from, path);
    return false;
  } catch (error) {
    const code = String(codeOf(error));
    if (code === 'ENOENT') return false;
    if (code === 'EEXIST' || WITHOUT_LINKS.includes(code)) return true;
    throw error;
  }
}

const WITHOUT_LINKS = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK', 'EXDEV'];

/** What claims wrote of a part before it had its last name. */
export async function removeBeside(folder: string, name: string): Promise<void> {
  const others = (await readdir(folder)).filter((one) => one.startsWith(`${name}.`));
  await Promise.all(others.map((one) => rm(join(folder, one), { force: true })));
}

async function sha256Of(path: string): Promise<string | undefined> {
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
    return hash.digest('hex');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
