// Where Shoal keeps what it can make or fetch again: models, graphs, the private queue server.

import { homedir } from 'node:os';
import { join } from 'node:path';

/** The setting `cacheDir` when given, else $XDG_CACHE_HOME/shoal, else ~/.cache/shoal. Absolute; not created here. */
export function cacheFolder(
  cacheDir: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  return cacheDir ?? join(environment['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'shoal');
}
