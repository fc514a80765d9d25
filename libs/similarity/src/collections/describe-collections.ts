// The collections of a folder as others are told of them: versions, rows, and what made the rows. Versions are written
// once, so what was read of one is kept until it is gone; a look at a folder that has not changed reads names alone.

import { open } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import type { CollectionFacts } from '@shoal/core/similarity';
import { listCollections, type CollectionInfo } from './collections.ts';
import { readAbout, readHeader } from './open-collection.ts';

export class CollectionsSeen {
  private readonly folder: string;
  private readonly aboutOf = new Map<string, Pick<CollectionFacts, 'model' | 'owner'>>();

  constructor(folder: string) {
    this.folder = folder;
  }

  /** By name; a damaged one is left out, since nobody can search in it. Throws what reading a folder throws. */
  async look(): Promise<readonly CollectionFacts[]> {
    const found = (await listCollections(this.folder)).filter((one): one is CollectionInfo => !('error' in one));
    const paths = new Set(found.map(({ path }) => path));
    for (const path of this.aboutOf.keys()) if (!paths.has(path)) this.aboutOf.delete(path);
    const told = await Promise.all(
      found.map(
        async ({ name, versions, rows, dims, dtype, createdMs, path }): Promise<CollectionFacts | undefined> => {
          const about = this.aboutOf.get(path) ?? (await aboutIn(path));
          if (about === undefined) return undefined;
          this.aboutOf.set(path, about);
          return { name, versions, rows, dims, dtype, createdMs, ...about };
        },
      ),
    );
    return told.filter((one) => one !== undefined);
  }
}

/** Undefined where it is gone, or is not what was written. */
async function aboutIn(path: string): Promise<Pick<CollectionFacts, 'model' | 'owner'> | undefined> {
  try {
    const { at, fileBytes } = await readHeader(path);
    const file = await open(path, 'r');
    try {
      const bytes = Buffer.alloc(fileBytes - at.about);
      await file.read(bytes, 0, bytes.length, at.about);
      const { model, owner } = readAbout(bytes, path);
      return { ...(model !== undefined && { model }), ...(typeof owner === 'string' && { owner }) };
    } finally {
      await file.close();
    }
  } catch (error) {
    const isGone = error instanceof Error && Reflect.get(error, 'code') === 'ENOENT';
    if (isGone || error instanceof ShoalError) return undefined;
    throw error;
  }
}
