// Takes a model out of the store: its files, the graphs made of them, unfinished pulls of it. Whether somebody serves it
// is the caller's to find out. Files go at once under a name that nobody looks for, so a model is whole or absent here
// as well.

import { randomUUID } from 'node:crypto';
import type { Stats } from 'node:fs';
import { readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { withLock } from '@shoal/fetch';
import { dataPath, graphPaths } from '../graph/open-graph.ts';
import { pullsFolder, removePulls } from '../hub/pull-hub-model.ts';
import { KNOWN_MODELS } from './known-models.ts';
import { findModel, folderOf, isFolder } from './model-store.ts';
import { expectWritable, modelsFolder, type StoreOptions } from './store-folders.ts';
import { storing } from './storing.ts';

export interface RemovedModel {
  readonly name: string;
  readonly freedBytes: number;
  /** What is gone: folders and files. */
  readonly paths: readonly string[];
  /** Models that were made of its files and went with it. */
  readonly alsoGone: readonly string[];
}

/** MODEL_UNAVAILABLE when nothing of it is stored, FILE_UNWRITABLE where it cannot be taken away. */
export async function removeModel(name: string, options: StoreOptions): Promise<RemovedModel> {
  const known = await findModel(name, options);
  const made = KNOWN_MODELS.filter((other) => other.origin === 'quantized' && other.base.name === known.name);
  const names = [known.name, ...made.map((other) => other.name)];
  // a model that is made of another one's files has none of its own
  const folder = known.origin === 'quantized' ? undefined : folderOf(known, options);
  const [parent, isThere] = [folder && dirname(folder), folder !== undefined && (await isFolder(folder))];
  const graphs = (await Promise.all(names.map((each) => graphPaths(each, options.cacheDir)))).flat();
  if (!isThere && graphs.length === 0)
    throw new ShoalError('MODEL_UNAVAILABLE', `nothing of ${known.name} is stored in ${modelsFolder(options)}`, {
      name: known.name,
    });
  if (isThere) expectWritable(options, `${known.name} cannot be taken away`);
  return storing(options.modelsDir ?? options.cacheDir, async () => {
    let freedBytes = 0;
    if (parent !== undefined && isThere) {
      freedBytes += await bytesIn(parent);
      await withLock(join(modelsFolder(options), '.import.lock'), () => discard(parent));
      await removePulls(pullsFolder(options), known.name);
    }
    for (const file of graphs.flatMap((graph) => [graph, dataPath(graph)])) {
      freedBytes += (await stat(file).catch(() => undefined))?.size ?? 0;
      for (const path of [file, `${file}.sha256`]) await rm(path, { force: true });
    }
    const alsoGone = isThere ? made.map((other) => other.name) : [];
    return { name: known.name, freedBytes, paths: [...(isThere ? [parent!] : []), ...graphs], alsoGone };
  });
}

async function discard(folder: string): Promise<void> {
  for (const entry of await readdir(dirname(folder)))
    if (/^\.[0-9a-f]{8}\.part$/.test(entry)) await rm(join(dirname(folder), entry), { recursive: true }); // of one killed here
  const hidden = join(dirname(folder), `.${randomUUID().slice(0, 8)}.part`);
  await rename(folder, hidden);
  await rm(hidden, { recursive: true });
}

async function bytesIn(folder: string): Promise<number> {
  let bytes = 0;
  const add = ({ size, nlink }: Stats): void => void (bytes += nlink > 1 ? 0 : size); // its other forms have them, too
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }))
    if (entry.isFile()) add(await stat(join(entry.parentPath, entry.name)));
  return bytes;
}
