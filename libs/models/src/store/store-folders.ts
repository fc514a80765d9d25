// Where models lie: in the cache folder, or in a folder of their own that several machines may share and that may be
// read-only. Only models lie there; locks, graphs and what was verified are the cache folder's where the other cannot
// be written.

import { accessSync, constants, existsSync } from 'node:fs';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';

export interface StoreOptions {
  readonly cacheDir: string;
  /** Folder of the models, one folder each. Default: models in cacheDir. */
  readonly modelsDir?: string | undefined;
  /** Nothing is written there even where it could be. */
  readonly modelsReadOnly?: boolean | undefined;
}

export function modelsFolder({ cacheDir, modelsDir }: StoreOptions): string {
  return modelsDir ?? join(cacheDir, 'models');
}

/** Whether the folder of the models is there and takes nothing. */
export function isReadOnly(options: StoreOptions): boolean {
  const folder = modelsFolder(options);
  if (options.modelsReadOnly === true) return true;
  if (!existsSync(folder)) return false;
  try {
    accessSync(folder, constants.W_OK);
    return false;
  } catch {
    return true;
  }
}

/** FILE_UNWRITABLE unless models may be written; `what` begins the sentence. */
export function expectWritable(options: StoreOptions, what: string): void {
  if (!isReadOnly(options)) return;
  const folder = modelsFolder(options);
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${what}: the folder of the models, ${folder}, is ` +
      `${options.modelsReadOnly === true ? 'only to be read (modelsReadOnly)' : 'read-only'}. Do it where it can be ` +
      'written, or choose another folder with modelsDir (SHOAL_MODELS_DIR)',
    { folder },
  );
}
