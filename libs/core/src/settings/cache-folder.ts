// Where Shoal keeps what it can make or fetch again: models, graphs, the private queue server. Models may lie apart.

import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Settings } from './schema.ts';

/** The setting `cacheDir` when given, else $XDG_CACHE_HOME/shoal, else ~/.cache/shoal. Absolute; not created here. */
export function cacheFolder(
  cacheDir: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  return cacheDir ?? join(environment['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'shoal');
}

export interface StoreFolders {
  readonly cacheDir: string;
  /** Undefined: models in cacheDir. */
  readonly modelsDir: string | undefined;
  readonly modelsReadOnly: boolean;
}

/** Where models lie, by the settings. */
export function storeFolders(
  settings: Pick<Settings, 'cacheDir' | 'modelsDir' | 'modelsReadOnly'>,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): StoreFolders {
  return {
    cacheDir: cacheFolder(settings.cacheDir, environment),
    modelsDir: settings.modelsDir,
    modelsReadOnly: settings.modelsReadOnly === 'yes',
  };
}
